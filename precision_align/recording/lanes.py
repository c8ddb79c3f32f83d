"""The compiled twin of what follows module calls, for the sessions that it can serve; see ``native/module.c``."""

from __future__ import annotations

import sys
import threading
from typing import Any, Callable, Optional

import torch

from precision_align.core.terms import Pass, Phase, Role, Source
from precision_align.recording.calls import CallRecorder, Frame, name_result
from precision_align.recording.gradients import Ledger, Tap
from precision_align.recording.modes import NO_AUTOCAST, call_modes, enabled_autocast
from precision_align.recording.native import load_native
from precision_align.recording.nodes import graph_task, sequence_position
from precision_align.recording.origins import is_library
from precision_align.recording.parameters import gradient_of
from precision_align.recording.randomness import describe_generators
from precision_align.recording.sightings import Sighting, same_bits
from precision_align.recording.sites import Site
from precision_align.recording.structures import TENSOR_TREE, flatten_arguments, flatten_call, one_tensor_tree, prefixed
from precision_align.recording.tape import BATCH_ITEMS, Clock, Place, Shelf, Tape
from precision_align.storage.drafts import DeferredCall, DeferredDraft


def make_lane(
    tape: Tape, calls: CallRecorder, ledger: Ledger, enter: Callable[..., Any], leave: Callable[..., Any]
) -> Optional[Any]:
    """The compiled path of a session; ``enter`` and ``leave``: what it leaves the rare calls to. None: there is none.

    Not for forced sessions, and not for those that begin from a start pack.
    """
    native = load_native()
    if native is None or sequence_position() is None or not isinstance(tape.tray, native.Tray):
        return None
    return native.Lane(
        tape=tape,
        calls=calls,
        ledger=ledger,
        enter=enter,
        leave=leave,
        **_describe_session(tape, calls),
        **_list_classes(),
        **_list_values(),
        **_list_functions(),
    )


def _describe_session(tape: Tape, calls: CallRecorder) -> dict[str, Any]:
    return {
        "budget": tape.budget,
        "clock": tape.clock,
        "tray": tape.tray,
        "copier": tape.stager.copier,
        "stage": tape.stager.stage,
        "acquire": tape.lock.acquire,
        "release": tape.lock.release,
        "shelves": tape.shelves,
        "numbers": calls.numbers,
        "sites": calls.sites,
        "main_thread": threading.main_thread().ident,
        "batch_bytes": tape.batch_bytes,
        "batch_items": BATCH_ITEMS,
        "with_tensors": "modules" in tape.plan.sources,
        "with_gradients": "gradients" in tape.plan.sources,
    }


def _list_classes() -> dict[str, Any]:
    return {
        "place_type": Place,
        "frame_type": Frame,
        "sighting_type": Sighting,
        "shelf_type": Shelf,
        "site_type": Site,
        "clock_type": Clock,
        "draft_type": DeferredDraft,
        "call_type": DeferredCall,
        "tap_type": Tap,
        "tensor_type": torch.Tensor,
        "parameter_type": torch.nn.Parameter,
    }


def _list_values() -> dict[str, Any]:
    return {
        "torch_named_parameters": torch.nn.Module.named_parameters,
        "no_autocast": NO_AUTOCAST,
        "tensor_tree": TENSOR_TREE,
        "one_tensor_tree": one_tensor_tree(),
        "nothing": {},
        "share": {"share": True},
        "first": Pass.FIRST,
        "source": Source.MODULE,
        "forward": Phase.FORWARD,
        "backward": Phase.BACKWARD,
        "role_input": Role.INPUT,
        "role_output": Role.OUTPUT,
        "role_gradient": Role.GRADIENT,
        "loaded_modules": sys.modules,
        "cuda": torch.cuda,
    }


def _list_functions() -> dict[str, Any]:
    return {
        "flatten_call": flatten_call,
        "flatten_arguments": flatten_arguments,
        "name_result": name_result,
        "is_library": is_library,
        "enabled_autocast": enabled_autocast,
        "call_modes": call_modes,
        "describe_generators": describe_generators,
        "default_dtype": torch.get_default_dtype,
        "inference": torch.is_inference_mode_enabled,
        "autocast_on": torch._C._is_any_autocast_enabled,
        "grad_enabled": torch.is_grad_enabled,
        "graph_task": graph_task,
        "tracing": torch._C._get_tracing_state,
        "num_function_modes": torch._C._len_torch_function_stack,
        "num_dispatch_modes": torch._C._len_torch_dispatch_stack,
        "sequence_position": sequence_position,
        "get_state": torch.default_generator.get_state,
        "same_bits": same_bits,
        "prefixed": prefixed,
        "gradient_of": gradient_of,
    }
