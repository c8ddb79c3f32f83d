"""The texts on what would have been seen, in English and Chinese; see :mod:`~precision_align.reporting.languages`."""

from __future__ import annotations

VISIBILITY: dict[str, tuple[str, str]] = {
    "detectable": ("visible", "可见误差"),
    "detectable.exact": (
        "{count} records passed bit for bit: no error hides in them",
        "{count} 条记录逐位相同：其中不可能隐藏误差",
    ),
    "detectable.line": (
        "would have seen relative errors >= {error} in {share} of {count} records ({exact} more are exact), "
        "worst: {place} {worst}",
        "在 {count} 条记录的 {share} 中可发现 ≥ {error} 的相对误差（另有 {exact} 条精确一致），最差：{place} {worst}",
    ),
    "page.detectable": ("How small an error would have been seen", "能发现多小的误差"),
    "page.detectable.lead": (
        "A relative error of all values of a record, from which on one of its tests would have failed.",
        "某条记录全部数值的相对误差达到此值时，其检验之一就会失败。",
    ),
    "page.detectable.most": ("in 95 % of its records", "其 95 % 的记录"),
    "page.detectable.worst": ("in the worst", "最差记录"),
    "page.detectable.test": ("seen by", "由何检验发现"),
    "page.sampled": ("{count} by a sample", "其中 {count} 条为抽样"),
}
