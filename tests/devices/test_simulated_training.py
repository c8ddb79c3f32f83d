"""Profile `none` is the CPU, bit for bit, through whole trainings."""

from __future__ import annotations

import pytest
import torch
from device_models import MODELS, differing, lm_loss, make_lm, run_lm, train

from precision_align.devices.simulated import install_simulated

pytestmark = pytest.mark.live


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_twenty_adamw_steps_are_bit_equal(npu: None, name: str, low: bool) -> None:
    try:
        expected_losses, expected_state = train("cpu", MODELS[name], low=low)
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):
            raise
        pytest.skip(f"torch alone cannot train it on this CPU, either: oneDNN has no bfloat16 kernel ({error})")
    losses, state = train("npu", MODELS[name], low=low)
    assert losses == expected_losses
    assert differing(expected_state, state) == []


def test_every_module_of_a_language_model_is_bit_equal(npu: None) -> None:
    expected, actual = run_lm("cpu"), run_lm("npu")
    assert differing(expected.outputs, actual.outputs) == []
    assert differing(expected.gradients, actual.gradients) == []


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}, {"amsgrad": True}])
def test_forms_of_the_optimizer_are_bit_equal(npu: None, options: dict[str, bool]) -> None:
    states = []
    for device in ("cpu", "npu"):
        model, tokens = make_lm(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
        for _ in range(3):
            optimizer.zero_grad()
            lm_loss(model, tokens).backward()
            optimizer.step()
        states.append({name: tensor.cpu() for name, tensor in model.state_dict().items()})
    assert differing(*states) == []


def test_a_recurrent_network_trains_under_an_arithmetic_profile(npu: None) -> None:
    exact, _ = train("npu", MODELS["lstm"], steps=5)
    install_simulated("ascend910")
    rounded, _ = train("npu", MODELS["lstm"], steps=5)
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=1e-2)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_trains_under_ascend910b(npu: None, name: str) -> None:
    exact, _ = train("npu", MODELS[name], steps=5)
    install_simulated("ascend910b")
    emulated, _ = train("npu", MODELS[name], steps=5)
    assert emulated == pytest.approx(exact, rel=1e-2)


def test_an_input_changed_in_place_is_found_by_the_lstm_backward(npu: None) -> None:
    layer = torch.nn.LSTM(4, 4).to("npu")
    inputs = torch.randn(3, 2, 4, device="npu", requires_grad=True) * 1
    result = layer(inputs)[0].sum()
    inputs.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_a_mask_that_learns_gets_its_gradient(npu: None) -> None:
    gradients = []
    for device in ("cpu", "npu"):
        torch.manual_seed(0)
        query, mask = torch.randn(1, 2, 4, 8).to(device), torch.randn(4, 4).to(device).requires_grad_()
        torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask).sum().backward()
        gradients.append(mask.grad.cpu())
    assert torch.equal(*gradients)


@pytest.mark.parametrize("mask", ["bool", "additive", "causal", "none"])
@pytest.mark.parametrize("grouped", [False, True])
def test_attention_takes_the_cpus_way(npu: None, mask: str, grouped: bool) -> None:
    results = []
    for device in ("cpu", "npu"):
        torch.manual_seed(0)
        query = torch.randn(2, 4, 6, 8).to(device).requires_grad_()
        key = torch.randn(2, 2 if grouped else 4, 6, 8).to(device)
        masks = {"bool": torch.rand(6, 6) > 0.3, "additive": torch.randn(6, 6)}
        chosen = masks[mask].to(device) if mask in masks else None
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, key, key, attn_mask=chosen, is_causal=mask == "causal", enable_gqa=grouped
        )
        attended.sum().backward()
        results.append({"output": attended.detach().cpu(), "gradient": query.grad.cpu()})
    assert differing(*results) == []
