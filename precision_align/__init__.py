"""Find the first operator that makes a run on one device differ from its reference on another, and say why.

Importing this package loads neither torch nor h5py; every public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precision_align.core.results import Divergence as Divergence

__version__ = "0.1.0"

_EXPORTS = {
    "Divergence": "precision_align.core.results",
    "Verdict": "precision_align.core.terms",
    "Status": "precision_align.core.terms",
    "Phase": "precision_align.core.terms",
    "Site": "precision_align.core.terms",
    "Kind": "precision_align.core.terms",
    "Key": "precision_align.core.keys",
    "Dump": "precision_align.storage.base",
    "open_dump": "precision_align.storage.opening",
    "capture": "precision_align.recording.session",
    "register_unit": "precision_align.recording.units",
    "seed_everything": "precision_align.recording.randomness",
    "guard_determinism": "precision_align.recording.determinism",
    "read_zoom_plan": "precision_align.recording.zoomplans",
    "compare": "precision_align.workflows.comparing",
    "certify": "precision_align.workflows.certifying",
    "compare_regimes": "precision_align.workflows.regimes",
    "run_regimes": "precision_align.workflows.regimes",
    "RegimesReport": "precision_align.reporting.regimes",
    "rejudge": "precision_align.workflows.rejudging",
    "lockstep": "precision_align.workflows.lockstep",
    "assert_aligned": "precision_align.workflows.assertions",
    "Report": "precision_align.reporting.report",
    "load_rules": "precision_align.comparison.rules",
    "load_library": "precision_align.library.loading",
    "run_cases": "precision_align.library.runner",
    "CaseReport": "precision_align.library.runner",
    "compare_losses": "precision_align.training.curves",
    "LossReport": "precision_align.training.losses",
    "PrecisionAlignError": "precision_align.core.errors",
}

__all__ = sorted([*_EXPORTS, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
