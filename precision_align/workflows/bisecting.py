"""The smallest set of swaps that cures a run: a search over runs of the real script, each with some swaps in force.

A run is cured when its dump is aligned with the reference, or when its loss stays within a band around the
reference's. A run that crashed, or cannot be judged, is unresolved: it counts as not cured. The folder keeps what every
run gave, so that the same search goes on after an interruption.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from precision_align.core.errors import PrecisionAlignError, UsageError
from precision_align.core.terms import Phase, Site, Verdict
from precision_align.reporting.report import Report
from precision_align.reporting.wording import total_coverage
from precision_align.storage.base import Dump
from precision_align.storage.opening import open_dump
from precision_align.training.reading import read_series
from precision_align.workflows.comparing import compare
from precision_align.workflows.minimising import Subset, minimise

CURED, ILL, UNRESOLVED = "cured", "not cured", "unresolved"
_LEDGER = "bisect.json"
_SCHEMA_VERSION = 1
_LEAST_COVERAGE = 0.5  # as compare's: "aligned" of less than half of the records is not believed

Execute = Callable[[Sequence[str], Path], int]


@dataclass(frozen=True)
class Trial:
    """One run: its swaps, which of the equal runs it was, CURED, ILL or UNRESOLVED, and why."""

    swaps: Subset
    repeat: int
    outcome: str
    reason: str
    seconds: float


@dataclass(frozen=True)
class Criterion:
    """When a run is cured: ``series`` empty: its dump is aligned; else the series stays within ``limit`` (relative)."""

    reference: str | None
    replay: Any = None
    series: str = ""
    limit: float = 0.0

    @classmethod
    def parse(cls, text: str, reference: str | None, replay: Any = None) -> Criterion:
        """From "aligned" or "loss<0.01". Raises UsageError."""
        if text == "aligned":
            if reference is None and replay is None:
                raise UsageError("--until aligned needs --reference DUMP, or the reference's code with --replay")
            return cls(reference, replay)
        name, _, number = text.partition("<")
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if not name.strip() or not limit > 0:
            raise UsageError(f"--until takes aligned, or SERIES<SHARE such as 'loss<0.01', not {text!r}")
        if reference is None:
            raise UsageError(f"--until {text} needs --reference: the dump, table or log with the reference's series")
        return cls(reference, None, name.strip(), limit)

    def judge(self, dump: Dump) -> tuple[str, str]:
        """(outcome, why)."""
        if self.series:
            return self._judge_series(dump)
        report = compare(self.reference, dump, replay=self.replay)
        if report.verdict == Verdict.DIVERGED:
            first = report.first
            return ILL, "diverged" if first is None else f"diverged: {first.scope or 'the model'} ({first.op})"
        share = total_coverage(report).share
        if report.verdict == Verdict.ALIGNED and share >= _LEAST_COVERAGE:
            return CURED, "aligned"
        return UNRESOLVED, f"{report.verdict}, {share:.0%} judged"

    def _judge_series(self, dump: Dump) -> tuple[str, str]:
        ours = read_series(dump, self.series)
        theirs = dict(_pairs(read_series(str(self.reference), self.series)))
        common = [(step, value, theirs[step]) for step, value in _pairs(ours) if step in theirs]
        if not common:
            return UNRESOLVED, f"no step of {self.series} in common with the reference"
        far, step = max((measure_distance(value, expected), step) for step, value, expected in common)
        outcome = CURED if far < self.limit else ILL
        return outcome, f"{self.series} within {far:.3g} of the reference's, worst at step {step}"


def measure_distance(value: float, expected: float) -> float:
    """|value - expected| / |expected|; infinite for what is not finite."""
    if not (math.isfinite(value) and math.isfinite(expected)):
        return math.inf
    return abs(value - expected) / max(abs(expected), 1e-30)


def _pairs(series: Any) -> list[tuple[int, float]]:
    return list(zip(series.steps, series.values))


@dataclass
class Laboratory:
    """Runs the script with some swaps and judges it; keeps a ledger in ``folder``.

    ``command``: swaps, dump -> the words to run; ``execute``: (words, log) -> exit status; ``tell``: one line for
    each run; ``limit``: how many runs at most. Raises UsageError where the folder holds another search.
    """

    folder: Path
    command: Callable[[Subset, Path], list[str]]
    execute: Execute
    criterion: Criterion
    settings: Mapping[str, Any]
    limit: int
    tell: Callable[[str], None]
    trials: list[Trial] = field(default_factory=list)
    num_run: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / _LEDGER
        if not path.exists():
            return
        known = json.loads(path.read_text(encoding="utf-8"))
        if known.get("settings") != json.loads(json.dumps(self.settings)):
            raise UsageError(f"{path} belongs to another search: choose another folder with -o")
        self.trials += [Trial(**{**row, "swaps": tuple(row["swaps"])}) for row in known["trials"]]

    def try_swaps(self, swaps: Subset, repeat: int = 0) -> Trial:
        """What a run with these swaps gives, perhaps from the ledger. Raises OutOfRuns."""
        known = next((one for one in self.trials if set(one.swaps) == set(swaps) and one.repeat == repeat), None)
        if known is not None:
            self._tell(known, "known")
            return known
        if self.num_run >= self.limit:
            raise OutOfRuns
        self.num_run += 1
        began = time.monotonic()
        outcome, reason = self._run(swaps)
        trial = Trial(swaps, repeat, outcome, reason, round(time.monotonic() - began, 1))
        self.trials.append(trial)
        self._save()
        self._tell(trial, f"run {self.num_run} of at most {self.limit}, {trial.seconds:.0f} s")
        return trial

    def _tell(self, trial: Trial, what: str) -> None:
        swaps = ", ".join(trial.swaps) or "no swap"
        again = ", again" if trial.repeat else ""
        self.tell(f"{what}: {swaps}{again}: {trial.outcome} ({trial.reason})")

    def _run(self, swaps: Subset) -> tuple[str, str]:
        dump, log = self.dump_of(swaps), self.folder / f"run{len(self.trials):03d}.log"
        shutil.rmtree(dump, ignore_errors=True)
        status = self.execute(self.command(swaps, dump), log)
        if status:
            return UNRESOLVED, f"exit status {status}, see {log}"
        try:
            with open_dump(dump) as opened:
                counts = opened.info.capture.get("swapped", {})
                idle = [swap for swap in swaps if not counts.get(swap)]
                if idle and len(idle) == len(swaps):
                    return UNRESOLVED, f"matched nothing: {', '.join(idle)}"
                outcome, reason = self.criterion.judge(opened)
        except PrecisionAlignError as error:
            return UNRESOLVED, str(error)
        return outcome, reason + (f"; matched nothing: {', '.join(idle)}" if idle else "")

    def compare_unswapped(self) -> Report | None:
        """The report of the run without swaps, None where a series is the criterion, or that run gave no dump."""
        if self.criterion.series or self.try_swaps(()).outcome == UNRESOLVED:
            return None
        return compare(self.criterion.reference, str(self.dump_of(())), replay=self.criterion.replay)

    def dump_of(self, swaps: Subset) -> Path:
        """Where the dump of a run is; one place for all runs but that without swaps, as dumps are large."""
        return self.folder / ("swapped" if swaps else "unswapped")

    def _save(self) -> None:
        document = {
            "schema_version": _SCHEMA_VERSION,
            "settings": self.settings,
            "trials": [asdict(trial) for trial in self.trials],
        }
        draft = self.folder / f"{_LEDGER}.tmp"
        draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.folder / _LEDGER)


class OutOfRuns(Exception):
    """No run is left."""


@dataclass(frozen=True)
class Bisection:
    """What a search found: the swaps that cure, empty for none; ``minimal``: none of them can be left out;
    ``confirmed``: they cured again; ``text``: in words.
    """

    swaps: Subset
    minimal: bool
    confirmed: bool
    text: str
    trials: Sequence[Trial]


def find_cure(laboratory: Laboratory, suspects: Sequence[str], others: Sequence[str], confirm: int = 1) -> Bisection:
    """Try the first suspect, then all of them, then the others too; then leave out what is not needed.

    ``confirm``: how often the cure is run again; one that fails then is no cure.
    """
    best: list[Subset] = []

    def cures(swaps: Subset) -> bool:
        cured = bool(swaps) and laboratory.try_swaps(swaps).outcome == CURED
        if cured:
            best.append(swaps)
        return cured

    everything = tuple(dict.fromkeys([*suspects, *others]))
    starts = dict.fromkeys([tuple(suspects[:1]), tuple(suspects), everything])
    minimal = True
    try:
        start = next((swaps for swaps in starts if cures(swaps)), None)
        if start is not None:
            minimise(start, cures)
    except OutOfRuns:
        minimal = False
    if not best:
        why = "none of these swaps, nor all together, cures it" if minimal else "no cure within the runs allowed"
        return Bisection((), minimal, False, why, laboratory.trials)
    return _confirm(laboratory, best[-1], minimal, confirm)


def _confirm(laboratory: Laboratory, cure: Subset, minimal: bool, confirm: int) -> Bisection:
    try:
        again = [laboratory.try_swaps(cure, repeat).outcome for repeat in range(1, confirm + 1)]
    except OutOfRuns:
        return Bisection(cure, minimal, False, "cured once; no run was left to confirm it", laboratory.trials)
    if any(outcome != CURED for outcome in again):
        text = "cured once and not again: the run is not deterministic (see guard_determinism)"
        return Bisection(cure, minimal, False, text, laboratory.trials)
    text = "cured" + (", and confirmed" if confirm else "") + ("" if minimal else "; a smaller set was not looked for")
    return Bisection(cure, minimal, bool(confirm), text, laboratory.trials)


def list_suspects(report: Report, kind: str) -> list[str]:
    """Swaps of what a comparison blames, in its order: the module, and the function or operator where one is named."""
    found: dict[str, None] = {}
    for place in report.frontier:
        if place.phase is Phase.STEP:
            continue  # an optimizer's step is no module's
        if place.scope:
            found[f"{place.scope}={kind}"] = None
        if place.op.startswith(("aten.", "torch.nn.functional.")):
            found[f"{place.op}={kind}"] = None
    return list(found)


def list_leaves(report: Report | None, path: Path, kind: str) -> list[str]:
    """Swaps of all modules that computed what a comparison looked at; without one of those that a dump has calls of."""
    if report is not None:
        scopes = [record.scope for record in report.records if record.site is Site.MODULE]
    else:
        with open_dump(path) as dump:
            scopes = [call.scope for call in dump.calls if call.leaf and ":" not in call.scope]
    return [f"{scope}={kind}" for scope in dict.fromkeys(scopes) if scope]
