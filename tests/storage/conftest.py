"""Factories for drafts and dumps; test files stay free of set-up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable

import numpy as np
import pytest

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.keys import Key
from precision_align.core.records import Call, RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.storage.base import Draft, Dump

BASE_KEY = Key(0, 0, 0, Source.MODULE, "layer", 0, Pass.FIRST, "Linear", 0, Phase.FORWARD, Role.OUTPUT, "")


@pytest.fixture
def make_key() -> Callable[..., Key]:
    def make(**changes: Any) -> Key:
        return replace(BASE_KEY, **changes)

    return make


@pytest.fixture
def make_draft(make_key: Callable[..., Key]) -> Callable[..., Draft]:
    """Words, then changes to the record; ``key``: a dict of changes to the key."""

    def make(words: Array | None, dtype: str = "float32", **changes: Any) -> Draft:
        shape = () if words is None else words.shape
        itemsize = 1 if words is None else words.itemsize
        stride = () if words is None else tuple(step // itemsize for step in words.strides)
        key = make_key(**changes.pop("key", {}))
        record = TensorRecord(key, dtype, shape, stride, "strided", "cpu", False, 0, Tier.FULL)
        return Draft(replace(record, **changes), words)

    return make


@pytest.fixture
def make_words() -> Callable[..., Array]:
    def make(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
        """Random bits: NaN patterns, infinities and subnormals included."""
        word = np.dtype(dtype_of(dtype).word)
        size = int(np.prod(shape, dtype=np.int64))
        raw = np.random.default_rng(seed).integers(0, 256, size * word.itemsize, dtype=np.uint8)
        if dtype == "bool":
            raw &= 1
        return raw.view(word).reshape(shape)

    return make


@pytest.fixture
def make_info() -> Callable[..., RunInfo]:
    def make(**changes: Any) -> RunInfo:
        info = RunInfo("run-1", "2026-11-29T00:00:00+00:00", 0, 1, "cpu", {"torch": "2.13"}, {"payload": "full"})
        return replace(info, **changes)

    return make


@pytest.fixture
def make_call() -> Callable[..., Call]:
    def make(**changes: Any) -> Call:
        tensor = {"kind": "tensor", "path": "args.0"}
        arguments = {"kind": "dict", "class": "builtins.dict", "keys": [], "items": [tensor]}
        call = Call(
            step=0,
            micro=0,
            rank=0,
            scope="layer",
            call=0,
            pass_=Pass.FIRST,
            kind="torch.nn.modules.linear.Linear",
            identity=0,
            parent=-1,
            enter=0,
            exit=3,
            leaf=True,
            training=True,
            grad_enabled=True,
            arguments=arguments,
            output=tensor,
        )
        return replace(call, **changes)

    return make


@pytest.fixture
def count_payloads() -> Callable[[Dump], dict[int, int]]:
    """How many payloads of each step can be read; one that can't raises."""

    def count(dump: Dump) -> dict[int, int]:
        found: dict[int, int] = dict.fromkeys(dump.steps, 0)
        for record in dump.records:
            if record.tier is Tier.FULL:
                dump.payload(record.key)
                found[record.key.step] += 1
        return found

    return count
