"""The verbs ``case`` and ``map`` as a user runs them: processes of their own, exit statuses, stdout and stderr."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from programs import make_environment, run_python

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import sys; from precision_align.cli.app import main; sys.exit(main())"


def run(*words: str, cwd: Path | None = None, without_torch: bool = False) -> subprocess.CompletedProcess[str]:
    if not without_torch:
        return run_python("-m", "precision_align", *words, cwd=cwd)
    command = [sys.executable, "-c", f"import sys; sys.modules['torch'] = None; {MAIN}", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=make_environment(), check=False)


def test_case_run_passes_with_status_0_and_progress_on_stderr() -> None:
    done = run("case", "run", "swiglu/gate-*")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("passed on cpu")
    assert "swiglu: 2 cases with torch on cpu" in done.stderr


def test_case_run_in_json() -> None:
    done = run("case", "run", "rope/half", "--json", "--forward-only", "--seed", "3")
    value = json.loads(done.stdout)
    assert (done.returncode, value["passed"], value["seed"]) == (0, True, 3)
    assert {result["phase"] for result in value["results"]} == {"forward"}


def test_a_failing_replacement_of_the_users_has_status_1(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\ndef swapped(x, dim=-1, gate_first=True):\n"
        "    a, b = x.chunk(2, dim)\n    return a * torch.nn.functional.silu(b)\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {MAIN}"
    done = run_python("-c", code, "case", "run", "swiglu/gate-first", "--replacement", "mine:swapped", cwd=ROOT)
    assert done.returncode == 1, done.stderr
    assert "FAILED on cpu" in done.stdout
    assert "further from the float64 result" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("case", "run", "swigl"), "did you mean swiglu"),
        (("case", "run", "--replacement", "nothing"), "has no replacement"),
        (("case", "run", "--library", "/nowhere"), "no library at"),
        (("case", "run", "--device", "abacus"), "abacus"),
        (("case", "run", "--seed", "x"), "--seed"),
        (("case", "run", "--colour"), "--colour"),
        (("case",), "run"),
        (("case", "walk"), "walk"),
        (("map", "show", "atention"), "did you mean attention"),
        (("map", "show"), "OP"),
        (("map", "list", "--library", "/nowhere"), "no library at"),
        (("map", "build", "-o", "/proc/none/here"), "cannot write"),
    ],
)
def test_wrong_use_has_status_2_and_no_traceback(words: tuple[str, ...], message: str) -> None:
    done = run(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_case_list_says_what_each_case_catches() -> None:
    done = run("case", "list", "attention")
    assert done.returncode == 0
    assert "attention/causal-bottom-right-more-keys" in done.stdout
    assert len(done.stdout.splitlines()) >= 20


@pytest.mark.parametrize("name", ["attention", "M001", "flash_attn.flash_attn_func", "Qwen3RMSNorm"])
def test_map_works_without_torch(name: str) -> None:
    done = run("map", "show", name, without_torch=True)
    assert done.returncode == 0, done.stderr
    assert "on Ascend" in done.stdout


def test_map_check_without_torch_says_what_it_left_out() -> None:
    done = run("map", "check", without_torch=True)
    assert done.returncode == 0, done.stdout
    assert "cases were not looked at" in done.stdout


def test_case_run_without_torch_is_a_clear_error() -> None:
    done = run("case", "run", "swiglu", without_torch=True)
    assert done.returncode == 2
    assert "torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_map_check_finds_problems_with_status_1(tmp_path: Path) -> None:
    (tmp_path / "plus").mkdir()
    (tmp_path / "plus" / "mapping.toml").write_text("schema_version = 1\n[[row]]\nid = 'X'\nkind = 'odd'\n")
    done = run("map", "check", "--library", str(tmp_path))
    assert done.returncode == 1
    for text in ("kind: is 'odd'", "function: is missing", "evidence: is missing", "problem(s)"):
        assert text in done.stdout


def test_map_build_writes_what_is_committed(tmp_path: Path) -> None:
    done = run("map", "build", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("mapping.md", "mapping.json"):
        assert (tmp_path / "reports" / name).read_bytes() == (ROOT / "reports" / name).read_bytes()


def test_map_list_in_json() -> None:
    rows = json.loads(run("map", "list", "--json").stdout)
    assert {row["op"] for row in rows} >= {"attention", "layer_norm", "rms_norm", "rope", "swiglu"}


def test_map_list_selects_by_kind_status_and_release() -> None:
    new = json.loads(run("map", "list", "--kind", "fused", "--torch-npu", "2.9.0", "--json").stdout)
    old = json.loads(run("map", "list", "--kind", "fused", "--torch-npu", "2.1.0.post8", "--json").stdout)
    assert {row["kind"] for row in new} == {"fused"}
    assert {row["id"] for row in new} - {row["id"] for row in old} >= {"M043", "M082"}
    unverified = json.loads(run("map", "list", "--status", "unverified", "--json").stdout)
    assert {row["status"] for row in unverified} == {"unverified"}
    assert run("map", "list", "--kind", "odd").returncode == 2


def test_map_add_writes_a_row_that_check_asks_to_fill_in_and_keeps_comments(tmp_path: Path) -> None:
    library = tmp_path / "mine"
    words = ("map", "add", "my_norm", "--symbol", "mine.ops.my_norm", "--library", str(library))
    done = run(*words)
    assert done.returncode == 0, done.stderr
    file = library / "op_cases" / "my_norm" / "mapping.toml"
    file.write_text("# ours\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    done = run("map", "check", "--library", str(library))
    assert done.returncode == 1
    for text in ("row my_norm-1: function: must not be blank", "replacement: must not be blank", "evidence[0]: where"):
        assert text in done.stdout
    filled = ("--function", "2 x", "--replacement", "x + x", "--where", "mine@1:ops.py", "--kind", "composed")
    assert json.loads(run(*words, *filled, "--json").stdout)["id"] == "my_norm-2"
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# ours\n")
    assert "row my_norm-2" not in run("map", "check", "--library", str(library)).stdout
    assert run("map", "add", "my-norm", "--symbol", "x", "--library", str(library)).returncode == 2


def test_python_in_the_working_directory_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "op_cases" / "swiglu"
    folder.mkdir(parents=True)
    (folder / "cases.py").write_text("raise SystemExit('ran code of the working directory')")
    done = run("case", "run", "swiglu/gate-first", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_cases_run_on_the_simulated_device_with_its_look_alike() -> None:
    select = ("attention/causal-bottom-right-*", "rope/interleaved", "rms_norm/small-rows-*", "swiglu/gate-*")
    done = run("case", "run", *select, "layer_norm/plain", "--device", "simulated:none", "--json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    value = json.loads(done.stdout)
    used = {(result["op"], result["replacement"]) for result in value["results"]}
    assert used == {
        ("attention", "look-alike of torch_npu"),
        ("rope", "look-alike of torch_npu"),
        ("rms_norm", "look-alike of torch_npu"),
        ("swiglu", "look-alike of torch_npu"),
        ("layer_norm", "torch_float32"),
    }
    assert "not Ascend" in value["device"]
