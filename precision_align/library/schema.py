"""From TOML tables to rows: every key is known, every value checked, and all problems are collected, not the first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, TypeVar

from precision_align.core.dtypes import DTYPES
from precision_align.library.judging import RULES
from precision_align.library.rows import (
    Autograd,
    Boundary,
    Evidence,
    MappingRow,
    RowKind,
    RowRule,
    RowStatus,
    TensorForm,
    VersionRange,
)

SCHEMA_VERSION = 1
T = TypeVar("T")
_MISSING = object()
_VERSION = re.compile(r"\d+\.\d+\.\d+(rc\d+)?(\.post\d+)?")
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?")
_ID = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


@dataclass
class Reader:
    """Reads one table key by key; what is wrong goes to ``problems`` as "place: key: message"."""

    table: Mapping[str, Any]
    place: str
    problems: list[str]
    known: set[str] = field(default_factory=set)

    def complain(self, key: str, message: str) -> None:
        self.problems.append(f"{self.place}: {key}: {message}")

    def text(self, key: str, *, required: bool = False) -> str:
        """A string; where ``required`` it is there and not blank."""
        value = self.take(key, required)
        if value is _MISSING:
            return ""
        if not isinstance(value, str):
            self.complain(key, f"is {_describe(value)}, must be a string")
            return ""
        if required and not value.strip():
            self.complain(key, "must not be blank")
        return value

    def texts(self, key: str, *, required: bool = False) -> tuple[str, ...]:
        """A list of non-blank strings without repetition; where ``required`` at least one."""
        value = self.take(key, required)
        if value is _MISSING:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            self.complain(key, f"is {_describe(value)}, must be a list of strings that are not blank")
            return ()
        if required and not value:
            self.complain(key, "must name at least one")
        if len(set(value)) != len(value):
            self.complain(key, "names something twice")
        return tuple(value)

    def choice(self, key: str, kind: Callable[[str], T], allowed: list[str], default: T) -> T:
        """One of the members of a closed vocabulary."""
        if key not in self.table:
            self.known.add(key)
            return default
        value = self.text(key)
        if value not in allowed:
            self.complain(key, f"is {value!r}, must be one of {', '.join(allowed)}")
            return default
        return kind(value)

    def tables(self, key: str, read: Callable[[Reader], T], *, required: bool = False) -> tuple[T, ...]:
        """A list of tables, each read by ``read``."""
        value = self.take(key, required)
        if value is _MISSING:
            return ()
        if not isinstance(value, list):
            self.complain(key, f"is {_describe(value)}, must be a list of tables")
            return ()
        if required and not value:
            self.complain(key, "must hold at least one")
        return tuple(self._read_inside(f"{key}[{index}]", item, read) for index, item in enumerate(value))

    def table_at(self, key: str, read: Callable[[Reader], T], default: T) -> T:
        """One optional table."""
        value = self.take(key, False)
        return default if value is _MISSING else self._read_inside(key, value, read)

    def finish(self) -> None:
        """Complain of every key that nobody asked for."""
        for key in self.table:
            if key not in self.known:
                self.complain(str(key), f"unknown key; known are {', '.join(sorted(self.known))}")

    def take(self, key: str, required: bool) -> Any:
        """The raw value, or a marker where there is none."""
        self.known.add(key)
        if required and key not in self.table:
            self.complain(key, "is missing")
        return self.table.get(key, _MISSING)

    def _read_inside(self, key: str, value: Any, read: Callable[[Reader], T]) -> T:
        if not isinstance(value, Mapping):
            self.complain(key, f"is {_describe(value)}, must be a table")
            return read(Reader({}, self.place, []))
        inner = Reader(value, f"{self.place}: {key}", self.problems)
        result = read(inner)
        inner.finish()
        return result


def _describe(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"


def read_rows(document: Mapping[str, Any], op: str, file: str, problems: list[str]) -> list[MappingRow]:
    """The rows of one parsed mapping.toml. ``op``: the folder's name; problems are appended, never raised."""
    head = Reader(document, file, problems)
    _check_version(head)
    tables = head.take("row", True)
    rows: list[MappingRow] = []
    if tables is not _MISSING and not isinstance(tables, list):
        head.complain("row", "must be a list of tables: write [[row]]")
    elif isinstance(tables, list):
        rows = [_read_row(table, op, file, index, problems) for index, table in enumerate(tables)]
        if not rows:
            head.complain("row", "holds no row")
    head.finish()
    return rows


def _check_version(head: Reader) -> None:
    version = head.take("schema_version", True)
    if version is _MISSING:
        return
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        head.complain("schema_version", f"is {_describe(version)}, must be {SCHEMA_VERSION}")
    elif version > SCHEMA_VERSION:
        head.complain("schema_version", f"is {version}, this version reads {SCHEMA_VERSION}: upgrade precision-align")


