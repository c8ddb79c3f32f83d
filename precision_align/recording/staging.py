"""From torch tensors to the raw words of a draft: own copies in logical C order, without touching the run.

Nothing here raises into training: what cannot be copied comes back without words and with the reason. Copies are
made without autograd and outside every dispatch and function mode. Autocast needs no switching off: no operation used
here (detach, clone, copy, bit views, equal) is on its lists. No operation here draws random numbers.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional

import numpy as np
import torch

from precision_align.core.dtypes import DTYPES, Array
from precision_align.recording.shards import describe_shard, local_shard

# A copy is reused at once (an output is the next module's input), so a short memory is enough and bounds what is held.
REUSED_COPIES = 32
REUSED_BYTES = 1 << 28
# A tensor that repeats itself by stride 0 is written out up to here; masks and biases are far below.
EXPANDED_BYTES = 1 << 30

_SPARSE_PARTS = {
    "sparse_coo": ("_indices", "_values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
    "jagged": ("values", "offsets"),
}
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class Staged:
    """One tensor taken off the run.

    ``words``: C-ordered NumPy array of the logical shape in the dtype's word type, owned by us, or None (``reason``
    says why); ``shape`` and ``stride`` in elements (-1 for a ragged dimension); ``nbytes`` logical; ``parts``: the
    component tensors of a sparse or nested one, by name.
    """

    words: Optional[Array]
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    layout: str
    device: str
    requires_grad: bool
    nbytes: int
    reason: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    parts: tuple[tuple[str, Staged], ...] = ()


class Unstorable(Exception):
    """This tensor has no words that could be kept; the text is the reason."""


def _find_mode_switch() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    try:
        from torch.utils._python_dispatch import _disable_current_modes
    except ImportError:  # a private name: without it copies run inside the user's dispatch modes, as his own would
        return contextlib.nullcontext
    return _disable_current_modes


_without_dispatch_modes = _find_mode_switch()


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Run torch operations that no autograd graph, dispatch mode or function mode of the user sees."""
    with torch._C.DisableTorchFunction(), _without_dispatch_modes(), torch.no_grad():
        yield


_Copy = tuple[Any, tuple[Any, ...], Staged]  # weak reference, what must not change, the copy


class Stager:
    """Copies tensors; hands the same words out again while a tensor object is provably unchanged."""

    def __init__(self) -> None:
        self._copies: OrderedDict[int, _Copy] = OrderedDict()

    def forget(self) -> None:
        """Drop all remembered copies (at a step's end, or when a device reuses memory behind our back)."""
        self._copies.clear()

    def stage(self, tensor: torch.Tensor) -> Staged:
        """A :class:`Staged` of any tensor, never an exception."""
        try:
            with untouched():
                return self._stage(tensor)
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            return _describe(tensor, reason=f"{type(error).__name__}: {first_line}")

    def _stage(self, tensor: torch.Tensor) -> Staged:
        shard = describe_shard(tensor)
        if shard is not None:
            staged = self._stage(local_shard(tensor))
            return replace(staged, requires_grad=bool(tensor.requires_grad), extra={**staged.extra, "shard": shard})
        reason = _obstacle(tensor)
        if reason:
            return _describe(tensor, reason=reason)
        state = _version_state(tensor)
        known = self._copies.get(id(tensor))
        if known is not None and self._is_current(known, tensor, state):
            return known[2]
        staged = stage_fresh(tensor)
        if state is not None and staged.words is not None and staged.words.nbytes:
            self._remember(tensor, state, staged)
        return staged

    def _remember(self, tensor: torch.Tensor, state: tuple[Any, ...], staged: Staged) -> None:
        self._copies[id(tensor)] = (weakref.ref(tensor), state, staged)
        self._copies.move_to_end(id(tensor))
        for number in [number for number, (reference, _, _) in self._copies.items() if reference() is None]:
            del self._copies[number]
        while len(self._copies) > 1 and (len(self._copies) > REUSED_COPIES or self._num_bytes() > REUSED_BYTES):
            self._copies.popitem(last=False)

    def _num_bytes(self) -> int:
        return sum(staged.nbytes for _, _, staged in self._copies.values())

    @staticmethod
    def _is_current(known: _Copy, tensor: torch.Tensor, state: Optional[tuple[Any, ...]]) -> bool:
        reference, known_state, staged = known
        return reference() is tensor and state is not None and known_state == state and _still_holds(tensor, staged)


