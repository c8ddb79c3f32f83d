"""Every named fault and every arithmetic profile, in memory and through two dumps: is each found where it was put?

    python tests/benchmarks/drills.py [--write reports/benchmarks/drills.md]

Takes about a minute and a half. Exit status 1 where one run did not give the predicted first divergence. The tests run
each fault and each profile one of the two ways.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "devices"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import test_profile_drills as profiles

from precision_align.demo.drills import DRILLS, run_drill
from precision_align.devices.simulated import install_simulated, set_profile

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("lockstep", "dumps")
Row = tuple[str, str, list[bool]]


def run_faults(folder: Path) -> Iterator[Row]:
    """(name, fault, found by way)."""
    for name, fault in DRILLS.items():
        places = {"lockstep": None, "dumps": folder / name}
        drills = [run_drill(name, folder=places[way]) for way in WAYS]
        yield name, fault, [drill.fired and drill.found for drill in drills]


def run_profiles(folder: Path) -> Iterator[Row]:
    """(name, prediction, as predicted by way)."""
    for name, (_, _, expected) in profiles.TABLE.items():
        places = {"lockstep": None, "dumps": folder / name.replace(" ", "-")}
        reports = [profiles.run_profile(name, places[way]) for way in WAYS]
        prediction = "aligned" if expected is None else f"{expected[0]}, {expected[1]}"
        yield name, prediction, [profiles.is_as_predicted(name, report) for report in reports]
    set_profile("none")


def tabulate(title: str, second: str, rows: list[Row]) -> list[str]:
    """A Markdown table with its count."""
    right = sum(sum(row[2]) for row in rows)
    lines = [f"## {title}: {right} of {len(rows) * len(WAYS)} runs as predicted", ""]
    lines += [f"| name | {second} | {' | '.join(WAYS)} |", "| --- | --- | --- | --- |"]
    for name, text, found in rows:
        lines.append(f"| {name} | `{text}` | {' | '.join('yes' if one else 'NO' for one in found)} |")
    return [*lines, ""]


def read_commit() -> str:
    """The commit, and whether the tree has other changes."""

    def ask(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return ask("rev-parse", "--short", "HEAD") + (" with uncommitted changes" if ask("status", "--porcelain") else "")


def main() -> int:
    """Exit status 0 where all went as predicted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="the report")
    target = parser.parse_args().write
    commit = read_commit()
    torch.set_num_threads(1)
    install_simulated("none")  # before the first backward pass of this process
    with TemporaryDirectory() as place:
        faults = list(run_faults(Path(place) / "faults"))
        arithmetic = list(run_profiles(Path(place) / "profiles"))
    head = [
        "# Fire drills: every named fault and every profile, both ways",
        "",
        "- Command: `python tests/benchmarks/drills.py --write reports/benchmarks/drills.md`",
        f"- The simulated NPU, emulated, not Ascend; torch {torch.__version__}",
        f"- Commit: {commit}; {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        "",
    ]
    lines = [*head, *tabulate("Faults", "fault", faults), *tabulate("Profiles", "first divergence", arithmetic)]
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    if target:
        target.write_text(text, encoding="utf-8")
    return 0 if all(all(row[2]) for row in [*faults, *arithmetic]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
