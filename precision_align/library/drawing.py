"""Inputs of cases, written as what they are: ``x=normal(4, 64, gain=3.0).at((0, 3), math.nan)``.

A :class:`Drawn` is a recipe; a :class:`Family` turns recipes and plain values into :class:`~precision_align.library.
cases.OpCase`, with one seeded generator for all inputs of a case, in their order. All floating inputs are float32 on
the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

import torch

from precision_align.library.cases import OpCase

Tensor = torch.Tensor
Make = Callable[[torch.Generator, Mapping[str, Any]], Tensor]
TWO = ("float32", "bfloat16")  # what one full and one short mantissa show; float16 where its range matters


@dataclass(frozen=True)
class Drawn:
    """A recipe: (generator, the inputs before it, by name) -> tensor."""

    make: Make

    def then(self, change: Callable[[Tensor], Tensor]) -> Drawn:
        """The same, changed."""
        make = self.make
        return Drawn(lambda generator, made: change(make(generator, made)))

    def at(self, index: Any, value: float) -> Drawn:
        """With some elements, rows or slices set to ``value``."""

        def put(tensor: Tensor) -> Tensor:
            tensor[index] = value
            return tensor

        return self.then(put)


def normal(*shape: int, gain: float = 1.0, mean: float = 0.0) -> Drawn:
    """Normal numbers times ``gain`` plus ``mean``."""
    return Drawn(lambda generator, _: torch.randn(shape, generator=generator) * gain + mean)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Drawn:
    """Real numbers in [low, high)."""
    return Drawn(lambda generator, _: torch.rand(shape, generator=generator) * (high - low) + low)


def levels(*shape: int, low: int = -8, high: int = 8, step: float = 0.25) -> Drawn:
    """Floating multiples of ``step`` from low to high steps, both included: full of ties, exact in every dtype."""
    return whole(*shape, low=low, high=high + 1).then(lambda values: values.float() * step)


def whole(*shape: int, low: int = 0, high: int = 10, dtype: torch.dtype = torch.int64) -> Drawn:
    """Whole numbers in [low, high)."""
    return Drawn(lambda generator, _: torch.randint(low, high, shape, generator=generator, dtype=torch.int64).to(dtype))


def flags(*shape: int, share: float = 0.7) -> Drawn:
    """Booleans, True with probability ``share``."""
    return Drawn(lambda generator, _: torch.rand(shape, generator=generator) < share)


def shuffled(count: int) -> Drawn:
    """A permutation of 0 .. count - 1."""
    return Drawn(lambda generator, _: torch.randperm(count, generator=generator))


def fixed(values: Any, dtype: torch.dtype | None = None) -> Drawn:
    """These values, whatever the seed."""
    return Drawn(lambda generator, _: torch.tensor(values, dtype=dtype))


def derived(function: Callable[..., Tensor], *names: str) -> Drawn:
    """``function`` of inputs that stand before it."""
    return Drawn(lambda generator, made: function(*(made[name] for name in names)))


def draw(recipes: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The inputs of one case. Values that are no recipe stay as they are; lists of recipes become lists."""
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Any] = {}
    for name, recipe in recipes.items():
        made[name] = recipe.make(generator, made) if isinstance(recipe, Drawn) else recipe
    return made


class Family:
    """Cases of one operator that share what they do not change.

    ``recipes``: the inputs by keyword. A call ``family(id, why, *tags, **changes)`` makes a case with some of them
    changed; ``without`` names inputs to leave out. ``wrt`` follows: only inputs that are recipes are differentiated by.
    """

    def __init__(
        self,
        *,
        wrt: Sequence[str] = (),
        dtypes: Sequence[str] = TWO,
        float32: Sequence[str] = (),
        **recipes: Any,
    ) -> None:
        self._wrt, self._dtypes, self._float32, self._recipes = tuple(wrt), tuple(dtypes), tuple(float32), recipes

    def __call__(
        self,
        id_: str,
        why: str,
        *tags: str,
        wrt: Sequence[str] | None = None,
        dtypes: Sequence[str] | None = None,
        float32: Sequence[str] | None = None,
        layouts: Mapping[str, str] | None = None,
        raises: bool = False,
        exact: bool = False,
        without: Sequence[str] = (),
        **changes: Any,
    ) -> OpCase:
        recipes = {name: value for name, value in {**self._recipes, **changes}.items() if name not in without}
        wanted = self._wrt if wrt is None else wrt
        return OpCase(
            id_,
            partial(draw, recipes),
            dtypes=self._dtypes if dtypes is None else tuple(dtypes),
            tags=tags,
            wrt=tuple(name for name in wanted if isinstance(recipes.get(name), Drawn)),
            float32=self._float32 if float32 is None else tuple(float32),
            layouts=layouts or {},
            raises=raises,
            why=why,
            exact=exact,
        )

    def layouts(self, *names: str, id_: str = "layout") -> list[OpCase]:
        """Two cases: ``names`` with the last two dimensions swapped in storage, and unaligned in storage."""
        return [
            self(f"{id_}-{kind}", f"inputs whose storage is {kind}", "layout", layouts=dict.fromkeys(names, kind))
            for kind in ("transposed", "offset")
        ]
