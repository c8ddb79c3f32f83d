"""What counts in Python source: resolved names, arguments, literals in their place; and what does not."""

from __future__ import annotations

import textwrap

import pytest

from precision_align.scanner.matching import RuleIndex
from precision_align.scanner.python_source import collect_aliases, parse_python, scan_python
from precision_align.scanner.rules import load_rules


@pytest.fixture(scope="module")
def index() -> RuleIndex:
    return RuleIndex(load_rules())


def scan(index: RuleIndex, source: str, local: frozenset[str] = frozenset()) -> list[tuple[int, str]]:
    hits = scan_python(parse_python(textwrap.dedent(source)), index, local)
    return sorted({(hit.line, hit.rule.id) for hit in hits})


def test_names_are_followed_through_imports_and_aliases(index: RuleIndex) -> None:
    source = """
    import torch as t
    from torch import cuda, nn as layers
    from torch.cuda.amp import autocast as cast
    memory = t.cuda
    t.cuda.synchronize(); cuda.empty_cache(); memory.set_device(0)
    layers.GELU(); cast()
    """
    assert scan(index, source) == [(4, "R140"), (6, "R138"), (7, "R140"), (7, "R207")]


def test_the_longest_package_decides(index: RuleIndex) -> None:
    source = "import apex\nfrom apex import normalization\nfrom apex.contrib.group_norm import GroupNorm\n"
    assert scan(index, source) == [(1, "R001"), (2, "R003"), (3, "R008")]


def test_own_packages_and_relative_imports_are_no_dependencies(index: RuleIndex) -> None:
    source = "import warp\nfrom apex.optimizers import FusedAdam\nfrom .flash_attn import f\nfrom . import triton\n"
    assert scan(index, source, frozenset({"warp", "apex"})) == []
    assert [rule for _, rule in scan(index, source)] == ["R041", "R004"]


def test_a_literal_is_explained_by_the_call_it_stands_in(index: RuleIndex) -> None:
    source = """
    import torch
    torch.device("cuda:1"); x.to("cuda"); torch.zeros(1, device="cuda")
    torch.autocast(device_type="cuda"); torch.Generator("cuda"); f("cuda")
    torch.device("npu"); x.to("cpu"); f("cudas"); f("the cuda device")
    """
    assert scan(index, source) == [
        (3, "R147"), (3, "R148"), (3, "R156"), (4, "R141"), (4, "R155"), (4, "R223"),
    ]  # fmt: skip


def test_comparisons_that_know_npu_are_ported(index: RuleIndex) -> None:
    source = """
    if d.type == "cuda": pass
    if d.type in ("cuda", "npu"): pass
    if str(d).startswith("cuda"): pass
    if backend != "nccl": pass
    """
    assert scan(index, source) == [(2, "R149"), (4, "R149"), (5, "R178")]


def test_docstrings_comments_and_prose_are_silent(index: RuleIndex) -> None:
    source = '''
    """device="cuda", os.environ["CUDA_VISIBLE_DEVICES"], import flash_attn"""
    def f():
        """cuda"""
        # model.cuda()
        raise RuntimeError(f"no cuda here, set NCCL_DEBUG=INFO for {f}")
    '''
    assert scan(index, source) == []


def test_variables_of_the_environment_are_whole_names(index: RuleIndex) -> None:
    source = """
    import os
    os.environ["NCCL_DEBUG"] = "INFO"
    os.getenv("TORCH_NCCL_BLOCKING_WAIT")
    os.getenv("MY_NCCL_DEBUG")
    {"CUDA_VISIBLE_DEVICES": "0"}
    """
    assert scan(index, source) == [(3, "R173"), (4, "R224"), (6, "R168")]


def test_arguments_narrow_a_rule(index: RuleIndex) -> None:
    source = """
    import torch, importlib
    import torch.nn.functional as F
    F.max_pool2d(x, 2); F.max_pool2d(x, 2, return_indices=True)
    torch.load(p, map_location="cpu"); torch.load(p, map_location=lambda s, _: s)
    importlib.import_module("flash_attn"); importlib.import_module("json")
    torch.ops.aten.add.Tensor(x, x); torch.ops.mine.half(x)
    """
    assert scan(index, source) == [(4, "R208"), (5, "R150"), (6, "R014"), (7, "R193")]


def test_aliases_of_relative_imports_match_nothing() -> None:
    aliases = collect_aliases(
        parse_python("from .. import torch\nfrom .torch import cuda\nimport a.b\nimport a.b as c\n")
    )
    assert aliases == {"torch": "...torch", "cuda": ".torch.cuda", "a": "a", "c": "a.b"}
