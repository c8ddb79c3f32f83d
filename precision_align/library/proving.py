"""Are the cases any good? Every wrong variant must be caught by a case, and every case must catch a wrong variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from precision_align.core.terms import Status
from precision_align.library.cases import Compute, OpCase, Operator
from precision_align.library.references import References, prepare_references
from precision_align.library.results import CaseResult
from precision_align.library.trials import try_refusal, try_replacement

CPU = torch.device("cpu")
CAUGHT = (Status.FAIL, Status.MODE)


@dataclass(frozen=True)
class Proof:
    """``caught``: wrong variant -> the case that caught it; ``missed``: variants that no case caught; ``proved``:
    case -> a variant that it catches; ``unproved``: cases that catch none."""

    op: str
    caught: Mapping[str, str] = field(default_factory=dict)
    missed: Sequence[str] = ()
    proved: Mapping[str, str] = field(default_factory=dict)
    unproved: Sequence[str] = ()

    @property
    def tried(self) -> int:
        return len(self.caught) + len(self.missed)

    @property
    def complete(self) -> bool:
        """Every variant is caught and every case catches one."""
        return not self.missed and not self.unproved

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


class Prover:
    """Runs variants of one operator; the references of a case are computed once."""

    def __init__(self, operator: Operator, seed: int = 0) -> None:
        self._operator, self._seed = operator, seed
        self._references: dict[tuple[str, str], References] = {}

    def prove(self) -> Proof:
        """Each variant runs until a case catches it, then each case that caught none until it catches one."""
        caught: dict[str, str] = {}
        proved: dict[str, str] = {}
        cases = [case for case in self._operator.cases if not case.raises]
        refusals = [case for case in self._operator.cases if case.raises]
        for name, compute in self._operator.wrong.items():
            found = self._find_catching((*cases, *refusals), compute)
            if found is not None:
                caught[name] = found.id
                proved.setdefault(found.id, name)
        for case in self._operator.cases:
            for name, compute in {**self._operator.wrong, **make_generic(self._operator, case)}.items():
                if case.id in proved or not self.catches(case, compute):
                    continue
                proved[case.id] = name
                if name in self._operator.wrong:
                    caught.setdefault(name, case.id)
        missed = [name for name in self._operator.wrong if name not in caught]
        unproved = [case.id for case in self._operator.cases if case.id not in proved]
        return Proof(self._operator.name, caught, missed, proved, unproved)

    def _find_catching(self, cases: Sequence[OpCase], compute: Compute) -> OpCase | None:
        """The first case that catches it: all in their first dtype, then in the others, so that few are needed."""
        tries = [(i, case, dtype) for case in cases for i, dtype in enumerate(case.dtypes)]
        tries.sort(key=lambda one: one[0])
        return next((case for _, case, dtype in tries if self._fails(case, dtype, compute)), None)

    def catches(self, case: OpCase, compute: Compute) -> bool:
        """Whether the case fails the variant by what it computes: an exception of its own does not count."""
        return any(self._fails(case, dtype, compute) for dtype in case.dtypes)

    def _fails(self, case: OpCase, dtype: str, compute: Compute) -> bool:
        results = self.run(case, dtype, compute, CPU, thorough=False)
        return any(result.status in CAUGHT and not result.note.startswith("raised") for result in results)

    def run(
        self, case: OpCase, dtype: str, compute: Compute, device: torch.device, thorough: bool = True
    ) -> list[CaseResult]:
        """One case in one dtype on a device."""
        if case.raises:
            return try_refusal(self._operator, case, dtype, self._seed, compute, device)
        key = (case.id, dtype)
        if key not in self._references:
            self._references[key] = prepare_references(self._operator, case, dtype, self._seed, backward=True)
        return try_replacement(self._operator, case, self._references[key], compute, device, thorough)


def make_generic(operator: Operator, case: OpCase) -> dict[str, Compute]:
    """Mistakes that a kernel of any operator can make, for the cases that are there to catch them."""
    right = operator.natives[0]
    variants: dict[str, Compute] = {}
    if "layout" in case.tags:
        variants.update({f"strides of {name} ignored": _ignore_strides(right, name) for name in case.layouts})
    if "nonfinite" in case.tags:
        variants["NaN and Inf become 0"] = lambda **inputs: _map(right(**inputs), _clean)
    if "empty" in case.tags:
        variants["empty input: early return of a scalar"] = lambda **inputs: _map(right(**inputs), _shorten)
    return variants


def _map(result: Any, change: Any) -> Any:
    return (
        change(result) if torch.is_tensor(result) else tuple(None if item is None else change(item) for item in result)
    )


def _clean(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(tensor, 0.0, 0.0, 0.0) if tensor.is_floating_point() else tensor


def _shorten(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.numel() else tensor.new_zeros(())


def _ignore_strides(right: Compute, name: str) -> Compute:
    """Reads the storage from its offset on as if the tensor were contiguous."""

    def run(**inputs: Any) -> Any:
        tensor = inputs[name]
        if tensor.numel() > 1:
            plain = torch.empty(tensor.shape, device="meta").stride()
            inputs = {**inputs, name: tensor.as_strided(tensor.shape, plain, 0)}
        return right(**inputs)

    return run


def render_proofs(proofs: Sequence[Proof]) -> str:
    """A Markdown table: operator, variants caught / tried, cases proved / all, and what is missing by name."""
    lines = ["| operator | wrong variants caught | cases proved | missing |", "|---|---|---|---|"]
    for proof in proofs:
        missing = [f"variant: {name}" for name in proof.missed] + [f"case: {id_}" for id_ in proof.unproved]
        cases = len(proof.proved) + len(proof.unproved)
        counts = f"{len(proof.caught)} / {proof.tried} | {len(proof.proved)} / {cases}"
        lines.append(f"| {proof.op} | {counts} | {'; '.join(missing)} |")
    caught, tried = sum(len(p.caught) for p in proofs), sum(p.tried for p in proofs)
    proved, cases = sum(len(p.proved) for p in proofs), sum(len(p.proved) + len(p.unproved) for p in proofs)
    lines.append(f"| **all {len(proofs)}** | **{caught} / {tried}** | **{proved} / {cases}** | |")
    return "\n".join(lines)
