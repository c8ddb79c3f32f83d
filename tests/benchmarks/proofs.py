"""Writes reports/mutation.md: per operator, wrong variants caught / tried and cases proved / all.

python tests/benchmarks/proofs.py            # all operators, about half a minute of one core
python tests/benchmarks/proofs.py softmax    # prints the table for some, writes nothing
"""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from pathlib import Path

import torch

from precision_align.library.proving import render_proofs
from precision_align.library.runner import prove_cases

ROOT = Path(__file__).parents[2]
HEAD = """# Wrong variants: caught / tried

- Command: `python tests/benchmarks/proofs.py` (the table of `precision-align case prove`)
- Versions: Python {python}, torch {torch}, {machine}
- Commit: {commit}
- Date: {date}

A wrong variant is the golden function in float32 with one realistic mistake: a changed line, an argument ignored, an
input or a result altered. It is caught when a case fails it by its numbers; an exception of its own does not count. A
case is proved when it catches at least one; cases of layouts, NaN and empty inputs may be proved by mistakes that any
kernel can make (strides ignored, NaN becoming 0, an early return of another shape).

"""


def main() -> int:
    torch.set_num_threads(1)
    chosen = sys.argv[1:]
    proofs = prove_cases(chosen or "*", progress=lambda text: print(text, file=sys.stderr))
    table = render_proofs(proofs)
    print(table)
    if not chosen:
        (ROOT / "reports" / "mutation.md").write_text(HEAD.format(**describe()) + table + "\n", encoding="utf-8")
    return 0 if all(proof.complete for proof in proofs) else 1


def describe() -> dict[str, str]:
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "commit": git.stdout.strip() or "unknown",
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
    }


if __name__ == "__main__":
    sys.exit(main())