def _version_state(tensor: torch.Tensor) -> Optional[tuple[Any, ...]]:
    """What must stay the same for a copy to be reused, or None where that cannot be known.

    Parameters are never reused: optimizers update them through ``.data``, which does not count as a new version, and
    a weak reference to one would make ``torch.utils.swap_tensors`` (``module.to``) fail.
    """
    if isinstance(tensor, torch.nn.Parameter) or type(tensor) is not torch.Tensor or tensor.is_inference():
        return None
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return None
    return (
        tensor._version,
        tensor.data_ptr(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
    )


def _still_holds(tensor: torch.Tensor, staged: Staged) -> bool:
    """Whether the copy still has the tensor's bits; only the CPU's memory can be looked at without a transfer.

    Writes through ``.data`` or through NumPy do not count as a new version, hence the look.
    """
    if tensor.device.type != "cpu" or staged.words is None:
        return True
    fresh = _words(tensor)
    return fresh.tobytes() == staged.words.tobytes() if fresh.nbytes < 64 else _equal_bits(fresh, staged.words)


def _equal_bits(left: Array, right: Array) -> bool:
    return bool(np.array_equal(left.reshape(-1).view(np.uint8), right.reshape(-1).view(np.uint8)))


def stage_fresh(tensor: torch.Tensor) -> Staged:
    """A new copy. Raises whatever torch raises for tensors nobody can copy; call inside :func:`untouched`."""
    layout = _layout(tensor)
    if layout in _SPARSE_PARTS:
        return _stage_parts(tensor, layout)
    if layout == "_mkldnn":
        return _describe(tensor, words=_words(tensor.to_dense()))
    extra: dict[str, Any] = {}
    if tensor.is_quantized:
        extra = _quantizer(tensor)
    if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape)):
        extra["expanded"] = True
        if tensor.numel() * tensor.element_size() > EXPANDED_BYTES:
            return _stage_base(tensor)
    return _describe(tensor, words=_words(tensor), extra=extra)


def _obstacle(tensor: torch.Tensor) -> str:
    if torch.nn.parameter.is_lazy(tensor):
        return "not initialised yet (a lazy module)"
    kind = type(tensor)
    if kind.__name__ == "FakeTensor":
        return "a FakeTensor has a shape and no values: capture outside of FakeTensorMode"
    if tensor.device.type == "meta":
        return "a meta tensor has no values"
    if _is_transformed(tensor):
        return "inside a torch.func transform"
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return "inside a CUDA graph capture"
    if kind not in _PLAIN_TYPES and not _has_default_dispatch(kind) and _layout(tensor) != "jagged":
        return f"a tensor of class {kind.__name__}, which may hold its values elsewhere"
    return ""


def _has_default_dispatch(kind: type) -> bool:
    return getattr(kind, "__torch_dispatch__", None) is torch._C._disabled_torch_dispatch_impl


def _is_transformed(tensor: torch.Tensor) -> bool:
    functorch = getattr(torch._C, "_functorch", None)
    check = getattr(functorch, "is_functorch_wrapped_tensor", None)
    return bool(check is not None and check(tensor))


def _layout(tensor: torch.Tensor) -> str:
    return str(tensor.layout).replace("torch.", "")


def _stage_parts(tensor: torch.Tensor, layout: str) -> Staged:
    parts = []
    for method in _SPARSE_PARTS[layout]:
        part = getattr(tensor.detach(), method)()
        parts.append((method.lstrip("_"), stage_fresh(part)))
    names = ", ".join(name for name, _ in parts)
    return _describe(tensor, reason=f"{layout}: kept as its parts {names}", parts=tuple(parts))


