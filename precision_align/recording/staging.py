"""From torch tensors to the raw words of a draft: own copies in logical C order, without touching the run.

Nothing here raises into training: what cannot be copied comes back without words and with the reason. Copies are
made without autograd and outside every dispatch and function mode. Autocast needs no switching off: no operation used
here (detach, clone, copy, bit views, equal) is on its lists. No operation here draws random numbers.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

import torch

from precision_align.core.terms import Tier
from precision_align.recording.copies import Staged, describe, layout_of, stage_fresh
from precision_align.recording.native import make_copier
from precision_align.recording.plain import KNOWN_FORMS, STRIDED, has_words, is_transformed, repeats
from precision_align.recording.shards import describe_shard, local_shard, wait_for
from precision_align.recording.slabs import Slabs
from precision_align.recording.storages import storage_of
from precision_align.recording.summaries import SUMMARIZED, Summaries
from precision_align.storage.drafts import Form
from precision_align.storage.settings import default_staging_bytes

# Of copies from a device only the last ones: they are reused at once or not at all.
REUSED_ON_DEVICE = 32

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_num_function_modes: Callable[[], int] = torch._C._len_torch_function_stack


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


def has_modes() -> bool:
    """Whether any function or dispatch mode is on."""
    return bool(_num_function_modes() or torch._C._len_torch_dispatch_stack())


def is_undisturbed() -> bool:
    """Whether neither autograd nor a mode looks on anyway: in most backward passes."""
    return not (torch.is_grad_enabled() or has_modes())


def _ignore(note: str) -> None:
    pass


class Stager:
    """Copies tensors; hands the same copy out again while the tensor's memory holds the same bits.

    ``note``: told what could not be done on a device.
    """

    def __init__(self, limit: Optional[int] = None, note: Callable[[str], None] = _ignore) -> None:
        self._summaries = Summaries(note)
        self._slabs = Slabs(default_staging_bytes() if limit is None else limit)
        self.copier = make_copier(self._slabs)
        self._strided: dict[tuple[Any, ...], Form] = {}  # of tensors in another order
        self._on_device: dict[tuple[int, Optional[Tier]], tuple[Any, tuple[Any, ...], Staged]] = {}

    def forget(self) -> None:
        """Drop all remembered copies (at a step's end, or when a device reuses memory behind our back)."""
        self.copier.forget()
        self._on_device.clear()

    def release(self) -> None:
        """Give memory back that waits for the next copies."""
        self.forget()
        self.copier.release()
        self._slabs.clear()

    def settle(self) -> None:
        """Fill in the summaries of tensors on devices: one copy to the host a device."""
        with untouched():
            self._summaries.settle()

    def stage(self, tensor: torch.Tensor, tier: Tier = Tier.FULL, *, reuse: bool = True) -> Staged:
        """A :class:`Staged` of any tensor, never an exception.

        ``tier``: what will be kept. Of a tensor on a device whose payload is not, there is a summary, and words only if
        it is small; both are there after :meth:`settle`. ``reuse``: False where it may have been written to unseen:
        batch normalization does not count what it writes into its buffers as new versions.
        """
        try:
            if type(tensor) in _PLAIN_TYPES and not _num_function_modes():
                staged: Optional[Staged] = self.copier.copy(tensor)
                if staged is None and is_undisturbed() and not _obstacle(tensor):
                    staged = self._stage_strided(tensor)  # a weight's gradient, most often
                if staged is not None:
                    return staged
            with untouched():
                wanted = tier if tier in SUMMARIZED else None
                if not reuse:
                    self._on_device.pop((id(tensor), wanted), None)
                return self._stage_any(tensor, wanted)
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            return describe(tensor, reason=f"{type(error).__name__}: {first_line}")

    def _stage_strided(self, tensor: torch.Tensor) -> Optional[Staged]:
        """A tensor in the CPU's memory, but in another order (channels last, a transposed view); None for any other."""
        if not tensor.is_cpu or tensor.layout is not STRIDED:
            return None
        looks = (tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad)
        form = self._strided.get(looks)
        if form is None:
            if tensor.is_nested or not has_words(tensor) or repeats(tensor):
                return None
            if len(self._strided) >= KNOWN_FORMS:
                self._strided.clear()
            form = self._strided[looks] = describe(tensor).form
        slab, address = self.copier.reserve(form.nbytes)
        offset = address - int(slab.__array_interface__["data"][0])
        room = torch.from_numpy(slab[offset : offset + form.nbytes])
        room.view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
        return Staged(form, slab, address)

    def forget_written(self, tensors: Iterable[torch.Tensor]) -> None:
        """These, and what shares their memory, were just written by an operator. Inside a dispatch mode torch counts a
        version later, and for lists of tensors (``_foreach_add_``) never.
        """
        written = {key.cdata for tensor in tensors if (key := storage_of(tensor)) is not None}
        for name, (reference, _, _) in list(self._on_device.items()):
            tensor = reference()
            key = None if tensor is None else storage_of(tensor)
            if key is None or key.cdata in written:
                del self._on_device[name]

    def _stage_any(self, tensor: torch.Tensor, tier: Optional[Tier]) -> Staged:
        """``tier``: that of a summary, None where the words are needed."""
        tensor = wait_for(tensor)
        shard = describe_shard(tensor)
        if shard is not None:
            staged = self._stage_any(local_shard(tensor), tier)
            extra = {**staged.form.extra, "shard": shard}
            return staged.changed(requires_grad=bool(tensor.requires_grad), extra=extra)
        reason = _obstacle(tensor)
        if reason:
            return describe(tensor, reason=reason)
        if type(tensor) in _PLAIN_TYPES and not tensor.is_nested:
            plain = self.copier.copy(tensor) or self._stage_strided(tensor)
            if plain is not None:
                return plain
        state = _version_state(tensor)
        looks = (id(tensor), tier)
        known = self._on_device.get(looks)
        if known is not None and state is not None and known[0]() is tensor and known[1] == state:
            return known[2]
        summarized = None if tier is None or tensor.is_cpu else self._summaries.take(tensor, tier)
        staged = summarized or stage_fresh(tensor)
        if state is not None and staged.form.nbytes and (summarized or staged.words is not None):
            self._on_device[looks] = (weakref.ref(tensor), state, staged)
            while len(self._on_device) > REUSED_ON_DEVICE:
                del self._on_device[next(iter(self._on_device))]
        return staged


def _version_state(tensor: torch.Tensor) -> Optional[tuple[Any, ...]]:
    """What must stay the same for a copy from a device to be reused, or None where that cannot be known.

    Only the CPU's memory can be looked at without a transfer. Parameters are never reused: optimizers update them
    through ``.data``, which does not count as a new version, and a weak reference to one would make
    ``torch.utils.swap_tensors`` (``module.to``) fail.
    """
    if type(tensor) is not torch.Tensor or tensor.is_inference() or tensor.is_cpu or tensor.device.type == "meta":
        return None
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return None
    looks = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad)
    return (tensor._version, tensor.data_ptr(), *looks)


