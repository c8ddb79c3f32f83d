"""``python tests/localization/benchmark``: see the package's text."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
importlib.import_module("loading").load_benchmark()
sys.exit(importlib.import_module("localization_benchmark.command").main(sys.argv[1:]))
