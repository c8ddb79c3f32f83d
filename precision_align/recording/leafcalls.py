"""The calls of everything below modules: functions, operators, collectives. They have no children of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_align.core.records import Call
from precision_align.recording.modes import call_modes, enabled_autocast
from precision_align.recording.tape import Place, Tape


def end_call(tape: Tape, place: Place, prefix: str, modes: Mapping[str, Any], **known: Any) -> None:
    """Hand over a call that ends now; ``prefix``: of its scope, by its source; ``modes``: beside those of the moment;
    ``known``: the other fields of a :class:`~precision_align.core.records.Call`.
    """
    tape.call(
        Call(
            step=place.step,
            micro=place.micro,
            rank=tape.rank,
            scope=prefix + place.scope,
            call=place.number,
            pass_=place.pass_,
            kind=place.op,
            exit=tape.tick(),
            leaf=True,
            autocast=enabled_autocast(),
            modes={**call_modes(), "module_call": place.call, **modes},
            **known,
        )
    )