def _stage_base(tensor: torch.Tensor) -> Staged:
    """An expanded tensor too large to be written out: each repeated dimension once, as the part "base"."""
    base = tensor.detach()
    for dim, (step, size) in enumerate(zip(tensor.stride(), tensor.shape)):
        base = base.narrow(dim, 0, 1) if step == 0 and size > 1 else base
    if base.numel() * base.element_size() > EXPANDED_BYTES:
        raise Unstorable(f"expanded to {tensor.numel() * tensor.element_size()} bytes, its base is large too")
    reason = f"expanded to {tensor.numel() * tensor.element_size()} bytes: kept as its base"
    return _describe(tensor, reason=reason, extra={"expanded": True}, parts=(("base", stage_fresh(base)),))


def _quantizer(tensor: torch.Tensor) -> dict[str, Any]:
    scheme = str(tensor.qscheme()).replace("torch.", "")
    if scheme.startswith("per_tensor"):
        return {"qscheme": scheme, "scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    return {
        "qscheme": scheme,
        "scale": tensor.q_per_channel_scales().tolist(),
        "zero_point": tensor.q_per_channel_zero_points().tolist(),
        "axis": tensor.q_per_channel_axis(),
    }


def _words(tensor: torch.Tensor) -> Array:
    """The bits in logical C order. Raises Unstorable for a dtype without words."""
    name = _dtype_name(tensor)
    if name not in DTYPES:
        raise Unstorable(f"dtype {name} is not supported")
    row = DTYPES[name]
    plain = tensor.detach()
    if tensor.is_quantized:
        plain = plain.int_repr()
    if name == "complex32":
        return _complex_half_words(plain)
    plain = plain.resolve_conj().resolve_neg() if row.kind in ("complex", "float") else plain
    return _view_words(_copy_to_cpu(plain), name, np.dtype(row.word))


def _copy_to_cpu(plain: torch.Tensor) -> torch.Tensor:
    if plain.device.type == "cpu":
        return plain.clone(memory_format=torch.contiguous_format)
    return plain.to("cpu", copy=True).contiguous()


def _complex_half_words(plain: torch.Tensor) -> Array:
    """Through pairs of float16: torch warns of every complex32 tensor that is allocated."""
    conjugate = plain.is_conj()
    halves = _copy_to_cpu(torch.view_as_real(plain.conj() if conjugate else plain))
    if conjugate:
        halves[..., 1].neg_()
    return halves.view(torch.int16).numpy().view(np.uint32).reshape(tuple(plain.shape))


def _view_words(copy: torch.Tensor, name: str, word: np.dtype[Any]) -> Array:
    if name == "bfloat16":
        return copy.view(torch.int16).numpy().view(word)
    if name.startswith("float8"):
        return copy.view(torch.uint8).numpy()
    array = copy.numpy()
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array).reshape(tuple(copy.shape))
    return array.view(word) if array.dtype != word else array


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).replace("torch.", "")


def _describe(
    tensor: torch.Tensor,
    *,
    words: Optional[Array] = None,
    reason: str = "",
    extra: Optional[dict[str, Any]] = None,
    parts: tuple[tuple[str, Staged], ...] = (),
) -> Staged:
    shape = _sizes(tensor)
    count = int(np.prod([size for size in shape if size >= 0], dtype=np.int64))
    name = _dtype_name(tensor)
    itemsize = DTYPES[name].itemsize if name in DTYPES else 0
    return Staged(
        words=words,
        dtype=name,
        shape=shape,
        stride=_strides(tensor),
        layout=_layout(tensor),
        device=str(tensor.device),
        requires_grad=bool(tensor.requires_grad),
        nbytes=int(words.nbytes) if words is not None else count * itemsize,
        reason=reason,
        extra=extra or {},
        parts=parts,
    )


def _sizes(tensor: torch.Tensor) -> tuple[int, ...]:
    try:
        return tuple(size if isinstance(size, int) else -1 for size in tensor.shape)
    except (RuntimeError, ValueError):  # old-style nested and lazy tensors have no size
        return ()


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    try:
        return tuple(step if isinstance(step, int) else -1 for step in tensor.stride())
    except (RuntimeError, ValueError, AttributeError, NotImplementedError):  # sparse, nested and lazy ones have none
        return ()
