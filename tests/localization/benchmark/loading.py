"""Loads the benchmark and the cases under names of their own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent


def load_package(name: str, place: Path) -> ModuleType:
    """A folder as a package under a name of its own: tests are no packages, so that none shadows another."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place / "__init__.py", submodule_search_locations=[str(place)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_benchmark() -> ModuleType:
    """The benchmark's package, and the cases that it borrows models from."""
    load_package("localization_cases", HERE.parent / "cases")
    return load_package("localization_benchmark", HERE)
