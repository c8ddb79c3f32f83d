"""A golden function as source text: run in the inputs' dtype as a conforming build, or with one edit as a wrong one.

The edits are the mistakes that ports make: an eps outside the root, a mask shifted by one, a gate for its partner.
What is left of the formula is right, so a case that catches the edit sees that mistake and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode

from precision_align.core.errors import RuleError, Unavailable
from precision_align.library.cases import Compute, OpCase, Operator, Search
from precision_align.library.folders import find_folders, load_golden

_DOCSTRING = re.compile(r'("""[\s\S]*?""")')


class _Narrow(TorchFunctionMode):
    """Float64 becomes float32 wherever a golden function asks for it: the same formula in an operator's arithmetic."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.double:
            return args[0].float()
        if kwargs.get("dtype") is torch.float64:
            kwargs["dtype"] = torch.float32
        return func(*args, **kwargs)


def in_float32(function: Compute, keep: Sequence[int] = (), tensor: str = "") -> Compute:
    """``function`` computed in float32 (on float64 inputs: in float64), each floating output rounded once.

    Outputs come in the dtype of the first floating input (or of the input ``tensor``); ``keep``: the positions of
    outputs that stay in float32, such as scales, statistics and optimizer states.
    """

    def run(**inputs: Any) -> Any:
        floating = {n: v for n, v in inputs.items() if torch.is_tensor(v) and v.is_floating_point()}
        first = inputs[tensor].dtype if tensor else next((v.dtype for v in floating.values()), torch.float32)
        if first == torch.float64:
            return function(**inputs)
        with _Narrow():
            result = function(**inputs)
        if torch.is_tensor(result):
            return result.to(first) if result.is_floating_point() and 0 not in keep else result
        return tuple(_round(item, torch.float32 if i in keep else first) for i, item in enumerate(result))

    return run


def _round(item: Any, dtype: torch.dtype) -> Any:
    return item.to(dtype) if torch.is_tensor(item) and item.is_floating_point() else item


class Formula:
    """The golden function ``name``; ``keep`` and ``tensor`` as in :func:`in_float32`."""

    def __init__(self, name: str, keep: Sequence[int] = (), tensor: str = "", folder: Path | None = None) -> None:
        functions = find_folders().functions if folder is None else folder
        self.name, self.golden = name, load_golden(name, functions)
        self._file, self._keep, self._tensor = functions / f"{name}.py", keep, tensor

    def build(self) -> Compute:
        """The formula in float32 with one rounding at the end: the build of a fused kernel."""
        return in_float32(self.golden, self._keep, self._tensor)

    def edit(self, *changes: str) -> Compute:
        """The build with parts of its code (not of docstrings) replaced: old, new, old, new ... Raises RuleError for an
        old part that does not stand there exactly once."""
        parts = _DOCSTRING.split(self._file.read_text(encoding="utf-8"))
        for old, new in zip(changes[::2], changes[1::2]):
            count = sum(part.count(old) for part in parts[::2])
            if count != 1:
                raise RuleError(f"{self._file}: {old!r} stands there {count} times, an edit needs it once")
            parts[::2] = [part.replace(old, new) for part in parts[::2]]
        module = ModuleType(f"{self.name}_edited")
        exec(compile("".join(parts), f"{self._file} ({changes[1]!r})", "exec"), module.__dict__)
        return in_float32(getattr(module, self.name), self._keep, self._tensor)

    def set(self, **values: Any) -> Compute:
        """The build with some keywords overruled, those that the case gives too."""
        build = self.build()
        return lambda **inputs: build(**{**inputs, **values})

    def change(self, **changes: Callable[[Any], Any]) -> Compute:
        """The build with some of the inputs (those that are given) changed first."""
        build = self.build()

        def run(**inputs: Any) -> Any:
            given = {n: f(inputs[n]) for n, f in changes.items() if inputs.get(n) is not None}
            return build(**{**inputs, **given})

        return run

    def after(self, change: Callable[[Any], Any]) -> Compute:
        """The build with its result changed."""
        build = self.build()
        return lambda **inputs: change(build(**inputs))

    def describe(
        self,
        cases: Sequence[OpCase],
        replacements: Mapping[str, Compute],
        wrong: Mapping[str, Compute],
        *,
        natives: Sequence[Compute] = (),
        search: Search | None = None,
        **more: Any,
    ) -> Operator:
        """The operator. ``natives`` are conforming builds beside the formula's own. On an NPU the replacement
        "torch_npu" is tested where there is one; the simulated device, which has few of those operators, tests
        "torch"."""
        preferred = {"npu": "torch_npu", "simulated": "torch"} if "torch_npu" in replacements else {}
        return Operator(
            self.name,
            cases,
            natives=[self.build(), *natives],
            replacements=replacements,
            golden=self.golden,
            preferred=more.pop("preferred", preferred),
            wrong=wrong,
            search=search,
            **more,
        )


def load_torch_npu() -> Any:
    """The module torch_npu. Raises Unavailable where there is none: the replacement cannot be tested there."""
    try:
        import torch_npu
    except ImportError as error:
        raise Unavailable("the replacement torch_npu needs torch_npu and an Ascend device: name another one") from error
    return torch_npu
