"""``precision-align certify``: float64 goldens and noise floors of a reference's dump, kept beside it."""

from __future__ import annotations

import argparse

from precision_align.cli.output import print_json, print_text
from precision_align.reporting.languages import say

SUMMARY = "add float64 goldens and noise floors to a reference's dump"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """DUMP and the reference's code."""
    parser.add_argument("dump", metavar="DUMP", help="the reference's dump; certificates are written beside its steps")
    parser.add_argument(
        "--replay",
        metavar="MODULE:FACTORY",
        help="the reference's code: a torch.nn.Module, or a function without arguments that makes one; without it "
        "stock torch.nn layers are certified",
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0, 3 where nothing could be certified."""
    from precision_align.cli.progress import Progress
    from precision_align.workflows.certifying import certify
    from precision_align.workflows.factories import load_factory

    replay = None if arguments.replay is None else load_factory(arguments.replay)
    with Progress("certifying") as progress:
        found = certify(arguments.dump, replay=replay, progress=progress)
    if arguments.json:
        files = [str(path) for path in found.files]
        print_json({"files": files, "records": found.records, "skipped": dict(found.skipped)})
        return 0 if found.records else 3
    lines = [say(arguments.lang, "certify.done", records=found.records, files=len(found.files))]
    lines += [
        say(arguments.lang, "certify.skipped", count=count, reason=reason)
        for reason, count in found.skipped.most_common(5)
    ]
    lines.append(say(arguments.lang, "certify.next", dump=arguments.dump))
    print_text("\n".join(lines))
    return 0 if found.records else 3
