"""``precision-align demo``: the main job on a small training, with one wrong operator to find."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_align.cli.loss import can_draw
from precision_align.cli.output import encoding_of, measure_columns, print_json, print_log, print_report, print_text
from precision_align.core.errors import Unavailable
from precision_align.core.terms import Verdict
from precision_align.reporting.commands import join_command
from precision_align.reporting.languages import say

if TYPE_CHECKING:
    from precision_align.demo.walkthrough import Outcome

SUMMARY = "see it find a wrong operator in a small training run"

_RUNS = "demo-runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to write, how long to train, what to break."""
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path(), help="where to write (default: here)")
    parser.add_argument("--steps", type=_count, default=40, help="steps of each training (default: 40)")
    parser.add_argument(
        "--fault",
        metavar="SPEC",
        help="break this instead of the RoPE replacement: a named fault (dropped-mask, ...; list prints them, all puts "
        "each into one step and says whether it is found), or KIND@MODULE[:OP[:PHASE]][:KEY=VALUE], for example "
        "scale@blocks.1.mlp.down:mm:forward:value=1.01",
    )


def _count(text: str) -> int:
    try:
        steps = int(text)
    except ValueError:
        steps = 0
    if not 2 <= steps <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps between 2 and 10000")
    return steps


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0: the fault was found and the repaired run is aligned; 1: one of the two was not so."""
    if arguments.fault == "list":
        return _list_faults(arguments.json)
    if arguments.fault == "all":
        return _run_drills(arguments.json)
    started = time.monotonic()
    outcome, files = _work(arguments)
    seconds = time.monotonic() - started
    if arguments.json:
        print_json(_summarise(outcome, files, seconds))
    else:
        _show(outcome, files, seconds, arguments.lang)
    found = outcome.report.verdict == Verdict.DIVERGED
    return 0 if found and outcome.repaired.verdict == Verdict.ALIGNED else 1


def _work(arguments: argparse.Namespace) -> tuple[Outcome, list[Path]]:
    """Run the demo on one thread: the model is so small that threads only wait for each other."""
    from precision_align.demo.places import check_reports, prepare_folder

    files = [arguments.out / "report.html", arguments.out / "report.json"]
    fault = _resolve_fault(arguments.fault)
    check_reports(files)
    prepare_folder(arguments.out / _RUNS)
    try:
        import torch
    except ImportError as error:
        raise Unavailable('the demo trains a model and needs torch: pip install "precision-align[torch]"') from error
    from precision_align.demo.walkthrough import find_the_fault

    stages = _Stages()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        outcome = find_the_fault(arguments.out / _RUNS, arguments.steps, fault, stages.begin, stages.advance)
    finally:
        torch.set_num_threads(threads)
        stages.end()
    for path in files:
        print_log(say(arguments.lang, "cli.saved", path=outcome.report.save(path, language=arguments.lang)))
    return outcome, files


def _resolve_fault(fault: str | None) -> str | None:
    if fault is None:
        return None
    from precision_align.demo.drills import resolve_fault

    return resolve_fault(fault)


def _list_faults(as_json: bool) -> int:
    from precision_align.demo.drills import DRILLS

    width = max(map(len, DRILLS))
    if as_json:
        print_json(dict(DRILLS))
    else:
        print_text("\n".join(f"{name:<{width}}  {fault}" for name, fault in DRILLS.items()))
    return 0


def _run_drills(as_json: bool) -> int:
    """Exit status 0 where every fault was found at its module."""
    try:
        from precision_align.demo.drills import run_all
    except ImportError as error:
        raise Unavailable('the drills run a model and need torch: pip install "precision-align[torch]"') from error
    drills = run_all(print_log if as_json else print_text)
    found = sum(drill.found for drill in drills)
    if as_json:
        print_json([{"fault": str(one.fault), "way": one.way, "found": one.found} for one in drills])
    else:
        print_text(f"{found} of {len(drills)} runs found the fault at its module")
    return 0 if found == len(drills) else 1


class _Stages:
    """Stages and the progress within them, on stderr."""

    def __init__(self) -> None:
        self._number = 0
        self._progress: Any = None

    def begin(self, text: str) -> None:
        """The next stage."""
        from precision_align.cli.progress import Progress
        from precision_align.demo.walkthrough import STAGES

        self.end()
        self._number += 1
        print_log(f"[{self._number}/{STAGES}] {text}")
        self._progress = Progress("  done")
        self._progress.__enter__()

    def advance(self, done: int, total: int) -> None:
        """So far in this stage."""
        self._progress(done, total)

    def end(self) -> None:
        """Leave a clean line behind."""
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None


def _show(outcome: Outcome, files: list[Path], seconds: float, language: str) -> None:
    from precision_align.demo.walkthrough import SIMULATED
    from precision_align.reporting.losses import describe_losses
    from precision_align.reporting.resultpages import render_page

    print_text(f"{SIMULATED}\n\n1. The loss curves\n")
    ascii_only = not can_draw(encoding_of(sys.stdout))
    print_text(outcome.losses.plot(measure_columns(), ascii_only=ascii_only) + "\n")
    print_text(
        render_page(describe_losses(outcome.losses, language), measure_columns()) + "\n2. The first divergence\n"
    )
    print_report(outcome.report, as_json=False, language=language)
    print_text("\n3. The blamed operator alone\n")
    print_text(_phrase_operator(outcome))
    print_text("\n4. The same run with the right replacements\n")
    print_report(outcome.repaired, as_json=False, language=language)
    print_text(_phrase_end(files, seconds))


def _phrase_operator(outcome: Outcome) -> str:
    """The mapping row, and its cases by name with the dtypes and phases that failed."""
    first = outcome.report.first
    if first is None or not first.mapping or outcome.cases is None:
        return "the operator library has no row with cases for it"
    row = first.mapping
    lines = [f"mapping row {row['id']}: {', '.join(row['symbols'])}", f"replacement: {row['replacement']}"]
    for name in dict.fromkeys(result.name for result in outcome.cases.results):
        results = [result for result in outcome.cases.results if result.name == name]
        failed = [f"{result.dtype} {result.phase}" for result in results if result in outcome.cases.failures]
        lines.append(f"case {name}: " + (f"FAILED in {', '.join(failed)}" if failed else "passed"))
    if outcome.cases.failures:
        worst = outcome.cases.failures[0]
        measured = ", ".join(f"{key} {value:.3g}" for key, value in worst.metrics.items() if key in ("z", "rho"))
        lines.append(f"why: {worst.note} ({measured})")
    return "\n".join(lines)


def _phrase_end(files: list[Path], seconds: float) -> str:
    import precision_align.demo.walkthrough as walkthrough

    reference, candidate = (str(files[0].parent / _RUNS / side) for side in ("reference", "candidate"))
    return "\n".join(
        [
            f"\n{seconds:.0f} s. Reports: {', '.join(map(str, files))}. Look closer:",
            f"  {join_command('show', candidate)}",
            f"  {join_command('loss', reference, candidate)}",
            f"  {join_command('compare', reference, candidate, '--replay', 'precision_align.demo.model:build_model')}",
            f"The code of this walk, to copy from: {walkthrough.__file__}",
        ]
    )


def _summarise(outcome: Outcome, files: list[Path], seconds: float) -> dict[str, Any]:
    from precision_align.demo.walkthrough import SIMULATED

    return {
        "device": SIMULATED,
        "losses": outcome.losses.to_dict(),
        "report": outcome.report.to_dict(),
        "cases": outcome.cases.to_dict() if outcome.cases else None,
        "repaired": outcome.repaired.to_dict(),
        "files": [str(path) for path in files],
        "seconds": seconds,
    }
