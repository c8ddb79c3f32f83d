"""``map add``: a new row in a library of the user's own. The file is appended to, so that comments in it stay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from precision_align.core.errors import UsageError
from precision_align.library.folders import Folders
from precision_align.library.loading import read_all
from precision_align.library.rows import RowKind
from precision_align.library.schema import SCHEMA_VERSION

_HEAD = f"""schema_version = {SCHEMA_VERSION}
"""
_ROW = """
[[row]]
id = {id}
symbols = {symbols}  # full names in the source tree
function = {function}  # the formula, e.g. "x / sqrt(mean(x^2) + eps) * weight"
kind = {kind}  # {kinds}
replacement = {replacement}  # the call to write on Ascend
inputs = []  # {{ name = "x", shape = "B S C", layout = "BSND", dtype = "float16", note = "" }}
outputs = []
# versions = {{ since = ["2.7.1", "2.1.0.post17"], cann = "8.3.RC1" }}
dtypes = ["float32", "bfloat16", "float16"]
autograd = "unknown"  # yes, no, unknown, not applicable
differences = []  # one sentence each
boundaries = []  # {{ value = "a row of zeros", expected = "zeros", cases = ["zero-rows"] }}
{tested}
modules = []  # patterns of module class names, "*MyNorm"
calls = []  # names of operators and functions
evidence = [{{ where = {where}, on = {on} }}]
status = "unverified"
"""


@dataclass(frozen=True)
class NewRow:
    """What is known of the row already; blank texts are for the user to fill in, and ``map check`` asks for them."""

    op: str
    symbols: Sequence[str]
    kind: RowKind = RowKind.FUSED
    function: str = ""
    replacement: str = ""
    where: str = ""
    cases: tuple[str, ...] = ()


def add_row(library: Path, new: NewRow) -> tuple[Path, str]:
    """Append a row to ``library/op_cases/<op>/mapping.toml``, made where it is missing: (file, id of the row).

    Raises UsageError for a name that is no folder name, or where the file cannot be written.
    """
    if not new.op.isidentifier():
        raise UsageError(f"{new.op!r} cannot name an operator's folder: use letters, digits and '_', as in my_rms_norm")
    cases = library if library.name == "op_cases" else library / "op_cases"
    file = cases / new.op / "mapping.toml"
    id_ = _choose_id(Folders(cases, library / "golden" / "functions"), new.op)
    text = _ROW.format(
        id=json.dumps(id_),
        symbols=json.dumps(list(new.symbols), ensure_ascii=False),
        function=json.dumps(new.function, ensure_ascii=False),
        kind=json.dumps(str(new.kind)),
        kinds=", ".join(str(kind) for kind in RowKind),
        replacement=json.dumps(new.replacement, ensure_ascii=False),
        tested=_phrase_cases(new.cases),
        where=json.dumps(new.where, ensure_ascii=False),
        on=json.dumps("source read, not run" if new.where else ""),
    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.read_text(encoding="utf-8") if file.exists() else _HEAD
        file.write_text(before.rstrip("\n") + "\n" + text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error}") from error
    return file, id_


def _phrase_cases(cases: Sequence[str]) -> str:
    if not cases:
        return 'untested = "Its cases are not written yet."  # later: cases = ["*"] and a rule'
    reason = "Recorded inputs: the float64 result and the error of the same code in their dtype set what is allowed."
    return f'cases = {json.dumps(list(cases))}\nrule = {{ name = "double standard", reason = "{reason}" }}'


def _choose_id(folders: Folders, op: str) -> str:
    taken = {row.id for row in read_all(folders)[0]} if folders.cases.is_dir() else set()
    return next(id_ for number in range(1, len(taken) + 2) if (id_ := f"{op}-{number}") not in taken)
