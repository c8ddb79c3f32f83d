"""PyTorch's own operators as operators of the library: inputs from its OpInfo catalogue, the float64 operator as golden
function, the same operator in the inputs' dtype on the CPU as conforming build. ``case run "opinfo:nn.functional.*"``.

The catalogue is torch.testing._internal.common_methods_invocations.op_db (needs the package expecttest).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import torch

from precision_align.core.errors import RuleError, Unavailable
from precision_align.library.cases import FLOATS, OpCase, Operator

PREFIX = "opinfo:"
SAMPLES = 4  # inputs taken of each operator: the first ones vary shapes, later ones repeat them with other options

# Their results are drawn or uninitialised, or are no tensors with plain values.
UNDETERMINED = frozenset(
    """
    empty empty_like new_empty empty_strided new_empty_strided empty_permuted resize_ resize_as_ bernoulli multinomial
    normal rand_like randint randint_like randn randn_like uniform cauchy exponential geometric log_normal pca_lowrank
    nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout svd_lowrank
    nn.functional.feature_alpha_dropout nn.functional.rrelu nn.functional.fractional_max_pool2d
    nn.functional.fractional_max_pool3d nn.functional.scaled_dot_product_attention
    torch.ops.aten._flash_attention_forward torch.ops.aten._efficient_attention_forward
    """.split()  # noqa: SIM905 - a list of fifty quoted strings would fill a page
)
# Overwrite running statistics that are inputs; read the storage, not the values; a gradient that is no plain tensor.
UNUSUAL = frozenset(
    """
    _batch_norm_with_update _native_batch_norm_legit native_batch_norm nn.functional.batch_norm
    nn.functional.instance_norm as_strided as_strided_copy sgn
    """.split()  # noqa: SIM905
)


@lru_cache(maxsize=1)
def _read_catalogue() -> Mapping[str, Any]:
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise Unavailable(
            f"PyTorch's operator catalogue cannot be imported ({error}): pip install expecttest"
        ) from error
    named = {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name): op for op in op_db}
    return {
        name: op for name, op in named.items() if op.name not in UNDETERMINED | UNUSUAL and torch.float32 in op.dtypes
    }


def list_catalogue() -> tuple[str, ...]:
    """Names of the operators that have float32 inputs and determined results, as "opinfo:NAME", sorted."""
    return tuple(sorted(f"{PREFIX}{name}" for name in _read_catalogue()))


def load_catalogued(name: str, samples: int = SAMPLES) -> Operator:
    """The operator "opinfo:NAME" with up to ``samples`` cases, in float32 and what else of float16 and bfloat16 it has.

    Gradients are tested where the catalogue says that there are any. Raises RuleError for an unknown name and for an
    operator without a usable sample, Unavailable without the catalogue.
    """
    op = _read_catalogue().get(name.removeprefix(PREFIX))
    if op is None:
        raise RuleError(f"{name}: PyTorch's catalogue has no such operator with float32 inputs and a determined result")
    dtypes = tuple(d for d in FLOATS if getattr(torch, d) in op.dtypes)
    cases, run = [], _Call(op)
    for index, sample in enumerate(_take(op, 0, samples)):
        tensors = run.split(index, sample)
        if not _is_plain(run, index, tensors):
            continue
        wrt = tuple(n for n, t in tensors.items() if op.supports_autograd and t.is_floating_point() and t.requires_grad)
        make = partial(_make_inputs, run, index, samples)
        cases.append(OpCase(f"sample-{index}", make, dtypes, ("opinfo",), wrt, why="PyTorch's own sample input"))
    if not cases:
        raise RuleError(f"{name}: none of its samples gives tensors with plain values")
    return Operator(name, cases, natives=[run], replacements={"torch": run}, golden=run)


class _Call:
    """One operator of the catalogue, called by keywords: the tensors of a sample by name, and which sample it is."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self._trees: dict[int, tuple[list[Any], Any]] = {}

    def split(self, index: int, sample: Any) -> dict[str, torch.Tensor]:
        """The sample's tensors by name; all else is kept here."""
        leaves, tree = torch.utils._pytree.tree_flatten((sample.input, list(sample.args), dict(sample.kwargs)))
        self._trees[index] = leaves, tree
        return {f"tensor_{i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}

    def __call__(self, *, sample: int, **tensors: torch.Tensor) -> Any:
        leaves, tree = self._trees[sample]
        placed = [tensors.get(f"tensor_{i}", leaf) for i, leaf in enumerate(leaves)]
        first, args, kwargs = torch.utils._pytree.tree_unflatten(placed, tree)
        result = self.op(first, *args, **kwargs)
        return tuple(result) if isinstance(result, (list, tuple)) else result


def _take(op: Any, seed: int, samples: int) -> Sequence[Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return list(
            islice(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd, set_seed=False), samples)
        )


def _make_inputs(run: _Call, index: int, samples: int, seed: int) -> dict[str, Any]:
    sample = _take(run.op, seed, samples)[index]
    tensors = {name: tensor.detach() for name, tensor in run.split(index, sample).items()}
    return {"sample": index, **tensors}


def _is_plain(run: _Call, index: int, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether all that goes in and comes out are tensors with plain values, and float64 gives float64 (a cast to
    another dtype has no golden function)."""
    plain = {name: tensor.detach() for name, tensor in tensors.items()}
    try:
        found = run(sample=index, **plain)
        wide = run(sample=index, **{n: t.double() if t.is_floating_point() else t for n, t in plain.items()})
    except Exception:  # a sample that torch itself refuses here (a library that is not there) is no case
        return False
    results = list(_list_tensors(found))
    if any(torch.is_tensor(t) and t.is_floating_point() and t.dtype != torch.float64 for t in _list_tensors(wide)):
        return False
    return bool(results) and all(_has_values(tensor) for tensor in (*tensors.values(), *results))


def _list_tensors(found: Any) -> Iterator[Any]:
    yield from found if isinstance(found, tuple) else (found,)


def _has_values(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and not tensor.is_complex()
