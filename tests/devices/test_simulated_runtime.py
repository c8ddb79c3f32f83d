"""What training scripts ask of a device: each of these once failed on some way of making one."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("npu")]


def on_both(compute: Callable[[str], Any]) -> None:
    """Assert that a computation gives the same bits on the CPU and on the device."""
    outcomes = []
    for device in ("cpu", "npu"):
        torch.manual_seed(0)
        outcomes.append([leaf.detach().cpu() for leaf in torch.utils._pytree.tree_leaves(compute(device))])
    for expected, actual in zip(*outcomes):
        assert expected.dtype == actual.dtype
        assert torch.equal(expected, actual)


def index_and_mask(device: str) -> Any:
    values = torch.arange(4.0, device=device)
    values[values > 2] = 7
    return values[torch.tensor([0, 2], device=device)], values[values > 1]


def views_in_place(device: str) -> Any:
    base = torch.arange(12.0, device=device).reshape(3, 4)
    view = base[1:, ::2]
    view.add_(100)
    view.t().mul_(2)
    return base


def views_in_place_with_gradient(device: str) -> Any:
    leaf = torch.arange(6.0, device=device).requires_grad_()
    twice = leaf * 2
    twice[::2].mul_(3)
    twice.view(2, 3).transpose(0, 1)[0] = 0
    twice.sum().backward()
    return leaf.grad


def reshape_in_place(device: str) -> Any:
    base = torch.arange(6.0, device=device).reshape(2, 3)
    base.t_().unsqueeze_(0)
    other = torch.arange(4.0, device=device)
    alias = other.view(2, 2)
    other.resize_(2)
    alias.add_(1)
    grown = torch.arange(3.0, device=device).resize_(5)[:3]
    return base, other, alias, grown


def write_to_out(device: str) -> Any:
    empty = torch.empty(0, device=device)
    total = torch.add(torch.ones(3, device=device), 1, out=empty)
    loss = F.soft_margin_loss(total, torch.ones(3, device=device))
    return empty, loss


def mix_with_numbers(device: str) -> Any:
    values = torch.randn(3, 3).to(device).requires_grad_()
    picked = torch.take_along_dim(values, torch.zeros(3, 3, dtype=torch.long, device=device), 1)
    loss = F.multilabel_soft_margin_loss(values, torch.ones(3, 3, device=device)) + (1 - values).sum() + picked.sum()
    loss.backward()
    return loss, values.grad, values % 2, torch.arange(3, device=device) * 0.5


def sort_and_count(device: str) -> Any:
    numbers = torch.tensor([3, 1, 2, 1], device=device)
    return numbers.topk(2), numbers.sort(), numbers.unique(), numbers.nonzero(), numbers.bincount()


def decompose(device: str) -> Any:
    matrix = torch.randn(4, 4).to(device)
    return torch.linalg.svd(matrix), torch.linalg.inv(matrix), torch.linalg.eigh(matrix @ matrix.t())


def transform(device: str) -> Any:
    signal = torch.randn(8).to(device)
    spectrum = torch.fft.rfft(signal)
    return spectrum.abs(), spectrum.conj().resolve_conj(), torch.fft.hfft(spectrum), torch.fft.irfft(spectrum)


def draw(device: str) -> Any:
    filled = nn.init.normal_(torch.empty(3, device=device))
    return torch.rand(3, device=device), torch.randperm(5, device=device), filled, torch.randint(9, (4,), device=device)


def low_types(device: str) -> Any:
    values = torch.randn(4).to(device)
    eight = values.to(torch.float8_e4m3fn).float()
    return eight, values.bfloat16() * 3, values.half() + 1, values.double() / 3, values.to(torch.complex64) * 1j


def multiply_integers(device: str) -> Any:
    ones = torch.ones(32, 32, dtype=torch.int8, device=device)
    return torch._int_mm(ones, ones)


def zero_gradient(device: str) -> Any:
    leaf = torch.randn(3).to(device).requires_grad_()
    torch.sgn(leaf).sum().backward()
    return leaf.grad


def vectorise(device: str) -> Any:
    return torch.func.vmap(torch.func.grad(lambda x: x.sin().sum()))(torch.randn(3, 2).to(device))


def recompute(device: str) -> Any:
    layer = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).to(device)
    inputs = torch.randn(2, 3).to(device).requires_grad_()
    checkpoint(layer, inputs, use_reentrant=False).sum().backward()
    return inputs.grad


def recompute_reentrant(device: str) -> Any:
    layer = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).to(device)
    inputs = torch.randn(2, 3).to(device).requires_grad_()
    checkpoint(layer, inputs, use_reentrant=True).sum().backward()
    return inputs.grad


def encode_without_gradient(device: str) -> Any:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval().to(device)
    with torch.no_grad():
        return layer(torch.randn(2, 10, 32).to(device))


def infer(device: str) -> Any:
    layer = nn.LSTM(8, 8).to(device)
    with torch.inference_mode():
        return layer(torch.randn(3, 2, 8).to(device))[0] + 0


def copy_deeply(device: str) -> Any:
    return copy.deepcopy(nn.Linear(2, 2).to(device)).weight


def count_embeddings(device: str) -> Any:
    table = nn.EmbeddingBag(9, 4, mode="mean").to(device)
    return table(torch.arange(6, device=device), torch.tensor([0, 4], device=device))


def lose_on_sequences(device: str) -> Any:
    logits = torch.randn(6, 2, 5).log_softmax(-1).to(device).requires_grad_()
    lengths = torch.tensor([6, 5]), torch.tensor([2, 3])
    loss = F.ctc_loss(logits, torch.tensor([[1, 2, 0], [3, 1, 2]]).to(device), *lengths)
    loss.backward()
    return loss, logits.grad


def pack_sequences(device: str) -> Any:
    layer = nn.LSTM(4, 4, batch_first=True).to(device)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(2, 5, 4).to(device), torch.tensor([5, 3]), batch_first=True)
    return nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)[0]


def attend_under_masks(device: str) -> Any:
    """Queries whose last stride is not 1 go another way through attention; masks are boolean, additive, none."""
    wide = torch.randn(2, 5, 2, 16).to(device)
    query = wide[..., ::2].transpose(1, 2).requires_grad_()
    keep = torch.rand(5, 5) > 0.3
    masks = (keep, torch.zeros(5, 5).masked_fill(~keep, float("-inf")), None)
    results = [
        F.scaled_dot_product_attention(query, query, query, attn_mask=None if mask is None else mask.to(device))
        for mask in masks
    ]
    assert torch.equal(results[0].cpu(), results[1].cpu())
    return results, torch.autograd.grad(results[0].square().sum(), query)


SAME_ON_BOTH = [
    index_and_mask, views_in_place, views_in_place_with_gradient, reshape_in_place, write_to_out, mix_with_numbers,
    sort_and_count, decompose, transform, draw, low_types, multiply_integers, zero_gradient, vectorise, recompute,
    recompute_reentrant, encode_without_gradient, infer, copy_deeply, count_embeddings, lose_on_sequences,
    pack_sequences, attend_under_masks,
]  # fmt: skip


@pytest.mark.parametrize("compute", SAME_ON_BOTH, ids=lambda compute: compute.__name__)
def test_same_bits_on_cpu_and_device(compute: Callable[[str], Any]) -> None:
    on_both(compute)


def test_tensors_say_where_they_are() -> None:
    tensor = (torch.ones(2, 3, device="npu") + 1) * 2
    assert tensor.device == torch.device("npu", 0)
    assert tensor.is_npu
    assert "npu:0" in repr(tensor)
    assert torch.randn(3).npu().device.type == torch.randn(3).to("npu", non_blocking=True).device.type == "npu"
    assert tensor.cpu().sum().item() == 24


def test_a_tensor_shares_memory_with_its_views_only() -> None:
    host = torch.zeros(3)
    device = host.npu()
    host.add_(1)
    assert device.cpu().tolist() == [0, 0, 0]


def test_state_is_saved_and_loaded_in_both_directions() -> None:
    buffer = io.BytesIO()
    torch.save({"device": torch.arange(3.0).npu(), "host": torch.arange(2.0)}, buffer)
    for place, expected in ((None, "npu"), ("cpu", "cpu"), ("npu", "npu")):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=place)
        assert loaded["device"].device.type == expected
        assert loaded["device"].cpu().tolist() == [0, 1, 2]
    assert loaded["host"].device.type == "npu"


def test_gradient_scaler_follows_its_schedule() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4).to("npu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("npu", init_scale=8.0)
    before = layer.weight.detach().cpu().clone()
    with torch.autocast("npu", dtype=torch.float16):
        output = layer(torch.randn(2, 4, device="npu"))
        assert output.dtype == torch.float16
        loss = output.float().pow(2).mean()
    scaler.scale(loss * float("inf")).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0
    assert torch.equal(layer.weight.detach().cpu(), before)


def test_hooks_and_dispatch_modes_see_the_device() -> None:
    seen: list[str] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    layer = nn.Linear(3, 3).npu()
    devices: list[str] = []
    layer.register_forward_hook(lambda module, args, output: devices.append(output.device.type))
    layer.register_full_backward_hook(lambda module, given, got: devices.append(got[0].device.type))
    with Mode():
        layer(torch.randn(2, 3, device="npu", requires_grad=True)).sum().backward()
    assert devices == ["npu", "npu"]
    assert {"aten::addmm", "aten::sum"} <= set(seen)


def test_seeds_and_states_of_the_generator() -> None:
    torch.npu.manual_seed(3)
    first = torch.rand(4, device="npu").cpu()
    torch.manual_seed(3)
    assert torch.equal(first, torch.rand(4))
    state = torch.npu.get_rng_state()
    drawn = torch.rand(2, device="npu").cpu()
    torch.npu.set_rng_state(state)
    assert torch.equal(drawn, torch.rand(2, device="npu").cpu())
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        torch.rand(5, device="npu")
    torch.npu.set_rng_state_all(torch.npu.get_rng_state_all())


def test_streams_events_and_the_accelerator_interface() -> None:
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()
    with torch.npu.stream(torch.npu.Stream()) as stream:
        stream.wait_stream(torch.npu.current_stream())
        stream.record_event().synchronize()
    end.record()
    assert start.elapsed_time(end) >= 0
    torch.npu.synchronize()
    torch.npu.empty_cache()
    assert torch.accelerator.current_accelerator() == torch.device("npu")
    assert torch.accelerator.device_count() == torch.npu.device_count() == 1
    assert "not Ascend" in torch.npu.get_device_name()
    assert torch.npu.memory_allocated() == 0


def test_a_data_loader_may_pin() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
    assert [batch[0].npu().sum().item() for batch in loader] == [1, 5]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_run(backend: str) -> None:
    compiled = torch.compile(lambda x: (x.sin() + 1).sum(), backend=backend)
    leaf = torch.zeros(3, device="npu", requires_grad=True)
    compiled(leaf).backward()
    assert leaf.grad.cpu().tolist() == [1, 1, 1]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # recording asks them whether anything here was compiled


def test_module_moves_keep_ties_and_buffers() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5))
    model[1].weight = model[0].weight
    model.npu()
    assert model[1].weight is model[0].weight
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"npu"}
    assert model.cpu()[0].weight.device.type == "cpu"


def make_mixed() -> Any:
    return torch.ones(2, device="npu") + torch.ones(2)


def make_second_device() -> Any:
    return torch.ones(2, device="npu:1")


def make_sparse() -> Any:
    return torch.eye(3).npu().to_sparse()


def make_quantized() -> Any:
    return torch.quantize_per_tensor(torch.randn(3).npu(), 0.1, 0, torch.qint8)


def make_array() -> Any:
    return torch.ones(2, device="npu").numpy()


def make_generator() -> Any:
    return torch.Generator(device="npu")


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (make_mixed, "same device"),
        (make_second_device, "one device"),
        (make_sparse, "dense tensors only"),
        (make_quantized, "dense tensors only"),
        (make_array, "numpy"),
        (make_generator, "getNewGenerator"),
    ],
)
def test_what_it_cannot_do_is_an_error_and_no_crash(attempt: Callable[[], Any], message: str) -> None:
    with pytest.raises((RuntimeError, TypeError, NotImplementedError), match=message):
        attempt()


def test_scalars_of_the_cpu_mix_with_the_device() -> None:
    assert (torch.ones(2, device="npu") * torch.tensor(3.0)).cpu().tolist() == [3, 3]
    assert torch.ones(2, device="npu").index_select(0, torch.tensor([1], device="npu")).cpu().tolist() == [1]
