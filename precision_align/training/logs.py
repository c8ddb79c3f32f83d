"""Steps and values out of plain training logs, by pattern.

The built-in patterns read lines such as::

     iteration      100/     500 | consumed samples:  25600 | lm loss: 1.234567E+00 | loss scale: 1.0 | grad norm: 0.5 |
    steps: 100 loss: 1.2346 iter time (s): 0.512 samples/sec: 62.5
    {'loss': 1.2346, 'grad_norm': 0.5, 'learning_rate': 5e-05, 'epoch': 0.1}
    step 100, loss=1.2346
    { Epoch:[  1/  2], step:[  100/ 500], loss: 1.2346, lr: 1.0e-06, loss_scale: 65536, global_norm: [0.5] }
     20%|##        | 100/500 [00:51<03:25, loss=1.23]
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from precision_align.core.errors import DumpNotFound, LogUnreadable, UsageError
from precision_align.training.series import Entry

NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STEP = re.compile(r"(?<!\w)(?:global[ _]?step|iteration|iter|steps?|it)\b['\"]?\s*[:=\[(#]*\s*(\d+)", re.IGNORECASE)
_PROGRESS = re.compile(r"(?<![\w./-])(\d+)\s*/\s*\d+(?![\w./-])")
# "val loss" is not the training loss, nor is the auxiliary loss of a multi-token head
_OTHER_SERIES = re.compile(r"(?:val|valid|validation|eval|evaluation|test|dev|aux|mtp_?\d*) ", re.IGNORECASE)
_MAIN_SERIES = re.compile(r"|(?:lm|train|training)[ _]", re.IGNORECASE)
_MAX_LINE = 20_000  # characters searched in one line: a log line is shorter, a dumped tensor is not


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a text file, terminal colours removed. Raises DumpNotFound, LogUnreadable."""
    if path.exists() and not path.is_file():
        raise LogUnreadable(f"{path} is no regular file; a log is read more than once, so save it to a file first")
    try:
        with _open_text(path) as file:
            for number, line in enumerate(file, 1):
                if "\0" in line:
                    raise LogUnreadable(
                        f"{path} line {number} holds zero bytes: this is no text in UTF-8. Save it as UTF-8 "
                        "(PowerShell's '>' writes UTF-16); TensorBoard's own files keep the name they were written with"
                    )
                yield number, _COLOUR.sub("", line)
    except FileNotFoundError as error:
        raise DumpNotFound(f"no file or folder at {path}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise LogUnreadable(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _open_text(path: Path) -> TextIO:
    """A text file, also a gzipped one, whatever its name."""
    with path.open("rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
    if gzipped:
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace")
    return path.open(encoding="utf-8-sig", errors="replace")


def read_log(path: Path, name: str, pattern: str | None = None) -> list[Entry]:
    """Every value of the series ``name`` in a plain log, in the order of its lines.

    ``pattern``: a regular expression with a group named "value" and, where the line names its step, one named "step";
    or one (value) or two (step, value) unnamed groups. Raises LogUnreadable, UsageError.
    """
    if pattern is not None:
        return _read_by_pattern(path, compile_pattern(pattern))
    entries: list[Entry] = []
    value_pattern = _value_pattern(name)
    for number, line in read_lines(path):
        found = _find_value(path, number, line[:_MAX_LINE], value_pattern, name)
        if found is not None:
            entries.append(Entry(_find_step(line[:_MAX_LINE]), float(found), f"line {number}", found))
    return entries or _read_two_columns(path)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A user's pattern, checked. Raises UsageError."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"pattern {pattern!r} is no regular expression: {error}") from error
    if "value" not in compiled.groupindex and not 1 <= compiled.groups <= 2:
        raise UsageError(
            f"pattern {pattern!r} has {compiled.groups} groups; it needs (?P<value>...) and (?P<step>...), or one "
            "group for the value, or two for step and value"
        )
    return compiled


def _read_by_pattern(path: Path, pattern: re.Pattern[str]) -> list[Entry]:
    entries = []
    for number, line in read_lines(path):
        match = pattern.search(line)
        if match is not None:
            entries.append(_entry_of_match(path, number, match))
    return entries


def _entry_of_match(path: Path, number: int, match: re.Match[str]) -> Entry:
    groups = match.re.groupindex
    if "value" in groups:
        value, step = match["value"], match["step"] if "step" in groups else None
    else:
        value, step = match[match.re.groups], match[1] if match.re.groups == 2 else None
    try:
        return Entry(None if step is None else int(step), float(value), f"line {number}", value)
    except (TypeError, ValueError) as error:
        raise LogUnreadable(
            f"{path} line {number}: the pattern took {step!r} for the step and {value!r} for the value; "
            "the step must be an integer and the value a number"
        ) from error


def _value_pattern(name: str) -> re.Pattern[str]:
    words = r"[ _]".join(re.escape(word) for word in re.split(r"[ _]", name.strip()))
    label = rf"(?<![\w./-])((?:[A-Za-z]\w*[ ]|lm_|train_|training_)?){words}['\"]?"
    return re.compile(rf"{label}\s*[:=]?\s*(?:tensor\(\s*|\[\s*)?['\"]?({NUMBER})(?![\w.])", re.IGNORECASE)


def _find_value(path: Path, number: int, line: str, pattern: re.Pattern[str], name: str) -> str | None:
    matches = [match for match in pattern.finditer(line) if not _OTHER_SERIES.fullmatch(match[1])]
    main = [match for match in matches if _MAIN_SERIES.fullmatch(match[1])]
    found = [match[2] for match in main or matches]
    if not found:
        return None
    if len({text.lower() for text in found}) > 1:
        raise LogUnreadable(
            f"{path} line {number} has {len(found)} values of {name!r}: {', '.join(found[:4])}. "
            "Name the series more exactly, such as 'lm loss', or give a pattern with (?P<step>...) and (?P<value>...)"
        )
    return found[0]


def _find_step(line: str) -> int | None:
    match = _STEP.search(line) or _PROGRESS.search(line)
    return int(match[1]) if match else None


def _read_two_columns(path: Path) -> list[Entry]:
    """A file of nothing but "step value" lines; [] if it is anything else."""
    entries = []
    for number, line in read_lines(path):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        if len(parts) != 2 or not parts[0].isdecimal() or not re.fullmatch(NUMBER, parts[1], re.IGNORECASE):
            return []
        entries.append(Entry(int(parts[0]), float(parts[1]), f"line {number}", parts[1]))
    return entries


def list_names(lines: Iterable[str]) -> list[str]:
    """Names that look like series in some lines ("lm loss: 1.2", "'grad_norm': 0.5"), for an error message."""
    label = re.compile(rf"(?<![\w/])([A-Za-z][\w/]*(?: [A-Za-z]\w*){{0,2}})['\"]?\s*[:=]\s*{NUMBER}(?![\w.:])")
    found: dict[str, None] = {}
    for line in lines:
        found.update((match[1].lower(), None) for match in label.finditer(line[:_MAX_LINE]))
    return list(found)[:12]
