"""The TOML reader of this Python."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from precision_align.core.errors import Unavailable


def find_toml() -> Any:
    """tomllib, or its back-port on Python 3.10. Raises Unavailable where there is neither."""
    for name in ("tomllib", "tomli"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise Unavailable("reading TOML on Python 3.10 needs tomli: pip install 'precision-align[analysis]'")
