"""The command: which runs, one line of JSON a run (so that it can be stopped and taken up again), the table."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from localization_benchmark import Bug, find_bugs
from localization_benchmark.rules import answer_by_rules
from localization_benchmark.running import quiet, record
from localization_benchmark.scoring import EXACT, QUIET, answer_of, grade, measure_effect
from localization_benchmark.table import write_table

import precision_align as pa

HERE = Path(__file__).parent
TARGET = HERE.parents[2] / "reports" / "benchmarks" / "localization.md"
TASKS = ("tensor", "statistics")
# Of the quick sample: every so many bugs, one dtype each, seed 0.
QUICK_STRIDE = 6
Job = tuple[Bug, int, torch.dtype]
Line = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Exit status 1 where a bug is not placed exactly and nothing explains it, or a benign run is blamed."""
    options = parse(arguments)
    started = time.monotonic()
    jobs = list(sample_jobs(find_bugs())) if options.quick else list(list_jobs(options))
    place = Path(options.results) if options.results else Path(tempfile.mkdtemp()) / "results.jsonl"
    done = {name_job(line): line for line in read_lines(place)}
    with quiet():
        for number, job in enumerate(jobs):
            key = (job[0].name, job[1], str(job[2])[6:])
            if key not in done:
                rivals = not options.quick and job[1] < options.rival_seeds
                done[key] = run(job, rivals)
                with place.open("a") as out:
                    out.write(json.dumps(done[key]) + "\n")
            print(f"{number + 1}/{len(jobs)} {describe(done[key])}", file=sys.stderr, flush=True)
    lines = [done[job[0].name, job[1], str(job[2])[6:]] for job in jobs]
    python = os.environ.get("MSPROBE_PYTHON")
    incumbent = run_incumbent(python, jobs, place, options.rival_seeds) if python and not options.quick else []
    text = write_table(lines, incumbent, time.monotonic() - started)
    print(text)
    if options.write:
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        TARGET.write_text(text)
    bad = [line for line in lines if line["grade"] not in (EXACT, QUIET) and not line["hidden"]]
    return int(bool(bad))


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/localization/benchmark")
    parser.add_argument("--quick", action="store_true", help="the fixed sample that CI runs")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each bug (default 3)")
    parser.add_argument("--rival-seeds", type=int, default=1, help="of these, how many the other methods see (1)")
    parser.add_argument("--select", default="", help="only bugs whose name contains this")
    parser.add_argument("--results", help="a file of results to go on with")
    parser.add_argument("--write", action="store_true", help=f"write the table to {TARGET.name}")
    return parser.parse_args(arguments)


def list_jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Seed by seed, so that a run that is stopped has whole seeds."""
    for seed in range(options.seeds):
        for bug in find_bugs():
            if options.select in bug.name:
                yield from ((bug, seed, dtype) for dtype in bug.dtypes)


def sample_jobs(bugs: list[Bug]) -> Iterator[Job]:
    """A fixed sample of all families; dtypes take turns."""
    for number, bug in enumerate(bugs[::QUICK_STRIDE]):
        yield bug, 0, bug.dtypes[number % len(bug.dtypes)]


def run(job: Job, rivals: bool) -> Line:
    """One bug on one seed: what we say, what the other rules say, and the effect of a bug that was missed."""
    bug, seed, dtype = job
    recorded = record(bug, seed, dtype)
    started = time.process_time()
    report = pa.compare(recorded.reference, recorded.candidate, replay=recorded.module)
    seconds = time.process_time() - started
    answer = answer_of(report)
    found = grade(bug, answer)
    line: Line = {
        "bug": bug.name,
        "family": bug.family,
        "row": bug.row,
        "seed": seed,
        "dtype": str(dtype)[6:],
        "grade": found,
        "expected": [bug.first, bug.phase],
        "answer": [answer.scope, answer.phase, answer.site, answer.call],
        "text": answer.text[:600],
        "explained": any(word in answer.text for word in bug.words) if bug.words and found == EXACT else None,
        "hidden": bug.hidden.get(dtype, ""),
        "verdict": str(report.verdict),
        "seconds": seconds,
    }
    if bug.first is not None and found != EXACT:
        line["effect"] = measure_effect(bug, seed, dtype, recorded.candidate)
        if line["effect"] == 0.0:
            line["hidden"] = "changes no bit of the module's tensors"
    if rivals:
        answers = answer_by_rules(bug, seed, dtype, recorded)
        line["rivals"] = {name: grade(bug, one) for name, one in answers.items()}
    return line


def run_incumbent(python: str, jobs: list[Job], place: Path, seeds: int) -> list[Line]:
    """The same bugs through msprobe; what was done is kept beside the results."""
    lines: list[Line] = []
    bugs = {bug.name: bug for bug, _, _ in jobs}
    for task in TASKS:
        out = place.with_suffix(f".{task}.jsonl")
        done = {name_job(line) for line in read_lines(out)}
        keys = [(bug.name, seed, str(dtype)[6:]) for bug, seed, dtype in jobs if seed < seeds]
        waiting = place.with_suffix(f".{task}.jobs.json")
        waiting.write_text(json.dumps([key for key in keys if key not in done]))
        subprocess.run([python, str(HERE / "incumbent.py"), task, str(waiting), str(out)], check=True, stdout=2)
        lines += [line for line in read_lines(out) if name_job(line) in keys]
    return [{**line, "grade": grade_line(bugs[line["bug"]], line)} for line in lines]


def grade_line(bug: Bug, line: Line) -> str:
    from localization_benchmark.scoring import Answer

    return grade(bug, Answer(line["scope"], line["phase"]))


def read_lines(place: Path) -> list[Line]:
    return [json.loads(text) for text in place.read_text().splitlines()] if place.exists() else []


def name_job(line: Line) -> tuple[str, int, str]:
    return line["bug"], line["seed"], line["dtype"]


def describe(line: Line) -> str:
    mark = "" if line["grade"] in (EXACT, QUIET) else f" <- {line['answer']} {line['hidden']}"
    return f"{line['bug']} {line['dtype']} {line['seed']}: {line['grade']}{mark}"
