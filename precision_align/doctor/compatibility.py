"""Do torch, torch_npu, CANN and Python belong together? By the vendor's own table, kept as data with its source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from precision_align.doctor.checks import BAD, GOOD, NOTE, Check

NAME = "compatibility"
# rc and dev builds belong with the release that they lead to
_RELEASE = re.compile(r"(\d+\.\d+\.\d+)(?:\.?(post\d+))?")


@cache
def load_table() -> Mapping[str, Any]:
    """``torch_npu``: [torch_npu, torch, CANN] rows, newest first; ``python``: torch -> Pythons; ``source``."""
    table: Mapping[str, Any] = json.loads(Path(__file__).with_name("compatibility.json").read_text(encoding="utf-8"))
    return table


def check_compatibility(versions: Mapping[str, str]) -> list[Check]:
    """Nothing where there is no torch_npu; ``versions``: name -> version, "" where absent."""
    found = _split(versions.get("torch_npu", ""))
    if not found[0]:
        return []
    torch = _split(versions.get("torch", ""))[0]
    if torch and torch != found[0]:
        text = (
            f"torch_npu {versions['torch_npu']} is built for torch {found[0]}, torch {versions['torch']} is installed"
        )
        return [Check(NAME, BAD, text, f"pip install torch=={found[0]}, or the torch_npu of {torch}")]
    return [_check_python(torch, versions.get("python", "")), _check_cann(versions, "".join(_dotted(found)))]


def _split(version: str) -> tuple[str, str]:
    """("2.7.1", "post2") of "2.7.1.post2+git"; ("", "") of anything else."""
    match = _RELEASE.match(version)
    return (match.group(1), match.group(2) or "") if match else ("", "")


def _dotted(parts: tuple[str, str]) -> tuple[str, str]:
    return (parts[0], f".{parts[1]}" if parts[1] else "")


def _check_python(torch: str, python: str) -> Check:
    table = load_table()
    known = table["python"].get(torch)
    own = ".".join(python.split(".")[:2])
    if known is None:
        return Check(NAME, NOTE, f"torch {torch} is not in the table of Pythons ({table['source']})")
    if own not in known:
        text = f"torch_npu for torch {torch} is made for Python {', '.join(known)}, this is {own} ({table['source']})"
        return Check(NAME, BAD, text, f"use Python {known[-1]}")
    return Check(NAME, GOOD, f"Python {own} and torch_npu of torch {torch} ({table['source']})")


def _check_cann(versions: Mapping[str, str], torch_npu: str) -> Check:
    table = load_table()
    cann = versions.get("cann", "")
    rows = {row[0]: row[2] for row in table["torch_npu"]}
    wanted = rows.get(torch_npu)
    if wanted is None:
        text = f"torch_npu {versions['torch_npu']} is not in the table ({table['source']}); CANN here: {cann or 'none'}"
        return Check(NAME, NOTE, text, "ask the release notes of that torch_npu for its CANN")
    if not cann:
        return Check(
            NAME, BAD, f"torch_npu {torch_npu} needs CANN {wanted}; none was found", "source CANN's set_env.sh"
        )
    if _normalise(wanted) not in _normalise(cann):
        text = f"torch_npu {torch_npu} was released with CANN {wanted}, this is CANN {cann} ({table['source']})"
        fitting = [row[0] for row in table["torch_npu"] if _normalise(row[2]) in _normalise(cann)]
        same = [one for one in fitting if one.startswith(_split(torch_npu)[0])]
        other = f", or torch_npu {same[0]}" if same else ""
        return Check(NAME, NOTE, text, f"install CANN {wanted}{other}")
    return Check(NAME, GOOD, f"torch_npu {torch_npu} and CANN {cann} ({table['source']})")


def _normalise(version: str) -> str:
    return version.lower().replace("-", ".")
