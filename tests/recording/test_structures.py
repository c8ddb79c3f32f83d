"""Argument structures: the same trees from the cache as from scratch, and never another's."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from precision_align.core.trees import flatten
from precision_align.recording.sites import Site
from precision_align.recording.structures import flatten_arguments, flatten_call, is_tensor
from precision_align.storage.texts import encode_value

pytestmark = pytest.mark.live

X, Y = torch.zeros(2), torch.nn.Parameter(torch.ones(3))
Pair = namedtuple("Pair", "left right")
atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf")]),
    st.sampled_from(["", "a", "a.b", torch.float32, Ellipsis, slice(1, None), object]),
    st.sampled_from([X, Y]),
)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b.c", 1, True]), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.lists(inner, max_size=2).map(lambda items: OrderedDict(enumerate(items))),
    ),
    max_leaves=8,
)


def assert_same(found, expected):
    assert encode_value(found[0]) == encode_value(expected[0])
    assert [path for path, _ in found[1]] == [path for path, _ in expected[1]]
    assert all(one is other for (_, one), (_, other) in zip(found[1], expected[1], strict=True))


@given(values)
def test_trees_are_those_of_flatten(value):
    for _ in range(2):  # from scratch, and from the cache
        assert_same(flatten_arguments(value), flatten(value, is_tensor))


@given(st.lists(values, max_size=3).map(tuple), st.dictionaries(st.sampled_from(["x", "mask"]), values))
def test_calls_are_those_of_their_arguments(args, kwargs):
    for _ in range(2):
        assert_same(flatten_call(args, kwargs), flatten({"args": args, "kwargs": kwargs}, is_tensor))


def test_equal_numbers_of_other_types_are_told_apart():
    kinds = [(1,), (True,), (1.0,), [1], ("1",), (0.0,), (-0.0,)]
    assert len({encode_value(flatten_arguments(kind)[0]) for kind in kinds}) == len(kinds)


def test_a_structure_that_contains_itself_ends():
    loop = [X]
    loop.append(loop)
    assert_same(flatten_arguments(loop), flatten(loop, is_tensor))


def test_attributes_follow_the_module():
    module = torch.nn.Dropout(0.1)
    site = Site(module, "drop", True)
    first = site.attributes
    assert site.attributes is first
    module.p = 0.3
    assert site.attributes != first
    norm = torch.nn.LayerNorm(4)
    norm.normalized_shape = [4]  # may be written into without being set anew
    site = Site(norm, "norm", True)
    before = encode_value(site.attributes)
    norm.normalized_shape.append(5)
    assert encode_value(site.attributes) != before
    assert Site(torch.nn.Sequential(module), "", True).attributes is not None
    assert not Site(torch.nn.Sequential(module), "", True).is_leaf
