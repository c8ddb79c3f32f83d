"""Seconds that `scan` takes for 100,000 lines: ``python tests/benchmarks/scan.py [--quick] [PATH]``.

Without PATH the tree is the labelled samples, copied until it has 100,000 lines (10,000 with --quick). The limit is 5 s
of one core for 100,000 lines; the ratio to it is printed. What a machine's speed decides fails nothing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from precision_align.scanner.rules import load_rules
from precision_align.scanner.scanning import scan_tree

SAMPLES = Path(__file__).resolve().parents[1] / "scanner" / "samples"
LINES, QUICK = 100_000, 10_000
LIMIT = 5.0


def copy_samples(root: Path, lines: int) -> None:
    """Fill a folder with copies of the samples."""
    texts = {file.name.removesuffix(".sample"): file.read_text(encoding="utf-8") for file in SAMPLES.glob("*.sample")}
    total = sum(text.count("\n") for text in texts.values())
    for number in range(-(-lines // total)):
        folder = root / f"copy{number:04d}"
        folder.mkdir()
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")


def measure(path: Path) -> None:
    """Print the CPU seconds for 100,000 lines of that tree, and what was found."""
    started = time.process_time()
    report = scan_tree(path, load_rules())
    seconds = time.process_time() - started
    share = seconds / report.lines * LINES
    print(f"{report.files} files, {report.lines} lines, {len(report.findings)} findings: {seconds:.2f} s of one core")
    print(f"{share:.2f} s for {LINES} lines, {share / LIMIT:.2f} of the limit")


def main() -> None:
    """Of the given tree, or of the samples."""
    words = [word for word in sys.argv[1:] if word != "--quick"]
    if words:
        measure(Path(words[0]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy_samples(Path(scratch), QUICK if "--quick" in sys.argv else LINES)
        measure(Path(scratch))


if __name__ == "__main__":
    main()
