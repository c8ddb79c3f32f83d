"""The process that asks the real torch_npu: ``python -m precision_align.library.route_child STUB OUTPUT``.

Runs torch's own table of operators (OpInfo) forward and backward on the stub CANN, one or two samples each, and writes
which CANN operators each aten overload asked for. Values are whatever lay in memory; an operator whose Python code
looks at them may raise, which is counted.
"""

from __future__ import annotations

import ctypes
import json
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

SAMPLES = 2


def main() -> None:
    """Arguments: folder of the stub libraries, file to write."""
    folder, output = Path(sys.argv[1]), Path(sys.argv[2])
    from precision_align.devices.stub_cann.building import load_stub
    from precision_align.devices.stub_cann.routes import Notebook

    library = load_stub(folder)
    notebook = Notebook(folder)
    kept = _note_compiled(library, notebook)
    warnings.simplefilter("ignore")
    import torch
    import torch_npu

    routes: dict[str, list[list[str]]] = {}
    counts = {"operators": 0, "clean": 0}
    errors: dict[str, str] = {}
    with _watch(notebook, routes):
        for name, run in _list_runs():
            counts["operators"] += 1
            try:
                run()
                counts["clean"] += 1
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]
    import os

    result = {
        "torch_npu": torch_npu.__version__,
        "torch": torch.__version__,
        "soc": torch.npu.get_device_name(0),  # type: ignore[attr-defined]
        **counts,
        "routes": {name: routes[name] for name in sorted(routes)},
        "errors": errors,
    }
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    del kept
    sys.stdout.flush()
    os._exit(0)  # torch_npu's threads may abort at a regular exit on a stub


def _note_compiled(library: ctypes.CDLL, notebook: Any) -> Any:
    """Let the runtime's compile-and-run note the operator's name and succeed. The result must stay alive."""
    from precision_align.devices.stub_cann import operators

    def serve(name: bytes, *_: Any) -> int:
        notebook.note(f"aclop:{name.decode()}")
        return 0

    function = operators._Served(serve)
    library.stub_set_operators(function)
    return function


def _watch(notebook: Any, routes: dict[str, list[list[str]]]) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            notebook.clear()
            try:
                return func(*args, **(kwargs or {}))
            finally:
                asked = notebook.read()
                known = routes.setdefault(str(func), [])
                if asked and asked not in known:
                    known.append(asked)

    return Watch()  # type: ignore[no-untyped-call]


def _list_runs() -> Iterator[tuple[str, Any]]:
    """(name, function that runs one or two samples forward and backward on the device)."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if torch.float32 in info.supported_dtypes("cpu"):  # type: ignore[no-untyped-call]
            yield info.formatted_name, lambda info=info: _run_samples(info)


def _run_samples(info: Any) -> None:
    import torch

    differentiable = torch.float32 in info.supported_backward_dtypes("cpu")
    for sample in islice(info.sample_inputs("cpu", torch.float32, requires_grad=differentiable), SAMPLES):
        moved = sample.transform(_move)
        result = info.op(moved.input, *moved.args, **moved.kwargs)
        leaves = torch.utils._pytree.tree_leaves(result)
        outputs = [o for o in leaves if torch.is_tensor(o) and o.requires_grad and not o.is_complex()]
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])


def _move(value: Any) -> Any:
    """To the device as a leaf of its own."""
    import torch

    if not torch.is_tensor(value):
        return value
    return value.detach().npu().requires_grad_(value.requires_grad)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
