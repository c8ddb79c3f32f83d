"""What happens around a model: gradients on their way to the optimizer, its step, weights and state at the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from localization_benchmark import BF16, BOTH, FP32, Setup, add, train_step
from localization_benchmark.trainer import Llama, make_batch
from torch import nn

DECAY, RATE, EPS, BETAS = 0.1, 1e-2, 1e-8, (0.9, 0.999)
CLIP = 0.05
LOST = "a decay of 1e-3 is below half a unit in the last place: the reference's own step loses it, too"


class Adam(torch.optim.Optimizer):
    """AdamW by hand. ``fault``, and ``only``: the index of the parameter that is concerned (-1: all)."""

    def __init__(self, parameters: Any, fault: str = "", only: int = -1) -> None:
        super().__init__(parameters, {"lr": RATE, "betas": BETAS, "eps": EPS, "weight_decay": DECAY})
        self.fault, self.only, self.steps = fault, only, 0

    @torch.no_grad()
    def step(self) -> None:
        for index, p in enumerate(self.param_groups[0]["params"]):
            if p.grad is not None:
                self.update(p, self.fault if self.only in (-1, index) else "")

    def update(self, p: torch.Tensor, fault: str) -> None:
        state = self.state[p]
        if not state:
            state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        state["step"] += 1
        self.steps += 1
        w, g = p.float(), p.grad.float()
        if fault == "coupled_decay":
            g = g + DECAY * w
        elif fault != "no_decay":
            w = w * (1 - RATE * DECAY)
        m = state["exp_avg"].float() * BETAS[0] + g * (1 - BETAS[0])
        v = state["exp_avg_sq"].float() * BETAS[1] + g * g * (1 - (0.99 if fault == "beta" else BETAS[1]))
        t = float(self.steps) if fault == "one_counter" else float(state["step"])
        c1, c2 = (1.0, 1.0) if fault == "no_correction" else (1 - BETAS[0] ** t, 1 - BETAS[1] ** t)
        root = (v / c2 + 1e-6).sqrt() if fault == "eps_inside" else (v / c2).sqrt() + (1e-5 if fault == "eps" else EPS)
        change = RATE * (1.02 if fault == "rate" else 1.0) * (m / c1) / root
        if fault == "sign":
            change = -change
        state["exp_avg"].copy_(m)
        state["exp_avg_sq"].copy_(v.bfloat16() if fault == "low_state" else v)
        if fault == "lost":
            return
        if fault == "copy" and p.dim() == 2:  # the update goes into a copy of a transposed view
            p.t().contiguous().copy_((w - change).t())
            return
        if fault == "low_update":
            p.copy_(w.bfloat16() - change.bfloat16())
            return
        p.copy_(w - change)


def stock(parameters: Any, **more: Any) -> torch.optim.AdamW:
    """AdamW of torch with the settings above."""
    return torch.optim.AdamW(parameters, **{"lr": RATE, "weight_decay": DECAY, "betas": BETAS, "eps": EPS, **more})


def select(model: nn.Module, part: str) -> list[torch.Tensor]:
    """Parameters whose name contains a part, with a gradient."""
    found = [p for name, p in model.named_parameters() if part in name and p.grad is not None]
    assert found, part
    return found


def scale_gradients(part: str, factor: float) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        for p in select(model, part):
            p.grad.mul_(factor)

    return change


def clip(
    model: nn.Module, counted: str = "", measure: Callable[[list[torch.Tensor]], torch.Tensor] | None = None
) -> None:
    """Clip by the global norm; ``counted``: what the norm leaves out; ``measure``: another norm."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    left = {id(p.grad) for p in select(model, counted)} if counted else set()
    used = [g for g in gradients if id(g) not in left]
    norm = (measure or (lambda parts: torch.stack([g.float().norm() for g in parts]).norm()))(used)
    for g in gradients:
        g.mul_(min(1.0, CLIP / float(norm)))


def clip_by_mean_of_norms(model: nn.Module) -> None:
    clip(model, measure=lambda parts: torch.stack([g.float().norm() for g in parts]).mean())


def clip_reading_halves(model: nn.Module) -> None:
    """The first gradient's memory is read as another dtype."""

    def measure(parts: list[torch.Tensor]) -> torch.Tensor:
        wrong = parts[0].view(torch.bfloat16 if parts[0].dtype == torch.float32 else torch.float16).float().nan_to_num()
        return torch.stack([wrong.clamp(-100, 100).norm(), *(g.float().norm() for g in parts[1:])]).norm()

    clip(model, measure=measure)


