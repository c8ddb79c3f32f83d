"""``precision-align map``: the operator-mapping table: list, show, check, build, add, diff, routes."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precision_align.cli.output import print_json, print_log, print_text
from precision_align.core.errors import UsageError

if TYPE_CHECKING:
    from precision_align.library.evidence import Proof
    from precision_align.library.loading import Library
    from precision_align.library.rows import MappingRow

SUMMARY = "look up what replaces an operator on Ascend and how it differs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``list``, ``show``, ``check``, ``build``, ``add``, ``diff`` and ``routes``."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="{list,show,check,build,add,diff,routes}")
    listed = verbs.add_parser("list", help="list all rows, or those of a kind, a status, a torch_npu release")
    listed.add_argument("--kind", help="fused, native, composed, third party, custom kernel needed, ...")
    listed.add_argument("--status", choices=("verified", "unverified"))
    listed.add_argument("--torch-npu", metavar="VERSION", help="rows whose replacement that release has")
    _add_shared(listed)
    show = verbs.add_parser("show", help="show the rows of an operator, a row, a symbol or a module class")
    show.add_argument("name", metavar="OP", help="attention, M001, flash_attn.flash_attn_func, LlamaRMSNorm, ...")
    _add_evidence(show)
    _add_shared(show)
    check = verbs.add_parser("check", help="report every problem of every row, case and proof at once")
    _add_evidence(check)
    _add_shared(check)
    build = verbs.add_parser("build", help="write mapping.md, mapping.json and mapping.html, a page to search")
    _add_evidence(build)
    build.add_argument("-o", "--output", default="reports", metavar="DIR", help="where to (default: reports)")
    _add_shared(build)
    _add_adding(verbs.add_parser("add", help="add a row to a library of your own, to fill in"))
    _add_routing(verbs.add_parser("routes", help="record aten -> CANN operators from torch_npu on a stub CANN"))
    _add_diffing(verbs.add_parser("diff", help="what changed between two torch_npu wheels, and the rows it touches"))


def _add_routing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheel", metavar="DIR", help="folder of pip install --no-deps --target DIR torch_npu==VERSION")
    parser.add_argument("--soc", default="Ascend910B1", help="the chip's name (default: Ascend910B1)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the routes as JSON")
    parser.add_argument("--against", metavar="FILE", help="show what differs from routes that were written earlier")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="machine-readable result")


def _add_adding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op", metavar="OP", help="the operator's name, which is its folder's: my_rms_norm")
    parser.add_argument("--symbol", action="append", required=True, help="full name in your source; may be repeated")
    parser.add_argument("--kind", default="fused", help="how it gets to the NPU (default: fused)")
    parser.add_argument("--function", default="", help="the formula")
    parser.add_argument("--replacement", default="", help="the call to write on Ascend")
    parser.add_argument("--where", default="", help="where you saw it: repository@commit:path, a page, a wheel")
    parser.add_argument("--library", metavar="DIR", required=True, help="your library; it is made where it is missing")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="machine-readable result")


def _add_diffing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD.whl", help="a torch_npu wheel, or a folder it was unpacked to")
    parser.add_argument("new", metavar="NEW.whl", help="the one to compare with")
    parser.add_argument("--scan", metavar="PATH", help="name the lines of this source tree that call what changed")
    _add_shared(parser)


def _add_evidence(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--evidence",
        metavar="FILE",
        help="evidence store of case run --record (default: reports/evidence.json, if any)",
    )


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--library", metavar="DIR", help="a library of yours instead of the bundled one")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="machine-readable result")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0, or 1 where ``check`` found a problem."""
    if arguments.action == "check":
        return _check(arguments)
    if arguments.action in ("add", "routes"):
        return _add(arguments) if arguments.action == "add" else _routes(arguments)
    from precision_align.library.loading import load_library

    library = load_library(arguments.library)
    if arguments.action == "build":
        return _build(library, Path(arguments.output), _read_evidence(arguments))
    if arguments.action == "diff":
        return _diff(arguments, library)
    rows = _select(library, arguments) if arguments.action == "list" else _find(library, arguments.name)
    _print(rows, arguments.json, full=arguments.action == "show")
    if arguments.action == "show" and not arguments.json:
        _print_proofs({row.op for row in rows}, _read_evidence(arguments))
    return 0


