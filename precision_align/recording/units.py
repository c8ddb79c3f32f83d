"""Units of the user's own: custom ``autograd.Function`` classes and plain functions, recorded as modules are."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any, Callable, Optional

import torch

from precision_align.core.errors import UsageError
from precision_align.core.trees import class_name
from precision_align.recording.functions import FunctionRecorder
from precision_align.recording.hooks import is_compiling

_MARK = "_precision_align_unit"
_listening: list[FunctionRecorder] = []


def register_unit(target: Any, *, name: Optional[str] = None) -> Any:
    """Make sessions record a function's calls, forward and backward, as records of source "function".

    ``target``: an ``autograd.Function`` class (its ``apply`` is wrapped on the class), a function (use what is
    returned, or put ``@register_unit`` above it), or "package.module:attribute" of either in code that you do not
    own: there the attribute is replaced, so do it before others import it from there. ``name``: the ``op`` of its
    records, by default its full name. Outside of a session the wrapper does nothing; registering again changes
    nothing. Returns the target, wrapped. Raises UsageError for anything else.
    """
    if isinstance(target, str):
        return _register_by_name(target, name)
    if isinstance(target, type) and issubclass(target, torch.autograd.Function):
        return _register_class(target, name or class_name(target))
    if not callable(target) or isinstance(target, (type, torch.nn.Module)):
        raise UsageError(
            f"register_unit takes an autograd.Function class, a function or 'module:attribute', not {target!r:.80}; "
            "modules are recorded without it"
        )
    return _wrap(target, name or f"{target.__module__}.{getattr(target, '__qualname__', 'function')}")


def _register_by_name(text: str, name: Optional[str]) -> Any:
    module, colon, path = text.partition(":")
    if not colon or not module or not path:
        raise UsageError(f"register_unit takes 'package.module:attribute', not {text!r}")
    try:
        owner: Any = import_module(module)
        *outer, last = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        target = getattr(owner, last)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"there is no {text!r}: {error}") from error
    wrapped = register_unit(target, name=name)
    if wrapped is not target:
        setattr(owner, last, wrapped)
    return wrapped


def _register_class(target: Any, name: str) -> Any:
    if _MARK not in vars(target).get("apply", _wrap).__dict__:
        target.apply = staticmethod(_wrap(target.apply, name))
    return target


def _wrap(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    if hasattr(function, _MARK):
        return function

    @functools.wraps(function, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def unit(*args: Any, **kwargs: Any) -> Any:
        if not _listening or is_compiling():
            return function(*args, **kwargs)
        return _follow(name, function, args, kwargs)

    setattr(unit, _MARK, name)
    return unit


def _follow(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    # of several sessions it is for that whose module runs; outside of all modules, for all
    recorders = [recorder for recorder in _listening if recorder.is_inside] or list(_listening)
    begun = [(recorder, recorder.begin(name, args, kwargs)) for recorder in recorders]
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        for recorder, running in begun:
            recorder.finish_call(running, None, f"{type(error).__name__}: {error}")
        raise
    for recorder, running in begun:
        recorder.finish_call(running, result, "")
    return result


def listen(recorder: FunctionRecorder) -> Callable[[], None]:
    """Let a session's recorder hear of all units; returns what ends it."""
    _listening.append(recorder)
    return functools.partial(_listening.remove, recorder)
