"""Two small hand-made torch_npu wheels: everything that `map diff` tells apart, and what it must not report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from precision_align.core.errors import UsageError
from precision_align.library.loading import load_library
from precision_align.library.signatures import Effect, compare_signatures, parse_signature
from precision_align.library.wheel_changes import compare_wheels, render_diff
from precision_align.library.wheels import DOCUMENTATION, LIBRARY, OPERATOR_LIST, VERSION, read_wheel

ROOT = Path(__file__).resolve().parents[2]
OLD = """autograd:
- func: _thnn_fused_gru_cell(Tensor input_gates) -> (Tensor, Tensor)
  impl_ns: op_api
backend: NPU
cpp_namespace: at_npu::native
custom:
- device_check: NoCheck
  func: npu_quant_scatter(Tensor self, Tensor indices, int axis=0) -> Tensor
- func: npu_rotary_mul(Tensor input, Tensor r1, Tensor r2, str rotary_mode='half') -> Tensor
  impl_ns: acl_op
- dispatch:
    CompositeExplicitAutograd: npu_gone
  func: npu_gone(Tensor x) -> Tensor
quant:
- func: dequantize.self(Tensor self) -> Tensor
supported:
- _local_scalar_dense
- func: gelu(Tensor self, *, str approximate='none') -> Tensor
  impl_ns: acl_op
