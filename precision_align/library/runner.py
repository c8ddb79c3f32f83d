"""Runs op cases on a device: which replacement, which cases, which dtypes; the verdicts come from
:mod:`~precision_align.library.trials`. Part of the live half: needs torch and numpy, no TOML reader.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from precision_align.core.errors import PrecisionAlignError, Unavailable, UsageError
from precision_align.core.terms import Phase, Status
from precision_align.library.cases import Compute, OpCase, Operator
from precision_align.library.folders import (
    FAULTS,
    Folders,
    HasFolders,
    PathLike,
    find_folders,
    load_callable,
    load_operator,
    load_replacements,
)
from precision_align.library.references import prepare_references
from precision_align.library.results import CaseReport as CaseReport
from precision_align.library.results import CaseResult as CaseResult
from precision_align.library.trials import describe, try_refusal, try_replacement

if TYPE_CHECKING:
    import torch

    from precision_align.devices.base import Device
    from precision_align.library.proving import Proof

Replacement = Union[str, Compute, None]
# What stands in for torch_npu on the simulated device is not torch_npu, and results must not say so.
LOOKALIKE = "look-alike of torch_npu"
MAXIMUM_SEED = 2**31  # random generators of every framework and device take that much
Progress = Optional[Callable[[str], None]]


@dataclass(frozen=True)
class _Run:
    """What stays the same over one run."""

    device: Device
    replacement: Replacement
    replacements: Mapping[str, Compute]
    seed: int
    backward: bool
    progress: Progress

    @property
    def place(self) -> torch.device:
        import torch

        return torch.device(self.device.kind)


def run_cases(
    select: str | Sequence[str] = "*",
    *,
    device: str = "cpu",
    replacement: Replacement = None,
    replacements: PathLike | None = None,
    seed: int = 0,
    backward: bool = True,
    library: PathLike | HasFolders | None = None,
    progress: Progress = None,
) -> CaseReport:
    """Run the selected cases on a device and judge every result in float64.

    ``select``: "*", an operator, or "operator/case", each with wildcards; several in a list. ``device``: "cpu", "cuda",
    "npu" or "simulated[:profile]". ``replacement``: the name of one of the operator's own ("torch", "torch_npu"), a
    text "module:callable", or a callable that takes the case's keywords; None: the one that the operator prefers on
    that device. ``replacements``: a folder of yours with ``<operator>.py`` files, each with a function of that name:
    they are tested, and operators without one are left out. ``library``: a folder of cases instead of the bundled one:
    its Python is executed. ``progress`` gets one line an operator.

    Raises UsageError (nothing selected, bad replacement), Unavailable (no torch, no such device or replacement here),
    RuleError (a broken cases.py). What a replacement itself raises is a failed case, not an exception.
    """
    if not 0 <= seed < MAXIMUM_SEED:
        raise UsageError(f"seed is {seed}, must be from 0 to {MAXIMUM_SEED - 1}")
    mine = load_replacements(replacements) if replacements is not None else {}
    run = _Run(open_available(device), resolve(replacement), mine, seed, backward, progress)
    patterns = _list_patterns(select)
    chosen = choose_cases(find_folders(library), patterns)
    if replacements is not None:
        chosen = _keep_replaced(chosen, mine, str(replacements))
    results = [result for operator, cases in chosen for result in _run_operator(run, operator, cases)]
    return CaseReport(results, " ".join(patterns), run.device.describe(), seed)


def choose_cases(folders: Folders, patterns: Sequence[str]) -> list[tuple[Operator, list[OpCase]]]:
    """The cases that any of the patterns selects, by operator. Raises UsageError for a pattern that selects none."""
    chosen: dict[str, tuple[Operator, list[OpCase]]] = {}
    used: set[str] = set()
    for name in _list_operators(folders, patterns):
        mine = [p for p in patterns if fnmatch.fnmatchcase(name, p.split("/", 1)[0])]
        if not mine:
            continue
        operator = _load(folders, name)
        hits = [(case, [p for p in mine if _matches(p, name, case.id)]) for case in operator.cases]
        used.update(pattern for _, found in hits for pattern in found)
        cases = [case for case, found in hits if found]
        if cases:
            chosen[name] = (operator, cases)
    for pattern in patterns:
        if pattern not in used:
            raise UsageError(_explain_nothing(pattern, folders))
    return list(chosen.values())


def _keep_replaced(
    chosen: list[tuple[Operator, list[OpCase]]], mine: Mapping[str, Compute], folder: str
) -> list[tuple[Operator, list[OpCase]]]:
    """The operators that the user's folder replaces. Raises UsageError for a file that is no selected operator's."""
    names = [operator.name for operator, _ in chosen]
    strangers = sorted(set(mine) - set(names))
    if strangers:
        raise UsageError(f"{folder}/{strangers[0]}.py: {_suggest(strangers[0], names)}")
    return [(operator, cases) for operator, cases in chosen if operator.name in mine]


def _suggest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names) or 'no operators'}"
    return f"no operator that is selected is called {name!r}: {hint}"


def _list_operators(folders: Folders, patterns: Sequence[str]) -> tuple[str, ...]:
    """The library's own, and PyTorch's where a pattern asks for them by their prefix."""
    if not any(pattern.startswith("opinfo:") for pattern in patterns):
        return folders.operators
    from precision_align.library.catalogue import list_catalogue

    return (*folders.operators, *list_catalogue())


def _load(folders: Folders, name: str) -> Operator:
    if not name.startswith("opinfo:"):
        return load_operator(folders, name)
    from precision_align.library.catalogue import load_catalogued

    return load_catalogued(name)


def _list_patterns(select: str | Sequence[str]) -> list[str]:
    patterns = [select] if isinstance(select, str) else list(select)
    if not patterns:
        raise UsageError('nothing is selected: name an operator, "operator/case", or "*"')
    return patterns


def _matches(pattern: str, operator: str, case: str) -> bool:
    return fnmatch.fnmatchcase(f"{operator}/{case}", pattern if "/" in pattern else f"{pattern}/*")


def _explain_nothing(pattern: str, folders: Folders) -> str:
    names = list(folders.operators)
    for name in names:
        if fnmatch.fnmatchcase(name, pattern.split("/", 1)[0]):
            names = [f"{name}/{case.id}" for case in load_operator(folders, name).cases]
            break
    near = difflib.get_close_matches(pattern, names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names) or 'no operators'}"
    return f"{pattern!r} selects no case of {folders.cases}: {hint}"


def open_available(name: str) -> Device:
    """The device of that name. Raises UsageError for an unknown one, Unavailable where it is not here."""
    from precision_align.devices.selection import open_device

    device = open_device(name)
    if not device.is_available():
        raise Unavailable(f'device "{name}" is not available here: `precision-align doctor` says what is missing')
    return device


def resolve(replacement: Replacement) -> Replacement:
    """A text "module:callable" becomes the callable; a name stays, since each operator has its own of that name."""
    return load_callable(replacement) if isinstance(replacement, str) and ":" in replacement else replacement


def choose_replacement(operator: Operator, replacement: Replacement, device: Device) -> tuple[str, Compute]:
    """(name, callable) of the replacement to test. Raises UsageError."""
    if callable(replacement):
        module, name = getattr(replacement, "__module__", "?"), getattr(replacement, "__qualname__", repr(replacement))
        return f"{module}:{name}", replacement
    first = next(iter(operator.replacements))
    by_kind = operator.preferred.get(device.kind, first)
    name = replacement or operator.preferred.get(device.name.partition(":")[0], by_kind)
    if name not in operator.replacements:
        have = ", ".join(operator.replacements)
        raise UsageError(f"{operator.name} has no replacement {name!r}: name one of {have}, or module:callable")
    return name, operator.replacements[name]


def prepare_device(device: Device, replacement: str) -> str:
    """Make ready what a replacement of that name needs there; the name under which results show it."""
    if replacement != "torch_npu" or not device.emulated:
        return replacement
    from precision_align.devices.torch_npu_lookalike import install_lookalike

    install_lookalike()
    return LOOKALIKE


def _run_operator(run: _Run, operator: Operator, cases: Sequence[OpCase]) -> Iterator[CaseResult]:
    name, compute = choose_replacement(operator, run.replacements.get(operator.name, run.replacement), run.device)
    name = prepare_device(run.device, name)
    if run.progress:
        run.progress(f"{operator.name}: {len(cases)} cases with {name} on {run.device.name}")
    versions = _collect_versions(run.device)
    for case in cases:
        for dtype in case.dtypes:
            for result in run_case(operator, case, dtype, compute, run.place, run.seed, run.backward):
                yield replace(result, dtype=dtype, device=run.device.name, replacement=name, versions=versions)


def run_case(
    operator: Operator,
    case: OpCase,
    dtype: str,
    compute: Compute,
    device: torch.device,
    seed: int = 0,
    backward: bool = True,
) -> list[CaseResult]:
    """One case in one dtype: one result a phase. A case that cannot be prepared fails with the reason."""
    try:
        if case.raises:
            return try_refusal(operator, case, dtype, seed, compute, device)
        references = prepare_references(operator, case, dtype, seed, backward)
    except PrecisionAlignError:
        raise
    except FAULTS as error:
        note = f"the case itself is broken: its inputs, golden or native function raised {describe(error)}"
        return [CaseResult(operator.name, case.id, "", Phase.FORWARD, Status.FAIL, note=note)]
    return try_replacement(operator, case, references, compute, device)


def _collect_versions(device: Device) -> Mapping[str, str]:
    from precision_align import __version__

    return {"precision_align": __version__, **{str(k): str(v) for k, v in device.versions().items()}}


def prove_cases(
    select: str | Sequence[str] = "*",
    *,
    library: PathLike | HasFolders | None = None,
    seed: int = 0,
    progress: Progress = None,
) -> list[Proof]:
    """Run the wrong variants of the selected operators on the CPU: which are caught, and which cases catch none.

    A selected case counts for its whole operator; operators without wrong variants are left out. Raises UsageError
    where none is left.
    """
    from precision_align.library.proving import Prover

    proofs = []
    for operator, _ in choose_cases(find_folders(library), _list_patterns(select)):
        if operator.wrong:
            if progress:
                progress(f"{operator.name}: {len(operator.wrong)} wrong variants, {len(operator.cases)} cases")
            proofs.append(Prover(operator, seed).prove())
    if not proofs:
        raise UsageError("no selected operator has wrong variants: give OPERATOR a field `wrong`, name -> callable")
    return proofs


def list_cases(select: str | Sequence[str] = "*", library: PathLike | HasFolders | None = None) -> list[dict[str, Any]]:
    """The selected cases as plain data: name, dtypes, tags, what they differentiate by, and why they exist."""
    patterns = _list_patterns(select)
    return [
        {
            "case": f"{operator.name}/{case.id}",
            "dtypes": list(case.dtypes),
            "tags": list(case.tags),
            "wrt": list(case.wrt),
            "why": case.why,
        }
        for operator, cases in choose_cases(find_folders(library), patterns)
        for case in cases
    ]