def _read_evidence(arguments: argparse.Namespace) -> list[Proof]:
    """The store that is named, or the one beside the library: in a source tree, or in a team's own."""
    from precision_align.library.evidence import read_store
    from precision_align.library.folders import find_folders

    beside = find_folders(arguments.library).cases.parent / "reports" / "evidence.json"
    return read_store(arguments.evidence or beside)


def _print_proofs(operators: set[str], proofs: list[Proof]) -> None:
    for proof in proofs:
        if proof.op in operators:
            counts = ", ".join(f"{count} {status}" for status, count in proof.counts.items())
            print_text(f"  last run     {proof.day} on {proof.device} with {proof.replacement}: {counts}")


def _select(library: Library, arguments: argparse.Namespace) -> list[MappingRow]:
    from precision_align.library.releases import read_releases
    from precision_align.library.rows import RowKind

    releases, version = read_releases(), arguments.torch_npu
    if arguments.kind and arguments.kind not in list(RowKind):
        raise UsageError(f"--kind is {arguments.kind!r}, must be one of {', '.join(RowKind)}")
    return [
        row
        for row in library.rows
        if arguments.kind in (None, row.kind)
        and arguments.status in (None, row.status)
        and (version is None or releases.is_available(version, row.versions.since))
    ]


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

    result = check_library(find_folders(arguments.library), _read_evidence(arguments))
    if arguments.json:
        print_json(dataclasses.asdict(result))
    else:
        untested = [f"{count} row(s) without a case: {reason}" for reason, count in result.untested.items()]
        summary = f"{result.rows} rows, {result.cases} cases, {len(result.problems)} problem(s)"
        print_text("\n".join([*result.problems, *result.notes, *untested, summary]))
    return 1 if result.problems else 0


def _build(library: Library, folder: Path, proofs: list[Proof]) -> int:
    from precision_align.core.errors import Unavailable
    from precision_align.library.evidence import render_store
    from precision_align.library.tables import render_json, render_markdown
    from precision_align.reporting.mapping_page import render_mapping_page

    files = {"mapping.md": render_markdown(library.rows), "mapping.json": render_json(library.rows)}
    if proofs:
        files["evidence.md"] = render_store(proofs)
    try:
        files["mapping.html"] = render_mapping_page(library.rows)
    except Unavailable as error:
        print_log(f"no mapping.html: {error}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error}") from error
    print_log(f"wrote {', '.join(str(folder / name) for name in files)}")
    return 0


def _add(arguments: argparse.Namespace) -> int:
    from precision_align.library.adding import NewRow, add_row
    from precision_align.library.rows import RowKind

    if arguments.kind not in list(RowKind):
        raise UsageError(f"--kind is {arguments.kind!r}, must be one of {', '.join(RowKind)}")
    new = NewRow(
        arguments.op,
        arguments.symbol,
        RowKind(arguments.kind),
        arguments.function,
        arguments.replacement,
        arguments.where,
    )
    file, id_ = add_row(Path(arguments.library), new)
    if arguments.json:
        print_json({"file": str(file), "id": id_})
    else:
        print_text(f"added row {id_} to {file}; next: precision-align map check --library {arguments.library}")
    return 0


def _diff(arguments: argparse.Namespace, library: Library) -> int:
    from precision_align.library.wheel_changes import compare_wheels, render_diff
    from precision_align.library.wheels import read_wheel

    diff = compare_wheels(read_wheel(arguments.old), read_wheel(arguments.new), library.rows)
    if arguments.scan:
        from precision_align.scanner.scanning import find_uses

        diff = dataclasses.replace(diff, uses=find_uses(Path(arguments.scan), diff.explain()))
    if arguments.json:
        print_json(diff.to_dict())
    else:
        print_text(render_diff(diff))
    return 0


def _routes(arguments: argparse.Namespace) -> int:
    from precision_align.library.routing import compare_routes, read_routes, record_routes, render_routes, write_routes

    known = read_routes(arguments.against) if arguments.against else None
    print_log("torch_npu runs torch's operator table on a stub CANN: about a minute")
    routes = record_routes(arguments.wheel, arguments.soc)
    if arguments.output:
        write_routes(arguments.output, routes)
    changed = compare_routes(known, routes) if known else {}
    if arguments.json:
        print_json({**routes.to_dict(), "changed": changed})
    elif known:
        lines = [f"{name}: {old} -> {new}" for name, (old, new) in changed.items()]
        print_text("\n".join([f"{len(changed)} overloads ask for other operators", *lines]))
    else:
        print_text(render_routes(routes))
    return 1 if changed else 0
