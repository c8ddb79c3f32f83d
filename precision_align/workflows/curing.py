"""The cure test of ``lockstep``: the suspect's outputs are the reference's, and the model's results are held against
the reference's once more. A cause that is named rightly takes the difference away; if it stays, there is another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from precision_align.alignment.side import Node
from precision_align.comparison.engine import Engine
from precision_align.core.results import Divergence
from precision_align.core.terms import Phase, Site
from precision_align.core.trees import flatten
from precision_align.numerics.limits import raw_limit

Tensors = Mapping[str, Any]


class _Finished(Exception):
    """The model has given its outputs: the rest of the training step is not run again."""


def try_cure(engine: Engine, first: Divergence, module: Any, run: Callable[[], Any]) -> str:
    """Run the candidate's forward once more with the suspect's outputs overwritten; what came of it, in words, or "".

    ``module``: the candidate as it was before the runs; ``run`` makes its first step. Only for a divergence in the
    first step's forward that is not the root's own code: its outputs are the model's.
    """
    nodes = [node for node in engine.candidate.nodes if node.unit.step == first.step and node.unit.micro == 0]
    suspects = [node for node in nodes if node.scope == first.scope]
    roots = [node for node in nodes if node.parent is None]
    forward = first.phase == Phase.FORWARD and first.site in (Site.MODULE, Site.INLINE)
    if not (forward and first.scope and first.step == nodes[0].unit.step and suspects and len(roots) == 1):
        return ""
    known = {node.number: engine.find_reference_outputs(node) for node in suspects}
    wanted = engine.find_reference_outputs(roots[0])
    own = {path: engine.candidate.dump.values(record.key) for path, record in roots[0].outputs.items()}
    if not wanted or not all(known.values()):
        return ""
    cured = _run_cured(module, suspects[0], known, run)
    if cured is None or cured.keys() != wanted.keys() or own.keys() != wanted.keys():
        return ""
    before, after = (_measure(found, wanted) for found in (own, cured))
    limit = max(raw_limit(record.dtype) for record in roots[0].outputs.values())
    place = f"with the reference's outputs in place of those of {first.scope}, the model's outputs"
    change = f"largest difference {after:.1e} of the largest value, {before:.1e} without"
    if after <= limit:
        return f"cure test: {place} agree ({change}): it is the only cause in the forward pass"
    if after < before / 2:
        return f"cure test: {place} are nearer, but do not agree ({change}): what comes after adds to it"
    return f"cure test: {place} do not agree either ({change}): there is another cause"


def _run_cured(
    module: Any, suspect: Node, known: Mapping[int, Tensors], run: Callable[[], Any]
) -> dict[str, Any] | None:
    """The model's outputs by path; None where the suspect is not found or its outputs have another structure."""
    modules = dict(module.named_modules(remove_duplicate=False))
    target = modules.get(suspect.call.scope)
    if target is None:
        return None
    counted: list[int] = []
    result: dict[str, Any] = {}

    def overwrite(_: Any, __: Any, output: Any) -> Any:
        number = len(counted)
        counted.append(number)
        return _replace(output, known.get(number, {}))

    def stop(_: Any, __: Any, output: Any) -> None:
        result.update(_read(output))
        raise _Finished

    handles = [target.register_forward_hook(overwrite), module.register_forward_hook(stop)]
    try:
        with contextlib.suppress(_Finished):
            run()
    finally:
        for handle in handles:
            handle.remove()
    return result or None


def _replace(output: Any, values: Tensors) -> Any:
    torch = import_module("torch")
    substitute = import_module("precision_align.recording.substitution").substitute
    leaves = dict(flatten(output, lambda value: isinstance(value, torch.Tensor))[1])
    forced = {
        id(leaf): values[path].to(leaf.device, leaf.dtype)
        for path, leaf in leaves.items()
        if path in values and tuple(values[path].shape) == tuple(leaf.shape)
    }
    return substitute(output, forced)


def _read(output: Any) -> dict[str, Any]:
    torch = import_module("torch")
    to_array = import_module("precision_align.replay.values").to_array
    leaves = flatten(output, lambda value: isinstance(value, torch.Tensor))[1]
    return {path: to_array(leaf.detach().cpu()) for path, leaf in leaves}


def _measure(found: Tensors, wanted: Tensors) -> float:
    """The largest difference in units of the largest value, over all outputs; infinite where shapes differ."""
    worst = 0.0
    for path, tensor in wanted.items():
        expected = np.asarray(tensor.double().numpy())
        values = np.asarray(found[path], dtype=np.float64)
        if values.size != expected.size:
            return float("inf")
        with np.errstate(all="ignore"):
            error = np.abs(values.ravel() - expected.ravel())
        size = float(np.max(np.abs(expected), initial=0.0)) or 1.0
        worst = max(worst, float(np.max(np.nan_to_num(error, nan=np.inf), initial=0.0)) / size)
    return worst


@contextlib.contextmanager
def kept_state(module: Any) -> Iterator[Callable[[], None]]:
    """Gives a function that puts parameters and buffers back to what they are now; at the end all is as it was when
    that function was called."""
    torch = import_module("torch")
    now = {name: value.detach().clone() for name, value in _list_state(module)}
    later: dict[str, Any] = {}
    gradients: list[tuple[Any, Any]] = []

    def copy(values: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, value in _list_state(module):
                if name in values and values[name].shape == value.shape:
                    value.detach().copy_(values[name])

    def restore() -> None:
        later.update({name: value.detach().clone() for name, value in _list_state(module)})
        gradients.extend((parameter, parameter.grad) for parameter in module.parameters())
        copy(now)

    try:
        yield restore
    finally:
        copy(later)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _list_state(module: Any) -> Iterator[tuple[str, Any]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
