"""The user's code by name: ``module:factory`` or ``file.py:factory``."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from precision_align.core.errors import UsageError


def load_factory(text: str, option: str = "--replay", folder: Path | None = None) -> Any:
    """What MODULE:NAME (or FILE.py:NAME) stands for, imported with ``folder`` (the working directory) on the path.

    Raises UsageError where it cannot be imported or has no such name.
    """
    module, _, name = text.rpartition(":")
    if not module or not name:
        raise UsageError(f"{option} {text!r}: write MODULE:FACTORY, for example train:build_model or model.py:GPT")
    try:
        place = folder or Path.cwd()
        found = _import_file(place / module) if module.endswith(".py") else _import_module(module, place)
        for part in name.split("."):
            found = getattr(found, part)
    except SystemExit as stop:
        call = f"sys.exit({'' if stop.code is None else repr(stop.code)})"
        raise UsageError(
            f"{option} {text!r} ended the program ({call}) while it was imported; put what it runs under "
            "if __name__ == '__main__':"
        ) from stop
    except Exception as error:  # the user's code may raise anything
        raise UsageError(f"{option} {text!r}: {type(error).__name__}: {error}") from error
    return found


def _import_module(name: str, folder: Path) -> Any:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return import_module(name)


def _import_file(path: Path) -> Any:
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported")
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
