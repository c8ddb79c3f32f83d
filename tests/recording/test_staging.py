"""Copies: every kind of tensor, bit for bit or with a reason."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from precision_align.core.dtypes import dtype_of, widen
from precision_align.recording import plain
from precision_align.recording.staging import Stager, untouched

pytestmark = pytest.mark.live

NAMES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex128", "complex64",
    "complex32", "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64",
]  # fmt: skip
DTYPES = [name for name in NAMES if hasattr(torch, name)]


@st.composite
def tensors(draw):
    """Any dtype, shape and layout: permuted, sliced, expanded, with random bits (NaN payloads, -0, subnormals)."""
    name = draw(st.sampled_from(DTYPES))
    dtype = getattr(torch, name)
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = int(np.prod(shape, dtype=np.int64))
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    if name == "bool":
        flat = flat % 2
    tensor = flat.view(dtype).reshape(shape)
    if shape:
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
        tensor = tensor[draw(st.sampled_from([slice(None), slice(1, None), slice(None, None, 2)]))]
        if draw(st.booleans()):
            tensor = tensor.unsqueeze(0).expand(2, *tensor.shape)
    return tensor


def logical_bytes(tensor):
    """The reference: element by element through Python's own indexing."""
    rows = [tensor[index] for index in np.ndindex(*tensor.shape)]
    return b"".join(row.reshape(1).view(torch.uint8).numpy().tobytes() for row in rows)


@given(tensors())
def test_words_are_the_bits_in_logical_order(tensor):
    staged = Stager().stage(tensor)
    row = dtype_of(staged.dtype)
    assert staged.reason == ""
    assert staged.words.dtype == np.dtype(row.word)
    assert staged.words.shape == tuple(tensor.shape) == staged.shape
    assert staged.words.flags.c_contiguous
    assert staged.words.tobytes() == logical_bytes(tensor)
    assert staged.nbytes == tensor.numel() * tensor.dtype.itemsize
    assert staged.stride == tensor.stride()
    expanded = any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape))
    assert staged.extra.get("expanded", False) is expanded


def test_words_are_our_own():
    tensor = torch.ones(3)
    words = Stager().stage(tensor).words
    tensor.zero_()
    assert words.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "tensor",
    [torch.complex(torch.randn(3), torch.randn(3)).conj(), torch.complex(torch.randn(3), torch.randn(3)).conj().imag],
    ids=["conj", "neg"],
)
def test_lazy_conjugation_and_negation_are_resolved(tensor):
    assert tensor.is_conj() or tensor.is_neg()
    np.testing.assert_array_equal(Stager().stage(tensor).words, tensor.resolve_conj().resolve_neg().numpy())


def test_bfloat16_and_float8_keep_special_values():
    values = torch.tensor([1.0, 3.140625, 1e30, float("nan"), -0.0, float("inf")]).bfloat16()
    words = Stager().stage(values).words
    assert words.dtype == np.uint16
    np.testing.assert_array_equal(widen(words, dtype_of("bfloat16")), values.float().numpy())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_kinds_without_words_of_their_own_come_in_parts_or_with_a_reason():
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    sparse = Stager().stage(x.to_sparse())
    assert sparse.words is None
    assert {name: part.words.tolist() for name, part in sparse.parts} == {"indices": [[0, 1], [0, 1]], "values": [1, 2]}
    csr = Stager().stage(x.to_sparse_csr())
    assert [name for name, _ in csr.parts] == ["crow_indices", "col_indices", "values"]
    assert Stager().stage(x.to("meta")).reason == "a meta tensor has no values"
    nested = Stager().stage(torch.nested.nested_tensor([x[:1], x]))
    assert nested.words is None
    assert nested.reason
    quantized = Stager().stage(torch.quantize_per_tensor(x, 0.1, 3, torch.quint8))
    assert quantized.words.tolist() == [[13, 3], [3, 23]]
    assert quantized.extra == {"qscheme": "per_tensor_affine", "scale": 0.1, "zero_point": 3}
    scales = torch.tensor([0.1, 0.5], dtype=torch.float64)
    channels = torch.quantize_per_channel(x, scales, torch.tensor([0, 1]), 0, torch.qint8)
    assert Stager().stage(channels).extra["scale"] == [0.1, 0.5]


