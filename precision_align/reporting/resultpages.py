"""A page of results: a verdict, then blocks of text, tables, commands, curves and pictures; for terminal and HTML.

Verbs that are no comparison of two dumps (loss, health, checkpoint and the like) describe their result as one page a
language; what a page looks like is settled here and in :mod:`~precision_align.reporting.pagehtml`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from precision_align.core.results import Curve
from precision_align.core.terms import Verdict
from precision_align.reporting.terminal import fold, measure_width, to_encodable
from precision_align.reporting.wording import quote

_SGR = {Verdict.ALIGNED: "32;1", Verdict.DIVERGED: "31;1", Verdict.NOT_COMPARABLE: "33;1"}
_INDENT = "  "
_LEAST_COLUMN = 8  # a column is never narrower: words would stand one letter a line


@dataclass(frozen=True)
class Block:
    """One part of a page; what is empty is left out.

    ``lines``: paragraphs; ``columns`` and ``rows``: a table; ``commands``: to type; ``drawing``: text art for a
    terminal, in whose place HTML shows ``curves``; ``pictures``: (caption, PNG) for HTML.
    """

    heading: str = ""
    lines: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    commands: Sequence[str] = ()
    drawing: str = ""
    curves: Sequence[Curve] = ()
    pictures: Sequence[tuple[str, bytes]] = ()


@dataclass(frozen=True)
class Page:
    """``word``: the verdict in a word; ``sentence``: in a sentence; ``verdict`` gives both their colour."""

    verdict: Verdict
    word: str
    sentence: str
    blocks: Sequence[Block]


def render_page(page: Page, width: int = 80, color: bool = False, *, encoding: str = "utf-8") -> str:
    """The page as text, at most ``width`` columns (at least 40) but for drawings and commands."""
    width = max(width, 40)
    lines = [*_head(page, width, color)]
    for block in page.blocks:
        body = [*_body(block, width)]
        if body:
            lines += ["", *([f"{block.heading}"] if block.heading else []), *body]
    return to_encodable("\n".join(line.rstrip() for line in lines) + "\n", encoding)


def _head(page: Page, width: int, color: bool) -> Iterator[str]:
    first, *rest = fold(f"{page.word}  {quote(page.sentence)}", width)
    yield f"\x1b[{_SGR[page.verdict]}m{page.word}\x1b[0m{first[len(page.word) :]}" if color else first
    yield from rest


def _body(block: Block, width: int) -> Iterator[str]:
    if block.drawing:
        yield from block.drawing.splitlines()
    for line in block.lines:
        for index, part in enumerate(fold(quote(line), width - len(_INDENT))):
            yield _INDENT + ("  " if index else "") + part
    if block.rows:
        yield from _lay_table(block, width - len(_INDENT))
    for command in block.commands:
        yield _INDENT + command


def _lay_table(block: Block, width: int) -> Iterator[str]:
    """Columns as wide as their widest cell; where that is too much, the last one is folded."""
    rows = [[quote(cell) for cell in row] for row in block.rows]
    table = [list(block.columns), *rows] if any(block.columns) else rows
    sizes = [max(measure_width(row[place]) for row in table) for place in range(len(table[0]))]
    used = sum(sizes[:-1]) + 2 * (len(sizes) - 1)
    sizes[-1] = max(min(sizes[-1], width - used), _LEAST_COLUMN)
    for row in table:
        yield from _lay_row(row, sizes)


def _lay_row(row: Sequence[str], sizes: Sequence[int]) -> Iterator[str]:
    head = "".join(cell + " " * (size - measure_width(cell) + 2) for cell, size in zip(row[:-1], sizes))
    for index, part in enumerate(fold(row[-1], sizes[-1])):
        yield _INDENT + (" " * measure_width(head) if index else head) + part
