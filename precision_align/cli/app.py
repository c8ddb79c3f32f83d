"""The command ``precision-align``: finds the verb, runs it, turns every error into a message and an exit status.

A verb is a module beside this one with ``SUMMARY``, ``add_arguments(parser)`` and ``run(arguments) -> int``. It is
imported only when it is called, so that ``--help`` needs neither numpy nor h5py nor torch.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from precision_align import __version__
from precision_align.cli.failures import phrase_crash, phrase_error, phrase_exit, recognize
from precision_align.cli.parsers import PROGRAM, build_verb_parser, suggest
from precision_align.core.errors import PrecisionAlignError, UsageError
from precision_align.reporting.languages import LANGUAGES, detect_language, say

VERBS = (
    "demo",
    "capture",
    "collect",
    "show",
    "compare",
    "regimes",
    "certify",
    "bisect",
    "pack",
    "unpack",
    "loss",
    "health",
    "checkpoint",
    "image",
    "quant",
    "baseline",
    "reduce",
    "case",
    "golden",
    "map",
    "scan",
    "doctor",
    "report",
)

HELP_WIDTH = 80
CRASHED = 3
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
PIPE_CLOSED = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line. Returns the exit status; raises nothing but what PRECISION_ALIGN_TRACEBACK asks for."""
    from precision_align.cli.output import finish_output, prepare_streams

    prepare_streams()
    _disarm()
    words = list(sys.argv[1:] if argv is None else argv)
    language = find_language(words)
    try:
        status = _dispatch(words, language)
        finish_output()
        return status
    except SystemExit as stop:  # argparse after --help
        return stop.code if isinstance(stop.code, int) else 2 if stop.code else 0
    except BrokenPipeError:
        return _leave_pipe()
    except KeyboardInterrupt:
        _print_error(say(language, "cli.interrupted"))
        return INTERRUPTED
    except PrecisionAlignError as error:
        _show_traceback_if_asked()
        _print_error(phrase_error(error, language))
        return error.exit_status
    except Exception as error:
        _show_traceback_if_asked()
        known = recognize(error)
        if known:
            _print_error(phrase_error(known, language))
            return known.exit_status
        _print_error(phrase_crash(error, language))
        return CRASHED


def _disarm() -> None:
    if "PRECISION_ALIGN" in os.environ:  # it is for programs that train
        from precision_align.recording.arming import disarm

        disarm()


def find_language(words: Sequence[str]) -> str:
    """The language asked for before any ``--``, else the locale's. A wrong choice is reported by the parser."""
    own = words[: words.index("--")] if "--" in words else words
    for index, word in enumerate(own):
        value = own[index + 1] if word == "--lang" and index + 1 < len(own) else word.partition("--lang=")[2]
        if value in LANGUAGES:
            return value
    return detect_language()


def render_help(language: str) -> str:
    """The root help: every verb with its summary, from the tables alone."""
    from precision_align.reporting.terminal import fold

    width = max(len(verb) for verb in VERBS) + 2
    verbs = [f"  {verb:<{width}}{say(language, f'verb.{verb}')}" for verb in VERBS]
    options = (("-h, --help", "help"), ("--version", "version"), ("--lang en|zh", "lang"), ("--json", "json"))
    lines = [
        say(language, "cli.usage", program=PROGRAM),
        "",
        *fold(say(language, "cli.description"), HELP_WIDTH),
        "",
        f"{say(language, 'cli.verbs')}:",
        *verbs,
        "",
        f"{say(language, 'cli.options')}:",
        *(f"  {name:<{width + 5}}{say(language, f'cli.option.{key}')}" for name, key in options),
        "",
        *fold(say(language, "cli.verb.help", program=PROGRAM), HELP_WIDTH),
        *fold(say(language, "cli.status"), HELP_WIDTH),
        "",
        say(language, "cli.first", program=PROGRAM),
    ]
    return "\n".join(lines)


def _dispatch(words: list[str], language: str) -> int:
    from precision_align.cli.output import print_text

    place = _find_verb(words)
    head = words[:place]
    if "--version" in head:
        print_text(f"{PROGRAM} {__version__}")
        return 0
    if "-h" in head or "--help" in head or not words:
        print_text(render_help(language))
        return 0
    _check_head(head, language)
    if place == len(words):
        raise UsageError(f"no verb is given: {say(language, 'cli.see', command=PROGRAM)}")
    arguments, module = _parse(words[place], words[place + 1 :], "--json" in head, language)
    try:
        return int(module.run(arguments))
    except SystemExit as stop:  # of the user's model, factory or operator: it says nothing about our result
        call = phrase_exit(stop)
        raise UsageError(f"code that was run for this command ended the program ({call}): there is no result") from stop


def _find_verb(words: Sequence[str]) -> int:
    """Index of the first word that is neither an option nor the value of --lang."""
    index = 0
    while index < len(words) and words[index].startswith("-"):
        index += 2 if words[index] == "--lang" else 1
    return min(index, len(words))


def _check_head(head: Sequence[str], language: str) -> None:
    known = ("--help", "--version", "--lang", "--json")
    for index, word in enumerate(head):
        if word in known or word.startswith("--lang="):
            value = word.partition("=")[2] if "=" in word else head[index + 1] if index + 1 < len(head) else ""
            if word.startswith("--lang") and value not in LANGUAGES:
                raise UsageError(f"--lang takes {' or '.join(LANGUAGES)}, not {value!r}")
        elif not (index and head[index - 1] == "--lang"):
            hint = suggest(word, known, language)
            raise UsageError(f"unknown option {word!r}. {hint} {say(language, 'cli.see', command=PROGRAM)}")


def _parse(verb: str, rest: list[str], json: bool, language: str) -> tuple[Namespace, ModuleType]:
    if verb not in VERBS:
        hint = suggest(verb, VERBS, language)
        text = f"{say(language, 'cli.unknown', verb=verb)} {hint}".rstrip()
        raise UsageError(f"{text} {say(language, 'cli.see', command=PROGRAM)}")
    module = import_module(f"precision_align.cli.{verb}")
    parser = build_verb_parser(verb, module.SUMMARY)
    module.add_arguments(parser)
    arguments = parser.parse_args(rest)
    arguments.json = json or getattr(arguments, "json", False)
    arguments.lang = getattr(arguments, "lang", language)
    return arguments, module


def _print_error(text: str) -> None:
    from precision_align.cli.output import print_log

    print_log(text)


def _show_traceback_if_asked() -> None:
    if os.environ.get("PRECISION_ALIGN_TRACEBACK"):
        import traceback

        traceback.print_exc()


def _leave_pipe() -> int:
    """The reader (head, less) has closed: say nothing."""
    from precision_align.cli.output import abandon

    abandon(sys.stdout)
    return PIPE_CLOSED
