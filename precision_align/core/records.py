"""What a dump holds: run information, module calls, tensor records, scalar series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from precision_align.core.keys import Key
from precision_align.core.terms import Pass, Tier
from precision_align.core.trees import Tree

SCHEMA_VERSION = 1

# An optimizer's steps are calls of this scope and its index; module paths hold no colon.
OPTIMIZER_SCOPE = "optimizer:"

# How the note of a run begins that an exception ended: what follows in the reference was lost, not left out.
ENDED = "the run ended with "
# Calls of operators and of functions: the prefix stands before the scope of the module whose call ran them.
OPERATOR_SCOPE = "operator:"
FUNCTION_SCOPE = "function:"
# Calls of collectives likewise; their ``modes["collective"]`` says kind, reduction, group and number in the group.
COLLECTIVE_SCOPE = "collective:"
# What calls of modules do not start with.
OTHER_SCOPES = (OPTIMIZER_SCOPE, OPERATOR_SCOPE, FUNCTION_SCOPE, COLLECTIVE_SCOPE)


@dataclass(frozen=True)
class Statistics:
    """Summary of one tensor, accumulated in float64 over the finite values; complex tensors by modulus.

    ``numel`` counts all values; ``nan``, ``inf``, ``zero``, ``subnormal`` count theirs; ``minimum``, ``maximum``,
    ``mean`` and ``l2`` (root of the sum of squares) are NaN where no value is finite.
    """

    numel: int
    nan: int
    inf: int
    zero: int
    subnormal: int
    minimum: float
    maximum: float
    mean: float
    l2: float


@dataclass(frozen=True)
class TensorRecord:
    """One tensor as it was seen.

    ``shape`` and ``stride`` in elements; ``order`` is the sequence number at which it was taken; ``digest`` the
    128-bit hash of its logical bytes in C order (b"" if none); ``tier`` what is stored of it; ``reason`` why less is
    stored than was asked for ("" if nothing is missing); ``nbytes`` the logical size in bytes; ``extra`` what some
    kinds need: quantizer scales, sparse parts, "expanded", "shared" (a gradient that is a sum over all consumers).
    """

    key: Key
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    layout: str
    device: str
    requires_grad: bool
    order: int
    tier: Tier
    digest: bytes = b""
    statistics: Statistics | None = None
    nbytes: int = 0
    reason: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_hashed(self) -> bool:
        """Whether there is a hash to hold others against."""
        return bool(self.digest)

    def has_hash_of(self, other: TensorRecord) -> bool:
        """Whether both have the same bytes in C order, by their hashes; two without one count as the same."""
        return self.digest == other.digest

    # Three facts that one look at a few values most often denies: a record that makes its statistics when they are
    # asked for finds these without. All are False where nothing is known.

    @property
    def is_all_nan(self) -> bool:
        """Whether there are values and none of them is a number."""
        known = self.statistics
        return known is not None and known.numel > 0 and known.nan == known.numel

    @property
    def is_all_zero(self) -> bool:
        """Whether every value is zero."""
        known = self.statistics
        return known is not None and known.zero == known.numel

    @property
    def is_constant(self) -> bool:
        """Whether all values are one finite number."""
        known = self.statistics
        return known is not None and known.minimum == known.maximum and known.nan + known.inf == 0


@dataclass(frozen=True)
class Call:
    """One call of one module (or function, or operator).

    ``identity`` is unique in one rank's step and orders calls by entry; ``parent`` is the identity of the calling
    module's call or -1; ``enter`` and ``exit`` are sequence numbers shared with the tensors' ``order``; ``kind`` the
    full class name; ``leaf``: it has no child modules; ``arguments`` the tree of {"args", "kwargs"}, ``output`` the
    tree of what it returned; ``attributes`` the plain attributes of a stock torch.nn module, enough to build it again;
    ``autocast``: device type -> dtype where enabled; ``modes``: default dtype and arithmetic switches;
    ``source``: file:line of the calling code; ``error``: what it raised.
    """

    step: int
    micro: int
    rank: int
    scope: str
    call: int
    pass_: Pass
    kind: str
    identity: int
    parent: int
    enter: int
    exit: int
    leaf: bool
    training: bool
    grad_enabled: bool
    arguments: Tree
    output: Tree
    attributes: Tree | None = None
    autocast: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    error: str = ""


@dataclass(frozen=True)
class Point:
    """One value of a scalar series, such as the loss at a step."""

    step: int
    micro: int
    name: str
    value: float


@dataclass(frozen=True)
class RunInfo:
    """Where a dump comes from.

    ``run`` is unique to one capture session; ``device`` the kind and name of the model's device ("cpu", "npu:0",
    "npu:0 simulated ascend910b"); ``aliases``: scope -> its other names; ``parameters``: parameter name -> other names
    (tied); ``modules``: scope -> full class name, in registration order;
    ``notes``: what was not recorded and why.
    """

    run: str
    created: str
    rank: int
    world: int
    device: str
    versions: Mapping[str, str] = field(default_factory=dict)
    capture: Mapping[str, Any] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, list[str]] = field(default_factory=dict)
    parameters: Mapping[str, list[str]] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    forced: bool = False
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION
