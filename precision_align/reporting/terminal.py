"""The first screen: verdict, place, evidence, next command, in 80 columns and, where all of it fits, 24 lines."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

from precision_align.core.results import Curve, Divergence, Findings
from precision_align.core.terms import Verdict
from precision_align.reporting.commands import suggest_command
from precision_align.reporting.languages import say, translate
from precision_align.reporting.visibility import phrase_detectability
from precision_align.reporting.wording import (
    describe_mapping,
    format_number,
    format_share,
    measure_excess,
    name_scope,
    order_metrics,
    phrase_excess,
    phrase_verdict,
    quote,
)

_SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_TONES = {Verdict.ALIGNED: "green", Verdict.DIVERGED: "red", Verdict.NOT_COMPARABLE: "yellow"}
LINES = 24  # a wish: nothing of the first divergence is cut to reach it
WHOLE = 10**6  # as many lines as it takes
_NOTE_LINES = 3  # of the first of many notes; the other reports have them all
_GUTTER = 13  # widest heading, and two spaces on either side
_ASCII = {
    "█": "#",
    "▓": "=",
    "│": "|",
    "├": "|",
    "└": "`",
    "─": "-",
    "→": "->",
    "×": "x",
    "·": "-",
    "…": "...",
    "≤": "<=",
    "–": "-",
    "—": "-",
    "’": "'",
    "“": '"',
    "”": '"',
}


def render(
    report: Findings,
    width: int = 80,
    color: bool = False,
    *,
    language: str = "en",
    encoding: str = "utf-8",
) -> str:
    """The report's first screen.

    ``width`` in columns (at least 40 are used); ``encoding``: what the terminal can show. Chinese falls back to English
    where it cannot be encoded, and every other character to ASCII or an escape. No line ends in blanks.
    """
    if language != "en" and not _can_encode(say(language, "verdict.aligned"), encoding):
        language = "en"
    screen = _Screen(max(width, 40), color, language)
    head, following = _render_head(screen, report), _render_next(screen, report)
    body = screen.fit(_list_fields(screen, report), LINES - len(head) - len(following))
    lines = [*head, *body, *following]
    return to_encodable("\n".join(line.rstrip() for line in lines) + "\n", encoding)


def to_encodable(text: str, encoding: str) -> str:
    """The same text in characters that ``encoding`` has."""
    if _can_encode(text, encoding):
        return text
    for character, plain in _ASCII.items():
        if not _can_encode(character, encoding):
            text = text.replace(character, plain)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def measure_width(text: str) -> int:
    """Columns that a text takes: East Asian wide characters two, combining ones none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def fold(text: str, width: int) -> list[str]:
    """Break a text into lines of at most ``width`` columns, at blanks where it has some, else anywhere."""
    if measure_width(text) == len(text):
        return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    lines, line, used = [], "", 0
    for word in _split_wide(text):
        size = measure_width(word)
        if used + size > width and line:
            lines.append(line.rstrip())
            line, used = "", 0
            word = word.lstrip()
            size = measure_width(word)
        while size > width:
            head = next(word[:end] for end in range(len(word), 0, -1) if measure_width(word[:end]) <= max(width, 2))
            lines.append(head)
            word = word[len(head) :]
            size = measure_width(word)
        line, used = line + word, used + size
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def _split_wide(text: str) -> Iterator[str]:
    """Words with the blanks before them; a wide character is a word of its own."""
    word = ""
    for character in text:
        wide = measure_width(character) == 2
        if wide or (character == " " and word.strip()):
            if word:
                yield word
            word = character
            if wide:
                yield word
                word = ""
        else:
            word += character
    if word:
        yield word


@dataclass(frozen=True)
class _Field:
    """One labelled paragraph of at most ``lines`` lines; where the screen is full, ``optional`` ones go."""

    label: str
    text: str
    lines: int
    optional: bool
    tones: tuple[str, ...]


