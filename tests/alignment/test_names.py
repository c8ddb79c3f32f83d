"""Wrapper parts in module paths."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.alignment.names import align_names
from precision_align.core.wrappers import WRAPPER_PARTS, strip_wrappers


@pytest.mark.parametrize("part", sorted(WRAPPER_PARTS))
def test_each_wrapper_is_stripped_at_every_depth(part):
    assert strip_wrappers(part) == ""
    assert strip_wrappers(f"{part}.layers.0") == "layers.0"
    assert strip_wrappers(f"layers.0.{part}.attn") == "layers.0.attn"
    assert strip_wrappers(f"{part}.{part}.a") == "a"


@pytest.mark.parametrize("name", ["modules", "my_module", "_orig_mods", "submodule.a", "module2.b"])
def test_similar_names_stay(name):
    assert strip_wrappers(name) == name


def test_a_chain_of_wrappers_is_one_module():
    scopes = ["", "module", "module._orig_mod", "module._orig_mod.fc"]
    assert align_names(scopes) == {"": None, "module": None, "module._orig_mod": "", "module._orig_mod.fc": "fc"}


def test_wrappers_inside():
    scopes = ["", "blocks", "blocks.0", "blocks.0._checkpoint_wrapped_module", "blocks.0._checkpoint_wrapped_module.fc"]
    aligned = align_names(scopes)
    assert aligned["blocks.0"] is None
    assert aligned["blocks.0._checkpoint_wrapped_module"] == "blocks.0"
    assert aligned["blocks.0._checkpoint_wrapped_module.fc"] == "blocks.0.fc"
    assert aligned[""] == ""


def test_colliding_names_keep_their_raw_form():
    aligned = align_names(["a.module", "module.a"])  # neither contains the other, both strip to "a"
    assert aligned == {"a.module": "a.module", "module.a": "module.a"}


def test_both_sides_of_a_wrapped_and_a_plain_run_meet():
    plain = ["", "enc", "enc.0", "head"]
    wrapped = ["", *(f"module.{name}".rstrip(".") for name in plain)]
    assert set(align_names(plain).values()) == {value for value in align_names(wrapped).values() if value is not None}


NAMES = st.lists(st.sampled_from(["a", "b", "module", "_orig_mod", "0"]), max_size=4).map(".".join)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(NAMES, max_size=12))
def test_no_two_scopes_become_one(scopes):
    aligned = align_names(scopes)
    assert set(aligned) == set(scopes)
    names = [name for name in aligned.values() if name is not None]
    assert len(names) == len(set(names))
    assert not scopes or names


def test_an_attribute_called_module_beside_others_is_no_wrapper():
    assert align_names(["", "module", "other"]) == {"": "", "module": "module", "other": "other"}


def test_a_scope_that_computes_is_no_wrapper():
    scopes = ["", "net", "net.module"]
    assert align_names(scopes)["net"] is None
    aligned = align_names(scopes, working=["net"])
    assert aligned == {"": "", "net": "net", "net.module": "net.module"}


def test_a_known_class_is_a_wrapper_whatever_else_it_holds():
    kinds = {"": "torch.nn.parallel.distributed.DistributedDataParallel"}
    assert align_names(["", "module", "module.fc", "buffer_owner"], kinds)["module.fc"] == "fc"
    assert align_names(["", "module", "module.fc", "buffer_owner"], kinds)[""] is None
