"""Fire drills: named faults put into the demo's model, one at a time, to see that each is found where it was put.

``run_drill("mask-dropped")`` trains one step on the CPU and on the simulated NPU with that fault, compares the two, and
says whether the first divergence is the module that was broken. ``precision-align demo --fault NAME`` does the whole
demo with it, ``--fault all`` runs every drill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from precision_align.core.errors import UsageError
from precision_align.core.terms import Phase
from precision_align.devices.faults import KINDS, Fault, parse_fault

if TYPE_CHECKING:
    from precision_align.reporting.report import Report

# Name -> fault. Every kind that the demo's model can have, in modules of every sort.
DRILLS: Mapping[str, str] = {
    "attention-scale": "scale@blocks.0.attention.core:value=1.02",
    "bf16-norm": "bf16@blocks.0.mlp_norm",
    "bit-flip": "bit_flip@blocks.0.mlp.activation:index=5",
    "double-update": "scale@blocks.0.mlp.gate_up:phase=step:value=1.5",
    "dropped-mask": "mask_dropped@blocks.0.attention.core",
    "embedding-gradient": "duplicates_dropped@embedding:phase=backward",
    "infinity": "inf@embedding",
    "input-gradient": "scale@blocks.0.mlp.down:mm:backward:call=1:value=1.05",
    "layer-norm-epsilon": "eps@norm",
    "lost-tile": "lost_tile@blocks.0.attention.qkv:value=4",
    "low-log-softmax": "low_softmax@:log_softmax",
    "nan": "nan@blocks.0.attention.qkv",
    "nan-gradient": "nan@blocks.0.mlp.gate_up:mm:backward",
    "norm-gradient": "bf16@norm:layer_norm_backward:backward",
    "offset": "bias@blocks.0.attention.output",
    "rms-norm-epsilon": "eps@blocks.0.mlp_norm:value=0.05",
    "rope-layout": "interleaved_rope@blocks.0.attention.rotary",
    "sample-variance": "unbiased_variance@norm",
    "saturation": "saturate@blocks.0.mlp.gate_up:value=0.1",
    "scale": "scale@blocks.0.mlp.down:mm:forward:value=1.01",
    "short-k": "zero_tail@head:value=8",
    "skipped-update": "update_skipped@blocks.0.mlp.down",
    "swapped-halves": "swapped_halves@blocks.0.mlp.activation",
    "truncation": "truncate@blocks.0.mlp.gate_up",
    "weight-gradient": "gradient_scale@head:mm:call=0",
}


@dataclass(frozen=True)
class Drill:
    """What came of one.

    ``found``: the first divergence has the fault's module and phase; ``fired``: it acted; ``way``: lockstep or dumps.
    """

    name: str
    fault: Fault
    fired: bool
    report: Report
    way: str = "lockstep"

    @property
    def found(self) -> bool:
        """Whether the first divergence is where the fault was put."""
        first = self.report.first
        return first is not None and (first.scope, first.phase) == (self.fault.module, self.fault.effective_phase)

    def describe(self) -> str:
        """One line."""
        first = self.report.first
        place = "nothing" if first is None else f"{first.scope or '(root)'}, {first.phase}"
        wanted = f"{self.fault.module or '(root)'}, {self.fault.effective_phase}"
        verdict = "found" if self.found else f"MISSED, expected {wanted}"
        return f"{self.name} ({self.way}): {KINDS[self.fault.kind].meaning}: {place}: {verdict}"


def resolve_fault(text: str) -> str:
    """The fault of a drill's name, or the text itself. Raises UsageError for what is neither."""
    if text in DRILLS:
        return DRILLS[text]
    if "@" not in text:
        raise UsageError(f'"{text}" is no named fault; there are {", ".join(DRILLS)}, or write KIND@MODULE…')
    parse_fault(text)
    return text


def run_drill(name: str, device: str = "simulated:none", folder: Path | None = None) -> Drill:
    """One training step (two where the fault is in an update) of a small form of the demo's model, with the fault.

    ``name``: of ``DRILLS``, or a fault's own text; ``device``: the candidate's; ``folder``: record both sides there and
    compare the two dumps, instead of ``lockstep`` in memory. The candidate has the demo's right replacements by
    torch_npu's fused operators. Raises UsageError for an unknown name or a module that is not there.
    """
    from precision_align.devices.injection import inject

    fault = parse_fault(resolve_fault(name))
    sides = _prepare(device, updates=fault.effective_phase is Phase.STEP)
    with inject(sides[1].model, fault) as injection:
        report = _compare_in_memory(*sides) if folder is None else _compare_dumps(*sides, folder)
    return Drill(name, fault, bool(injection.fired), report, "lockstep" if folder is None else "dumps")


@dataclass(frozen=True)
class _Side:
    """A model on its device, its batch, and its optimizer where updates are looked at."""

    model: Any
    batch: Any
    optimizer: Any

    def step(self) -> None:
        """One training step."""
        self.model.zero_grad()
        self.model(*self.batch).backward()
        if self.optimizer is not None:
            self.optimizer.step()

    @property
    def num_steps(self) -> int:
        """The effect of an update is seen in the step after it."""
        return 1 if self.optimizer is None else 2


def _compare_in_memory(reference: _Side, candidate: _Side) -> Report:
    import precision_align

    updates = reference.optimizer is not None
    report: Report = precision_align.lockstep(
        reference.model,
        candidate.model,
        reference.batch,
        candidate_inputs=candidate.batch,
        step=lambda model, _: (reference if model is reference.model else candidate).step(),
        optimizers=(reference.optimizer, candidate.optimizer) if updates else None,
        steps=reference.num_steps,
    )
    return report


def _compare_dumps(reference: _Side, candidate: _Side, folder: Path) -> Report:
    import precision_align

    paths = [folder / "reference", folder / "candidate"]
    for side, path in zip((reference, candidate), paths):
        with precision_align.capture(side.model, path, optimizer=side.optimizer, overwrite=True) as recorder:
            for _ in range(side.num_steps):
                with recorder.step():
                    side.step()
    report: Report = precision_align.compare(*map(str, paths), replay=reference.model)
    return report


def _prepare(device: str, *, updates: bool) -> tuple[_Side, _Side]:
    """(reference, candidate)."""
    import torch

    from precision_align.demo.model import LanguageModel, ModelConfig
    from precision_align.demo.train import prepare_device

    place = prepare_device(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = ModelConfig(context=16, hidden=32, heads=2, layers=1, inner=48)
        reference, candidate = LanguageModel(config), LanguageModel(config)
        tokens = torch.randint(0, 32, (2, 17))  # few values, so that every token comes more than once
    candidate.load_state_dict(reference.state_dict())
    if place.type == "npu":
        from precision_align.demo.ascend import RIGHT, replace_operators

        replace_operators(candidate, RIGHT)
    candidate.to(place)
    batches = [tuple(one.to(at) for one in (tokens[:, :-1], tokens[:, 1:])) for at in ("cpu", place)]

    def make_optimizer(model: Any) -> Any:
        return torch.optim.AdamW(model.parameters(), lr=1e-3) if updates else None

    return _Side(reference, batches[0], make_optimizer(reference)), _Side(
        candidate, batches[1], make_optimizer(candidate)
    )


def run_all(tell: Callable[[str], None], device: str = "simulated:none") -> list[Drill]:
    """Every drill in both ways, in memory and through two dumps; ``tell`` gets a line each."""
    drills = []
    with TemporaryDirectory() as place:
        for name in DRILLS:
            for folder in (None, Path(place) / name):
                drills.append(run_drill(name, device, folder))
                tell(drills[-1].describe())
    return drills