class _Screen:
    """Lays out labelled paragraphs."""

    def __init__(self, width: int, color: bool, language: str) -> None:
        self.width, self.color, self.language = width, color, language

    def paint(self, text: str, *tones: str) -> str:
        if not self.color or not text:
            return text
        return f"\x1b[{';'.join(_SGR[tone] for tone in tones)}m{text}\x1b[0m"

    def say(self, key: str, **values: object) -> str:
        return say(self.language, key, **values)

    def field(self, key: str, text: str, *tones: str, lines: int = WHOLE, optional: bool = False) -> _Field:
        return _Field(self.say(key) if key else "", text, lines, optional, tones)

    def fit(self, fields: Sequence[_Field], room: int) -> list[str]:
        """All paragraphs; of the optional ones those that ``room`` lines have space for, the last one first."""
        laid = [(field, self.lay(field)) for field in fields if field.text]
        left = room - sum(len(lines) for field, lines in laid if not field.optional)
        shown = []
        for field, lines in reversed(laid):
            if not field.optional or len(lines) <= left:
                left -= len(lines) if field.optional else 0
                shown.append(lines)
        return [line for lines in reversed(shown) for line in lines]

    def lay(self, field: _Field) -> list[str]:
        """A paragraph beside its heading."""
        pad = " " * max(_GUTTER - 2 - measure_width(field.label), 1)
        room = self.width - _GUTTER
        first, *rest = (self.paint(line, *field.tones) if field.tones else line for line in
                        cut(fold(field.text, room), field.lines, room))  # fmt: skip
        head = f"  {self.paint(field.label, 'dim')}{pad}" if field.label else " " * _GUTTER
        return [head + first, *(" " * _GUTTER + line for line in rest)]


def cut(lines: Sequence[str], count: int, width: int) -> list[str]:
    """The first ``count`` lines; an ellipsis says that there was more."""
    if len(lines) <= count:
        return list(lines)
    last = lines[count - 1]
    while measure_width(last) > width - 2:
        last = last[:-1]
    return [*lines[: count - 1], f"{last.rstrip()} …"]


def clip(line: str, width: int) -> str:
    """One line that fits ``width`` columns; an ellipsis says that there was more."""
    # lazily, from the start: a line may be very long
    ends = list(takewhile(lambda used: used <= width, accumulate(map(measure_width, line))))
    if len(ends) == len(line):
        return line
    return f"{line[: sum(used < width for used in ends)].rstrip()}…"


def _render_head(screen: _Screen, report: Findings) -> list[str]:
    verdict = Verdict(report.verdict)
    word = screen.say(f"verdict.{verdict}").upper()
    first, *rest = fold(f"{word}  {phrase_verdict(report, screen.language)}", screen.width)
    first = screen.paint(word, "bold", _TONES[verdict]) + screen.paint(first[len(word) :], "bold")
    return [first, *(screen.paint(line, "bold") for line in rest), ""]


def _list_fields(screen: _Screen, report: Findings) -> list[_Field]:
    fields: list[_Field] = []
    if report.first is not None:
        fields += _list_place(screen, report.first)
        fields += _list_reasons(screen, report.first)
        fields += _list_mapping(screen, report.first)
        others = [found for found in report.frontier if found != report.first]
        if others:
            places = ", ".join(_name_place(screen, found) for found in others[:3])
            fields.append(screen.field("others", screen.say("others.text", count=len(others), places=places)))
    fields += [screen.field("loss", _phrase_curve(screen, curve), optional=True) for curve in list(report.curves)[:1]]
    fields.append(screen.field("coverage", _phrase_coverage(screen, report)))
    seen = phrase_detectability(report, screen.language)
    if seen:
        fields.append(screen.field("detectable", seen, optional=True))
    if report.notes:
        counter = f"[1/{len(report.notes)}] " if len(report.notes) > 1 else ""
        fields.append(screen.field("notes", counter + quote(report.notes[0]), lines=_NOTE_LINES))
    return fields