def _read_row(table: Any, op: str, file: str, index: int, problems: list[str]) -> MappingRow:
    name = table.get("id") if isinstance(table, Mapping) else None
    place = f"{file}: row {name if isinstance(name, str) and name else index}"
    if not isinstance(table, Mapping):
        problems.append(f"{place}: is {_describe(table)}, must be a table")
        return _build_row(Reader({}, place, []), op, file)
    reader = Reader(table, place, problems)
    row = _build_row(reader, op, file)
    reader.finish()
    _check_row(row, reader)
    return row


def _build_row(reader: Reader, op: str, file: str) -> MappingRow:
    kind = reader.text("kind", required=True)
    kinds = [str(member) for member in RowKind]
    if kind and kind not in kinds:
        reader.complain("kind", f"is {kind!r}, must be one of {', '.join(kinds)}")
    reader.text("status", required=True)
    return MappingRow(
        id=reader.text("id", required=True),
        op=op,
        file=file,
        symbols=reader.texts("symbols", required=True),
        function=reader.text("function", required=True),
        kind=RowKind(kind) if kind in kinds else RowKind.NATIVE,
        replacement=reader.text("replacement", required=True),
        status=reader.choice("status", RowStatus, [str(m) for m in RowStatus], RowStatus.UNVERIFIED),
        evidence=reader.tables("evidence", _read_evidence, required=True),
        domain=reader.text("domain"),
        inputs=reader.tables("inputs", _read_form),
        outputs=reader.tables("outputs", _read_form),
        versions=reader.table_at("versions", _read_versions, VersionRange()),
        dtypes=reader.texts("dtypes"),
        autograd=reader.choice("autograd", Autograd, [str(m) for m in Autograd], Autograd.UNKNOWN),
        differences=reader.texts("differences"),
        boundaries=reader.tables("boundaries", _read_boundary),
        rule=reader.table_at("rule", _read_rule, None),
        cases=reader.texts("cases"),
        untested=reader.text("untested"),
        golden=reader.text("golden"),
        modules=reader.texts("modules"),
        calls=reader.texts("calls"),
        reference=reader.text("reference"),
        note=reader.text("note"),
    )


def _read_form(reader: Reader) -> TensorForm:
    return TensorForm(
        reader.text("name", required=True),
        reader.text("shape", required=True),
        reader.text("layout"),
        reader.text("dtype"),
        reader.text("note"),
    )


def _read_evidence(reader: Reader) -> Evidence:
    evidence = Evidence(reader.text("where", required=True), reader.text("on", required=True), reader.text("when"))
    if evidence.when and not _MONTH.fullmatch(evidence.when):
        reader.complain("when", f"is {evidence.when!r}, must be a date like 2026-08 or 2026-08-31")
    return evidence


def _read_versions(reader: Reader) -> VersionRange:
    versions = VersionRange(reader.texts("since"), reader.texts("until"), reader.text("cann"), reader.text("note"))
    for key, values in (("since", versions.since), ("until", versions.until)):
        for value in values:
            if not _VERSION.fullmatch(value):
                reader.complain(key, f"{value!r} is not a torch_npu version like 2.9.0.post9")
    return versions


def _read_boundary(reader: Reader) -> Boundary:
    return Boundary(reader.text("value", required=True), reader.text("expected"), reader.texts("cases"))


def _read_rule(reader: Reader) -> RowRule | None:
    rule = RowRule(reader.text("name", required=True), reader.text("reason", required=True))
    if rule.name and rule.name not in RULES:
        reader.complain("name", f"no rule is called {rule.name!r}; there are {', '.join(sorted(RULES))}")
    return rule


def _check_row(row: MappingRow, reader: Reader) -> None:
    """What holds between keys."""
    if row.id and not _ID.fullmatch(row.id):
        reader.complain("id", f"{row.id!r} is not a name of letters, digits, '_', '-' and '.'")
    for dtype in row.dtypes:
        if dtype not in DTYPES:
            reader.complain("dtypes", f"{dtype!r} is no torch dtype; write float16, bfloat16, float32, ...")
    if row.cases and row.rule is None:
        reader.complain("rule", "is missing: a row with cases says by which rule they are judged, and why")
    if not row.cases and not row.untested.strip():
        reader.complain("cases", "are missing: name those that prove the row, or say in `untested` why there are none")
    if row.cases and row.untested:
        reader.complain("untested", "contradicts `cases`: the row is tested, delete it")
    if row.status == RowStatus.VERIFIED and row.kind == RowKind.FUSED and not row.differences:
        reader.complain("differences", "is missing: a verified fused operator says how it differs from its source")