@pytest.mark.skipif(not hasattr(torch, "jagged"), reason="torch 2.1 has no jagged layout")
def test_jagged_tensors_come_in_parts():
    if torch.__version__ < "2.3":
        pytest.skip("jagged tensors came with torch 2.3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(1, 2), torch.ones(3, 2)], layout=torch.jagged)
    staged = Stager().stage(nested)
    assert staged.shape == (2, -1, 2)
    assert {name: part.shape for name, part in staged.parts} == {"values": (4, 2), "offsets": (3,)}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_of_the_first_kind_come_in_parts():
    pieces = [torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3)]
    for transposed in (False, True):
        nested = torch.nested.nested_tensor(pieces)
        staged = Stager().stage(nested.transpose(1, 2) if transposed else nested)
        parts = {name: part.words for name, part in staged.parts}
        wanted = [piece.t() if transposed else piece for piece in pieces]
        assert staged.reason == "nested: kept as its parts values, sizes"
        assert parts["sizes"].tolist() == [list(piece.shape) for piece in wanted]
        assert parts["values"].tolist() == torch.cat([piece.reshape(-1) for piece in wanted]).tolist()


class Wrapper(torch.Tensor):
    """A subclass whose values lie elsewhere."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError


class Plain(torch.Tensor):
    """A subclass that only watches; its values are its own."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise AssertionError("a copy must not be seen")


def test_subclasses():
    assert "Wrapper" in Stager().stage(Wrapper(torch.ones(2))).reason
    assert Stager().stage(torch.ones(2).as_subclass(Plain)).words.tolist() == [1, 1]


def test_a_copy_is_reused_only_while_the_tensor_is_unchanged():
    stager, tensor = Stager(), torch.ones(4, 4)
    first = stager.stage(tensor)
    assert stager.stage(tensor) is first
    assert stager.stage(tensor.view(16)) is not first
    tensor.add_(1)
    second = stager.stage(tensor)
    assert second is not first
    tensor.data.add_(1)
    third = stager.stage(tensor)
    assert third.words[0, 0] == 3
    tensor.numpy()[:] = 7
    assert stager.stage(tensor).words[0, 0] == 7
    assert (first.words[0, 0], second.words[0, 0]) == (1, 2)


def test_parameters_and_inference_tensors_are_always_copied_anew():
    stager, parameter = Stager(), nn.Parameter(torch.ones(4))
    first = stager.stage(parameter)
    parameter.data.mul_(2)
    assert stager.stage(parameter).words.tolist() == [2, 2, 2, 2]
    assert first.words.tolist() == [1, 1, 1, 1]
    with torch.inference_mode():
        inference = torch.ones(4)
    before = stager.stage(inference)
    with torch.inference_mode():
        inference.mul_(2)
    assert (before.words[0], stager.stage(inference).words[0]) == (1, 2)


def test_only_so_many_copies_are_kept(twin, monkeypatch):
    monkeypatch.setattr(plain, "REUSED_BYTES", 100 * 16)
    stager = Stager()
    kept = [torch.ones(4) for _ in range(200)]
    copies = [stager.stage(tensor) for tensor in kept]
    assert stager.stage(kept[-1]) is copies[-1]
    assert stager.stage(kept[0]) is not copies[0]


def test_modes_random_numbers_and_gradients_are_left_alone():
    seen = []

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    tensor = torch.randn(3, requires_grad=True)
    state = torch.get_rng_state()
    with Dispatch(), Function():
        staged = Stager().stage(tensor)
    assert seen == []
    assert torch.equal(torch.get_rng_state(), state)
    assert staged.requires_grad
    assert tensor.grad_fn is None
    with untouched():
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_tensors_inside_function_transforms_have_a_reason(record):
    model = nn.Linear(2, 2)
    plain = torch.vmap(model)(torch.ones(3, 2))
    kept = []
    dump = record(model, lambda recorder: kept.append(torch.vmap(model)(torch.ones(3, 2))))
    assert torch.equal(kept[0], plain)
    inputs = [r for r in dump.records if r.key.role == "input"]
    assert [r.reason for r in inputs] == ["inside a torch.func transform"]


def test_a_model_inside_a_gradient_transform_is_a_call_with_reasons(record):
    """There even the state of the random generator is a wrapper, and no address can be asked for."""
    model, x = nn.Linear(2, 2), torch.ones(3, 2)
    parameters = dict(model.named_parameters())

    def loss(values):
        return torch.func.functional_call(model, values, (x,)).sum()

    plain, kept = torch.func.grad(loss)(parameters), []
    dump = record(model, lambda recorder: kept.append(torch.func.grad(loss)(parameters)))
    assert all(torch.equal(kept[0][name], plain[name]) for name in plain)
    assert [call.scope for call in dump.calls] == [""]
    assert not dump.notes
    reasons = {r.key.path: r.reason for r in dump.records if r.key.role in ("input", "output")}
    assert reasons == {"args.0": "", "": "inside a torch.func transform"}