def _list_place(screen: _Screen, found: Divergence) -> list[_Field]:
    place = [name_scope(found.scope, screen.language), screen.say(f"phase.short.{found.phase}")]
    place += [screen.say(f"at.{name}", number=getattr(found, name)) for name in ("step", "call")]
    place += [screen.say("at.rank", number=found.rank)] if found.rank else []
    fields = [screen.field("where", " · ".join(place), "bold")]
    code = "  ".join(quote(part) for part in (found.op, found.source) if part)
    if measure_width(code) + _GUTTER <= screen.width:
        return [*fields, screen.field("operator", code)]
    fields.append(screen.field("operator", quote(found.op)))
    return [*fields, screen.field("source", quote(found.source))]


def _list_reasons(screen: _Screen, found: Divergence) -> list[_Field]:
    shown = [(name, value) for name, value in order_metrics(found.metrics, found.limit) if name != "worst_index"]
    fields = [_phrase_measured(screen, found, *shown[0])] if shown else []
    rest = "  ".join(f"{quote(name)} {format_number(value)}" for name, value in shown[1:6])
    fields.append(screen.field("", rest, optional=True))
    fields.append(screen.field("evidence", quote(found.evidence)))
    for number, guess in enumerate(list(found.explanations)[:2]):
        text = f"{screen.say('leaves', share=format_share(guess.residual))} {quote(guess.text or guess.name)}"
        fields.append(screen.field("" if number else "explanations", text, optional=number > 0))
    return fields


def _phrase_measured(screen: _Screen, found: Divergence, name: str, value: float) -> _Field:
    text = f"{translate(screen.language, f'metric.{name}', quote(name))}: {format_number(value)}"
    excess = measure_excess(found.metrics, found.limit)
    if excess is None or found.limit is None:
        return screen.field("measured", text)
    text += f", {screen.say('limit')} {format_number(found.limit.value)}"
    text += f" ({phrase_excess(found.metrics, found.limit, screen.language)})"
    return screen.field("measured", text, "red" if excess > 1 else "bold")


def _list_mapping(screen: _Screen, found: Divergence) -> list[_Field]:
    if found.mapping is None:
        return [screen.field("mapping", screen.say("no_row"), "dim", optional=True)] if found.op else []
    row = describe_mapping(found.mapping, found.op)
    cases = "  ".join(f"{quote(case.name)}: {quote(case.status) or screen.say('case.unrun')}" for case in row.cases[:4])
    pitfall = quote(row.pitfalls[0]) if row.pitfalls else ""
    return [
        screen.field("mapping", quote(row.title)),
        screen.field("pitfalls", pitfall, optional=True),
        screen.field("cases", cases),
    ]


def _name_place(screen: _Screen, found: Divergence) -> str:
    return f"{name_scope(found.scope, screen.language)} ({screen.say(f'phase.short.{found.phase}')})"


def _phrase_curve(screen: _Screen, curve: Curve) -> str:
    if curve.onset is None:
        return screen.say("together", name=quote(curve.name))
    return screen.say("parts", name=quote(curve.name), step=curve.onset)


def _phrase_coverage(screen: _Screen, report: Findings) -> str:
    parts = []
    for phase, seen in report.coverage.items():
        counts = "" if seen.judged == seen.recorded else f" ({seen.judged}/{seen.recorded})"
        counts += f" ({screen.say('page.sampled', count=seen.sampled)})" if seen.sampled else ""
        parts.append(f"{screen.say(f'phase.short.{phase}')} {format_share(seen.share)}{counts}")
    return " · ".join(parts) or screen.say("nothing_recorded")


def _render_next(screen: _Screen, report: Findings) -> list[str]:
    command = suggest_command(report)
    return ["", f"{screen.say('next')} {screen.paint(command, 'bold')}"] if command else []
