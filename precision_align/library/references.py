"""What a case's result is held against: float64 golden, native builds in the same dtype, condition scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.library.cases import Compute, OpCase, Operator, lay_out, settle

if TYPE_CHECKING:
    import torch

Inputs = dict[str, Any]
Tensors = "dict[str, torch.Tensor]"
DECISION_DRAWS = 8  # a decision between two equals falls the same way in all of them once in 128 times
GRADIENT = "gradient."


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
    the output's dtype; ``scales``: the S of every output and gradient; ``options``: values that whole-number outputs
    take under perturbation."""

    inputs: Inputs
    wrt: tuple[str, ...]
    cotangents: Mapping[str, torch.Tensor]
    golden: Evaluation
    natives: Sequence[Evaluation]
    scales: Mapping[str, Array]
    options: Mapping[str, Sequence[Array]] = field(default_factory=dict)


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
    builds = [settle(operator, native) for native in operator.natives]
    exact_function = settle(operator, operator.golden)
    first = evaluate(builds[0], inputs, (), {})
    cotangents = draw_cotangents(first.outputs, seed) if wrt else {}
    natives = [evaluate(native, inputs, wrt, cotangents) for native in builds]
    wide, wide_cotangents = widen(inputs), widen(dict(cotangents))
    golden = evaluate(exact_function, wide, wrt, wide_cotangents)
    _check_golden(golden, first)
    scales, options = _perturb_golden(exact_function, wide, wrt, wide_cotangents, golden, seed)
    if case.exact:  # ties on purpose: perturbation would call every result of a tie undecided
        scales.update({n: np.abs(to_array(v)) for n, v in golden.outputs.items() if v.is_floating_point()})
        options = {}
    return References(inputs, wrt, cotangents, golden, natives, scales, options)


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


def widen(inputs: Mapping[str, Any]) -> Inputs:
    return _map_floating(inputs, lambda value: value.double())


def draw_cotangents(outputs: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    import torch

    generator = torch.Generator().manual_seed(seed + 1)
    floating = {name: output for name, output in outputs.items() if output.is_floating_point()}
    return {n: torch.randn(o.shape, generator=generator).to(o.dtype) for n, o in floating.items()}


def _perturb_golden(
    golden: Compute,
    inputs: Inputs,
    wrt: tuple[str, ...],
    cotangents: Mapping[str, torch.Tensor],
    base: Evaluation,
    seed: int,
) -> tuple[dict[str, Array], dict[str, list[Array]]]:
    """S of every output and gradient, and the values of whole-number outputs, when all inputs and all intermediate
    results move at random by a relative 2^-20."""
    import torch

    from precision_align.replay.noise import run_noisily
    from precision_align.replay.scales import DRAWS, STEP, measure_change, perturb

    generator = torch.Generator().manual_seed(seed + 2)
    start = {name: to_array(value) for name, value in base.named().items()}
    decides = any(values.dtype.kind not in "fc" for values in start.values())
    moved: dict[str, list[Array]] = {name: [] for name in start}
    change = perturb(generator)
    for _ in range(DECISION_DRAWS if decides else DRAWS):
        near, pulled = _map_floating(inputs, change), _map_floating(cotangents, change)
        found = run_noisily(partial(evaluate, golden, near, wrt, pulled), generator, STEP).named()
        for name in start:
            moved[name].append(to_array(found[name]))
    floating = {name: values for name, values in start.items() if values.dtype.kind in "fc"}
    scales = {name: measure_change(values, moved[name]) for name, values in floating.items()}
    return scales, {name: moved[name] for name in start if name not in floating}


def _map_floating(inputs: Mapping[str, Any], change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
    import torch

    return {n: change(v) if torch.is_tensor(v) and v.is_floating_point() else v for n, v in inputs.items()}
