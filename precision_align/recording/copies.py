"""One tensor taken off the run: its form and its own words in logical C order, whatever kind of tensor it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

import numpy as np
import torch

from precision_align.core.dtypes import DTYPES, Array
from precision_align.storage.drafts import Form, Summary

# A tensor that repeats itself by stride 0 is written out up to here; masks and biases are far below.
EXPANDED_BYTES = 1 << 30

# Extra memory that recording may take on a device: for copies in C order, for summaries and what they are made with.
DEVICE_BYTES = 512 << 20

_SPARSE_PARTS = {
    "sparse_coo": ("_indices", "_values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
    "jagged": ("values", "offsets"),
    "nested": ("values", "_nested_tensor_size"),
}


class Staged:
    """A copy of a tensor; ``form``: what is known of it besides.

    ``words``: C-ordered NumPy array of the logical shape in the dtype's word type, owned by us, or None
    (``form.reason`` says why); ``parts``: the component tensors of a sparse or nested one, by name. Of a copy in a slab
    (``address``) the array is made when it is asked for.
    """

    __slots__ = ("__weakref__", "_slab", "_words", "address", "form", "parts", "summary")

    def __init__(
        self,
        form: Form,
        slab: Optional[Array] = None,
        address: int = 0,
        words: Optional[Array] = None,
        parts: Sequence[tuple[str, Staged]] = (),
        summary: Optional[Summary] = None,
    ) -> None:
        self.form, self._slab, self.address, self._words, self.parts = form, slab, address, words, parts
        self.summary = summary

    def seen_as(self, form: Form) -> Staged:
        """The same bytes in the slab, of a tensor of another form."""
        return Staged(form, self._slab, self.address)

    @property
    def is_awaited(self) -> bool:
        """Whether what is kept of it is still on its device."""
        return self.summary is not None and not (self.summary.digest or self.summary.reason)

    def fill(self, slab: Array, offset: int) -> None:
        """Its bytes have come from the device: they begin there in ``slab`` (uint8), and need no summary."""
        self._slab, self.address = slab, int(slab.__array_interface__["data"][0]) + offset
        self.summary = None

    def changed(self, **fields: Any) -> Staged:
        """The same words or parts; some of what is known of the tensor is another."""
        if self.summary is not None:  # whoever fills it in holds this object
            self.form = replace(self.form, **fields)
            return self
        form = replace(self.form, **fields)
        return Staged(form, words=self.words, parts=self.parts) if self._slab is None else self.seen_as(form)

    @property
    def words(self) -> Optional[Array]:
        """The raw words."""
        if self._words is None and self._slab is not None:
            offset = self.address - int(self._slab.__array_interface__["data"][0])
            self._words = np.ndarray(self.form.shape, DTYPES[self.form.dtype].word, self._slab, offset)
        return self._words

    def __getattr__(self, name: str) -> Any:
        """What its form says."""
        return getattr(self.form, name)


class Unstorable(Exception):
    """This tensor has no words that could be kept; the text is the reason."""


def stage_fresh(tensor: torch.Tensor) -> Staged:
    """A new copy. Raises whatever torch raises for tensors nobody can copy; call inside :func:`untouched`."""
    layout = layout_of(tensor)
    if tensor.is_nested and layout == "strided":  # one buffer behind another, of the sizes listed; torch's first kind
        return _stage_parts(tensor.contiguous(), "nested")
    if layout in _SPARSE_PARTS:
        return _stage_parts(tensor, layout)
    if layout == "_mkldnn":
        return describe(tensor, words=_words(tensor.to_dense()))
    extra: dict[str, Any] = {}
    if tensor.is_quantized:
        extra = _quantizer(tensor)
    if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape)):
        extra["expanded"] = True
        if tensor.numel() * tensor.element_size() > EXPANDED_BYTES:
            return _stage_base(tensor)
    return describe(tensor, words=_words(tensor), extra=extra)


def layout_of(tensor: torch.Tensor) -> str:
    """Its layout's name."""
    return str(tensor.layout).replace("torch.", "")


