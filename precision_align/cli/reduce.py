"""``precision-align reduce``: the smallest model that still shows a fault."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from precision_align.core.errors import UsageError

SUMMARY = "find the smallest model that still shows a fault"

_EPILOGUE = """\
FILE.py:BUILD is a function that takes the configuration, a dictionary, and returns (reference, candidate, inputs).
CONFIG.json holds constructor arguments or a Hugging Face configuration; sizes of known names are cut, ratios are kept.
Exit status: 0 reduced (by 1 where nothing can be cut), 2 wrong usage, or no fault to keep.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The factory and the configuration."""
    parser.epilog = _EPILOGUE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("build", metavar="FILE.py:BUILD", help="makes (reference, candidate, inputs); it is imported")
    parser.add_argument("config", metavar="CONFIG.json", help="the configuration of the full model")
    parser.add_argument("--save-config", metavar="FILE", help="write the reduced configuration as JSON")
    parser.add_argument("-o", "--output", metavar="FILE", help="save the result: .html or .json")


def run(arguments: argparse.Namespace) -> int:
    """Reduce and show. Returns 0."""
    from precision_align.cli.output import print_log
    from precision_align.cli.pages import show_pages
    from precision_align.reporting.languages import say
    from precision_align.reporting.reductions import describe_reduction
    from precision_align.reporting.saving import check_page_target
    from precision_align.workflows.factories import load_factory
    from precision_align.workflows.reducing import reduce_model

    if arguments.output:
        check_page_target(arguments.output)
    config = read_config(arguments.config)
    found = reduce_model(
        load_factory(arguments.build, "BUILD"),
        config,
        progress=lambda trial: print_log(
            f"{trial.dimension} / {trial.factor:.4g}: {'kept' if trial.shows else 'gone'}"
        ),
    ).to_dict()
    if arguments.save_config:
        _save_config(found["config"], arguments.save_config)
        print_log(say(arguments.lang, "cli.saved", path=arguments.save_config))
    show_pages(arguments, found, lambda language: describe_reduction(found, config, language))
    return 0


def _save_config(config: dict[str, Any], path: str) -> None:
    try:
        Path(path).write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise UsageError(f"--save-config {path} cannot be written: {error.strerror or error}") from error


def read_config(path: str) -> dict[str, Any]:
    """A configuration. Raises UsageError."""
    try:
        content = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no readable configuration: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no JSON object")
    return content
