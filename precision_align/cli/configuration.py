"""``capture.toml``: the options of the verb ``capture`` in a file, for PRECISION_ALIGN in the environment."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from precision_align.cli import capture
from precision_align.cli.parsers import build_verb_parser, suggest
from precision_align.core.documents import read_document
from precision_align.core.errors import UsageError

_WITHOUT = ("help", "json", "lang", "script", "dry_run")  # a dry run ends the script
PATHS = (
    "output",
    "plan",
    "force",
    "node_local",
    "save_start",
    "start_from",
    "checkpoint",
)  # relative to the file: nodes start programs in folders of their own


def read_configuration(path: str) -> Any:
    """The launch options that a file describes. Raises UsageError with all its mistakes at once.

    The keys are the verb's long options, with "_" for "-"; what may be given more than once is a list, ``payload`` may
    be a table of globs and tiers too. Paths are relative to the file.
    """
    place = Path(path).absolute()
    table = read_document(place, "the configuration")
    if not isinstance(table, dict):
        raise UsageError(f"the configuration {place} must be a table of options")
    parser = build_verb_parser("capture", capture.SUMMARY)
    capture.add_arguments(parser)
    actions = {action.dest: action for action in parser._actions if action.dest not in _WITHOUT}
    arguments = argparse.Namespace(**{name: action.default for name, action in actions.items()}, dry_run=False)
    problems = []
    for key, value in table.items():
        action = actions.get(key)
        if action is None:
            problems.append(f"unknown key {key!r}. {suggest(key, actions)}".rstrip(" ."))
            continue
        problems += _find_problems(action, value)
        setattr(arguments, key, _convert(action, value, place.parent))
    options: Optional[Any] = None
    try:
        options = None if problems else _make_options(arguments)
    except UsageError as error:
        problems.append(str(error))
    if options is None:
        raise UsageError(f"the configuration {place}: {'; '.join(problems)}")
    return options


def _make_options(arguments: argparse.Namespace) -> Any:
    from precision_align.recording.launching import check_options

    options = capture.read_options(arguments)
    check_options(options)
    return options


def _is_list(action: argparse.Action) -> bool:
    return isinstance(action, argparse._AppendAction)


def _find_problems(action: argparse.Action, value: Any) -> Iterator[str]:
    if action.nargs == 0:
        if not isinstance(value, bool):
            yield f"{action.dest} is true or false, not {value!r}"
    elif action.type is not None:
        if isinstance(value, bool) or not isinstance(value, (int, float) if action.type is float else int):
            yield f"{action.dest} is a number, not {value!r}"
    elif action.choices is not None:
        if value not in action.choices:
            yield f"{action.dest} is one of {', '.join(map(str, action.choices))}, not {value!r}"
    elif not _is_text(action, value):
        yield f"{action.dest} is a text{' or a list of texts' if _is_list(action) else ''}, not {value!r}"


def _is_text(action: argparse.Action, value: Any) -> bool:
    if isinstance(value, dict):
        return action.dest == "payload" and all(isinstance(tier, str) for tier in value.values())
    items = value if isinstance(value, list) else [value]
    kinds = (str,) if _is_list(action) else (str, int)  # steps = [3, 10], or "3,10-12"
    return all(isinstance(item, kinds) and not isinstance(item, bool) for item in items)


def _convert(action: argparse.Action, value: Any, folder: Path) -> Any:
    """The value as the parser would have it."""
    if isinstance(value, dict):
        return [f"{glob}={tier}" for glob, tier in value.items()]
    if _is_list(action):
        return value if isinstance(value, list) else [value]
    if action.nargs == 0 or action.type is not None:
        return value
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return str(folder / text) if action.dest in PATHS else text
