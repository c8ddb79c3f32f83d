"""A reduced model as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from precision_align.core.terms import Verdict
from precision_align.reporting.languages import say
from precision_align.reporting.resultpages import Block, Page
from precision_align.reporting.wording import format_number


def describe_reduction(result: Mapping[str, Any], config: Mapping[str, Any], language: str = "en") -> Page:
    """The page of a reduction in its JSON form, beside the configuration it began with."""
    before, after = result["parameters"]
    changed = [
        (name, str(value), str(result["config"][name]))
        for name, value in config.items()
        if result["config"][name] != value
    ]
    trials = [
        (trial["dimension"], f"1/{trial['factor']:.4g}", say(language, f"reduce.{trial['shows']}"), trial["note"])
        for trial in result["trials"]
    ]
    sentence = say(
        language,
        "reduce.sentence",
        fault=result["fault"],
        factor=format_number(result["factor"]),
        before=f"{before:,}",
        after=f"{after:,}",
    )
    columns = [say(language, f"reduce.{name}") for name in ("field", "was", "is")]
    tried = [say(language, f"reduce.{name}") for name in ("dimension", "cut", "shown", "note")]
    blocks = [
        Block(say(language, "reduce.config"), columns=columns, rows=changed),
        Block(say(language, "reduce.trials"), columns=tried, rows=trials),
        Block(lines=[json.dumps(dict(result["config"]), ensure_ascii=False)]),
    ]
    return Page(Verdict.ALIGNED, say(language, "reduce.word"), sentence, blocks)
