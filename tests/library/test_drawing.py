"""Recipes of inputs: what they draw, in which order, and how a family turns them into cases."""

from __future__ import annotations

import math

import torch

from precision_align.library.drawing import (
    Family,
    derived,
    draw,
    fixed,
    flags,
    levels,
    normal,
    shuffled,
    uniform,
    whole,
)


def test_a_seed_gives_the_same_inputs_and_another_seed_others() -> None:
    recipes = {"x": normal(3, 4), "y": uniform(5), "z": whole(6, high=100)}
    first, again, other = draw(recipes, 1), draw(recipes, 1), draw(recipes, 2)
    for name in recipes:
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])


def test_inputs_are_drawn_independently_of_each_other() -> None:
    made = draw({"x": normal(50), "y": normal(50)}, 0)
    assert not torch.equal(made["x"], made["y"])


def test_ranges_and_dtypes() -> None:
    made = draw(
        {
            "uniform": uniform(1000, low=-2.0, high=3.0),
            "whole": whole(1000, low=-4, high=5, dtype=torch.int8),
            "levels": levels(1000, low=-2, high=2, step=0.5),
            "flags": flags(1000, share=0.2),
            "shuffled": shuffled(20),
            "scaled": normal(4000, gain=2.0, mean=10.0),
        },
        0,
    )
    assert -2 <= float(made["uniform"].min()) < -1.9
    assert 2.9 < float(made["uniform"].max()) < 3
    assert made["whole"].dtype == torch.int8
    assert set(made["whole"].tolist()) == set(range(-4, 5))
    assert set(made["levels"].tolist()) == {-1.0, -0.5, 0.0, 0.5, 1.0}
    assert 0.1 < float(made["flags"].float().mean()) < 0.3
    assert sorted(made["shuffled"].tolist()) == list(range(20))
    assert abs(float(made["scaled"].mean()) - 10) < 0.2
    assert abs(float(made["scaled"].std()) - 2) < 0.1


def test_values_set_by_place_and_inputs_derived_from_others() -> None:
    recipes = {
        "x": normal(3, 4).at((1, 2), math.nan),
        "y": derived(lambda x: x.isnan(), "x"),
        "z": fixed([1.5]),
        "k": 3,
    }
    made = draw(recipes, 0)
    assert bool(made["y"][1, 2])
    assert int(made["y"].sum()) == 1
    assert (made["z"].tolist(), made["k"]) == ([1.5], 3)


def test_a_recipe_is_not_spent_by_drawing() -> None:
    recipe = normal(4).at(0, 7.0)
    first = draw({"x": recipe}, 0)["x"]
    first.zero_()
    assert float(draw({"x": recipe}, 0)["x"][0]) == 7.0


def test_a_family_fills_in_what_a_case_does_not_change() -> None:
    family = Family(x=normal(2, 3), scale=2.0, wrt=("x", "bias"), float32=("bias",))
    case = family("wide", "why not", "tag", scale=3.0, bias=normal(3))
    assert (case.id, case.why, case.tags, case.wrt, case.float32) == (
        "wide",
        "why not",
        ("tag",),
        ("x", "bias"),
        ("bias",),
    )
    assert case.make_inputs(0)["scale"] == 3.0
    plain = family("plain", "")
    assert plain.wrt == ("x",)  # no bias was drawn
    assert set(family("bare", "", without=("scale",)).make_inputs(0)) == {"x"}
    assert [one.layouts for one in family.layouts("x")] == [{"x": "transposed"}, {"x": "offset"}]