def _obstacle(tensor: torch.Tensor) -> str:
    if torch.nn.parameter.is_lazy(tensor):
        return "not initialised yet (a lazy module)"
    kind = type(tensor)
    if kind.__name__ == "FakeTensor":
        return "a FakeTensor has a shape and no values: capture outside of FakeTensorMode"
    if tensor.device.type == "meta":
        return "a meta tensor has no values"
    if is_transformed(tensor):
        return "inside a torch.func transform"
    if tensor.layout is STRIDED and kind in _PLAIN_TYPES and tensor.numel() and not tensor.is_nested:
        there = tensor.untyped_storage().nbytes()
        if there < _last_byte(tensor):  # torch itself reads on behind the end
            return "its memory was made smaller than the tensor" if there else "its memory was freed"
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return "inside a CUDA graph capture"
    if kind not in _PLAIN_TYPES and not _has_default_dispatch(kind) and layout_of(tensor) != "jagged":
        return f"a tensor of class {kind.__name__}, which may hold its values elsewhere"
    return ""


def _last_byte(tensor: torch.Tensor) -> int:
    """How many bytes of its storage a strided tensor with elements reaches over."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return int((tensor.storage_offset() + last + 1) * tensor.element_size())


def _has_default_dispatch(kind: type) -> bool:
    return getattr(kind, "__torch_dispatch__", None) is torch._C._disabled_torch_dispatch_impl
