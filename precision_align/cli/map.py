"""``precision-align map``: the operator-mapping table: list, show, check, build."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precision_align.cli.output import print_json, print_log, print_text
from precision_align.core.errors import UsageError

if TYPE_CHECKING:
    from precision_align.library.loading import Library
    from precision_align.library.rows import MappingRow

SUMMARY = "look up what replaces an operator on Ascend and how it differs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``list``, ``show``, ``check`` and ``build``."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="{list,show,check,build}")
    _add_shared(verbs.add_parser("list", help="list all rows"))
    show = verbs.add_parser("show", help="show the rows of an operator, a row, a symbol or a module class")
    show.add_argument("name", metavar="OP", help="attention, M001, flash_attn.flash_attn_func, LlamaRMSNorm, ...")
    _add_shared(show)
    _add_shared(verbs.add_parser("check", help="report every problem of every row and case at once"))
    build = verbs.add_parser("build", help="write mapping.md and mapping.json")
    build.add_argument("-o", "--output", default="reports", metavar="DIR", help="where to (default: reports)")
    _add_shared(build)


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--library", metavar="DIR", help="a library of yours instead of the bundled one")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="machine-readable result")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0, or 1 where ``check`` found a problem."""
    if arguments.action == "check":
        return _check(arguments)
    from precision_align.library.loading import load_library

    library = load_library(arguments.library)
    if arguments.action == "build":
        return _build(library, Path(arguments.output))
    rows = library.rows if arguments.action == "list" else _find(library, arguments.name)
    _print(rows, arguments.json, full=arguments.action == "show")
    return 0


def _print(rows: Sequence[MappingRow], as_json: bool, full: bool) -> None:
    from precision_align.library.tables import render_list, render_row

    if as_json:
        print_json([row.to_dict() for row in rows])
    else:
        print_text("\n\n".join(map(render_row, rows)) if full else render_list(rows))


def _find(library: Library, name: str) -> list[MappingRow]:
    """By operator, id or symbol; else the best row for a class or operator name. Raises UsageError."""
    rows = [row for row in library.rows if name in (row.op, row.id, *row.symbols)]
    best = None if rows else library.lookup(name, name)
    if rows or best:
        return rows or [best] if best else rows
    known = [*library.operators, *(row.id for row in library.rows), *(s for row in library.rows for s in row.symbols)]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"operators are {', '.join(library.operators)}"
    raise UsageError(f"no row for {name!r}: {hint}")


def _check(arguments: argparse.Namespace) -> int:
    from precision_align.library.checking import check_library
    from precision_align.library.folders import find_folders

    result = check_library(find_folders(arguments.library))
    if arguments.json:
        print_json({"problems": result.problems, "notes": result.notes, "rows": result.rows, "cases": result.cases})
    else:
        summary = f"{result.rows} rows, {result.cases} cases, {len(result.problems)} problem(s)"
        print_text("\n".join([*result.problems, *result.notes, summary]))
    return 1 if result.problems else 0


def _build(library: Library, folder: Path) -> int:
    from precision_align.library.tables import render_json, render_markdown

    files = {"mapping.md": render_markdown(library.rows), "mapping.json": render_json(library.rows)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error}") from error
    print_log(f"wrote {', '.join(str(folder / name) for name in files)}")
    return 0
