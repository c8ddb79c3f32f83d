"""What a file ``op_cases/<op>/cases.py`` is made of. No torch here, no TOML: it must load on the barest host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

from precision_align.core.dtypes import DTYPES
from precision_align.core.errors import RuleError
from precision_align.library.judging import RULES

if TYPE_CHECKING:
    import torch

MakeInputs = Callable[[int], "dict[str, Any]"]
Compute = Callable[..., Any]
LAYOUTS = ("transposed", "strided", "offset", "channels last")
FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class OpCase:
    """One set of inputs for an operator.

    ``make_inputs``: seed -> keyword arguments for golden, native and replacement alike; floating tensors come in
    float32 on the CPU and are rounded to each of ``dtypes`` by the runner, except those named in ``float32``.
    ``wrt``: the inputs to differentiate by (empty: forward only). ``layouts``: input -> how its storage lies:
    "transposed" (last two dimensions swapped), "strided" (every other element), "offset" (not at the storage's start),
    "channels last" (the memory format; four dimensions).
    ``raises``: the replacement must refuse these inputs. ``exact``: the arithmetic is exact on these inputs (powers of
    two, ties on purpose), so that whole-number outputs have one right value and others move with nothing but their own
    size. ``why``: the mistake this case is there to catch.
    """

    id: str
    make_inputs: MakeInputs
    dtypes: tuple[str, ...] = FLOATS
    tags: tuple[str, ...] = ()
    wrt: tuple[str, ...] = ()
    float32: tuple[str, ...] = ()
    layouts: Mapping[str, str] = field(default_factory=dict)
    raises: bool = False
    why: str = ""
    exact: bool = False


@dataclass(frozen=True)
class Operator:
    """All that the runner needs of one operator: the value of ``OPERATOR`` in its cases.py.

    ``golden``: float64 reference function; ``natives``: conforming builds in the inputs' dtype, from all fused (float32
    inside, one rounding) to composed of small operators that each round: a replacement is held to the error of the one
    that speaks best for it; ``replacements``: name -> callable; ``preferred``: device ("cpu", "cuda", "npu",
    "simulated") -> the replacement that is tested there when none is named (else the first; "simulated" falls back on
    "npu"); ``rule``: a name in :mod:`~precision_align.library.judging`.

    ``wrong``: replacements with a realistic mistake each, which the cases must catch (``case prove``). ``rewrites``:
    inputs that a replacement may overwrite instead of returning them: where it returns None, they are its outputs, in
    this order. ``canonical``: (inputs, result) -> result in a form that does not depend on free choices, such as the
    order of ties; applied to all results before they are judged. ``independent``: a second float64 source that the
    golden function is tested against (default: the replacement "torch"). ``search``: how to look for its worst input.
    """

    name: str
    cases: Sequence[OpCase]
    natives: Sequence[Compute]
    replacements: Mapping[str, Compute]
    golden: Compute
    preferred: Mapping[str, str] = field(default_factory=dict)
    rule: str = "double standard"
    wrong: Mapping[str, Compute] = field(default_factory=dict)
    rewrites: tuple[str, ...] = ()
    canonical: Callable[[Mapping[str, Any], Any], Any] | None = None
    independent: Compute | None = None
    search: Search | None = None


@dataclass(frozen=True)
class Search:
    """A space of inputs for :mod:`~precision_align.library.searching`.

    ``make``: numbers by name -> :class:`OpCase`; ``space``: name -> (lowest, highest), whole numbers or real ones
    (those are searched by their logarithm); small and low is simple.
    """

    make: Callable[..., OpCase]
    space: Mapping[str, tuple[float, float]]


def settle(operator: Operator, compute: Compute) -> Compute:
    """``compute`` with overwritten inputs given back as its outputs, and its result in canonical form."""

    def run(**inputs: Any) -> Any:
        mine = {n: v.clone() if n in operator.rewrites else v for n, v in inputs.items()}
        result = compute(**mine)
        if result is None and operator.rewrites:
            result = tuple(mine[name] for name in operator.rewrites)
            result = result[0] if len(result) == 1 else result
        return result if operator.canonical is None else operator.canonical(inputs, result)

    return run if operator.rewrites or operator.canonical else compute


def check_operator(operator: object, file: str) -> Operator:
    """Raises RuleError with everything that is wrong with it."""
    if not isinstance(operator, Operator):
        raise RuleError(f"{file}: must define OPERATOR = Operator(...) from precision_align.library.cases")
    problems = [f"case {case.id}: {text}" for case in operator.cases for text in _find_problems(case)]
    ids = [case.id for case in operator.cases]
    problems += [f"case {id_} is defined twice" for id_ in sorted({id_ for id_ in ids if ids.count(id_) > 1})]
    problems += [] if operator.cases else ["has no case"]
    problems += [] if operator.natives else ["has no native function to compare errors with"]
    problems += [] if operator.replacements else ["has no replacement"]
    if operator.rule not in RULES:
        problems.append(f"no rule is called {operator.rule!r}; there are {', '.join(sorted(RULES))}")
    for device, name in operator.preferred.items():
        if name not in operator.replacements:
            problems.append(f"preferred replacement {name!r} of {device} is not among the replacements")
    if problems:
        raise RuleError("\n".join(f"{file}: {text}" for text in problems))
    return operator


def _find_problems(case: OpCase) -> list[str]:
    problems = [f"unknown layout {kind!r} of {name}" for name, kind in case.layouts.items() if kind not in LAYOUTS]
    if not case.id or any(character in case.id for character in "/*?[]") or case.id != case.id.strip():
        problems.append("its id must be a name without '/', '*', '?' and brackets")
    problems += [f"{dtype!r} is no torch dtype" for dtype in case.dtypes if dtype not in DTYPES]
    if not case.dtypes:
        problems.append("names no dtype")
    return problems


def lay_out(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """The same values in another storage order (see :class:`OpCase`). Raises ValueError for an unknown kind."""
    if kind == "transposed":
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.dim() > 1 else tensor
    if kind == "strided":
        wide = tensor.new_zeros((*tensor.shape, 2))
        wide[..., 0] = tensor
        return wide[..., 0]
    if kind == "offset":
        flat = tensor.new_zeros(tensor.numel() + 1)
        flat[1:] = tensor.reshape(-1)
        return flat[1:].view(tensor.shape)
    if kind == "channels last":
        import torch

        return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
    raise ValueError(f"unknown layout {kind!r}; there are {', '.join(LAYOUTS)}")
