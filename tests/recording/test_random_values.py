"""Random values of every dtype, in views, shared modules, in-place writes and structures: read back exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from precision_align.core.dtypes import DTYPES
from precision_align.recording.session import capture
from precision_align.storage.opening import open_dump

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")]

NAMES = [
    name
    for name in (
        "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16",
        "float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
        "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    )
    if hasattr(torch, name)
]  # fmt: skip
WIDE = {"float32", "float64", "complex64", "complex128", "int64", "int32", "int16", "uint8", "bool", "bfloat16"}

VIEWS = {
    "plain": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1),
    "strided": lambda x: x[::2],
    "offset": lambda x: x[1:],
    "expanded": lambda x: x[:1].expand(3, *x.shape[1:]),
    "repeated": lambda x: x.unsqueeze(1).expand(x.shape[0], 2, *x.shape[1:]),
    "empty": lambda x: x[:0],
    "scalar": lambda x: x.reshape(-1)[0],
    "overlapping": lambda x: x.reshape(-1).as_strided((2, 3), (1, 1)),
    "channels last": lambda x: x.reshape(1, 2, 3, 2).to(memory_format=torch.channels_last),
    "conjugate": lambda x: x.conj(),
    "negative": lambda x: torch._neg_view(x) if x.is_floating_point() or x.is_complex() else x,
    "imaginary": lambda x: x.conj().imag if x.is_complex() else x,
    "subclass": lambda x: x.as_subclass(Tagged),
}


class Tagged(torch.Tensor):
    """A subclass without code of its own."""


@dataclass
class Pair:
    left: Any
    right: Any = None


values = st.tuples(st.sampled_from(NAMES), st.sampled_from(list(VIEWS)), st.binary(min_size=12 * 16, max_size=12 * 16))
trees = st.recursive(
    values,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b.c", "键", ""]), inner, min_size=1, max_size=2),
        st.builds(Pair, inner, st.one_of(st.none(), inner)),
    ),
    max_leaves=6,
)


def build(tree):
    if isinstance(tree, list):
        return [build(item) for item in tree]
    if isinstance(tree, dict):
        return {key: build(item) for key, item in tree.items()}
    if isinstance(tree, Pair):
        return Pair(build(tree.left), build(tree.right))
    return None if tree is None else make(*tree)


def make(name, view, data):
    """Any bits of a dtype, NaNs and negative zeros included, seen through a view."""
    dtype = getattr(torch, name)
    size = torch.empty((), dtype=torch.uint8).element_size() if name == "bool" else DTYPES[name].itemsize
    raw = np.frombuffer(data[: 12 * size], np.uint8).copy()
    tensor = torch.from_numpy(raw & 1 if name == "bool" else raw).view(dtype).reshape(3, 4)
    simple = name in WIDE or view in ("plain", "transposed", "strided", "offset", "expanded", "repeated", "empty")
    return VIEWS[view if simple else "plain"](tensor)


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Pair):
        return leaves(value.left) + leaves(value.right)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [leaf for item in items for leaf in leaves(item)]


class Part(nn.Module):
    """Hands everything on; writes into one of its arguments on the way, or not."""

    def __init__(self, writes):
        super().__init__()
        self.writes = writes
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, tree, *, extra):
        self.seen += 1
        targets = [leaf for leaf in leaves(tree) if leaf.dtype in (torch.int32, torch.int64, torch.uint8)]
        if self.writes and targets and targets[0].is_contiguous() and targets[0].numel():
            targets[0].mul_(2)
        return Pair(tree, [extra, None])


class Whole(nn.Module):
    """One part under two names, called twice and by keyword."""

    def __init__(self, writes):
        super().__init__()
        self.part = Part(writes)
        self.same, self.other = self.part, Part(False)

    def forward(self, tree):
        first = self.part(tree, extra=torch.ones(1))
        second = self.same(first.left, extra=leaves(tree)[:1])
        return self.other(tree=second.left, extra=None), first


def words(tensor):
    """Its bits in logical order, by a way of the test's own: through a list of elements where need be."""
    plain = tensor.detach().as_subclass(torch.Tensor)
    plain = plain.resolve_conj().resolve_neg() if plain.is_complex() or plain.is_floating_point() else plain
    copy = torch.empty(plain.shape, dtype=plain.dtype)
    copy.copy_(plain)
    return copy.reshape(-1).view(torch.uint8).numpy().tobytes() if copy.numel() else b""


def run(tree, writes, session=None):
    kept = []
    model = Whole(writes)

    def watch(module, args, kwargs, output=None):
        given = [args, kwargs] if output is None else output
        kept.append([(tuple(leaf.shape), str(leaf.dtype)[6:], words(leaf)) for leaf in leaves(given)])

    for module in model.modules():
        module.register_forward_pre_hook(watch, with_kwargs=True)
        module.register_forward_hook(watch, with_kwargs=True)
    value = build(tree)
    if session is None:
        model(value)
        return kept
    with session(model) as recorder, recorder.step():
        model(value)
    return kept


def check(dump, kept):
    """Every tensor that the test's own hooks saw, at the same place and with the same bits."""
    assert not [record.reason for record in dump.records if record.reason]
    events = []
    for call in dump.calls:
        for at, role in ((call.enter, "input"), (call.exit, "output")):
            found = [
                record
                for record in dump.records
                if (record.key.scope, record.key.call, record.key.role) == (call.scope, call.call, role)
                and not record.key.path.startswith("written")
            ]
            found.sort(key=lambda record: record.order)
            events.append((at, [(r.shape, r.dtype, dump.payload(r.key).tobytes()) for r in found]))
    assert [rows for _, rows in sorted(events)] == kept


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=trees, writes=st.booleans())
def test_any_values_are_left_alone_and_read_back_bit_exact(tree, writes, new_sink):
    sink = new_sink()
    plain = run(tree, writes)
    watched = run(tree, writes, lambda model: capture(model, None, sink=sink))
    assert watched == plain
    check(sink.dump(), watched)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=trees, writes=st.booleans())
def test_any_values_read_back_bit_exact_from_a_file(tree, writes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("values") / "dump"
    watched = run(tree, writes, lambda model: capture(model, folder))
    with open_dump(folder) as dump:
        check(dump, watched)
