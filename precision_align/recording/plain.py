"""Copies of tensors that lie in the CPU's memory as they are to be stored: most of what recording copies.

``native/copies.h`` is the same in C.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional

import torch

from precision_align.core.dtypes import DTYPES, Array
from precision_align.recording.copies import Staged, describe, dtype_name
from precision_align.recording.slabs import ALIGNMENT as ALIGNMENT
from precision_align.recording.slabs import OWN_BYTES as OWN_BYTES
from precision_align.recording.slabs import SLAB_BYTES as SLAB_BYTES
from precision_align.recording.slabs import Slab, Slabs
from precision_align.storage.drafts import Form

# Copies are used again while the tensor's memory holds the same bits: an output is the next module's input, a
# parameter's gradient becomes its total. So much of them is held until the step's end, beside what is on its way.
REUSED_BYTES = 1 << 28
# A step of a model with many small tensors sees some thousands; beyond, the oldest go.
REUSED_COPIES = 1 << 14
# Forms of tensors, about 1 KB each: those of a step. A run with batches of many lengths has ever new ones.
KNOWN_FORMS = 1 << 14
# From here on a copy takes longer than handing the interpreter's lock over and back.
LONG_BYTES = 1 << 20

STRIDED = torch.strided
_NO_SLAB = Slab(0)
_UP = ALIGNMENT - 1
_copy_locked = ctypes.memmove
# A form or None for tensors of other kinds, its bytes, and whether it is complex.
Known = tuple[Optional[Form], int, bool]


def _find_function(library: ctypes.CDLL, name: str) -> Callable[[int, int, int], int]:
    """A function of the C library: two addresses and a number of bytes."""
    function = getattr(library, name)
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    found: Callable[[int, int, int], int] = function
    return found


# Whether two stretches of memory differ; like the copy above, without giving up the interpreter's lock.
compare_memory = _find_function(ctypes.PyDLL(None), "memcmp")
_copy_unlocked = _find_function(ctypes.CDLL(None), "memmove")


def _never(tensor: torch.Tensor) -> bool:
    return False


# Tensors inside a torch.func transform are wrappers.
is_transformed: Callable[[torch.Tensor], bool] = getattr(
    getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", _never
)


class Copier:
    """Copies plain tensors; hands the same copy out again while the tensor's memory holds the same bits.

    That is looked at, not believed: writes through ``.data`` or through NumPy do not count as a new version. Not safe
    from several threads.
    """

    def __init__(self, slabs: Slabs) -> None:
        self._slabs = slabs
        self._slab, self._next, self._end = _NO_SLAB, 0, 0
        self.forms: dict[tuple[Any, ...], Known] = {}
        self._copies: dict[int, Staged] = {}  # by the address that was copied
        self._held_bytes = 0

    def copy(self, tensor: torch.Tensor) -> Optional[Staged]:
        """A tensor that lies in the CPU's memory as it is to be stored; None for any other.

        Nothing here calls an operator, which modes could see.
        """
        if not tensor.is_cpu or tensor.layout is not STRIDED or tensor.is_nested or tensor.is_neg():
            return None
        if is_transformed(tensor):
            return None
        looks = (tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad)
        try:
            form, nbytes, is_complex = self.forms[looks]
        except KeyError:
            if len(self.forms) >= KNOWN_FORMS:
                self.forms.clear()
            form, nbytes, is_complex = self.forms[looks] = make_form(tensor)
        if form is None or (is_complex and tensor.is_conj()):
            return None
        pointer = tensor.data_ptr()
        storage = tensor.untyped_storage()
        base = storage.data_ptr()
        if not base or pointer + nbytes > base + storage.nbytes():  # freed (FSDP) or made smaller: not ours to read
            return None
        known = self._copies.get(pointer)
        if known is not None:
            if known.form.nbytes == nbytes and not compare_memory(known.address, pointer, nbytes):
                return known if known.form is form else known.seen_as(form)
            self._held_bytes -= known.form.nbytes
        slab, address = self.reserve(nbytes)
        (_copy_locked if nbytes < LONG_BYTES else _copy_unlocked)(address, pointer, nbytes)
        self._copies[pointer] = staged = Staged(form, slab, address)
        self._held_bytes += nbytes
        if self._held_bytes > REUSED_BYTES or len(self._copies) > REUSED_COPIES:
            self._let_go()
        return staged

    def reserve(self, nbytes: int) -> tuple[Array, int]:
        """Room for so many bytes: a slab's array, and the address inside."""
        address = self._next
        if address + nbytes > self._end:
            self._slab = _NO_SLAB  # let go of the last one first: it may be free by now
            self._slab = self._slabs.find(nbytes)
            address = self._slab.address
            self._end = address + (SLAB_BYTES if nbytes <= OWN_BYTES else 0)
        self._next = (address + nbytes + _UP) & -ALIGNMENT
        return self._slab.array, address

    def _let_go(self) -> None:
        """Forget the oldest copies."""
        while self._held_bytes > REUSED_BYTES or len(self._copies) > REUSED_COPIES:
            self._held_bytes -= self._copies.pop(next(iter(self._copies))).form.nbytes

    def forget(self) -> None:
        """Drop all remembered copies."""
        self._copies.clear()
        self._held_bytes = 0

    def release(self) -> None:
        """Let go of the slab that is being filled as well."""
        self.forget()
        self._slab, self._next, self._end = _NO_SLAB, 0, 0


def make_form(tensor: torch.Tensor) -> Known:
    """What is known of a plain CPU tensor whose memory is its words in logical C order; no form for all others."""
    if not (has_words(tensor) and tensor.is_contiguous() and not repeats(tensor)):
        return None, 0, False
    form = describe(tensor).form
    return form, form.nbytes, form.dtype.startswith("complex")


def has_words(tensor: torch.Tensor) -> bool:
    """Whether NumPy can show its memory as the words of its dtype, and there is any."""
    name = dtype_name(tensor)
    row = DTYPES.get(name)
    return row is not None and row.kind != "quantized" and name != "complex32" and tensor.numel() > 0


def repeats(tensor: torch.Tensor) -> bool:
    """Whether it is expanded: a dimension of several elements lies in one place."""
    return any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape))
