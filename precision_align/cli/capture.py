"""``precision-align capture``: record a run of an unchanged training script."""

from __future__ import annotations

import argparse
import shutil
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_align.cli.output import print_json, print_log
from precision_align.cli.parsers import PROGRAM
from precision_align.cli.starts import add_start_options, read_beginning, read_visit, report_start
from precision_align.core.errors import NothingCaptured, PrecisionAlignError, UsageError
from precision_align.reporting.commands import join_command
from precision_align.storage.settings import CODECS, FSYNC, WAIT_SECONDS, Settings, format_size, parse_size

if TYPE_CHECKING:
    from precision_align.storage.counting import CountingSink

SUMMARY = "record a run of an unchanged training script"

NOT_CAPTURED = 3  # the dump that was asked for does not exist
_TIERS = "fingerprint, statistics, sketch, sample or full"

_EPILOGUE = f"""\
Everything after -- is the script and its own arguments, -m MODULE and its arguments, or a launcher and its own:
  {PROGRAM} capture -o runs/reference --steps 0-3 -- train.py --epochs 1
  {PROGRAM} capture -o runs/ddp -- torchrun --nproc-per-node 2 train.py
  torchrun --nproc-per-node 2 -m precision_align capture -o runs/ddp -- train.py
The script runs as it would by itself; what it prints and its exit status stay its own.
Exit status: the script's; 3 where it ended well but nothing was captured, or nothing could be written.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, how much, and the script."""
    parser.epilog = _EPILOGUE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = f"{PROGRAM} capture -o DUMP [options] -- script.py [arguments]"
    parser.add_argument("-o", "--output", metavar="DUMP", help="the folder to write; --dry-run needs none")
    parser.add_argument(
        "--node-local",
        metavar="DIR",
        help="write under this folder of the node's own disk instead, under DUMP's name; 'collect' makes DUMP of them",
    )
    parser.add_argument("--steps", metavar="LIST", help='which steps, such as "3,10-12" (default: all)')
    parser.add_argument(
        "--payload",
        metavar="[GLOB=]TIER",
        action="append",
        default=[],
        help=f"how much of each tensor is kept: {_TIERS} (default: full); with GLOB for these modules only, the last "
        "match wins; may be given more than once",
    )
    parser.add_argument("--select", metavar="GLOB", action="append", help="record tensors of these modules only")
    parser.add_argument("--plan", metavar="FILE", help="a zoom plan (TOML or JSON): how much to keep of which modules")
    parser.add_argument(
        "--sources",
        metavar="LIST",
        default="modules,gradients,parameters,optimizer",
        help="what to record, by commas (default: %(default)s; also functions, operators, collectives)",
    )
    parser.add_argument(
        "--model",
        metavar="MODULE:ATTRIBUTE",
        help="the model, such as __main__:model (default: all outermost modules that are called)",
    )
    parser.add_argument(
        "--eager", action="store_true", help="run what torch.compile made uncompiled, as no hook runs in compiled code"
    )
    _add_limits(parser)
    _add_swaps(parser)
    _add_storage(parser)
    add_start_options(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace the dump that is there")
    parser.add_argument("--append", action="store_true", help="go on in the dump that is there")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="-- script.py ...", help="what to run")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trigger",
        metavar="CONDITION",
        action="append",
        help="keep the last steps in memory and write them only when this becomes true: nan, inf, 'loss>3*median', "
        "env:NAME, file:PATH, signal:USR1; may be given more than once",
    )
    parser.add_argument("--ring", metavar="N", type=int, default=4, help="how many steps that is (default: 4)")
    parser.add_argument(
        "--switch", metavar="EVENT", help="record only while file:PATH exists, env:NAME is set, or signal:USR1 says so"
    )
    parser.add_argument(
        "--budget-bytes", metavar="N", type=int, help="keep less of the tensors beyond so many bytes a rank"
    )
    parser.add_argument("--ranks", metavar="LIST", help='which ranks record, such as "0,3-5" (default: all)')
    parser.add_argument(
        "--force",
        metavar="REFERENCE",
        help="a dump: each call returns the reference's results after its own are recorded",
    )
    parser.add_argument("--facts", action="store_true", default=None, help="series of cheap facts of every batch")


def _add_swaps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--swap",
        metavar="WHAT=HOW",
        action="append",
        default=[],
        help="execute a module (glob of its scope), a function (torch.nn.functional.gelu) or an operator "
        "(aten.gelu.default) on the CPU (=cpu), by elementary operators (=composed), or in float32 out of autocast "
        "(=fp32); may be given more than once",
    )


