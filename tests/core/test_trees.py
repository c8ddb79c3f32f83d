"""Argument structures survive the trip through JSON, or say why they cannot be built again."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.trees import Unbuildable, class_name, flatten, join, rebuild, scalars


class Tensor:
    """Stands for a tensor: only its identity counts."""


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Setting:
    value: Any
    other: Any = None


KNOWN = {class_name(kind): kind for kind in (Pair, Setting, collections.OrderedDict)}


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def same(one: Any, other: Any) -> bool:
    """Equal in type, structure and value; NaN equals NaN, a tensor only itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (one == other and math.copysign(1, one) == math.copysign(1, other)) or (one != one and other != other)
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(map(same, one.values(), other.values()))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        return same(vars(one), vars(other))
    return bool(one == other)


leaves = st.one_of(
    st.builds(Tensor),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(allow_nan=True),
    st.text(st.characters()),
    st.just(...),
    st.slices(5),
)
parts = st.one_of(st.text(st.characters(), max_size=5), st.sampled_from(["a.b", "%2E", "/", "", "0"]))
nestings = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(parts, inner, max_size=3),
        st.dictionaries(parts, inner, max_size=3).map(collections.OrderedDict),
        st.builds(Pair, inner, inner),
        st.builds(Setting, inner, inner),
    ),
    max_leaves=12,
)


def build(tree: Any, found: dict[str, Any]) -> Any:
    return rebuild(tree, found, KNOWN.get, lambda kind, value: (kind, value))


@settings(deadline=None)
@given(nestings)
def test_round_trip_through_json(value: Any) -> None:
    tree, tensors = flatten(value, is_tensor)
    paths = [path for path, _ in tensors]
    assert len(set(paths)) == len(paths)
    text = json.dumps(tree, allow_nan=False)
    assert same(build(json.loads(text), dict(tensors)), value)


@settings(deadline=None)
@given(nestings)
def test_scalars_are_all_leaves_but_tensors(value: Any) -> None:
    tree, _ = flatten(value, is_tensor)
    for place, leaf in scalars(tree):
        assert isinstance(place, str)
        assert leaf["kind"] != "tensor"


def test_paths_name_the_place() -> None:
    tensors = [Tensor() for _ in range(3)]
    _, found = flatten({"args": (tensors[0], [tensors[1]]), "kwargs": {"a.b": tensors[2]}}, is_tensor)
    assert [path for path, _ in found] == ["args.0", "args.1.0", "kwargs.a%2Eb"]
    assert [item for _, item in found] == tensors
    assert flatten(tensors[0], is_tensor)[1] == [("", tensors[0])]


@settings(deadline=None)
@given(st.lists(st.text(st.characters(), min_size=1), min_size=1, max_size=4))
def test_joined_parts_stay_apart(names: list[str]) -> None:
    path = ""
    for name in names:
        path = join(path, name)
    assert path.count(".") == len(names) - 1


def test_a_cycle_ends() -> None:
    value: list[Any] = [1]
    value.append(value)
    tree, _ = flatten(value, is_tensor)
    with pytest.raises(Unbuildable, match="list"):
        build(tree, {})


def test_the_same_object_twice_is_no_cycle() -> None:
    shared = [1, 2]
    tree, _ = flatten([shared, shared], is_tensor)
    assert build(tree, {}) == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("value", "reason"),
    [(object(), "builtins.object"), ({1: {2}}, "builtins.set"), ({(1, 2): 3}, "mapping key")],
)
def test_what_cannot_be_built_again_is_named(value: Any, reason: str) -> None:
    tree, _ = flatten(value, is_tensor)
    json.dumps(tree, allow_nan=False)
    with pytest.raises(Unbuildable, match=reason):
        build(tree, {})


def test_a_missing_payload_and_an_unreachable_class_are_named() -> None:
    tree, _ = flatten({"x": Tensor()}, is_tensor)
    with pytest.raises(Unbuildable, match=r"'x'.*no payload"):
        build(tree, {})
    tree, _ = flatten(Pair(1, 2), is_tensor)
    with pytest.raises(Unbuildable, match="Pair is not reachable"):
        rebuild(tree, {}, lambda name: None, lambda kind, value: value)