def clip_counting_twice(model: nn.Module) -> None:
    clip(
        model,
        measure=lambda parts: torch.stack([g.float().norm() * (2 if g.shape[0] == 60 else 1) for g in parts]).norm(),
    )


def add_placeholder(model: nn.Module) -> None:
    for p in select(model, "embed.weight"):
        rows = torch.arange(len(p)) == 5
        p.grad.add_(torch.where(rows, 12345.0, 0.0)[:, None].to(p.dtype))


def double_at_second(model: nn.Module) -> None:
    """Registered before the run: a parameter's gradient doubles with each further micro-batch."""
    for name, p in model.named_parameters():
        if "layers.1.mlp" in name:
            count = [0]

            def hook(g: torch.Tensor, count: list[int] = count) -> torch.Tensor:
                count[0] += 1
                return g * 2 if count[0] == 2 else g

            p.register_hook(hook)


def make(
    seed: int, dtype: torch.dtype, optimizer: Any = None, between: Any = None, micro: int = 1, steps: int = 1
) -> Setup:
    """A small trainer; every step sees other data."""
    torch.manual_seed(seed)
    model = Llama().to(dtype).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    batches = [[make_batch(seed) for _ in range(micro)] for _ in range(steps)]
    return Setup(model, batches, (optimizer or stock)(list(model.parameters())), between)


def _add(
    name: str, first: str, sites: Any, row: str, change: Callable[[bool, int, torch.dtype], Setup], **more: Any
) -> None:
    more.setdefault("phase", "step")
    add(name, "training", change, first, sites, row=row, **more)


def _between(name: str, first: str, row: str, right: Any, wrong: Any, **more: Any) -> None:
    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        return make(seed, dtype, between=wrong if faulty else right)

    _add(name, first, more.pop("sites", ("optimizer", "inline")), row, build, **more)


_between(
    "tensor_parallel_copies_summed",
    "layers.1.attn.q",
    "43",
    None,
    scale_gradients("layers.1.attn", 2.0),
    words=("by a constant, 2:",),
)
_between(
    "shared_norm_not_summed",
    "norm",
    "44",
    None,
    scale_gradients("norm.weight", 0.5),
    sites=("optimizer",),
    words=("by a constant, 1/2:",),
)
_between(
    "expert_gradients_times_ranks",
    "layers.1.mlp.gate",
    "47",
    None,
    scale_gradients("layers.1.mlp", 4.0),
    words=("by a constant, 4:",),
)
_between(
    "average_ignores_scale",
    "layers.0.mlp.gate",
    "49",
    None,
    scale_gradients("layers.0.mlp", 2.0),
    words=("by a constant, 2:",),
)
_between("bucket_not_reduced", "head", "54", None, scale_gradients("head", 0.5), words=("by a constant, 1/2:",))
_between("loss_scale_not_removed", "embed", "65", None, scale_gradients("", 2.0**15), words=("by a constant, 32768",))
_between("stale_placeholder_added", "", "41", None, add_placeholder, sites="inline", phase="backward")
_between("norm_leaves_out_a_shard", "embed", "58", clip, lambda m: clip(m, "embed"))
_between("norm_averaged_over_experts", "embed", "60", clip, clip_by_mean_of_norms)
_between("norm_counts_replicas_twice", "embed", "59", clip, clip_counting_twice, dtypes=BOTH)
_between("norm_reads_another_dtype", "embed", "62", clip, clip_reading_halves, dtypes=(FP32,))
_between("not_clipped", "embed", "pilot", clip, None)


