"""The table of the benchmark as Markdown."""

from __future__ import annotations

import datetime
import platform
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from localization_benchmark.scoring import ALARM, EXACT, MISSED, NEAR, QUIET, WRONG

Line = dict[str, Any]
OURS = "**precision-align**"


def write_table(lines: Sequence[Line], incumbent: Sequence[Line], seconds: float) -> str:
    """All tables: by dtype, by family, beside the other methods, every run that is not exact, every bug."""
    bugs = [line for line in lines if line["expected"][0] is not None]
    benign = [line for line in lines if line["expected"][0] is None]
    parts = [
        "# Localization benchmark",
        _describe(lines, seconds),
        "## By dtype",
        _table(("dtype", "runs", "exact", "near", "wrong", "missed", "exact or invisible"), _by(bugs, "dtype")),
        "## By family",
        _table(("family", "runs", "exact", "near", "wrong", "missed", "exact or invisible"), _by(bugs, "family")),
        "## Benign variations",
        _say_benign(benign),
        "## Explanations",
        _say_explained(bugs),
        "## Beside other methods",
        _say_rivals(lines, incumbent),
        "## Runs that are not exact",
        _list_inexact(lines),
        "## Bugs",
        _list_bugs(bugs),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _describe(lines: Sequence[Line], seconds: float) -> str:
    run = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(run, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    names = {line["bug"] for line in lines if line["expected"][0] is not None}
    quiet = {line["bug"] for line in lines if line["expected"][0] is None}
    seeds = sorted({line["seed"] for line in lines})
    spent = sum(line["seconds"] for line in lines)
    return (
        f"`python tests/localization/benchmark --write`, commit {commit}, {datetime.date.today()}, torch "
        f"{torch.__version__}, {platform.machine()}: {len(names)} injected bugs and {len(quiet)} benign variations, "
        f"seeds {seeds}, {len(lines)} runs, {spent:.0f} s of CPU time in compare. Every candidate computes in "
        "re-ordered arithmetic (products in pieces of 8 from the end, other sums in blocks of 16), so "
        "nothing is bit-equal. *exact*: scope, phase, site and call of the first divergence are "
        "those of the bug; *near*: its caller, child or neighbour; *invisible*: a miss whose reason "
        "is known and printed below."
    )


def _by(lines: Sequence[Line], name: str) -> list[tuple[str, ...]]:
    groups: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        groups[line[name]].append(line)
    rows = [(key, *_count(members)) for key, members in groups.items()]
    return [*rows, ("all", *_count(lines))]


def _count(lines: Sequence[Line]) -> tuple[str, ...]:
    total = len(lines)
    counts = [sum(line["grade"] == grade for line in lines) for grade in (EXACT, NEAR, WRONG, MISSED)]
    fine = sum(line["grade"] == EXACT or bool(line["hidden"]) for line in lines)
    return (
        str(total),
        f"{counts[0]} ({counts[0] / max(total, 1):.1%})",
        *map(str, counts[1:]),
        f"{fine / max(total, 1):.1%}",
    )


def _say_benign(lines: Sequence[Line]) -> str:
    alarms = [line for line in lines if line["grade"] == ALARM]
    others = [line for line in lines if line["verdict"] != "aligned" and line["grade"] != ALARM]
    text = f"{len(lines)} runs of {len({line['bug'] for line in lines})} variations: {len(alarms)} false alarms"
    return text + (f", {len(others)} not comparable." if others else ", all aligned.")


def _say_explained(lines: Sequence[Line]) -> str:
    tried = [line for line in lines if line["explained"] is not None]
    right = sum(line["explained"] for line in tried)
    wrong = sorted({line["bug"] for line in tried if not line["explained"]})
    share = f"{right / len(tried):.1%}" if tried else "none"
    text = (
        f"Of {len(tried)} exact runs whose bug belongs to a class that an explanation claims, {right} ({share}) have "
        "the right one among the first three (or in the evidence's own words)."
    )
    return text + (f" Not: {', '.join(wrong)}." if wrong else "")


def _say_rivals(lines: Sequence[Line], incumbent: Sequence[Line]) -> str:
    seen = [line for line in lines if "rivals" in line]
    if not seen:
        return ""
    rows = [(OURS, *_grades(seen, lambda line: line["grade"]))]
    for name in seen[0]["rivals"]:
        rows.append((name, *_grades(seen, lambda line, name=name: line["rivals"][name])))
    expected = {(line["bug"], line["dtype"]): line["expected"] for line in seen}
    for task in sorted({line["task"] for line in incumbent}):
        members = [
            {**line, "expected": expected[line["bug"], line["dtype"]]}
            for line in incumbent
            if line["task"] == task and (line["bug"], line["dtype"]) in expected
        ]
        rows.append((f"msprobe 26.2.0 compare, {task}", *_grades(members, lambda line: line["grade"])))
    head = ("method", "bugs", "exact", "near", "wrong", "missed", "benign runs blamed")
    note = (
        f"Seeds {sorted({line['seed'] for line in seen})}. The rules see every tensor that we record, in walk order, "
        "and are graded by scope and phase alone; msprobe sees what its own dump of modules holds."
    )
    return f"{note}\n\n{_table(head, rows)}"


def _grades(lines: Sequence[Line], read: Callable[[Line], str]) -> tuple[str, ...]:
    bugs = [line for line in lines if line["expected"][0] is not None]
    benign = [line for line in lines if line["expected"][0] is None]
    counts = [sum(read(line) == grade for line in bugs) for grade in (EXACT, NEAR, WRONG, MISSED)]
    alarms = sum(read(line) != QUIET for line in benign)
    shown = [f"{count} ({count / max(len(bugs), 1):.0%})" for count in counts]
    return (str(len(bugs)), *shown, f"{alarms} of {len(benign)}")


def _list_inexact(lines: Sequence[Line]) -> str:
    rows = [
        (
            line["bug"],
            line["dtype"],
            str(line["seed"]),
            line["grade"],
            "-" if line["answer"][0] is None else f"{line['answer'][0] or '(root)'}, {line['answer'][1]}",
            f"{line['effect']:.2g} u" if "effect" in line else "",
            line["hidden"] or "",
        )
        for line in lines
        if line["grade"] not in (EXACT, QUIET)
    ]
    return (
        _table(("bug", "dtype", "seed", "grade", "blamed", "effect", "why it is invisible"), rows) if rows else "None."
    )


def _list_bugs(lines: Sequence[Line]) -> str:
    groups: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        groups[line["bug"]].append(line)
    rows = []
    for name, members in groups.items():
        scope, phase = members[0]["expected"]
        exact = sum(line["grade"] == EXACT for line in members)
        rows.append((name, members[0]["row"], scope or "(root)", phase, f"{exact} of {len(members)}"))
    return _table(("bug", "source row", "place", "phase", "exact"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
