"""The public names: all there, documented, lazy, and none shadowed by a subpackage."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys

import pytest

import precision_align as pa

PROMISED = {
    "Dump",
    "Report",
    "Divergence",
    "assert_aligned",
    "capture",
    "compare",
    "compare_losses",
    "load_library",
    "load_rules",
    "lockstep",
    "open_dump",
    "run_cases",
}


def test_the_promised_names_are_public() -> None:
    assert set(pa.__all__) >= PROMISED
    assert dir(pa) == list(pa.__all__)


@pytest.mark.parametrize("name", [name for name in pa.__all__ if name != "__version__"])
def test_every_name_loads_and_is_documented(name: str) -> None:
    found = getattr(pa, name)
    assert (inspect.getdoc(found) or "").strip()
    assert getattr(pa, name) is found
    if inspect.isfunction(found):
        assert "return" in found.__annotations__


def test_no_name_is_a_subpackage() -> None:
    packages = {module.name for module in pkgutil.iter_modules(pa.__path__)}
    assert not packages & set(pa.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pa.nothing  # type: ignore[attr-defined]


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, precision_align; print(sorted({'torch', 'numpy', 'h5py'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
