"""What a case's result is held against: float64 golden, native builds in the same dtype, condition scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from precision_align.core.dtypes import Array
from precision_align.library.cases import Compute, OpCase, Operator, lay_out

if TYPE_CHECKING:
    import torch

Inputs = dict[str, Any]
Tensors = "dict[str, torch.Tensor]"
DRAWS = 3  # the RMS of three draws is within a factor 2 of the true size in 95 % of elements; c has room for that
STEP = 2.0**-20  # relative perturbation: far above float64 rounding (2^-53), far below where curvature shows
GRADIENT = "gradient."
ROW_SHARE = 0.3  # share of the row's RMS added to S: single elements may come out near zero by chance


@dataclass(frozen=True)
class Evaluation:
    """Outputs by name ("output", or "output.0", ... for several) and gradients by the input's name."""

    outputs: Mapping[str, torch.Tensor]
    gradients: Mapping[str, torch.Tensor]

    def named(self) -> dict[str, torch.Tensor]:
        """Both under one kind of name: outputs as they are, gradients as "gradient.<input>"."""
        return {**self.outputs, **{f"{GRADIENT}{name}": value for name, value in self.gradients.items()}}


@dataclass(frozen=True)
class References:
    """All of one (case, dtype). ``inputs``: on the CPU, in their dtypes; ``cotangents``: output -> tensor in
    the output's dtype; ``scales``: the S of every output and gradient."""

    inputs: Inputs
    wrt: tuple[str, ...]
    cotangents: Mapping[str, torch.Tensor]
    golden: Evaluation
    natives: Sequence[Evaluation]
    scales: Mapping[str, Array]


def prepare_inputs(case: OpCase, dtype: str, seed: int) -> Inputs:
    """Make the case's inputs on the CPU, rounded to ``dtype``, contiguous."""
    import torch

    inputs = case.make_inputs(seed)
    for name, value in inputs.items():
        if not torch.is_tensor(value):
            continue
        if value.is_floating_point():
            value = value.to(torch.float32 if name in case.float32 else getattr(torch, dtype))
        inputs[name] = value.contiguous()
    return inputs


def place(inputs: Mapping[str, Any], device: torch.device, layouts: Mapping[str, str]) -> Inputs:
    """Copies on the device, laid out as asked; a layout is made there, since transfers make tensors contiguous."""
    import torch

    def send(name: str, value: Any) -> Any:
        if not torch.is_tensor(value):
            return value
        copy = value.to(device, copy=True)
        return lay_out(copy, layouts[name]) if name in layouts else copy

    return {name: send(name, value) for name, value in inputs.items()}


def prepare_references(operator: Operator, case: OpCase, dtype: str, seed: int, backward: bool) -> References:
    """Compute what the replacement's results will be judged by."""
    inputs = prepare_inputs(case, dtype, seed)
    wrt = case.wrt if backward else ()
    first = evaluate(operator.natives[0], inputs, (), {})
    cotangents = _draw_cotangents(first.outputs, seed) if wrt else {}
    natives = [evaluate(native, inputs, wrt, cotangents) for native in operator.natives]
    wide, wide_cotangents = _widen(inputs), _widen(dict(cotangents))
    golden = evaluate(operator.golden, wide, wrt, wide_cotangents)
    _check_golden(golden, first)
    scales = _find_scales(operator.golden, wide, wrt, wide_cotangents, golden, seed)
    return References(inputs, wrt, cotangents, golden, natives, scales)


def _check_golden(golden: Evaluation, native: Evaluation) -> None:
    """Raises ValueError where golden and native functions do not compute the same things, or not in float64."""
    if list(golden.outputs) != list(native.outputs):
        raise ValueError(f"the golden function gives {list(golden.outputs)}, the native one {list(native.outputs)}")
    for name, value in golden.outputs.items():
        expected = native.outputs[name]
        if value.shape != expected.shape:
            raise ValueError(
                f"the golden {name} has shape {tuple(value.shape)}, the native one {tuple(expected.shape)}"
            )
        if value.is_floating_point() and str(value.dtype) != "torch.float64":
            raise ValueError(f"the golden {name} is {value.dtype}, must be float64")


