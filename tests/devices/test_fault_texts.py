"""Faults as texts: what is one, what isn't, which operators and modules it names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from precision_align.core.errors import UsageError
from precision_align.core.terms import Phase
from precision_align.devices.faults import EVERY_CALL, KINDS, Fault, parse_fault, read_faults
from precision_align.devices.injection import inject

pytestmark = pytest.mark.live


def test_a_module_that_is_not_there_is_an_error() -> None:
    model = nn.ModuleDict({"linear": nn.Linear(1, 1)})
    with pytest.raises(UsageError, match=r"blocks\.9.*Modules.*linear"), inject(model, "scale@blocks.9"):
        pass


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scale", "KIND@MODULE"),
        ("@head", "KIND@MODULE"),
        ("melt@head", "unknown kind"),
        ("scale@head:mm:sideways", "sideways"),
        ("scale@head:mm:forward:extra", "more than"),
        ("scale@head:strength=3", "unknown key"),
        ("scale@head:value=much", "much"),
        ("scale@head:call=-2", "count from 0"),
        ("scale@head:call=x", "phases"),
        ("update_skipped@head:phase=forward", "phase step only"),
        ("tanh_gelu@head:phase=step", "no meaning"),
        ("bit_flip@head:value=inf", "whole number"),
        ("lost_tile@head:value=1.5", "whole number"),
        ("zero_tail@head:value=nan", "whole number"),
    ],
)
def test_texts_that_are_no_fault(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_fault(text)


modules = st.text(st.sampled_from("abc.*[]?0"), min_size=1, max_size=8)


numbers = st.floats(0, allow_nan=False)


@given(
    kind=st.sampled_from(sorted(set(KINDS) - {"update_skipped"})),
    module=modules,
    op=st.sampled_from(["", "mm", "add.Tensor", "aten.mm"]),
    phase=st.sampled_from([Phase.FORWARD, Phase.BACKWARD]),
    call=st.integers(EVERY_CALL, 5),
    value=numbers,
    index=st.integers(0, 5),
)
def test_the_text_form_survives_a_round_trip(
    kind: str, module: str, op: str, phase: Phase, call: int, value: float, index: int
) -> None:
    fault = Fault(kind, module, op, phase, call, float(index) if KINDS[kind].counts else value, index)
    assert parse_fault(str(fault)) == fault


def test_every_kind_has_an_effect_and_a_meaning() -> None:
    from precision_align.devices.fault_kinds import CALL_EFFECTS, RESULT_EFFECTS

    assert set(KINDS) == {*CALL_EFFECTS, *RESULT_EFFECTS, "update_skipped"}
    assert len(KINDS) >= 12
    assert all(kind.meaning for kind in KINDS.values())
    assert set(CALL_EFFECTS) == {name for name, kind in KINDS.items() if kind.operators}


def test_faults_are_accepted_in_every_form() -> None:
    fault = Fault("scale", "head")
    assert read_faults("scale@head") == [parse_fault("scale@head")]
    assert read_faults(fault) == [fault]
    assert read_faults([fault, "nan@head"]) == [fault, parse_fault("nan@head")]


@pytest.mark.parametrize(
    ("name", "overload", "op", "fits"),
    [
        ("addmm", "default", "mm", True),
        ("addmm", "default", "matmul", True),
        ("bmm", "default", "mm", False),
        ("_softmax", "default", "softmax", True),
        ("native_layer_norm", "default", "layer_norm", True),
        ("native_layer_norm_backward", "default", "layer_norm_backward", True),
        ("add", "Tensor", "aten.add.Tensor", True),
        ("add", "Scalar", "add.Tensor", False),
        ("clone", "default", "", False),
        ("mul", "Tensor", "", True),
        ("relu_", "default", "relu*", True),
    ],
)
def test_operators_by_family_overload_and_glob(name: str, overload: str, op: str, fits: bool) -> None:
    assert Fault("scale", "*", op).fits_operator(name, overload) is fits
