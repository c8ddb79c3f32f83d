"""Addresses of arrays for compiled code."""

from __future__ import annotations

import numpy as np
import pytest

from precision_align.numerics.addresses import find_address

WHOLE = np.arange(100, dtype=np.int16)


@pytest.mark.parametrize(
    "array",
    [
        WHOLE,
        WHOLE[7:],
        WHOLE[::-3],
        WHOLE.reshape(10, 10).T[3],
        np.zeros(0),
        np.array(3.0),
        np.frombuffer(b"abc", np.uint8),
    ],
)
def test_the_address_is_that_of_the_first_element(array: np.ndarray) -> None:
    assert find_address(array) == array.__array_interface__["data"][0]