- func: gelu.out(Tensor self, *, str approximate='none', Tensor(a!) out) -> Tensor(a!)
- func: dropout(Tensor input, float p, bool train) -> Tensor
symint:
- as_strided_
"""
NEW = (
    OLD.replace("int axis=0", "int axis=-2, str round_mode='rint'")
    .replace("str rotary_mode='half'", 'str rotary_mode="half"')
    .replace("impl_ns: acl_op\n- dispatch", "impl_ns: acl_op, op_api\n- dispatch")
    .replace("npu_gone", "npu_come")
    .replace("- func: gelu(Tensor self, *, str approximate='none') -> Tensor\n  impl_ns: acl_op\n", "")
    .replace("- func: dropout(Tensor input, float p, bool train) -> Tensor\n", "")
)
WARNINGS = (
    b"\0torch_npu.npu_iou is deprecated and will be removed in future version. Use torchvision.ops.box_iou instead.\0"
    b"\0Warning: kernel [polar] is not supported by NPU currently. Now this kernel is running on CPU.\0"
    b"\0CAUTION: The operator aten::logit, aten::logit_ and aten::logit.out is currently not supported on the NPU\0"
    b"\0the value is not supported by NPU currently, try another\0"
)
PAGE = '_add_torch_npu_docstr("npu_rotary_mul", """\n数据类型支持float32{more}。\n""")\n'


def make_wheel(path: Path, version: str, operators: str, library: bytes = b"", page: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(VERSION, f"__version__ = '{version}'\ngit_version = 'abc'\n")
        archive.writestr(OPERATOR_LIST, operators)
        archive.writestr(LIBRARY, library)
        archive.writestr(DOCUMENTATION, page)
    return path


@pytest.fixture
def wheels(tmp_path: Path) -> tuple[Path, Path]:
    return (
        make_wheel(tmp_path / "old.whl", "2.9.0", OLD, page=PAGE.format(more="")),
        make_wheel(tmp_path / "new.whl", "2.9.0.post9", NEW, WARNINGS, PAGE.format(more="、bfloat16")),
    )


def test_a_wheel_is_read_without_importing_it(wheels: tuple[Path, Path]) -> None:
    inventory = read_wheel(wheels[1])
    assert (inventory.version, inventory.revision) == ("2.9.0.post9", "abc")
    assert sorted(inventory.operators) == [
        "aten::_local_scalar_dense", "aten::_thnn_fused_gru_cell", "aten::gelu.out",
        "npu::npu_come", "npu::npu_quant_scatter", "npu::npu_rotary_mul",
    ]  # fmt: skip
    assert inventory.deprecated == {"npu_iou": "torchvision.ops.box_iou"}
    assert inventory.cpu == {"polar", "logit", "logit_", "logit.out"}
    assert inventory.dtypes == {"npu_rotary_mul": {"float32", "bfloat16"}}


def test_every_kind_of_change_is_told_apart(wheels: tuple[Path, Path]) -> None:
    diff = compare_wheels(*map(read_wheel, wheels))
    assert diff.added == ("npu::npu_come",)
    assert diff.removed == ("aten::dropout", "aten::gelu", "npu::npu_gone")
    assert diff.delegated == {"aten::gelu"}
    assert [(c.name, c.effect) for c in diff.signatures] == [
        ("npu::npu_quant_scatter", Effect.SILENT),
        ("npu::npu_rotary_mul", Effect.COMPATIBLE),
    ]
    assert diff.kernels == {"npu::npu_rotary_mul": ("acl_op", "acl_op+op_api")}
    assert diff.dtypes == {"npu_rotary_mul": ((), ("bfloat16",))}
    assert diff.counts["npu"] == {
        "added": 1, "removed": 1, "signatures": 2, "silent": 1, "breaking": 0, "implementations": 1,
    }  # fmt: skip
    assert "axis: default 0 -> -2" in render_diff(diff)


def test_rows_that_mention_a_change_are_named_and_others_are_not(wheels: tuple[Path, Path]) -> None:
    diff = compare_wheels(*map(read_wheel, wheels), load_library().rows)
    touched = {row.row: row.reasons for row in diff.rows}
    assert touched["M109"]["npu::npu_quant_scatter"].startswith("axis: default 0 -> -2 (silent)")
    assert "M053" in touched
    assert touched["M040"] == {"aten::gelu": "served by its .out overload"}
    assert touched["M055"]["aten::polar"] == "now runs on the CPU"
    assert "M042" not in touched


def test_a_wheel_compared_with_itself_has_no_difference(wheels: tuple[Path, Path]) -> None:
    inventory = read_wheel(wheels[1])
    diff = compare_wheels(inventory, inventory, load_library().rows)
    assert diff.rows == ()
    assert render_diff(diff).endswith("no difference")
    assert all(count == 0 for counts in diff.counts.values() for count in counts.values())


@pytest.mark.parametrize(
    ("old", "new", "effect", "text"),
    [
        ("int a=0", "int a=1", Effect.SILENT, "a: default 0 -> 1"),
        ("int a=0", "int a", Effect.BREAKING, "a must be given"),
        ("int a", "int a=0", Effect.COMPATIBLE, "a became optional, default 0"),
        ("int a", "int b", Effect.BREAKING, "a renamed to b"),
        ("int a, int b", "int b", Effect.BREAKING, "a removed"),
        ("int a", "int a, int b", Effect.BREAKING, "b added, must be given"),
        ("int a", "int a, int b=0", Effect.COMPATIBLE, "b=0 added"),
        ("int a=0", "str b='', int a=0", Effect.BREAKING, "b added before a"),
        ("ScalarType? t=None", "int? t=None", Effect.BREAKING, "t: type ScalarType? -> int?"),
        ("int t", "int? t", Effect.COMPATIBLE, "t: type int -> int?"),
        ("int a=0", "*, int a=0", Effect.BREAKING, "a became keyword-only"),
        ("int a, int b", "int b, int a", Effect.SILENT, "order of arguments a, b -> b, a"),
        ("str s=''", 'str s=""', Effect.COMPATIBLE, "spelling only"),
        ("float f=1.", "float f=1.0", Effect.COMPATIBLE, "spelling only"),
        (
            "Tensor(a!)[] x, int[2] p=[1, 1]",
            "Tensor(a!)[] x, int[2] p=[1, 2]",
            Effect.SILENT,
            "p: default [1, 1] -> [1, 2]",
        ),
    ],
)
def test_changes_of_a_signature(old: str, new: str, effect: Effect, text: str) -> None:
    (change,) = compare_signatures(*(parse_signature(f"f({a}) -> Tensor") for a in (old, new)))
    assert (change.effect, change.text) == (effect, text)


def test_results_that_unpack_differently_break() -> None:
    four, five = (parse_signature(f"f(Tensor x) -> ({', '.join(['Tensor'] * n)})") for n in (4, 5))
    assert compare_signatures(four, five)[0].effect == Effect.BREAKING
    named = parse_signature("f(Tensor x) -> (Tensor a, Tensor b, Tensor c, Tensor d)")
    assert compare_signatures(four, named)[0].effect == Effect.COMPATIBLE
    with pytest.raises(ValueError, match="no operator schema"):
        parse_signature("f")


def test_what_is_no_wheel_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_text("no zip")
    with pytest.raises(UsageError, match="pip download"):
        read_wheel(tmp_path / "x.whl")
    with pytest.raises(UsageError, match="no torch_npu wheel"):
        read_wheel(tmp_path)


def test_the_verb_compares_wheels_and_names_lines_of_the_users_source(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.py").write_text("import torch_npu\ntorch_npu.npu_quant_scatter(x, i)\n")
    code = "import sys; sys.modules['torch'] = None; from precision_align.cli.app import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "map", "diff", *map(str, wheels), "--scan", str(source), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["counts"]["npu"]["silent"] == 1
    assert [(use["file"], use["line"]) for use in value["uses"]] == [("a.py", 2)]