def _add_storage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="write nothing: run the script up to the end of its second recorded step, and print what the larger takes",
    )
    parser.add_argument(
        "--world",
        metavar="RANKS[/NODE]",
        help="with --dry-run: how many ranks the job will have, and of these on a node, such as 1000/8 (default: the "
        "launcher's WORLD_SIZE and LOCAL_WORLD_SIZE)",
    )
    parser.add_argument(
        "--reserve-free", metavar="SIZE", default="0", help="leave so much of the disk free, such as 20GB"
    )
    parser.add_argument("--keep", metavar="N", type=int, help="keep only the last N recorded steps on disk")
    parser.add_argument(
        "--compress",
        choices=CODECS,
        help="compress payloads (needs hdf5plugin: pip install 'precision-align[compress]')",
    )
    parser.add_argument(
        "--weights-from",
        metavar="CHECKPOINT",
        help="a .pt or .safetensors file, or a folder of them: parameters and buffers that equal a tensor in it are "
        "kept as a reference to it, not as a copy",
    )
    parser.add_argument(
        "--fsync",
        choices=FSYNC,
        default="never",
        help="flush each finished step to the medium, to survive a power failure (default: never)",
    )
    parser.add_argument(
        "--staging",
        metavar="SIZE",
        help="host memory for tensors on their way to the disk (default: 512MB, or a quarter of the container's)",
    )
    parser.add_argument(
        "--max-wait",
        metavar="SECONDS",
        type=float,
        default=WAIT_SECONDS,
        help="how long a slow disk may hold up training, after which sketches are kept (default: %(default)g)",
    )


def _read_settings(arguments: argparse.Namespace) -> Settings:
    return Settings(
        queue_bytes=None if arguments.staging is None else parse_size(arguments.staging),
        wait_seconds=arguments.max_wait,
        reserve_free=parse_size(arguments.reserve_free),
        keep=arguments.keep,
        compress=arguments.compress,
        fsync=arguments.fsync,
        weights_from=arguments.weights_from,
    )


def read_options(arguments: argparse.Namespace) -> Any:
    """The options of a launch. Raises UsageError."""
    from precision_align.recording.limits import Limits
    from precision_align.recording.swaps import make_swaps
    from precision_align.recording.visits import PAYLOAD as VISIT_PAYLOAD
    from precision_align.recording.watching import LaunchOptions
    from precision_align.recording.zoomplans import read_zoom_plan
    from precision_align.storage.projections import find_world

    if arguments.plan and arguments.select:
        raise UsageError("--plan says which modules to record: leave --select out")
    if arguments.world is not None and not arguments.dry_run:
        raise UsageError("--world says for how many ranks --dry-run shall reckon: it goes with --dry-run")
    find_world(arguments.world)
    if arguments.output is None and not arguments.dry_run:
        raise UsageError("-o DUMP names the folder to write")
    visit = read_visit(arguments)
    arguments.output = arguments.output or "."
    if arguments.node_local:
        arguments.output = str(Path(arguments.node_local) / Path(arguments.output).name)
    payload = {**(VISIT_PAYLOAD if visit else {}), **read_payload(arguments.payload, visit is None)}
    return LaunchOptions(
        path=arguments.output,
        steps=arguments.steps,
        payload=payload if arguments.payload or not arguments.plan else {},
        select=read_zoom_plan(arguments.plan) if arguments.plan else arguments.select,
        sources=[part.strip() for part in arguments.sources.split(",") if part.strip()],
        model=arguments.model,
        overwrite=arguments.overwrite,
        append=arguments.append,
        limits=Limits(
            budget_bytes=arguments.budget_bytes,
            trigger=arguments.trigger,
            ring=arguments.ring,
            switch=arguments.switch,
            facts=arguments.facts,
            storage=_read_settings(arguments),
            ranks=arguments.ranks,
        ),
        force=arguments.force,
        eager=arguments.eager,
        dry_run=arguments.dry_run,
        begin=read_beginning(arguments),
        visit=visit,
        swaps=make_swaps(_read_swaps(arguments.swap)),
    )


def _read_swaps(words: list[str]) -> dict[str, str]:
    from precision_align.recording.swaps import parse_swap

    swaps = [parse_swap(word) for word in words]
    return {swap.pattern: swap.kind.value for swap in swaps}


