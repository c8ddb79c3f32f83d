"""Every block of every page under docs/ runs, in English and Chinese; what cannot be run here says why."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import blocks
import pytest

from precision_align.core import errors

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))
ALL = ["README.md", "README.zh.md", *PAGES]
BLOCKS = [block for page in PAGES for block in blocks.read_blocks(ROOT, page)]

# the candidate of these pages is wrong: what compares ends with 1
DIVERGES = ("compare", "loss", "quant", "regimes")


def expect_status(line: str) -> int:
    """Of a command of these pages."""
    words = shlex.split(line, comments=True)
    if words[0] != "precision-align":
        return 0
    alike = {"--shard", "--code", "runs/hf", "runs/commit", "runs/swapped"} & {*words}
    return int((words[1] in DIVERGES and not alike) or "--rules" in words)


@pytest.fixture(scope="module")
def outcomes(guides: Any) -> dict[tuple[str, int], list[list[Any]]]:
    """(page, line) -> what came of the block's commands; all blocks run in one process."""
    done = guides.run(str(Path(blocks.__file__)), str(ROOT), *PAGES)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((guides.folder / blocks.RESULTS).read_text(encoding="utf-8"))
    return {(block["page"], block["line"]): block["statuses"] for block in found}


def test_every_block_is_run_or_says_why_not() -> None:
    unknown = [f"{block.page}:{block.line}" for block in BLOCKS if block.kind == "unknown"]
    assert unknown == []
    for page in PAGES:
        fences = re.findall(r"^ *```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * sum(block.page == page for block in BLOCKS), page
    # four spaces make a block in Markdown, too, which nobody would run
    assert not [page for page in PAGES if re.search(r"\n\n {4}\S", (ROOT / page).read_text(encoding="utf-8"))]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_block_runs(block: blocks.Block, outcomes: Any) -> None:
    if block.kind in ("file", "needs"):
        return
    statuses = outcomes[block.page, block.line]
    count = 1 if block.kind == "python" else len(blocks.list_lines(block))
    assert len(statuses) == count > 0
    for line, status, said in statuses:
        assert status == expect_status(line), (line, said)
        assert "Traceback" not in said


def test_ci_job_leaves_its_files(guides: Any, outcomes: Any) -> None:
    """The commands of the job in docs/ci.md, which have run."""
    for name in ("ops.xml", "precision.xml"):
        assert re.search(r'<testsuite\b[^>]*\btests="[1-9]', (guides.folder / name).read_text(encoding="utf-8")), name
    assert json.loads((guides.folder / "scan.sarif").read_text(encoding="utf-8"))["version"] == "2.1.0"
    assert "ligned" in (guides.folder / "summary.md").read_text(encoding="utf-8")


def test_runner_tells_a_command_that_fails(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("```bash\nprecision-align show nowhere\n```\n\n```\nplain\n```\n", "utf-8")
    found, plain = blocks.read_blocks(tmp_path, "page.md")
    blocks.Runner({}).run(found)
    assert [status for _, status, _ in found.statuses] == [3]
    assert plain.kind == "unknown"


def name_anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", ALL)
def test_anchors_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        other = (ROOT / page).parent / path if path else ROOT / page
        headings = re.findall(r"^#+ (.+)$", blocks.FENCE.sub("", other.read_text(encoding="utf-8")), re.MULTILINE)
        assert anchor in map(name_anchor, headings), target


def test_error_codes_are_those_of_the_code() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_status")]
    rows = re.findall(r"^\| (PA\d+) \| `(\w+)` \| (\d) \|", (ROOT / "docs/errors.md").read_text("utf-8"), re.MULTILINE)
    assert rows == sorted((kind.code, kind.__name__, str(kind.exit_status)) for kind in classes)
