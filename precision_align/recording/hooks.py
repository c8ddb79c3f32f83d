"""Forward hooks on every module: the only thing a session stores on the user's model, and removes again."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection
from typing import Any, Callable

import torch

from precision_align.recording.parameters import walk_modules


def _is_never_compiling() -> bool:
    return False


is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", _is_never_compiling)  # torch 2.3


# Their forward looks for hooks and then leaves its fused kernel.
_WITH_FAST_PATH = (torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)


_SHOWN = 5


# What a hook becomes in a copy of the model, pickled or deep-copied during a session: a method of Python that takes any
# arguments and returns None, so that a file that the script saved loads where this package is not installed.
IGNORING = (getattr, (contextlib.nullcontext(), "__exit__"))


class Hook:
    """A forward hook that never follows the model into a copy; it returns None except in a session that is forced or
    begins from a pack.

    Pickle and deepcopy take the hooks of a module along; a closure would make ``torch.save(model)`` fail and a bound
    method would copy the whole session.
    """

    __slots__ = ("_follow", "_module", "_scope")

    def __init__(self, module: torch.nn.Module, scope: str, follow: Callable[..., Any]) -> None:
        self._module, self._scope, self._follow = module, scope, follow

    def __call__(self, called: torch.nn.Module, *arguments: Any) -> Any:
        # A compiler traces hooks into its graph. Breaking the graph here would change what it fuses, and so the
        # numbers: inside compiled code a hook is to vanish.
        if is_compiling() or not (called is self._module or getattr(called, "_is_replica", False)):
            return None
        return self._follow(called, self._scope, *arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return IGNORING


def first_names(model: torch.nn.Module) -> tuple[dict[str, torch.nn.Module], dict[str, list[str]]]:
    """Scope -> module by first-registered names, and scope -> its other names."""
    scopes: dict[int, str] = {}
    modules: dict[str, torch.nn.Module] = {}
    aliases: dict[str, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if id(module) in scopes:
            aliases.setdefault(scopes[id(module)], []).append(name)
        else:
            scopes[id(module)] = name
            modules[name] = module
    return modules, aliases


def _is_compiled(module: torch.nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule"


class Hooks:
    """The hooks of one session on one model."""

    def __init__(
        self,
        enter: Callable[[torch.nn.Module, str, Any, Any], Any],
        leave: Callable[[torch.nn.Module, str, Any, Any, Any], Any],
        note: Callable[[str], None],
    ) -> None:
        self._enter, self._leave, self._note = enter, leave, note
        self._handles: list[tuple[Any, ...]] = []  # scope, module, what removes its two hooks
        self._inner: list[tuple[str, weakref.ref[torch.nn.Module]]] = []  # those at rest
        self._hooked: dict[int, weakref.ref[torch.nn.Module]] = {}  # an id alone may come again
        self._callable: dict[str, None] = {}

    def attach(self, model: torch.nn.Module, begins: bool = True) -> None:
        """Hook every module that has no hooks of ours yet (models may grow while they run).

        ``begins``: a step does; what is new then may have been called before.
        """
        self._wake()
        if all(self._knows(module) for module in walk_modules(model)):
            return
        modules, _ = first_names(model)
        new = {scope: module for scope, module in modules.items() if not self._knows(module)}
        if self._hooked and begins and new:
            shown = ", ".join(map(repr, list(new)[:_SHOWN])) + (", ..." if len(new) > _SHOWN else "")
            self._note(
                f"modules that came or were replaced meanwhile: {shown}; their calls until then were not recorded"
            )
        for scope, module in new.items():
            self._hooked[id(module)] = weakref.ref(module)
            if isinstance(module, torch.jit.ScriptModule):
                self._note(f"module {scope!r} is compiled TorchScript and takes no hooks: its calls were not recorded")
                continue
            if _is_compiled(module):
                self._note(f"module {scope!r} is compiled (torch.compile): calls inside it were not recorded")
            if isinstance(module, _WITH_FAST_PATH) and not module.training:
                self._note(
                    f"module {scope!r} is a {type(module).__name__} in eval mode: torch takes its fused inference path "
                    "only where no hooks are attached, so without capture its last bits may differ"
                )
            self._attach_one(scope, module)

    def _knows(self, module: torch.nn.Module) -> bool:
        known = self._hooked.get(id(module))
        return known is not None and known() is module

    def _attach_one(self, scope: str, module: torch.nn.Module) -> None:
        if type(module).forward is not torch.nn.Module.forward:
            self._callable[scope] = None

        self._register(scope, module)

    def _register(self, scope: str, module: torch.nn.Module) -> None:
        # first, so that what the user's own hooks do to the inputs and the state (spectral_norm) is part of the call
        before = module.register_forward_pre_hook(Hook(module, scope, self._enter), prepend=True, with_kwargs=True)
        after = module.register_forward_hook(Hook(module, scope, self._leave), with_kwargs=True, always_call=True)
        self._handles.append((scope, weakref.ref(module), before, after))

    def rest(self) -> None:
        """Take the hooks of all modules but the root away until :meth:`attach`: steps that nobody wants follow."""
        if self._inner:
            return
        kept = []
        for scope, module, *handles in self._handles:
            if scope == "":
                kept.append((scope, module, *handles))
                continue
            self._inner.append((scope, module))
            for handle in handles:
                handle.remove()
        self._handles = kept

    def _wake(self) -> None:
        inner, self._inner = self._inner, []
        for scope, reference in inner:
            module = reference()
            if module is not None:
                self._register(scope, module)

    def uncalled(self, called: Collection[str]) -> list[str]:
        """Hooked modules with a forward of their own (a ModuleList has none) that were never called."""
        return [scope for scope in self._callable if scope not in called]

    def detach(self) -> None:
        """Remove them all."""
        for _, _, *handles in self._handles:
            for handle in handles:
                handle.remove()
        self._handles.clear()
        self._inner.clear()
