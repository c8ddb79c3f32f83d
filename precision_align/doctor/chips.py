"""What npu-smi says: which chips there are, how they feel, who runs on them, and what they are made for."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from precision_align.doctor.checks import ABSENT, BAD, GOOD, NOTE, Check

_CHIP = re.compile(r"\|\s*(\d+)\s+([A-Za-z0-9_-]+)\s*\|\s*(\S+)\s*\|\s*[\d.-]+\s+\d+")
_BUS = re.compile(r"\|\s*(\d+)(?:\s+\d+)?\s*\|\s*[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:")
_PROCESS = re.compile(r"\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s*\|\s*(\S+)\s*\|")
_VISIBLE = ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES")

# Part number (the longest prefix wins) -> what it is sold for. Sources: the hardware lists of Ascend/pytorch's README
# (A2 training servers and cards; Atlas 800I A2 for inference) and COMPATIBILITY.md (310, 310B, 310P, 910, A2, A3, 950).
# Boards decide, not part numbers alone: 910B4 is on both sorts.
USES: Mapping[str, str] = {
    "310": "inference",
    "910": "training",
    "910B4": "training or inference (Atlas 800I A2 servers carry it, for inference only)",
    "950": "training",
}


@dataclass(frozen=True)
class Chip:
    """``npu`` and ``chip`` as npu-smi numbers them; ``name`` without "Ascend"; ``health`` "OK" or what is wrong."""

    npu: int
    chip: int
    name: str
    health: str


@dataclass(frozen=True)
class Table:
    """What ``npu-smi info`` printed: its version, the chips, and the processes as (npu, chip, process id)."""

    version: str = ""
    chips: tuple[Chip, ...] = ()
    processes: tuple[tuple[int, int, int], ...] = ()


def parse_table(text: str) -> Table:
    """The table of ``npu-smi info``: two lines a chip, then one a process; only the order is fixed."""
    version = re.search(r"npu-smi\s+v?([\w.]+)", text)
    chips, processes = [], []
    pending: tuple[int, str, str] | None = None
    for line in text.splitlines():
        head, bus, process = _CHIP.match(line), _BUS.match(line), _PROCESS.match(line)
        if pending is not None and bus:
            chips.append(Chip(pending[0], int(bus.group(1)), pending[1], pending[2]))
            pending = None
        elif process:
            processes.append((int(process.group(1)), int(process.group(2)), int(process.group(3))))
        elif head:
            name = re.sub(r"(?i)^ascend", "", head.group(2)) or head.group(2)
            pending = (int(head.group(1)), name, head.group(3))
    return Table(version.group(1) if version else "", tuple(chips), tuple(processes))


def find_use(name: str) -> str:
    """ "training", "inference", ... of a part such as "910B3" or "Ascend310P3"; "" for an unknown one."""
    part = re.sub(r"(?i)^ascend", "", name).upper()
    known = [prefix for prefix in USES if part.startswith(prefix)]
    return USES[max(known, key=len)] if known else ""


def check_chips(table: Table, count: int | None) -> list[Check]:
    """Health, sort and number of the chips. ``count``: devices that torch sees, None where it was not asked."""
    if not table.chips:
        return [Check("npu-smi", ABSENT, "not found, or it lists no chip")]
    sick = [f"NPU {chip.npu}: {chip.health}" for chip in table.chips if chip.health != "OK"]
    names = ", ".join(f"{number} x {name}" for name, number in Counter(chip.name for chip in table.chips).items())
    text = f"{names}, npu-smi {table.version}"
    checks = [
        Check("npu-smi", BAD, f"{text}; {', '.join(sick)}", "npu-smi info -t health -i NPU; reset or replace it")
        if sick
        else Check("npu-smi", GOOD, text)
    ]
    checks += [_check_use(name) for name in sorted({chip.name for chip in table.chips})]
    checks += [] if count is None else [_check_count(len(table.chips), count)]
    return checks + _check_crowding(table)


def _check_use(name: str) -> Check:
    use = find_use(name)
    if not use:
        return Check(f"chip {name}", NOTE, "not in the list of known parts")
    if use == "inference":
        return Check(f"chip {name}", NOTE, "an inference part: training is not supported on it")
    return Check(f"chip {name}", GOOD, f"a part for {use}")


def list_visible(environment: Mapping[str, str] | None = None) -> str:
    """The variable that hides chips, as NAME=VALUE; "" where none is set."""
    variables = os.environ if environment is None else environment
    return next((f"{name}={variables[name]}" for name in _VISIBLE if name in variables), "")


def _check_count(present: int, seen: int) -> Check:
    hidden = list_visible()
    text = f"torch sees {seen} of {present} chips{f' ({hidden})' if hidden else ''}"
    if seen == present or (hidden and 0 < seen < present):
        return Check("visible devices", GOOD, text)
    advice = f"correct {hidden}" if hidden else "map the missing /dev/davinci* devices into the container"
    return Check("visible devices", BAD, text, advice)


def _check_crowding(table: Table) -> list[Check]:
    """Several processes on one chip while others are idle: the script does not choose a device by its local rank."""
    used = Counter(place[:2] for place in table.processes)
    if len(table.chips) < 2 or len(used) != 1 or max(used.values()) < 2:
        return []
    ((npu, chip), number), *_ = used.items()
    text = f"all {number} processes run on NPU {npu} chip {chip}, {len(table.chips) - 1} chips are idle"
    return [
        Check("placement", BAD, text, 'call torch.npu.set_device(int(os.environ["LOCAL_RANK"])) before anything else')
    ]


def parse_board(text: str) -> Mapping[str, str]:
    """Driver and firmware of ``npu-smi info -t board -i 0``; what it does not say is left out."""
    named = {"Software Version": "ascend driver", "Firmware Version": "ascend firmware"}
    pairs = [line.split(":", 1) for line in text.splitlines() if ":" in line]
    found = {named[key.strip()]: value.strip() for key, value in pairs if key.strip() in named}
    return {name: value for name, value in found.items() if value not in ("", "NA")}
