"""Argument parsing that raises our errors instead of exiting, and suggests what was meant.

argparse, because the live verbs run where nothing but torch, numpy and h5py may be installed.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from typing import Any, NoReturn

from precision_align.core.errors import UsageError
from precision_align.reporting.languages import LANGUAGES, say

PROGRAM = "precision-align"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose mistakes are :class:`UsageError`; sub-parsers made from it behave alike."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # an abbreviation that works today breaks when the next option is added
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)

    # positionals may stand on either side of an option: compare REFERENCE --json CANDIDATE
    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, with positionals and options mixed where no sub-verb or script follows."""
        if any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in self._actions):
            return super().parse_args(args, namespace)
        return self.parse_intermixed_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and exiting."""
        unknown = [part for part in message.split() if part.startswith("--")] if "unrecognized" in message else []
        options = [option for action in self._actions for option in action.option_strings]
        hint = "".join(f" {suggest(option.partition('=')[0], options)}" for option in unknown[:1]).rstrip()
        raise UsageError(f"{message}.{hint} {say('en', 'cli.see', command=self.prog)}")


def build_verb_parser(verb: str, summary: str) -> Parser:
    """A parser for one verb with the options that every verb has."""
    parser = Parser(prog=f"{PROGRAM} {verb}", description=summary[:1].upper() + summary[1:] + ".")
    add_shared_options(parser)
    return parser


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """``--json`` and ``--lang``; left out of the namespace where absent, so that sub-parsers do not undo them."""
    group = parser.add_argument_group("everywhere")
    group.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=say("en", "cli.option.json"))
    group.add_argument("--lang", choices=LANGUAGES, default=argparse.SUPPRESS, help=say("en", "cli.option.lang"))


def suggest(word: str, known: Iterable[str], language: str = "en") -> str:
    """ "Did you mean 'show'?", or "" where nothing is near."""
    near = difflib.get_close_matches(word.lower(), list(known), n=2, cutoff=0.6)
    return say(language, "cli.meant", names=" / ".join(f"'{name}'" for name in near)) if near else ""
