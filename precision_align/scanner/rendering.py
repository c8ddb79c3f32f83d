"""A scan as text: what there is to do, first what an operator has to be found or written for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from precision_align.scanner.findings import Cover, Finding, FindingClass, ScanReport, needs_work

PLACES = 3  # names and places shown for one entry of the work list; all of them stand in the JSON
QUIET = (FindingClass.AUTO, FindingClass.INFO)


def render_scan(report: ScanReport, *, everything: bool = False) -> str:
    """Counts, the work list, the lines to change; ``everything``: also what is automatic and what is to be known."""
    lines = [f"{report.files} files, {report.lines} lines in {report.root}: {len(report.findings)} findings"]
    lines += [f"  {', '.join(f'{count} {cls}' for cls, count in report.counts.items())}"]
    if report.known:
        lines.append(f"  {report.known} known from the baseline are not shown")
    lines += _render_work(report)
    lines += _render_lines("to change, one line each", _pick(report.findings, (FindingClass.ONE_LINE,)))
    if everything:
        lines += _render_lines("rewritten by transfer_to_npu", _pick(report.findings, (FindingClass.AUTO,)))
        lines += _render_lines("to know", _pick(report.findings, (FindingClass.INFO,)))
    elif any(finding.cls in QUIET for finding in report.findings):
        lines += ["", "what transfer_to_npu rewrites, and what is only to be known: --all"]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(lines)


def _pick(findings: Iterable[Finding], classes: Sequence[FindingClass]) -> list[Finding]:
    return [finding for finding in findings if finding.cls in classes]


def _render_work(report: ScanReport) -> list[str]:
    work = [finding for finding in report.findings if needs_work(finding)]
    if not work:
        return ["", "no operator to map or to write"]
    counts = report.work
    lines = ["", f"work list: {len(work)} places need an operator to be found, mapped or written"]
    lines += [f"  {counts[str(cover)]} of them: {_TITLES[cover]}" for cover in Cover if counts[str(cover)]]
    for cover in Cover:
        lines += _render_groups([finding for finding in work if finding.cover == cover], cover)
    return lines


_TITLES = {
    Cover.TESTED: "a mapping row whose cases can be run (precision-align case run)",
    Cover.ROW: "a mapping row, no cases yet (precision-align map show ROW)",
    Cover.NONE: "no mapping row: your own work",
}


def _render_groups(findings: Sequence[Finding], cover: Cover) -> list[str]:
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(_choose_group(finding), []).append(finding)
    lines = ["", f"{_TITLES[cover]}:"] if groups else []
    for group in groups.values():
        first = group[0]
        rows = f" {' '.join(first.rows)}" if first.rows else ""
        names = _shorten(dict.fromkeys(finding.name for finding in group))
        lines.append(f"  {names} [{first.cls}]{rows}: {first.fix or first.what}")
        lines.append(f"      {_shorten(f'{finding.file}:{finding.line}' for finding in group)}")
    return lines


def _choose_group(finding: Finding) -> tuple[str, str]:
    """In Python a name is the unit of work; elsewhere, a kernel above all, it is the file."""
    return finding.rule, finding.name if finding.file.endswith((".py", ".pyi")) else finding.file


def _shorten(texts: Iterable[str]) -> str:
    items = list(texts)
    more = f" and {len(items) - PLACES} more" if len(items) > PLACES else ""
    return ", ".join(items[:PLACES]) + more


def _render_lines(title: str, findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    lines = ["", f"{title} ({len(findings)}):"]
    return lines + [f"  {f.file}:{f.line}: {f.name}: {f.what}{f' -> {f.fix}' if f.fix else ''}" for f in findings]
