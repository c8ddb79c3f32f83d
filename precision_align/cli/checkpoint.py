"""``precision-align checkpoint``: two checkpoints tensor by tensor."""

from __future__ import annotations

import argparse

from precision_align.core.errors import UsageError

SUMMARY = "compare two checkpoints, or one with the model it was saved from"

_EPILOGUE = """\
A side is a .pt, .pth, .bin or .safetensors file, a folder of them (with Hugging Face's index or without), a folder of
torch.distributed.checkpoint, or a dump: then the parameters as they were recorded at its last step. Nothing that a file
says is run, and no more than one pair of tensors is in memory.
Exit status: 0 nothing lost or changed, 1 something is, 2 wrong usage, 3 not comparable.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two sides and how their names map."""
    parser.epilog = _EPILOGUE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("reference", metavar="REF", help="the checkpoint, or the dump of the model, that is right")
    parser.add_argument("candidate", metavar="CAND", help="the checkpoint under suspicion")
    parser.add_argument(
        "--rename",
        metavar="PATTERN=REPLACEMENT",
        action="append",
        default=[],
        help="a regular expression in CAND's names and what takes its place; may be given more than once, in order",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="save the result: .html or .json")


def run(arguments: argparse.Namespace) -> int:
    """Compare and show. Returns 0 where nothing is lost or changed, 1 where something is."""
    from precision_align.cli.pages import show_pages
    from precision_align.cli.progress import Progress
    from precision_align.reporting.checkpoints import describe_checkpoints
    from precision_align.reporting.saving import check_page_target
    from precision_align.training.checkpoints.comparing import compare_checkpoints

    if arguments.output:
        check_page_target(arguments.output)
    rename = [read_rename(text) for text in arguments.rename]
    with Progress("comparing") as progress:
        report = compare_checkpoints(arguments.reference, arguments.candidate, rename=rename, progress=progress)
    show_pages(arguments, report.to_dict(), lambda language: describe_checkpoints(report, language))
    return int(bool(report.faults))


def read_rename(text: str) -> tuple[str, str]:
    """(pattern, replacement) of "PATTERN=REPLACEMENT". Raises UsageError."""
    pattern, equals, replacement = text.partition("=")
    if not equals or not pattern:
        raise UsageError(f"--rename {text!r}: write PATTERN=REPLACEMENT, such as '^decoder\\.=model.'")
    return pattern, replacement
