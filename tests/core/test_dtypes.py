"""Words become the numbers that torch sees in them: every code of every 8- and 16-bit type."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from precision_align.core.dtypes import DTYPES, Array, Dtype, dtype_by_code, dtype_of, widen

FLOAT8 = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


def bits(values: Array) -> Array:
    """float32 bits with one common NaN, so that 0.0 differs from -0.0."""
    words = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).copy()
    words[np.isnan(values)] = 0x7FC00000
    return words


def torch_type(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        pytest.skip(f"this torch has no {name}")
    return found


@pytest.mark.parametrize("name", FLOAT8)
def test_all_float8_codes(name: str) -> None:
    words = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(words.copy()).view(torch_type(name)).to(torch.float32).numpy()
    assert np.array_equal(bits(widen(words, dtype_of(name))), bits(expected))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_all_sixteen_bit_words(name: str) -> None:
    words = np.arange(65536, dtype=np.uint16)
    expected = torch.from_numpy(words.view(np.int16).copy()).view(torch_type(name)).to(torch.float32).numpy()
    found = widen(words.view(dtype_of(name).word), dtype_of(name)).astype(np.float32)
    assert np.array_equal(bits(found), bits(expected))


def test_complex32() -> None:
    parts = torch.tensor([[1.5, -2.0], [0.0, 65504.0]], dtype=torch.float16)
    words = parts.view(torch.int16).numpy().view(np.uint32).reshape(2)
    found = widen(words, dtype_of("complex32"))
    assert found.dtype == np.complex64
    assert found.tolist() == [1.5 - 2j, 65504j]


@pytest.mark.parametrize("name", DTYPES)
def test_shapes_are_kept(name: str) -> None:
    row = dtype_of(name)
    for shape in [(), (0,), (2, 3), (1, 0, 2)]:
        found = widen(np.zeros(shape, row.word), row)
        assert isinstance(found, np.ndarray)
        assert found.shape == shape


def test_strided_words() -> None:
    for name in ("bfloat16", "complex32", "float8_e5m2"):
        row = dtype_of(name)
        words = np.arange(24).astype(row.word).reshape(4, 6)
        for view in (words.T, words[::2, ::3], np.broadcast_to(words[:1], (3, 6))):
            assert widen(view, row).tobytes() == widen(np.ascontiguousarray(view), row).tobytes()


@pytest.mark.parametrize("row", [row for row in DTYPES.values() if row.kind == "float"], ids=lambda row: row.name)
def test_constants_agree_with_torch(row: Dtype) -> None:
    facts = torch.finfo(torch_type(row.name))
    assert row.maximum == facts.max
    assert row.smallest == facts.smallest_normal
    assert row.itemsize * 8 == facts.bits


@pytest.mark.parametrize("name", FLOAT8[:4])
def test_roundoff_is_half_the_spacing_above_one(name: str) -> None:
    """Taken from the codes: torch 2.13 itself states half the right eps for float8_e5m2fnuz."""
    values = widen(np.arange(256, dtype=np.uint8), dtype_of(name))
    assert dtype_of(name).roundoff == (values[values > 1].min() - 1) / 2


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_roundoff_agrees_with_torch(name: str) -> None:
    assert dtype_of(name).roundoff == torch.finfo(torch_type(name)).eps / 2


def test_codes_and_names() -> None:
    assert len({row.code for row in DTYPES.values()}) == len(DTYPES)
    assert all(dtype_by_code(row.code) is row for row in DTYPES.values())
    assert dtype_of("torch.bfloat16") is dtype_of("bfloat16")
    with pytest.raises(KeyError):
        dtype_of("float4")
    with pytest.raises(KeyError):
        dtype_by_code(0)


def test_every_plain_torch_dtype_is_known() -> None:
    found = {name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}
    plain = {str(getattr(torch, name))[6:] for name in found}
    below_a_byte = {name for name in plain if name.startswith(("bits", "uint1", "int1", "float4"))} - {
        "uint16",
        "int16",
    }
    sub_byte = {f"{sign}int{width}" for sign in ("", "u") for width in range(1, 8)} | {"quint4x2", "quint2x4"}
    assert plain - below_a_byte - sub_byte <= set(DTYPES)
