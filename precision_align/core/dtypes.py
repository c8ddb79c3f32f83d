"""Tensor dtypes by their torch names, as raw words and as numbers, without torch.

NumPy has no bfloat16 or float8, and h5py rejects the types of ml_dtypes, so such tensors travel as unsigned words of
the same width next to their logical dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Dtype:
    """One logical dtype.

    ``kind``: "float", "complex", "int", "bool", "quantized"; ``word``: the NumPy dtype its bits are kept in;
    ``roundoff``: unit roundoff u = eps / 2; ``eta``: absolute floor near underflow; ``maximum``: the largest finite
    value; ``smallest``: the smallest normal one (0 where these make no sense). Constants: facts of IEEE 754 and of the
    OCP 8-bit formats; eta as argued in docs/verdicts.md.
    """

    name: str
    code: int
    word: str
    kind: str
    roundoff: float = 0.0
    eta: float = 0.0
    maximum: float = 0.0
    smallest: float = 0.0

    @property
    def itemsize(self) -> int:
        return int(np.dtype(self.word).itemsize)

    @property
    def is_floating(self) -> bool:
        return self.kind in ("float", "complex")


def _table() -> dict[str, Dtype]:
    rows = [
        Dtype("float64", 1, "<f8", "float", 2.0**-53, 2.0**-1000, 1.7976931348623157e308, 2.0**-1022),
        Dtype("float32", 2, "<f4", "float", 2.0**-24, 2.0**-120, 3.4028234663852886e38, 2.0**-126),
        Dtype("float16", 3, "<f2", "float", 2.0**-11, 2.0**-24, 65504.0, 2.0**-14),
        Dtype("bfloat16", 4, "<u2", "float", 2.0**-8, 2.0**-120, 3.3895313892515355e38, 2.0**-126),
        Dtype("float8_e4m3fn", 5, "|u1", "float", 2.0**-4, 2.0**-10, 448.0, 2.0**-6),
        Dtype("float8_e5m2", 6, "|u1", "float", 2.0**-3, 2.0**-17, 57344.0, 2.0**-14),
        Dtype("float8_e4m3fnuz", 7, "|u1", "float", 2.0**-4, 2.0**-11, 240.0, 2.0**-7),
        Dtype("float8_e5m2fnuz", 8, "|u1", "float", 2.0**-3, 2.0**-18, 57344.0, 2.0**-15),
        Dtype("float8_e8m0fnu", 9, "|u1", "float", 0.5, 0.0, 2.0**127, 2.0**-127),
        Dtype("complex128", 20, "<c16", "complex", 2.0**-53, 2.0**-1000, 1.7976931348623157e308, 2.0**-1022),
        Dtype("complex64", 21, "<c8", "complex", 2.0**-24, 2.0**-120, 3.4028234663852886e38, 2.0**-126),
        Dtype("complex32", 22, "<u4", "complex", 2.0**-11, 2.0**-24, 65504.0, 2.0**-14),
        Dtype("bool", 30, "|b1", "bool"),
        Dtype("uint8", 31, "|u1", "int"),
        Dtype("int8", 32, "|i1", "int"),
        Dtype("int16", 33, "<i2", "int"),
        Dtype("int32", 34, "<i4", "int"),
        Dtype("int64", 35, "<i8", "int"),
        Dtype("uint16", 36, "<u2", "int"),
        Dtype("uint32", 37, "<u4", "int"),
        Dtype("uint64", 38, "<u8", "int"),
        Dtype("qint8", 40, "|i1", "quantized"),
        Dtype("quint8", 41, "|u1", "quantized"),
        Dtype("qint32", 42, "<i4", "quantized"),
    ]
    return {row.name: row for row in rows}


DTYPES = _table()
_BY_CODE = {row.code: row for row in DTYPES.values()}

# exponent bits, mantissa bits, bias, the encoding's special values
_FLOAT8 = {
    "float8_e4m3fn": (4, 3, 7, "fn"),
    "float8_e5m2": (5, 2, 15, "ieee"),
    "float8_e4m3fnuz": (4, 3, 8, "fnuz"),
    "float8_e5m2fnuz": (5, 2, 16, "fnuz"),
}


def dtype_of(name: str) -> Dtype:
    """The table row of a torch dtype name, with or without the leading "torch.". Raises KeyError."""
    return DTYPES[name[6:] if name.startswith("torch.") else name]


def dtype_by_code(code: int) -> Dtype:
    """The table row of a stored dtype code. Raises KeyError."""
    return _BY_CODE[code]


def widen(words: Array, dtype: Dtype) -> Array:
    """The numbers behind raw words, exactly: bfloat16, float8 -> float32, complex32 -> complex64, others as is."""
    # NumPy makes scalars of 0-d results; asarray keeps the promise of an array.
    if dtype.name == "bfloat16":
        bits = np.asarray(words.astype(np.uint32))
        return np.left_shift(bits, np.uint32(16), out=bits).view(np.float32)
    if dtype.name == "complex32":
        parts = np.ascontiguousarray(words).reshape(-1).view(np.float16).astype(np.float32)
        return parts.view(np.complex64).reshape(words.shape)
    if dtype.name == "float8_e8m0fnu":
        numbers = np.where(words == 255, np.nan, np.exp2(words.astype(np.float64) - 127))
        return np.asarray(numbers, dtype=np.float32)
    if dtype.name in _FLOAT8:
        return np.asarray(_float8_values(dtype.name)[words])
    return words


def narrow(values: Array, dtype: Dtype) -> Array:
    """The raw words of numbers, rounded to nearest even: the inverse of :func:`widen` for floats of 16 bits and more.

    Raises KeyError for dtypes that have no arithmetic here (8 bits, quantized).
    """
    if dtype.name == "bfloat16":
        bits = np.asarray(values, dtype=np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
    if dtype.name in _FLOAT8 or dtype.kind == "quantized" or dtype.name in ("float8_e8m0fnu", "complex32"):
        raise KeyError(f"numbers are not rounded to {dtype.name} here")
    return np.asarray(values).astype(dtype.word)


@cache
def _float8_values(name: str) -> Array:
    exponent_bits, mantissa_bits, bias, special = _FLOAT8[name]
    words = np.arange(256, dtype=np.int64)
    sign = np.where(words & 0x80, -1.0, 1.0)
    exponent = (words >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = (words & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    normal = (1 + mantissa) * np.exp2(exponent - float(bias))
    values = sign * np.where(exponent == 0, mantissa * np.exp2(1.0 - bias), normal)
    if special == "fn":
        values[(words & 0x7F) == 0x7F] = np.nan
    elif special == "fnuz":
        values[0x80] = np.nan
    else:
        top = exponent == (1 << exponent_bits) - 1
        values = np.where(top & (mantissa == 0), sign * np.inf, np.where(top, np.nan, values))
    return np.asarray(values, dtype=np.float32)
