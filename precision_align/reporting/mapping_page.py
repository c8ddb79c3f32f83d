"""mapping.html: the operator-mapping table as one file to search, with no network and no server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from precision_align import __version__
from precision_align.library.releases import Releases, read_releases
from precision_align.library.rows import MappingRow
from precision_align.reporting.pages import build_policy, open_templates, read_asset, trust


@dataclass(frozen=True)
class _Entry:
    """A row, with what the filters of the page ask for."""

    row: MappingRow
    releases: tuple[str, ...]

    @property
    def words(self) -> str:
        """Everything that a search may hit, in lower case."""
        row = self.row
        parts = (row.id, row.op, row.domain, row.function, row.replacement, row.reference, row.note, row.untested)
        lists = (row.symbols, row.differences, row.modules, row.calls, row.dtypes)
        texts = [*parts, *(text for group in lists for text in group)]
        texts += [f"{b.value} {b.expected}" for b in row.boundaries] + [e.where for e in row.evidence]
        return " ".join(" ".join(texts).lower().split())


def render_mapping_page(rows: Sequence[MappingRow]) -> str:
    """The whole page. Without JavaScript it is the full table. Raises Unavailable where jinja2 is not installed."""
    releases = read_releases()
    entries = [_Entry(row, releases.list_available(row.versions.since)) for row in rows]
    theme, script = read_asset("scripts/theme.js"), read_asset("scripts/mapping.js")
    return (
        open_templates()
        .get_template("mapping.html.j2")
        .render(
            entries=entries,
            version=__version__,
            policy=build_policy(theme, script),
            style=trust(read_asset("report.css") + read_asset("mapping.css")),
            theme=trust(theme),
            script=trust(script),
            **_list_choices(rows, releases),
        )
    )


def _list_choices(rows: Sequence[MappingRow], releases: Releases) -> dict[str, Any]:
    return {
        "kinds": sorted({str(row.kind) for row in rows}),
        "statuses": sorted({str(row.status) for row in rows}, reverse=True),
        "domains": sorted({row.domain for row in rows if row.domain}),
        "releases": releases.names,
    }
