"""How long it takes until the tool answers: ``python tests/benchmarks/startup.py [runs]``.

Prints the minimum and median wall time of a bare interpreter, of ``import precision_align`` and of ``--help`` of the
root and of every verb, and whether torch was loaded. Limits of the design: import < 0.3 s, help < 0.5 s.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from precision_align.cli.app import VERBS

CHECK = "; import sys; assert 'torch' not in sys.modules"
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import precision_align": ["-c", f"import precision_align{CHECK}"],
    "--help": ["-m", "precision_align", "--help"],
    **{f"{verb} --help": ["-m", "precision_align", verb, "--help"] for verb in VERBS},
}


def measure(words: list[str], runs: int) -> list[float]:
    """Wall times in seconds."""
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return times


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{'command':28s} {'min s':>7s} {'median s':>9s}")
    for name, words in COMMANDS.items():
        times = measure(words, runs)
        print(f"{name:28s} {min(times):7.3f} {statistics.median(times):9.3f}")


if __name__ == "__main__":
    main()
