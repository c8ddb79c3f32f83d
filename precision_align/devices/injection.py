"""Puts faults into a running model: at one module, operator, phase and call, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from precision_align.core.errors import Unavailable, UsageError
from precision_align.core.terms import Phase
from precision_align.devices.arithmetic import Arithmetic
from precision_align.devices.attribution import ModuleTracker, follows_backward
from precision_align.devices.dispatch import Execution, ExecutionMode, makes_view, run_operator
from precision_align.devices.fault_kinds import CALL_EFFECTS, Call, change_result, find_floating, is_about
from precision_align.devices.faults import EVERY_CALL, Fault, read_faults
from precision_align.devices.profiles import Profile


@dataclass(frozen=True)
class Firing:
    """A fault that happened: where, in which phase, at which of the matching calls."""

    fault: Fault
    scope: str
    op: str
    phase: Phase
    call: int


@dataclass
class _Armed:
    """A fault and how many matching calls it has seen."""

    fault: Fault
    seen: int = 0


@dataclass
class Injection:
    """The faults of one model and what has become of them. ``fired``: in the order of time."""

    faults: Sequence[Fault]
    fired: list[Firing] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not follows_backward() and any(fault.effective_phase is Phase.BACKWARD for fault in self.faults):
            raise Unavailable(f"Faults of phase backward need a newer torch than {torch.__version__}.")
        self.tracker = ModuleTracker()
        self._armed = [_Armed(fault) for fault in self.faults if fault.effective_phase is not Phase.STEP]
        self._by_operator: dict[Any, list[_Armed]] = {}

    @property
    def unfired(self) -> Sequence[Fault]:
        """Faults that have met no matching call."""
        met = [firing.fault for firing in self.fired]
        return [fault for fault in self.faults if fault not in met]

    def bind(self, run: Execution) -> Execution:
        """The execution ``run`` with the faults that are due."""

        def execute(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            return self._execute(operator, args, kwargs, run)

        return execute

    def _execute(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Execution) -> Any:
        candidates = self._by_operator.get(operator)
        if candidates is None:
            candidates = self._by_operator[operator] = self._select(operator)
        place = self.tracker.locate() if candidates else None
        if place is None:
            return run(operator, args, kwargs)
        matching = [armed for armed in candidates if _fits_place(armed.fault, place)]
        return self._run_with(matching, place, operator, args, kwargs, run)

    def _run_with(
        self,
        matching: Sequence[_Armed],
        place: tuple[str, Phase],
        operator: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        run: Execution,
    ) -> Any:
        if not matching:
            return run(operator, args, kwargs)
        first, rest = matching[0], matching[1:]

        def run_inner(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            return self._run_with(rest, place, operator, args, kwargs, run)

        call = Call(operator, _name_of(operator), args, kwargs, run_inner)
        return self._apply(first, place, call)

    def _apply(self, armed: _Armed, place: tuple[str, Phase], call: Call) -> Any:
        fault = armed.fault
        if fault.kind in CALL_EFFECTS:
            if not is_about(fault.kind, call):
                return call.proceed()
            if not self._count(armed, place, call):
                return call.proceed()
            return CALL_EFFECTS[fault.kind](call, fault.effective_value)
        result = call.proceed()
        if find_floating(result) is None or not self._count(armed, place, call):
            return result
        in_place = call.operator._schema.is_mutable
        return change_result(fault.kind, result, fault.effective_value, fault.index, in_place)

    def _count(self, armed: _Armed, place: tuple[str, Phase], call: Call) -> bool:
        """Count a matching call; whether the fault is due at it."""
        number, armed.seen = armed.seen, armed.seen + 1
        due = armed.fault.call in (EVERY_CALL, number)
        if due:
            self.fired.append(Firing(armed.fault, place[0], call.name, place[1], number))
        return due

    def _select(self, operator: Any) -> list[_Armed]:
        if makes_view(operator):
            return []
        name, overload = _name_of(operator), operator._schema.overload_name or "default"
        return [armed for armed in self._armed if armed.fault.fits_operator(name, overload)]


def _name_of(operator: Any) -> str:
    return str(operator._schema.name).split("::")[1]


def _fits_place(fault: Fault, place: tuple[str, Phase]) -> bool:
    return fault.effective_phase is place[1] and fault.fits_module(place[0])


class _StepFaults:
    """Changes parameters after an optimizer's step, through torch's hooks on every optimizer."""

    def __init__(self, injection: Injection, model: torch.nn.Module) -> None:
        self._injection = injection
        self._armed = [_Armed(fault) for fault in injection.faults if fault.effective_phase is Phase.STEP]
        self._owners = {
            id(parameter): scope
            for scope, module in model.named_modules()
            for parameter in module.parameters(recurse=False)
        }
        self._before: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self._handles: list[Any] = []
        if self._armed:
            self._handles = [
                register_optimizer_step_pre_hook(self._remember),
                register_optimizer_step_post_hook(self._change),
            ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _remember(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        owned = [
            (self._owners[id(parameter)], parameter)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in self._owners
        ]
        self._before = [
            (scope, parameter, parameter.detach().clone())
            for scope, parameter in owned
            if any(armed.fault.fits_module(scope) for armed in self._armed)
        ]

    def _change(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for armed in self._armed:
            touched = [entry for entry in self._before if armed.fault.fits_module(entry[0])]
            if touched:
                number, armed.seen = armed.seen, armed.seen + 1
                if armed.fault.call in (EVERY_CALL, number):
                    self._break(armed.fault, touched, number)
        self._before = []

    def _break(self, fault: Fault, touched: Sequence[tuple[str, torch.Tensor, torch.Tensor]], number: int) -> None:
        with torch.no_grad():
            for _, parameter, before in touched:
                if fault.kind == "update_skipped":
                    parameter.copy_(before)
                elif find_floating(parameter) is not None:
                    change_result(fault.kind, parameter.detach(), fault.effective_value, fault.index, in_place=True)
        self._injection.fired.append(Firing(fault, touched[0][0], "step", Phase.STEP, number))


@contextmanager
def inject(model: torch.nn.Module, faults: Iterable[Fault | str] | Fault | str) -> Iterator[Injection]:
    """Break named calls of a model inside the block, on any device, without changing a bit anywhere else.

    Yields the ``Injection``, whose ``fired`` and ``unfired`` tell what happened. Raises UsageError for a fault whose
    module glob fits no module of the model.
    """
    injection = Injection(read_faults(faults))
    _check_modules(model, injection.faults)
    injection.tracker.attach(model)
    steps = _StepFaults(injection, model)
    try:
        with ExecutionMode(injection.bind(run_operator)):
            yield injection
    finally:
        steps.detach()
        injection.tracker.detach()


def _check_modules(model: torch.nn.Module, faults: Sequence[Fault]) -> None:
    scopes = [scope for scope, _ in model.named_modules()]
    lost = [str(fault) for fault in faults if not any(fault.fits_module(scope) for scope in scopes)]
    if lost:
        some = ", ".join(f'"{scope}"' for scope in scopes[:20]) + (" ..." if len(scopes) > 20 else "")
        raise UsageError(f"No module of the model fits {'; '.join(lost)}. Modules: {some}")


class _Device:
    """The faults of the simulated device itself, which hold for whatever model runs there."""

    injection: Injection | None = None


def compose_execution(profile: Profile, faults: Iterable[Fault | str]) -> Execution | None:
    """The device's execution for a profile with faults in any module; None where it is the CPU's own.

    Raises UsageError for step faults: those need a model, hence ``inject``.
    """
    listed = read_faults(faults)
    if any(fault.effective_phase is Phase.STEP for fault in listed):
        raise UsageError("Faults of phase step need a model: use inject(model, faults).")
    if _Device.injection is not None:
        _Device.injection.tracker.detach()
    _Device.injection = Injection(listed) if listed else None
    arithmetic = None if profile.computes_as_cpu else Arithmetic(profile)
    if _Device.injection is None:
        return arithmetic
    _Device.injection.tracker.attach_to_all()
    return _Device.injection.bind(arithmetic or run_operator)


def device_injection() -> Injection | None:
    """The faults put into the device by ``install_simulated`` or ``set_profile``; None without any."""
    return _Device.injection


def describe_faults() -> str:
    """The device's faults as text that continues a line; "" without any."""
    if _Device.injection is None:
        return ""
    return "; faults: " + ", ".join(str(fault) for fault in _Device.injection.faults)
