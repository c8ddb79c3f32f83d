"""How much of PyTorch's own operator catalogue the simulated NPU covers, values and gradients against the CPU.

    python tests/benchmarks/opinfo_coverage.py                 # all 699, about two minutes
    python tests/benchmarks/opinfo_coverage.py --sample 60     # a fixed sample, as in the tests

Prints one JSON line an operator and a summary. Each operator is judged with profile `none` on up to four of its own
sample inputs: "exact" (every bit of every result and input gradient), "close" (1e-4), "mismatch", "device" (a result
came back on another device), "error", "timeout" or "crash". Needs expecttest, which torch's catalogue imports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from precision_align.devices.simulated import install_simulated

SAMPLES = 4
SECONDS = 20
TOLERANCE = 1e-4
# Their results are drawn or uninitialised: only shape and dtype can be compared.
UNDETERMINED = frozenset(
    """
    empty empty_like new_empty empty_strided new_empty_strided empty_permuted resize_ resize_as_ bernoulli multinomial
    normal rand_like randint randint_like randn randn_like uniform cauchy exponential geometric log_normal pca_lowrank
    nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout svd_lowrank
    nn.functional.feature_alpha_dropout nn.functional.rrelu nn.functional.fractional_max_pool2d
    nn.functional.fractional_max_pool3d torch.ops.aten._flash_attention_forward
    """.split()  # noqa: SIM905 - a list of seventy quoted strings would fill a page
)


def load_catalogue() -> list[Any]:
    """torch's operator descriptions, those with at least one dtype."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.dtypes]


def name_of(op: Any) -> str:
    """The operator's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def move(tree: Any) -> Any:
    """The same arguments on the device, tensors copied."""

    def move_leaf(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone().to("npu")
        if isinstance(leaf, torch.device) or leaf == "cpu":
            return torch.device("npu")
        return leaf

    return torch.utils._pytree.tree_map(move_leaf, tree)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def compare(expected: torch.Tensor, actual: torch.Tensor) -> str:
    """ "exact", "close" or "mismatch" of a CPU result and one from the device."""
    host = actual.detach().cpu()
    expected = expected.detach()
    if expected.shape != host.shape or expected.dtype != host.dtype:
        return "mismatch"
    wide = torch.complex128 if expected.is_complex() else torch.float64
    left, right = expected.resolve_conj().to(wide), host.to(wide)
    if torch.allclose(left, right, rtol=0, atol=0, equal_nan=True):
        return "exact"
    return "close" if torch.allclose(left, right, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True) else "mismatch"


def worst(grades: list[str]) -> str:
    """The worst of some grades; "exact" of none."""
    order = ["exact", "close", "mismatch", "device", "error"]
    return max(grades, key=order.index, default="exact")


def needs_gradient(op: Any, dtype: torch.dtype, sample: Any) -> bool:
    """Whether the sample's input can have a gradient."""
    is_tensor = isinstance(sample.input, torch.Tensor)
    return bool(op.supports_autograd and dtype.is_floating_point and is_tensor and sample.input.is_floating_point())


def judge_sample(op: Any, dtype: torch.dtype, sample: Any) -> str:
    """One sample input: the results, then the input's gradient."""
    other, other_args, other_kwargs = move(sample.input), move(sample.args), move(dict(sample.kwargs))
    own = sample.input.detach().clone() if isinstance(sample.input, torch.Tensor) else sample.input
    with_gradient = needs_gradient(op, dtype, sample)
    if with_gradient:
        own.requires_grad_()
        other.requires_grad_()
    torch.manual_seed(0)
    expected = tensors_of(op(own, *sample.args, **sample.kwargs))
    torch.manual_seed(0)
    actual = tensors_of(op(other, *other_args, **other_kwargs))
    if len(expected) != len(actual):
        return "mismatch"
    if any(tensor.device.type != "npu" for tensor in actual):
        return "device"
    if op.name in UNDETERMINED:
        return (
            "exact" if all(a.shape == b.shape and a.dtype == b.dtype for a, b in zip(expected, actual)) else "mismatch"
        )
    grades = [compare(a, b) for a, b in zip(expected, actual)]
    if with_gradient and worst(grades) in ("exact", "close"):
        grades.extend(judge_gradient(own, expected, other, actual))
    return worst(grades)


def judge_gradient(own: Any, expected: list[torch.Tensor], other: Any, actual: list[torch.Tensor]) -> Iterator[str]:
    """The gradient of the sum of all results, where there is one."""
    pairs = [(a, b) for a, b in zip(expected, actual) if a.requires_grad and a.is_floating_point()]
    if pairs and all(b.requires_grad for _, b in pairs):
        torch.autograd.backward(torch.stack([a.sum() for a, _ in pairs]).sum())
        torch.autograd.backward(torch.stack([b.sum() for _, b in pairs]).sum())
        if own.grad is not None:
            yield compare(own.grad, other.grad)


def judge(op: Any) -> tuple[str, str]:
    """(grade, message) of one operator."""
    dtype = torch.float32 if torch.float32 in op.dtypes else min(op.dtypes, key=str)
    torch.manual_seed(0)
    random.seed(0)
    grades = []
    signal.alarm(SECONDS)
    try:
        for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
            if number == SAMPLES:
                break
            grades.append(judge_sample(op, dtype, sample))
    except TimeoutError:
        return "timeout", ""
    except Exception as error:  # whatever an operator raises is this benchmark's finding
        return "error", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    finally:
        signal.alarm(0)
    return worst(grades), ""


def raise_timeout(*_: Any) -> None:
    """The alarm's handler."""
    raise TimeoutError


def choose(count: int, sample: int, seed: int) -> list[int]:
    """Positions in the catalogue: all, or a fixed sample."""
    return sorted(random.Random(seed).sample(range(count), min(sample, count))) if sample else list(range(count))


def work(arguments: argparse.Namespace) -> None:
    """The child: judge one operator after another, announcing each before it can crash the process."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, raise_timeout)
    torch.set_num_threads(1)
    install_simulated("none")
    catalogue = load_catalogue()
    for place in choose(len(catalogue), arguments.sample, arguments.seed):
        if place >= arguments.start:
            name = name_of(catalogue[place])
            print(json.dumps([place, name, "crash", ""]), flush=True)
            print(json.dumps([place, name, *judge(catalogue[place])]), flush=True)
    print(json.dumps([-1, "", "end", ""]), flush=True)


def run_child(arguments: argparse.Namespace, start: int) -> list[list[Any]]:
    """One child's lines, as far as it got."""
    options = ["--child", "--start", str(start), "--sample", str(arguments.sample), "--seed", str(arguments.seed)]
    root = Path(__file__).parents[2]
    command = [sys.executable, __file__, *options]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    if not lines:
        raise SystemExit(f"The child said nothing: {done.stderr[-2000:]}")
    return lines


def main() -> int:
    """Judge all or a sample, restarting the child after each crash."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=0, help="number of operators, 0 = all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        work(arguments)
        return 0
    results: dict[int, list[Any]] = {}
    start, ended = 0, False
    while not ended:
        for line in run_child(arguments, start):
            ended = line[2] == "end"
            if not ended:
                results[line[0]] = line[1:]
                start = line[0] + 1
    for place in sorted(results):
        print(json.dumps(results[place]))
    counts = Counter(grade for _, grade, _ in results.values())
    print(json.dumps({"operators": len(results), **dict(counts.most_common())}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
