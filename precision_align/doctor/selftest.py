"""Runs the conformance suites on the devices of this machine and keeps the outcome in a file that a user can send."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable

from precision_align.core.errors import Unavailable, UsageError
from precision_align.doctor.checks import BAD, GOOD, Check

SCHEMA_VERSION = 1
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Outcome:
    """One check on one device: ``status`` passed, failed or skipped; ``text`` why not, with the traceback's end."""

    device: str
    check: str
    status: str
    seconds: float
    text: str = ""


def choose_devices(wanted: Sequence[str]) -> list[str]:
    """The devices to test: those asked for, else the CPU and every accelerator that is there."""
    from precision_align.devices.selection import open_device

    if wanted:
        return list(dict.fromkeys(wanted))
    found = ["cpu"]
    for name in ("cuda", "npu"):
        try:
            open_device(name)
        except Unavailable:
            continue
        found.append(name)
    return found


def run_suites(names: Sequence[str], tell: Callable[[str], None]) -> list[Outcome]:
    """Every check of the suite of each device; ``tell`` gets a line each. Raises Unavailable for an absent device."""
    from precision_align.testing.devices import list_checks, one_thread

    outcomes = []
    for name in names:
        suite = _make_suite(name)
        with one_thread():
            for check in list_checks(type(suite)):
                outcomes.append(_run(suite, name, check))
                tell(f"{outcomes[-1].status:<8}{name}: {check} ({outcomes[-1].seconds:.1f} s)")
    return outcomes


def _make_suite(name: str) -> Any:
    from precision_align.devices.selection import open_device
    from precision_align.testing.ascend import AscendConformance
    from precision_align.testing.devices import DeviceConformance

    device = open_device(name)
    kind = AscendConformance if device.kind == "npu" and not device.emulated else DeviceConformance
    suite = type("Suite", (kind,), {"device_name": name})
    return suite()


def _run(suite: Any, name: str, check: str) -> Outcome:
    from precision_align.testing.devices import Inapplicable

    started = time.monotonic()

    def end(status: str, text: str = "") -> Outcome:
        return Outcome(name, check, status, round(time.monotonic() - started, 3), text)

    try:
        getattr(suite, check)()
    except Inapplicable as reason:
        return end(SKIPPED, str(reason))
    except Exception as error:  # whatever breaks there is the finding
        frames = traceback.format_exception(type(error), error, error.__traceback__)
        return end(FAILED, "".join(frames)[-2000:])
    return end(PASSED)


def save_outcomes(path: Path, outcomes: Sequence[Outcome], facts: Mapping[str, Mapping[str, str]]) -> None:
    """Everything that somebody else needs to understand a failure, as JSON. Raises UsageError where it cannot be."""
    written = {"schema_version": SCHEMA_VERSION, "facts": facts, "outcomes": [asdict(one) for one in outcomes]}
    try:
        path.write_text(json.dumps(written, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def summarise(outcomes: Sequence[Outcome], path: Path) -> list[Check]:
    """One check a device, naming what failed."""
    checks = []
    for device in dict.fromkeys(one.device for one in outcomes):
        mine = [one for one in outcomes if one.device == device]
        counts = {status: sum(one.status == status for one in mine) for status in (PASSED, FAILED, SKIPPED)}
        text = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        failed = ", ".join(one.check for one in mine if one.status == FAILED)
        name = f"device {device}"
        checks.append(
            Check(name, BAD, f"{text}: {failed}", f"send {path} with a report")
            if failed
            else Check(name, GOOD, f"{text}; kept in {path}")
        )
    return checks
