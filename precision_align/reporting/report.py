"""The result of a comparison as users hold it: findings that save, load and print themselves."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from precision_align.core.errors import DumpDamaged, DumpForeign, DumpNotFound, SchemaTooNew, StorageFull, UsageError
from precision_align.core.results import Curve, Divergence, Findings
from precision_align.reporting.decoding import Malformed, decode_findings, decode_free
from precision_align.reporting.serialization import FORMAT, SCHEMA_VERSION, encode_findings, encode_free
from precision_align.reporting.visibility import encode_detectability

SCHEMA = Path(__file__).parent / "schema" / "report.schema.json"
_SUFFIXES = (".json", ".html", ".htm", ".md", ".xml", ".csv", ".xlsx")


@dataclass(frozen=True, repr=False)
class Report(Findings):
    """What a comparison found.

    ``verdict`` says it in a word, ``first`` names the first place, ``frontier`` all independent ones, ``records`` every
    judged tensor, ``coverage`` and ``notes`` what was and was not looked at. ``print(report)`` shows the first screen.
    """

    def __post_init__(self) -> None:
        # one form whoever built it, so that a report equals itself after a trip through JSON
        names = ("records", "notes", "roots", "modules", "error_maps")
        frozen: dict[str, Any] = {name: tuple(getattr(self, name)) for name in names}
        frozen.update({name: decode_free(encode_free(getattr(self, name))) for name in ("reference", "candidate")})
        frozen["curves"] = tuple(_freeze_curve(curve) for curve in self.curves)
        frozen["first"] = None if self.first is None else _freeze_divergence(self.first)
        frozen["frontier"] = tuple(_freeze_divergence(found) for found in self.frontier)
        for name, value in frozen.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        place = "" if self.first is None else f", first={self.first.scope!r}"
        return f"<Report verdict={str(self.verdict)!r}{place}, {len(self.records)} records>"

    def __str__(self) -> str:
        from precision_align.reporting.terminal import render

        return render(self)

    @classmethod
    def of(cls, findings: Findings) -> Report:
        """The same findings as a report."""
        return cls(**{field.name: getattr(findings, field.name) for field in fields(Findings)})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The inverse of :meth:`to_dict`. Raises DumpForeign, DumpDamaged, SchemaTooNew."""
        return _decode(cls, data, "the given mapping")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read a saved report.json.

        Raises DumpNotFound, DumpForeign (not a report), DumpDamaged (broken JSON, missing fields), SchemaTooNew.
        """
        return _decode(cls, _read_json(Path(path)), str(path))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; their schema is ``reporting/schema/report.schema.json``."""
        return _to_plain(self)

    def save(self, path: str | os.PathLike[str], *, language: str = "en") -> Path:
        """Write the report in the form its suffix names: .json, .html, .md (for an issue), .xml (JUnit), .csv, .xlsx.

        The file appears whole or not at all. Raises UsageError (unknown suffix, folder missing, no permission),
        StorageFull, Unavailable (HTML without jinja2, XLSX without openpyxl). Returns the path written.
        """
        target = check_target(path)
        content = _render(self, target.suffix.lower(), language)
        with _writing(target):
            # one writer a name: two processes saving the same report must not share a half-written file
            draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
            try:
                draft.write_bytes(content)
                draft.replace(target)
            finally:
                draft.unlink(missing_ok=True)
        return target


def _freeze_curve(curve: Curve) -> Curve:
    reference, candidate = (
        tuple((int(step), float(value)) for step, value in side) for side in (curve.reference, curve.candidate)
    )
    return replace(curve, reference=reference, candidate=candidate)


def _freeze_divergence(found: Divergence) -> Divergence:
    mapping = None if found.mapping is None else decode_free(encode_free(found.mapping))
    return replace(found, explanations=tuple(found.explanations), mapping=mapping)


def _to_plain(report: Findings) -> dict[str, Any]:
    return {**encode_findings(report), "detectability": encode_detectability(report)}


def format_json(report: Findings) -> str:
    """JSON with one record and one error map a line: fast to write, and fit for grep and diff. ASCII only."""
    data = _to_plain(report)
    long = {name: data.pop(name) for name in ("error_maps", "records")}
    head = json.dumps(data, indent=1, allow_nan=False)[:-2]
    return head + "".join(f',\n "{name}": {_list_lines(items)}' for name, items in long.items()) + "\n}\n"


def _list_lines(items: Sequence[Any]) -> str:
    lines = ",\n".join("  " + json.dumps(item, allow_nan=False) for item in items)
    return f"[\n{lines}\n ]" if items else "[]"


def check_target(path: str | os.PathLike[str]) -> Path:
    """A place that a report can be written to. Raises UsageError for an unknown suffix, a folder, a missing folder."""
    target = Path(path)
    if target.suffix.lower() not in _SUFFIXES:
        raise UsageError(
            f"{target}: the suffix {target.suffix!r} names no form of report; "
            "use .json, .html, .md (Markdown), .xml (JUnit), .csv or .xlsx (the table)"
        )
    if target.is_dir():
        raise UsageError(f"{target} is a folder; name a file in it")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: there is no folder {target.parent}; make it, or name another place")
    return target


def _render(report: Report, suffix: str, language: str) -> bytes:
    if suffix == ".xlsx":
        from precision_align.reporting.sheets import render_xlsx

        return render_xlsx(report)
    return _render_text(report, suffix, language).encode("utf-8", "backslashreplace")


def _render_text(report: Report, suffix: str, language: str) -> str:
    if suffix == ".json":
        return format_json(report)
    if suffix == ".md":
        from precision_align.reporting.markdown import render_markdown

        return render_markdown(report, language=language)
    if suffix == ".xml":
        from precision_align.reporting.junit import render_junit

        return render_junit(report)
    if suffix == ".csv":
        from precision_align.reporting.sheets import render_csv

        return render_csv(report)
    from precision_align.reporting.html import render_html

    return render_html(report, language=language)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{target}: no space left to write the report; free some or name another place") from None
        reason = error.strerror or str(error)
        raise UsageError(f"{target}: cannot write the report ({reason}); name another place") from None


def _read_json(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise DumpNotFound(f"{path}: no such file; 'precision-align compare ... -o report.json' writes one") from None
    except IsADirectoryError:
        raise DumpForeign(
            f"{path} is a folder, not a saved report; name a report.json, or look at a dump with 'show'"
        ) from None
    except UnicodeDecodeError:
        raise DumpForeign(f"{path}: not a saved report (not even text); a dump is shown with 'show'") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not text.lstrip().startswith("{"):
        raise DumpForeign(f"{path}: not a saved report; 'precision-align compare ... -o report.json' writes one")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DumpDamaged(f"{path}: broken JSON ({error}); it may be cut off: save the report again") from None


def _decode(cls: type[Report], data: Any, origin: str) -> Report:
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise DumpForeign(f'{origin}: JSON, but not a saved report (no "format": {json.dumps(FORMAT)})')
    version = data.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise DumpDamaged(f"{origin}: schema_version is {version!r}, not a whole number")
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{origin}: written by a newer precision-align (schema {version}, this one reads up to {SCHEMA_VERSION}); "
            "upgrade with: pip install -U precision-align"
        )
    try:
        return cls(**decode_findings(data))
    except Malformed as error:
        raise DumpDamaged(f"{origin}: {error}; save the report again") from None