def run(arguments: argparse.Namespace) -> int:
    """Run the script. Returns its exit status."""
    from precision_align.cli.launchers import is_launcher, run_launcher
    from precision_align.recording.launching import check_folder, check_options, run_script
    from precision_align.recording.watching import Launch

    asked = argparse.Namespace(**vars(arguments))
    options = read_options(arguments)
    words = arguments.script[1:] if arguments.script[:1] == ["--"] else arguments.script
    if is_launcher(words):
        check_options(options)
        check_folder(options)
        return run_launcher(words, asked, Path(options.path))
    launch = Launch()
    status = 0
    try:
        run_script(words, options, launch)
    except SystemExit as stop:
        status = read_status(stop)
    except NothingCaptured:
        pass  # the report says so
    except PrecisionAlignError:
        raise
    except Exception as error:
        if not launch.started:  # a fault of ours: the script has not run
            raise
        print_log("".join(traceback.format_exception(type(error), error, own_frames(error))).rstrip())
        status = 1
    if launch.counted is not None:
        return report_count(launch.counted, arguments, status)
    if launch.failure is not None:
        print_log(f"error nothing was captured: {launch.failure}")
        return status or NOT_CAPTURED
    return report(launch.recorder, arguments, status)


def read_payload(words: list[str], full: bool = True) -> dict[str, str]:
    """Scope glob -> tier from "[GLOB=]TIER" words; "*" where no glob is given; of no words all ``full``, or nothing."""
    pairs = [word.rpartition("=") for word in words]
    return {glob or "*": tier for glob, _, tier in pairs} if pairs or not full else {"*": "full"}


def read_status(stop: SystemExit) -> int:
    """The exit status that the interpreter would give; a text goes to stderr."""
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print_log(str(stop.code))
    return 1


def own_frames(error: BaseException) -> Any:
    """The traceback from the script's first line on, as if it had been started by itself."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_starter(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_starter(filename: str) -> bool:
    return filename.startswith("<frozen runpy") or filename.endswith(("runpy.py", "launching.py", "capture.py"))


def report_count(counted: CountingSink, arguments: argparse.Namespace, status: int) -> int:
    """Say what a dump would take: bytes and files a step of this rank, and of all at each tier."""
    if not counted.steps:
        print_log("nothing would be recorded: no step with a model call was seen")
        return status or NOT_CAPTURED
    step = max(counted.steps, key=lambda step: step.nbytes)
    from precision_align.storage.projections import find_world, project, to_dict

    world = find_world(arguments.world)
    projected = project(step.tiers, step.tensors, step.raw_bytes, world)
    row = {**asdict(step), "nbytes": step.nbytes, "free_bytes": _find_free(arguments.output)}
    row["projection"] = to_dict(projected, world)
    if arguments.json:
        print_json(row)
        return status
    print(f"step {step.step}: {step.tensors} tensors, {step.calls} calls, {step.files} file(s) a step and rank")
    print(f"  payloads {format_size(step.payload_bytes)}, tables {format_size(step.table_bytes)}")
    free = format_size(_find_free(arguments.output))
    print(f"  {format_size(step.nbytes)} a step and rank; {free} are free at {arguments.output}")
    heads = (
        "all tensors as",
        "this rank",
        f"node of {world.local}",
        f"all {world.ranks} ranks",
        "to write",
        "to compare",
    )
    lines = [heads] + [
        (
            tier,
            *(format_size(size) for size in (one.rank, one.node, one.world)),
            f"{one.seconds:.2g} s",
            f"{one.comparison:.2g} s",
        )
        for tier, one in projected.items()
    ]
    for line in lines:
        print("  " + "".join(f"{cell:<16}" for cell in line).rstrip())
    return status


def _find_free(output: str) -> int:
    """Free bytes where the dump would go: its folder may not be there yet."""
    place = Path(output).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def report(recorder: Any, arguments: argparse.Namespace, status: int) -> int:
    """Say what was recorded, and what to type next."""
    if recorder is None:
        print_log(
            "nothing was recorded: the script called no torch module with parameters"
            + (f", or {arguments.model} did not exist when one was called" if arguments.model else "")
            + "; processes that it starts are recorded with `capture -o DUMP -- python train.py`"
        )
        return status or NOT_CAPTURED
    for note in recorder.notes:
        if note != recorder.emptiness:
            print_log(f"note: {note}")
    missing = recorder.emptiness or recorder.lost
    if missing:
        print_log(f"error {NothingCaptured(f'nothing was captured: {missing}')}")
        return status or NOT_CAPTURED
    steps, records = recorder.num_steps, recorder.num_records
    print_log(
        f"{arguments.output}: {records} tensor{'s' * (records != 1)} of a run of {steps} step{'s' * (steps != 1)}"
    )
    if arguments.node_local:
        print_log(f"next: {join_command('collect', arguments.output, '-o', 'DUMP')}")
    else:
        both = join_command("compare", "REFERENCE", "CANDIDATE")
        print_log(f"next: {join_command('show', arguments.output)}, or {both} once both sides are recorded")
    report_start(recorder, arguments)
    if arguments.json:
        counts = {"steps": recorder.num_steps, "records": recorder.num_records}
        print_json({"dump": arguments.output, "status": status, **counts, "notes": list(recorder.notes)})
    return status
