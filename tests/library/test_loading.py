"""Reading rows: the bundled library is clean, and every mistake in a file is reported, all at once, without torch."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from precision_align.core.errors import RuleError, UsageError
from precision_align.library.loading import Library, _fits, _may_answer, load_library
from precision_align.library.rows import Autograd, RowKind, RowStatus

ROW = """
schema_version = 1
[[row]]
id = "X1"
symbols = ["a.b"]
function = "a + b"
kind = "fused"
replacement = "torch_npu.npu_b(a)"
status = "verified"
differences = ["rounds once"]
evidence = [{ where = "repository@commit:path", on = "source read" }]
untested = "a test"
"""


def write(folder: Path, text: str | bytes, op: str = "plus") -> Path:
    file = folder / "op_cases" / op / "mapping.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(text, bytes):
        file.write_bytes(text)
    else:
        file.write_text(text, encoding="utf-8")
    return folder


def problems_of(folder: Path) -> list[str]:
    with pytest.raises(RuleError) as caught:
        load_library(folder)
    assert caught.value.exit_status == 2
    return str(caught.value).splitlines()[1:]


@pytest.fixture(scope="module")
def bundled() -> Library:
    return load_library()


def test_rows_with_cases_say_by_which_rule_and_rows_without_say_why(bundled: Library) -> None:
    assert set(bundled.operators) >= {"attention", "layer_norm", "rms_norm", "rope", "swiglu", "moe_permute", "nms"}
    for row in bundled.rows:
        assert bool(row.cases) != bool(row.untested), row.id
        assert row.rule or not row.cases, row.id


def test_facts_that_were_not_checked_are_marked(bundled: Library) -> None:
    statuses = {row.id: row.status for row in bundled.rows}
    assert statuses["M014"] == RowStatus.UNVERIFIED
    assert statuses["M003"] == RowStatus.VERIFIED


def test_a_minimal_row_is_read(tmp_path: Path) -> None:
    (row,) = load_library(write(tmp_path, ROW)).rows
    assert (row.id, row.op, row.kind, row.autograd) == ("X1", "plus", RowKind.FUSED, Autograd.UNKNOWN)
    assert row.selectors == ()


def test_an_op_cases_folder_itself_is_a_library(tmp_path: Path) -> None:
    assert len(load_library(write(tmp_path, ROW) / "op_cases").rows) == 1


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    assert len(load_library(write(tmp_path, b"\xef\xbb\xbf" + ROW.encode())).rows) == 1


WRONG = {
    "unknown key": (ROW + "colour = 'red'\n", "plus/mapping.toml: row X1: colour: unknown key"),
    "unknown key in a table": (ROW + "versions = { form = 1 }\n", "row X1: versions: form: unknown key"),
    "unknown key of the file": (ROW.replace("schema", "author = 'me'\nschema"), "author: unknown key"),
    "missing key": (ROW.replace('function = "a + b"\n', ""), "row X1: function: is missing"),
    "missing id": (ROW.replace('id = "X1"\n', ""), "row 0: id: is missing"),
    "blank text": (ROW.replace('"a + b"', '" "'), "function: must not be blank"),
    "wrong type": (ROW.replace('"a + b"', "3"), "function: is 3 (int), must be a string"),
    "list of numbers": (ROW.replace('["a.b"]', "[1, 2]"), "symbols: is [1, 2] (list), must be a list of strings"),
    "empty list": (ROW.replace('["a.b"]', "[]"), "symbols: must name at least one"),
    "repeated": (ROW.replace('["a.b"]', '["a", "a"]'), "symbols: names something twice"),
    "unknown kind": (ROW.replace('"fused"', '"fast"'), "kind: is 'fast', must be one of native, fused"),
    "unknown status": (ROW.replace('"verified"', '"sure"'), "status: is 'sure', must be one of verified"),
    "unknown autograd": (ROW + "autograd = 'maybe'\n", "autograd: is 'maybe'"),
    "unknown dtype": (ROW + "dtypes = ['fp16']\n", "dtypes: 'fp16' is no torch dtype"),
    "evidence is text": (
        ROW.replace('[{ where = "repository@commit:path", on = "source read" }]', '"x"'),
        "evidence: is 'x'",
    ),
    "evidence without a place": (
        ROW.replace('where = "repository@commit:path", ', ""),
        "evidence[0]: where: is missing",
    ),
    "evidence with a bad date": (ROW.replace('on = "s', 'when = "2026-13", on = "s'), "when: is '2026-13'"),
    "evidence is a number": (
        ROW.replace('{ where = "repository@commit:path", on = "source read" }', "7"),
        "evidence[0]: is 7",
    ),
    "bad version": (ROW + "versions = { since = ['2.9'] }\n", "since: '2.9' is not a torch_npu version"),
    "unknown rule": (ROW + "rule = { name = 'lenient', reason = 'x' }\n", "rule: name: no rule is called 'lenient'"),
    "rule without a reason": (ROW + "rule = { name = 'exact' }\n", "rule: reason: is missing"),
    "cases without a rule": (ROW + "cases = ['*']\n", "rule: is missing"),
    "fused without differences": (ROW.replace('differences = ["rounds once"]\n', ""), "differences: is missing"),
    "bad id": (ROW.replace('"X1"', '"X 1"'), "id: 'X 1' is not a name"),
    "newer schema": (ROW.replace("= 1", "= 9"), "schema_version: is 9, this version reads 1: upgrade"),
    "schema is text": (ROW.replace("= 1", "= 'one'"), "schema_version: is 'one'"),
    "no schema": (ROW.replace("schema_version = 1", ""), "schema_version: is missing"),
    "row is a table": ("schema_version = 1\n[row]\nid = 'X'\n", "row: must be a list of tables"),
    "row is a number": ("schema_version = 1\nrow = [3]\n", "row 0: is 3 (int), must be a table"),
    "no row": ("schema_version = 1\n", "row: is missing"),
    "empty file": ("", "schema_version: is missing"),
    "no TOML": ("= = =", "plus/mapping.toml: cannot be read"),
    "no text": (b"\xff\xfe\x00", "plus/mapping.toml: cannot be read"),
    "nested beyond reason": ("a = " + "[" * 5000, "plus/mapping.toml: cannot be read"),
}


@pytest.mark.parametrize("name", WRONG)
def test_every_mistake_is_reported_with_its_place(tmp_path: Path, name: str) -> None:
    text, expected = WRONG[name]
    assert any(expected in line for line in problems_of(write(tmp_path, text)))


def test_all_problems_of_all_files_come_at_once(tmp_path: Path) -> None:
    write(tmp_path, ROW.replace('"fused"', '"fast"') + "colour = 1\n")
    write(tmp_path, ROW.replace('"a + b"', "1"), op="minus")
    write(tmp_path, "= = =", op="times")
    text = "\n".join(problems_of(tmp_path))
    for expected in ("kind: is 'fast'", "colour: unknown", "function: is 1", "times/mapping.toml: cannot be read"):
        assert expected in text
    assert "op_cases/plus/mapping.toml: row X1: id: op_cases/minus/mapping.toml has a row of that id too" in text


def test_a_folder_named_mapping_toml_is_reported(tmp_path: Path) -> None:
    write(tmp_path, ROW)
    (tmp_path / "op_cases" / "minus" / "mapping.toml").mkdir(parents=True)
    assert any("minus/mapping.toml: cannot be read" in line for line in problems_of(tmp_path))


@pytest.mark.parametrize("make", ["nothing", "a file", "an empty folder"])
def test_a_place_without_a_library_is_a_usage_error(tmp_path: Path, make: str) -> None:
    place = tmp_path / "there"
    if make == "a file":
        place.write_text("x")
    if make == "an empty folder":
        place.mkdir()
    with pytest.raises(UsageError, match="no library at"):
        load_library(place)


LOOKUPS = {
    ("", "torch.nn.modules.normalization.LayerNorm"): "M039",
    ("", "apex.normalization.fused_layer_norm.MixedFusedLayerNorm"): "M028",
    ("", "torch.nn.modules.normalization.RMSNorm"): "M030",
    ("RMSNorm", "__main__.RMSNorm"): "M031",
    ("", "transformers.models.qwen3.modeling_qwen3.Qwen3RMSNorm"): "M031",
    ("", "transformers.models.gemma2.modeling_gemma2.Gemma2RMSNorm"): "M033",
    ("", "transformers.models.t5.modeling_t5.T5LayerNorm"): "M031",
    ("", "apex.normalization.FusedRMSNorm"): "M029",
    ("", "__main__.RotaryEmbedding"): "M053",
    ("", "__main__.main.<locals>.RoPE"): "M053",
    ("", "flash_attn.layers.rotary.RotaryEmbedding"): "M009",
    ("", "model.SwiGLU"): "M042",
    ("", "vllm.model_executor.layers.activation.SiluAndMul"): "M042",
    ("", "torch.nn.modules.activation.MultiheadAttention"): "M024",
    ("", "my_model.CausalSelfAttention"): "M001",
    ("scaled_dot_product_attention", ""): "M001",
    ("aten.scaled_dot_product_attention.default", ""): "M001",
    ("flash_attn_func", ""): "M003",
    ("torch.nn.functional.layer_norm", ""): "M039",
    ("apply_rotary_pos_emb", ""): "M053",
    ("", "torch.nn.modules.linear.Linear"): "M132",
    ("", "torch.nn.modules.activation.GELU"): "M040",
    ("", "torch.nn.modules.conv.Conv2d"): "M180",
    ("", "torch.nn.modules.batchnorm.BatchNorm2d"): "M038",
    ("", "torch.nn.modules.sparse.Embedding"): "M151",
    ("", "torch.nn.modules.loss.CrossEntropyLoss"): "M165",
    ("", "torch.nn.modules.rnn.LSTM"): "M179",
    ("aten.gelu.default", ""): "M040",
    ("aten._softmax.default", ""): "M051",
    ("aten.index_put_.default", ""): "M150",
    ("AdamW", "torch.optim.adamw.AdamW"): "M058",
}


@pytest.mark.parametrize(("names", "expected"), LOOKUPS.items())
def test_a_module_or_operator_finds_its_row(bundled: Library, names: tuple[str, str], expected: str) -> None:
    row = bundled.lookup(*names)
    assert row is not None
    assert row.id == expected


@pytest.mark.parametrize(("names", "expected"), LOOKUPS.items())
def test_files_that_have_nothing_of_a_name_are_not_parsed(names: tuple[str, str], expected: str) -> None:
    some = load_library(names=list(filter(None, names)))
    row = some.lookup(*names)
    assert row is not None
    assert row.id == expected
    assert len(some.operators) < 40  # of 137: a name may be in rows of several


@pytest.mark.parametrize("pattern", ["*", "*a", "a*", "*a*", "a*b", "a*a", "*a*b*", "a**b", "ab*ab", "", "*.b", "a?c*"])
def test_globs_are_those_of_fnmatch(pattern: str) -> None:
    for name in ("", "a", "b", "ab", "aa", "ba", "aba", "abab", "axb", "xaxbx", "a.b", "abc", "ab.ab"):
        target = name if "." in pattern else name.rpartition(".")[2]
        assert _fits(pattern, name) == fnmatchcase(target, pattern), name


@pytest.mark.parametrize(
    "text", ['modules = [\n  "x",\n]', "  calls=['x']", 'symbols = ["[xy]"]', 'calls = ["\\u0078"]', "modules.x = 1"]
)
def test_rows_of_another_form_are_parsed_whatever_the_name(text: str) -> None:
    assert _may_answer(text, ["x"])


@pytest.mark.parametrize(
    "kind",
    ["attention.blocks.Linear", "geometry.Property", "Europe", "", "torch.nn.ReLU", "torch.permute", "aten.add.Tensor"],
)
def test_what_the_library_does_not_know_finds_nothing(bundled: Library, kind: str) -> None:
    assert bundled.lookup(kind.rpartition(".")[2], kind) is None


def test_cases_of_an_operator_are_selectors(bundled: Library) -> None:
    assert "attention/*" in bundled.cases("attention")
    assert bundled.cases("nothing") == ()


def test_reading_rows_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from precision_align.library.loading import load_library\n"
        "print(load_library().lookup('', 'torch.nn.modules.normalization.LayerNorm').id)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "M039"), done.stderr
