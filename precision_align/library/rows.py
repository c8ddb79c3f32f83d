"""One row of the mapping table: an operator of the source ecosystem, what replaces it on Ascend, how they differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from precision_align.core.terms import Term


class RowKind(Term):
    """How the operator gets to the NPU."""

    NATIVE = "native"
    FUSED = "fused"
    THIRD_PARTY = "third party"
    COMPOSED = "composed"
    CUSTOM_KERNEL = "custom kernel needed"
    NOT_NEEDED = "not needed"
    UNSUPPORTED = "unsupported"


class RowStatus(Term):
    """``verified``: the facts were read in the sources that the evidence names; else they are not to be relied on."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"


class Autograd(Term):
    """Whether a gradient flows through the replacement."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not applicable"  # nothing to differentiate: indices, updates, settings


@dataclass(frozen=True)
class TensorForm:
    """One input or output: name in the formula, shape in letters ("B N Sq D"), layout and dtype in words."""

    name: str
    shape: str
    layout: str = ""
    dtype: str = ""
    note: str = ""


@dataclass(frozen=True)
class VersionRange:
    """Where the replacement exists.

    ``since``: first torch_npu version, post number included, one for each release line (empty: every release seen);
    ``until``: the last one of each line; ``cann``: CANN versions in words.
    """

    since: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    cann: str = ""
    note: str = ""


@dataclass(frozen=True)
class Boundary:
    """A boundary value, the behaviour to expect there, and the cases ("id" or glob) of this operator that test it."""

    value: str
    expected: str = ""
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class RowRule:
    """The name of a rule in :mod:`~precision_align.library.judging`, and why it is the right one here."""

    name: str
    reason: str


@dataclass(frozen=True)
class Evidence:
    """Where a fact was seen (repository@commit:path, wheel, page), when (year-month or ""), and on what."""

    where: str
    on: str
    when: str = ""


@dataclass(frozen=True)
class MappingRow:
    """One row. ``op`` is the folder it lives in; ``file`` that folder's TOML file.

    ``symbols``: the full names it stands for in a source tree; ``function``: the formula; ``modules``: patterns of
    module class names (fnmatch, case-sensitive; with a "." they match the full name, else the last part); ``calls``:
    operator or function names; ``replacement``: the call to write; ``reference``: the formula in plain torch;
    ``cases``: ids or globs of this folder's cases that prove it; ``untested``: why there are none; ``golden``: the
    reference function in ``golden/functions``, where its name is not the folder's.
    """

    id: str
    op: str
    file: str
    symbols: tuple[str, ...]
    function: str
    kind: RowKind
    replacement: str
    status: RowStatus
    evidence: tuple[Evidence, ...]
    domain: str = ""
    inputs: tuple[TensorForm, ...] = ()
    outputs: tuple[TensorForm, ...] = ()
    versions: VersionRange = field(default_factory=VersionRange)
    dtypes: tuple[str, ...] = ()
    autograd: Autograd = Autograd.UNKNOWN
    differences: tuple[str, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    rule: RowRule | None = None
    cases: tuple[str, ...] = ()
    untested: str = ""
    golden: str = ""
    modules: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    reference: str = ""
    note: str = ""

    @property
    def selectors(self) -> tuple[str, ...]:
        """Its cases in the form that ``case run`` takes: "op/case" or "op/glob"."""
        return tuple(f"{self.op}/{case}" for case in self.cases)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; ``cases`` in the form that ``case run`` takes, ``file`` left out."""
        plain: Mapping[str, Any] = dataclasses.asdict(self)
        return {
            name: list(self.selectors) if name == "cases" else value for name, value in plain.items() if name != "file"
        }
