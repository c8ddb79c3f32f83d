"""Shows the result of a verb as a page, as JSON, and as a file, by the options the verb was called with."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any

from precision_align.cli.output import encoding_of, measure_columns, print_json, print_log, print_text, wants_color
from precision_align.reporting.languages import LANGUAGES, say
from precision_align.reporting.resultpages import Page, render_page
from precision_align.reporting.saving import save_pages


def show_pages(arguments: argparse.Namespace, result: Mapping[str, Any], describe: Callable[[str], Page]) -> None:
    """Print the page in the language asked for, or ``result`` under --json; save it where ``--output`` says.

    ``describe``: the page in a language.
    """
    if getattr(arguments, "output", None):
        pages = {language: describe(language) for language in LANGUAGES}
        title = pages[arguments.lang].sentence
        path = save_pages(arguments.output, result, pages, title, arguments.lang)
        print_log(say(arguments.lang, "cli.saved", path=path))
    if arguments.json:
        print_json(result)
        return
    page = describe(arguments.lang)
    color = wants_color(sys.stdout)
    print_text(render_page(page, measure_columns(), color, encoding=encoding_of(sys.stdout)))