def _stage_parts(tensor: torch.Tensor, layout: str) -> Staged:
    parts = []
    for method in _SPARSE_PARTS[layout]:
        part = getattr(tensor.detach(), method)()
        parts.append((method.lstrip("_").replace("nested_tensor_size", "sizes"), stage_fresh(part)))
    names = ", ".join(name for name, _ in parts)
    return describe(tensor, reason=f"{layout}: kept as its parts {names}", parts=tuple(parts))


def _stage_base(tensor: torch.Tensor) -> Staged:
    """An expanded tensor too large to be written out: each repeated dimension once, as the part "base"."""
    base = tensor.detach()
    for dim, (step, size) in enumerate(zip(tensor.stride(), tensor.shape)):
        base = base.narrow(dim, 0, 1) if step == 0 and size > 1 else base
    if base.numel() * base.element_size() > EXPANDED_BYTES:
        raise Unstorable(f"expanded to {tensor.numel() * tensor.element_size()} bytes, its base is large too")
    reason = f"expanded to {tensor.numel() * tensor.element_size()} bytes: kept as its base"
    return describe(tensor, reason=reason, extra={"expanded": True}, parts=(("base", stage_fresh(base)),))


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
    name = dtype_name(tensor)
    if name not in DTYPES:
        raise Unstorable(f"dtype {name} is not supported")
    row = DTYPES[name]
    plain = tensor.detach()
    if tensor.is_quantized:
        plain = plain.int_repr()
    if name == "complex32":
        return _complex_half_words(plain)
    return _view_words(_copy_to_cpu(plain), name, np.dtype(row.word))


def _copy_to_cpu(plain: torch.Tensor) -> torch.Tensor:
    """A copy in C order, conjugation and negation carried out.

    A device puts a tensor in order in memory of its own before it hands it over: of one that is not, so many bytes at a
    time.
    """
    if plain.device.type == "cpu":
        return plain.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    if plain.nbytes > DEVICE_BYTES and not (plain.is_contiguous() and not plain.is_conj() and not plain.is_neg()):
        return _copy_by_pieces(plain)
    return plain.resolve_conj().resolve_neg().to("cpu", copy=True).contiguous()


def _copy_by_pieces(plain: torch.Tensor) -> torch.Tensor:
    copy = torch.empty(plain.shape, dtype=plain.dtype)
    stack = [(copy, plain)]
    while stack:
        room, piece = stack.pop()
        if piece.nbytes <= DEVICE_BYTES:
            room.copy_(piece.resolve_conj().resolve_neg())
        else:
            dim = max(range(piece.ndim), key=piece.size)
            half = piece.size(dim) // 2
            stack += zip(room.tensor_split([half], dim), piece.tensor_split([half], dim))
    return copy


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


def dtype_name(tensor: torch.Tensor) -> str:
    """Its dtype's name."""
    return str(tensor.dtype).replace("torch.", "")


def describe(
    tensor: torch.Tensor,
    *,
    words: Optional[Array] = None,
    reason: str = "",
    extra: Optional[Mapping[str, Any]] = None,
    parts: Sequence[tuple[str, Staged]] = (),
) -> Staged:
    """A copy from its words, or from the reason why there are none."""
    shape = _sizes(tensor)
    count = int(np.prod([size for size in shape if size >= 0], dtype=np.int64))
    name = dtype_name(tensor)
    itemsize = DTYPES[name].itemsize if name in DTYPES else 0
    form = Form(
        dtype=name,
        shape=shape,
        stride=_strides(tensor),
        layout=layout_of(tensor),
        device=str(tensor.device),
        requires_grad=bool(tensor.requires_grad),
        nbytes=int(words.nbytes) if words is not None else count * itemsize,
        reason=reason,
        extra=extra or {},
    )
    return Staged(form, words=words, parts=parts)


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