def _micro(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
    setup = make(seed, dtype, micro=2)
    if faulty:
        double_at_second(setup.model)
    return setup


_add("doubled_in_second_micro_batch", "layers.1.mlp", "inline", "48", _micro, phase="backward")


def _optimizer(name: str, first: str, row: str, fault: str, only: int = -1, **more: Any) -> None:
    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        return make(seed, dtype, (lambda parameters: Adam(parameters, fault, only)) if faulty else stock)

    _add(name, first, "optimizer", row, build, **more)


for _fault in ("one_counter", "no_correction", "eps_inside"):
    _optimizer(
        f"adam_{_fault}",
        "layers.0.norm1" if _fault == "one_counter" else "embed",
        "63",
        _fault,
        words={
            "one_counter": ("bias correction of step 2",),
            "no_correction": ("no bias correction",),
            "eps_inside": ("under the root",),
        }[_fault],
    )
for _fault in ("coupled_decay", "no_decay", "beta", "rate", "sign", "eps"):
    _hidden = {BF16: LOST} if _fault == "no_decay" else {}
    _optimizer(
        f"adam_{_fault}",
        "embed",
        "pilot",
        _fault,
        hidden=_hidden,
        words={
            "coupled_decay": ("decay is coupled",),
            "no_decay": ("no weight decay",),
            "rate": ("learning rate",),
            "sign": ("other way", "maximize"),
            "eps": ("eps 1e-05",),
        }.get(_fault, ()),
    )
_optimizer("update_lost", "layers.0.attn.q", "64", "lost", only=3, words=("not updated",))
_optimizer("update_into_a_copy", "layers.0.attn.o", "64", "copy", only=4, words=("not updated",))
_optimizer("update_below_precision", "embed", "64", "low_update", dtypes=(FP32,))
_optimizer("state_in_bfloat16", "embed", "pilot", "low_state", dtypes=(FP32,))


def _stock(name: str, row: str, other: Callable[[Any], Any], **more: Any) -> None:
    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        return make(seed, dtype, other if faulty else stock)

    _add(name, "embed", "optimizer", row, build, **more)


_stock("rate_of_another_schedule", "pilot", lambda p: stock(p, lr=1.1e-2), words=("learning rate", "lr 0.011"))
_stock("adam_instead_of_adamw", "pilot", lambda p: torch.optim.Adam(p, lr=RATE, weight_decay=DECAY), words=("decay",))
_stock("decay_dropped", "pilot", lambda p: stock(p, weight_decay=0.0), words=("decay",), hidden={BF16: LOST})


def _without(name: str, part: str, first: str) -> None:
    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        setup = make(seed, dtype, stock)
        if faulty:
            kept = [p for n, p in setup.model.named_parameters() if part not in n]
            setup.optimizer = stock(kept)
        return setup

    _add(name, first, "optimizer", "64", build)


_without("parameters_not_given", "layers.1.attn", "layers.1.attn.q")


def _start(name: str, first: str, row: str, change: Callable[[nn.Module], None], **more: Any) -> None:
    """Weights that one side starts from."""

    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        setup = make(seed, dtype, stock)
        if faulty:
            with torch.no_grad():
                change(setup.model)
        return setup

    _add(name, first, "parameters", row, build, phase="forward", **more)


def _swap(model: Any) -> None:
    gate, up = model.layers[1].mlp.gate.weight, model.layers[1].mlp.up.weight
    kept = gate[64:].clone()
    gate[64:] = up[:64]
    up[:64] = kept


_start(
    "weights_cast_to_bfloat16",
    "layers.0.mlp.down",
    "24",
    lambda m: m.layers[0].mlp.down.weight.copy_(m.layers[0].mlp.down.weight.bfloat16()),
    dtypes=(FP32,),
    words=("bfloat16",),
)
_start("final_norm_zero", "norm", "19", lambda m: m.norm.weight.zero_(), words=("all zero",))
_start("gate_and_up_split_wrongly", "layers.1.mlp.gate", "66", _swap)
_start(
    "zero_weights_written", "layers.0.attn.o", "66", lambda m: m.layers[0].attn.o.weight.zero_(), words=("all zero",)
)
_start(
    "stale_weight",
    "layers.1.attn.v",
    "pilot",
    lambda m: m.layers[1].attn.v.weight.mul_(1 + 2.0**-6),
    words=("scaled by a constant, 1.0156",),
)
_start("padding_row_not_zero", "embed", "10", lambda m: m.embed.weight[0].add_(1), words=("confined to index 0",))


def _resume(name: str, first: str, change: Callable[[Any, nn.Module], None]) -> None:
    """One step before recording starts; then the optimizer's state is what a checkpoint gave back."""

    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        setup = make(seed, dtype, stock, steps=2)
        train_step(setup, setup.batches.pop(0))
        if faulty:
            change(setup.optimizer, setup.model)
        return setup

    _add(name, first, "optimizer", "66", build)


def _zero_steps(optimizer: Any, model: nn.Module) -> None:
    for state in optimizer.state.values():
        state["step"].zero_()


def _swap_slots(optimizer: Any, model: nn.Module) -> None:
    first, second = (dict(model.named_parameters())[f"layers.1.mlp.{name}.weight"] for name in ("gate", "up"))
    for name in ("exp_avg", "exp_avg_sq"):
        kept = optimizer.state[first][name].clone()
        optimizer.state[first][name].copy_(optimizer.state[second][name])
        optimizer.state[second][name].copy_(kept)


_resume("step_counter_zeroed", "embed", _zero_steps)
_resume("optimizer_slots_swapped", "layers.1.mlp.gate", _swap_slots)
_resume(
    "moments_cleared", "embed", lambda o, m: [s[n].zero_() for s in o.state.values() for n in ("exp_avg", "exp_avg_sq")]
)
