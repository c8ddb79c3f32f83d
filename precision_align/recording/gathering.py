"""Parameters that are empty outside of their module's call (DeepSpeed ZeRO 3): read while the framework has them whole.

Nothing is gathered for the dump's sake: a collective that only some ranks enter would stop the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch

from precision_align.recording.hooks import IGNORING
from precision_align.recording.parameters import Owned, is_partitioned


class Gathering:
    """Waits, once a step, for the calls of modules whose own parameters are not there."""

    def __init__(self, model: torch.nn.Module, record: Callable[[Owned], None], note: Callable[[str], None]) -> None:
        self._model, self._record, self._note = model, record, note
        self._waiting: dict[str, Any] = {}

    def wait(self, owned: Sequence[Owned]) -> None:
        """Record these at the first call of each one's module."""
        if not owned:
            return
        modules = dict(self._model.named_modules())
        for scope in dict.fromkeys(item.scope for item in owned):
            mine = [item for item in owned if item.scope == scope]
            # before the framework's own hook, which takes the parameters away again
            hook = _GatheredHook(self, scope, mine)
            self._waiting[scope] = modules[scope].register_forward_hook(hook, prepend=True)

    def take(self, scope: str, owned: Sequence[Owned]) -> None:
        """The module has run: its parameters are there."""
        handle = self._waiting.pop(scope, None)
        if handle is None:
            return
        handle.remove()
        for item in owned:
            if is_partitioned(item.tensor):
                self._note(f"parameter {item.name!r} was not gathered when its module ran: not recorded")
            else:
                self._record(item)

    def finish_step(self) -> None:
        """Wait no longer."""
        if self._waiting:
            shown = ", ".join(map(repr, list(self._waiting)[:5]))
            self._note(f"parameters are partitioned, and these modules were not called in some step: {shown}")
        for handle in self._waiting.values():
            handle.remove()
        self._waiting.clear()


class _GatheredHook:
    """A forward hook that stays behind when the model is copied or pickled."""

    def __init__(self, gathering: Gathering, scope: str, owned: Sequence[Owned]) -> None:
        self._gathering, self._scope, self._owned = gathering, scope, owned

    def __call__(self, *arguments: Any) -> None:
        try:
            self._gathering.take(self._scope, self._owned)
        except Exception as error:
            self._gathering._note(f"parameters of {self._scope!r}: not recorded, {type(error).__name__}: {error}")

    def __reduce__(self) -> tuple[Any, ...]:
        return IGNORING
