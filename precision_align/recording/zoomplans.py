"""Zoom plans: a file that says which scopes to record how closely, and at which steps.

A first pass over a large model keeps statistics of everything; the plan then names the suspects:

    steps = "3,10-12"
    default = "statistics"

    [payload]
    "blocks.3.*" = "full"

JSON of the same content is read too (by the suffix .json), for Python older than 3.11 without tomli.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

from precision_align.core.documents import read_document
from precision_align.core.errors import UsageError
from precision_align.core.terms import Tier

_KEYS = ("steps", "default", "payload")


@dataclass(frozen=True)
class ZoomPlan:
    """``payload``: scope glob -> tier, the last match wins; ``default`` for the rest; ``steps`` as text, None = all."""

    payload: Mapping[str, str] = field(default_factory=dict)
    default: str = "statistics"
    steps: Optional[str] = None


def read_zoom_plan(path: Union[str, os.PathLike[str]]) -> ZoomPlan:
    """Read a plan. Raises UsageError, naming the file, for what cannot be read and for every unknown key or tier."""
    place = Path(path)
    content = read_document(place, "the plan")
    problems = list(_find_problems(content))
    if problems:
        raise UsageError(f"the plan {place}: {'; '.join(problems)}")
    return ZoomPlan(dict(content.get("payload", {})), content.get("default", "statistics"), _text(content.get("steps")))


def _text(steps: Any) -> Optional[str]:
    return ",".join(map(str, steps)) if isinstance(steps, list) else None if steps is None else str(steps)


def _find_problems(content: Any) -> list[str]:
    if not isinstance(content, dict):
        return ["it must be a table"]
    problems = [f"unknown key {key!r}; there are {', '.join(_KEYS)}" for key in content if key not in _KEYS]
    payload = content.get("payload", {})
    if not isinstance(payload, dict):
        return [*problems, "payload must be a table of scope globs and tiers"]
    tiers = {"default": content.get("default", "statistics"), **payload}
    known = [str(tier) for tier in Tier]
    problems += [
        f"{glob!r}: {tier!r} is none of {', '.join(known)}" for glob, tier in tiers.items() if tier not in known
    ]
    if not isinstance(content.get("steps"), (str, int, list, type(None))):
        problems.append('steps must be a text such as "3,10-12", a number or a list of numbers')
    return problems


def write_zoom_plan(plan: ZoomPlan, path: Union[str, os.PathLike[str]]) -> None:
    """Write a plan as TOML, or JSON by the suffix; :func:`read_zoom_plan` reads it back equal. Raises OSError."""
    place = Path(path)
    content = {"default": plan.default, "payload": dict(plan.payload)}
    if plan.steps is not None:
        content["steps"] = plan.steps
    if place.suffix == ".json":
        place.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        return
    lines = [f"{key} = {_quote(value)}" for key, value in content.items() if isinstance(value, str)]
    lines += ["", "[payload]", *(f"{_quote(glob)} = {_quote(tier)}" for glob, tier in plan.payload.items())]
    place.write_text("\n".join(lines) + "\n", "utf-8")


def _quote(text: str) -> str:
    # a JSON string is a TOML basic string but for this character and for pairs of surrogates, which are not escaped
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