def evaluate(
    compute: Compute, inputs: Inputs, wrt: tuple[str, ...], cotangents: Mapping[str, torch.Tensor]
) -> Evaluation:
    """Call ``compute`` and, where ``wrt`` names inputs, pull the cotangents back; an unused input has gradient zero."""
    import torch

    unknown = sorted(set(wrt) - set(inputs))
    if unknown:
        raise ValueError(f"differentiates by {unknown}, its inputs are {sorted(inputs)}")
    arguments = {name: _track(value, name in wrt) for name, value in inputs.items()}
    outputs = dict(name_outputs(compute(**arguments)))
    gradients: dict[str, torch.Tensor] = {}
    if wrt:
        reached = [name for name, output in outputs.items() if output.requires_grad and name in cotangents]
        if not reached:
            raise RuntimeError("no gradient flows back: the output does not depend on its inputs through autograd")
        found = torch.autograd.grad(
            [outputs[name] for name in reached],
            [arguments[name] for name in wrt],
            [cotangents[name].to(outputs[name].dtype) for name in reached],
            allow_unused=True,
        )
        gradients = {n: torch.zeros_like(arguments[n]) if g is None else g for n, g in zip(wrt, found)}
    return Evaluation({name: output.detach() for name, output in outputs.items()}, gradients)


def _track(value: Any, differentiate: bool) -> Any:
    import torch

    if not torch.is_tensor(value):
        return value
    return value.detach().requires_grad_(differentiate)


def name_outputs(result: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a result: one, or a list or tuple in which None stands for an output that is not given.

    Raises TypeError for anything else.
    """
    if not isinstance(result, (list, tuple)):
        yield "output", _check_tensor(result)
        return
    for index, item in enumerate(result):
        if item is not None:
            yield f"output.{index}", _check_tensor(item)


def _check_tensor(value: Any) -> torch.Tensor:
    import torch

    if not torch.is_tensor(value):
        raise TypeError(f"returned {type(value).__name__}, must return a tensor or a tuple of tensors")
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise TypeError(f"returned a tensor without plain values: {value.layout}, {value.dtype} on {value.device}")
    return value


def to_array(tensor: torch.Tensor) -> Array:
    """Its numbers on the CPU: floating ones in float64, complex ones in complex128, others as they are."""
    import torch

    values = tensor.detach().cpu().resolve_conj().resolve_neg()
    if values.is_complex():
        values = values.to(torch.complex128)
    elif values.is_floating_point():
        values = values.double()
    array: Array = values.numpy()
    return array


def _widen(inputs: Inputs) -> Inputs:
    import torch

    return {n: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for n, v in inputs.items()}


def _draw_cotangents(outputs: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    import torch

    generator = torch.Generator().manual_seed(seed + 1)
    floating = {name: output for name, output in outputs.items() if output.is_floating_point()}
    return {n: torch.randn(o.shape, generator=generator).to(o.dtype) for n, o in floating.items()}


def _find_scales(
    golden: Compute,
    inputs: Inputs,
    wrt: tuple[str, ...],
    cotangents: Mapping[str, torch.Tensor],
    base: Evaluation,
    seed: int,
) -> dict[str, Array]:
    """S of every output and gradient: how far they move, per unit, when all inputs and all intermediate results move at
    random by a relative 2^-20."""
    import torch

    from precision_align.replay.noise import run_noisily

    generator = torch.Generator().manual_seed(seed + 2)
    start = _join(base)
    sums = {name: torch.zeros_like(value) for name, value in start.items()}
    for _ in range(DRAWS):
        near, pulled = _perturb(inputs, generator), _perturb(dict(cotangents), generator)
        moved = _join(run_noisily(partial(evaluate, golden, near, wrt, pulled), generator, STEP))
        for name, value in moved.items():
            sums[name] += torch.nan_to_num((value - start[name]) / STEP, 0.0, 0.0, 0.0).square()
    return {name: to_array(_add_row_share((total / DRAWS).sqrt())) for name, total in sums.items()}


def _join(evaluation: Evaluation) -> dict[str, torch.Tensor]:
    return {name: value for name, value in evaluation.named().items() if value.is_floating_point()}


def _perturb(inputs: Inputs, generator: torch.Generator) -> Inputs:
    import torch

    def move(value: Any) -> Any:
        if not torch.is_tensor(value) or not value.is_floating_point():
            return value
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        return value * (1 + STEP * noise)

    return {name: move(value) for name, value in inputs.items()}


def _add_row_share(scale: torch.Tensor) -> torch.Tensor:
    if scale.dim() == 0 or scale.numel() == 0:
        return scale
    return scale + ROW_SHARE * scale.square().mean(dim=-1, keepdim=True).sqrt()
