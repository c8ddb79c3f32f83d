"""What the README and the guides show is what happens: every block runs, every link and every verb exists."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precision_align.cli import app
from precision_align.cli.parsers import PROGRAM, build_verb_parser
from precision_align.numerics.limits import (
    GENERIC_COEFFICIENT_FLOAT32,
    GENERIC_COEFFICIENT_LOW,
    LIMITS,
    RAW_LIMITS,
)

ROOT = Path(__file__).resolve().parents[2]
READMES = ("README.md", "README.zh.md")
GUIDES = (*READMES, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def list_blocks(name: str, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(read(name)) if kind == language]


def list_commands(name: str) -> list[list[str]]:
    """Every command line of ours in blocks and in inline code, as words; optional parts ([KEY]) are left out."""
    text = read(name)
    blocks = [line.rpartition("&& ")[2] for block in list_blocks(name, "bash") for line in block.splitlines()]
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    lines = [line.strip().removeprefix(".venv/bin/") for line in (*blocks, *inline)]
    return [
        [word for word in shlex.split(line, comments=True) if not word.startswith("[")]
        for line in lines
        if line.startswith(f"{PROGRAM} ")
    ]


COMMANDS = [(name, words) for name in GUIDES for words in list_commands(name)]


def test_only_languages_that_are_tried_here_are_shown() -> None:
    for name in READMES:
        assert {kind for kind, _ in FENCE.findall(read(name))} <= {"python", "bash"}
        assert read(name).count("```") == 2 * len(FENCE.findall(read(name)))


@pytest.fixture(scope="module")
def recorded(place: Any) -> Any:
    """Both sides, recorded by the README's own first block."""
    block = list_blocks("README.md", "python")[0]
    prepare = (place.folder / "prepare.py").read_text(encoding="utf-8")
    assert block.count('"runs/reference"') == 1
    for side in ("reference", "candidate"):
        script = prepare + block.replace('"runs/reference"', f'"runs/{side}"', 1)
        (place.folder / f"{side}.py").write_text(script, encoding="utf-8")
        done = place.run(f"{side}.py", side)
        assert (done.returncode, done.stderr) == (0, "")
    return place


def test_python_block_reads_a_tensor_with_h5py_alone(recorded: Any) -> None:
    blocks = list_blocks("README.md", "python")
    assert len(blocks) == 2
    check = (
        "import h5py\n" + blocks[1] + "import numpy, sys; numpy.save('read.npy', tensor)\n"
        "assert not any(name.startswith('precision_align') for name in sys.modules)\n"
    )
    done = recorded.run("-c", check)
    assert (done.returncode, done.stderr) == (0, "")

    import precision_align as pa

    key = re.search(r'index\("([^"]+)"\)', blocks[1])
    assert key is not None
    with pa.open_dump(recorded.folder / "runs" / "candidate") as dump:
        expected = next(dump.payload(record.key) for record in dump.records if str(record.key) == key.group(1))
    found = np.load(recorded.folder / "read.npy")
    assert found.shape == (32, 4)
    assert np.array_equal(found.view(expected.dtype), expected)


def test_bash_blocks_of_commands_run(recorded: Any) -> None:
    run = []
    for name in READMES:
        for block in list_blocks(name, "bash"):
            if block.startswith(f"{PROGRAM} "):
                done = recorded.run(*shlex.split(block))
                assert done.returncode == 1, done.stderr
                assert "in module act" in " ".join(done.stdout.split())
                run.append(block)
    assert run
    assert (recorded.folder / "report.html").stat().st_size > 10_000


STATUS = {"compare": 1, "regimes": 1, "loss": 1, "checkpoint": 1, "image": 1, "quant": 1}  # the candidate is wrong


def allow_again(words: list[str]) -> list[str]:
    """The same command where its dump is there already."""
    return [*words[:2], "--overwrite", *words[2:]] if words[1] == "capture" else words


@pytest.mark.parametrize("name", READMES)
def test_capture_lines_in_the_text_run(recorded: Any, name: str) -> None:
    lines = [words for words in list_commands(name) if words[1:2] == ["capture"] and "train.py" in words]
    assert lines
    for words in lines:
        done = recorded.run(*allow_again(words))
        assert done.returncode == 0, done.stderr
        assert "tensors" in done.stderr


def test_commands_of_the_tables_run(recorded: Any) -> None:
    saved = recorded.run(*shlex.split(f"{PROGRAM} compare runs/reference runs/candidate -o report.json"))
    assert saved.returncode == 1, saved.stderr
    started = recorded.run(*shlex.split(f"{PROGRAM} baseline add ledger.jsonl start --report report.json"))
    assert started.returncode == 0, started.stderr
    written = recorded.run(*shlex.split(f"{PROGRAM} golden update goldens rms_norm --device cpu"))
    assert written.returncode == 0, written.stderr
    for side, name in (("reference", "float"), ("candidate", "int8")):
        shutil.copytree(recorded.folder / "runs" / side, recorded.folder / "runs" / name)
    for node in ("node0", "node1"):
        shutil.copytree(recorded.folder / "runs" / "reference", recorded.folder / node)
    tried = set()
    for name in READMES:
        for line in re.findall(r"^\| .+ \| `(precision-align [^`]+)`", read(name), re.MULTILINE):
            # there is no NPU here, and its numbers are not what is tested
            words = [word for word in shlex.split(line.replace("--device npu", "--device cpu")) if "[" not in word]
            if words[1] == "demo" or tuple(words) in tried:  # the demo has tests of its own
                continue
            tried.add(tuple(words))
            done = recorded.run(*allow_again(words))
            assert done.returncode == STATUS.get(words[1], 0), (words, done.stdout, done.stderr)
            assert "Traceback" not in done.stderr
    assert {words[1] for words in tried} == {*app.VERBS} - {"demo"}


def test_functions_of_the_table_run(recorded: Any) -> None:
    calls = re.findall(r"`(pa\.\w+\([^`]*\))`", read("README.md"))
    assert [call.partition("(")[0] for call in calls if "..." not in call] == ["pa.lockstep"]
    code = (
        "import precision_align as pa, torch\nfrom mymodel import *\n"
        "reference, candidate, inputs = make_model(), make_model(Wrong), make_batches()[0]\n"
        "report = pa.lockstep(reference, candidate, inputs)\nassert report.first.scope == 'act', report\n"
        "x = torch.randn(4, 8); w = torch.ones(8)\n"
        "actual = expected = torch.nn.functional.rms_norm(x, (8,), w, 1e-6)\n"
        "pa.assert_aligned(actual, expected, op='rms_norm', inputs={'x': x, 'weight': w, 'eps': 1e-6})\n"
    )
    done = recorded.run("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", READMES)
def test_set_up_commands_are_those_of_ci(name: str) -> None:
    setup = [block.strip() for block in list_blocks(name, "bash") if not block.startswith(f"{PROGRAM} ")]
    assert len(setup) == 2
    demo, tests = setup
    assert tests == "bash tests/run.sh"
    assert read(".ci/run").splitlines()[-1] == f"exec {tests}"
    for text in (demo, tests):
        assert subprocess.run(["bash", "-n", "-c", text], check=False).returncode == 0
    torch = re.search(r'"torch[^"]*"', demo)
    assert torch is not None
    assert torch.group() in read("tests/run.sh"), "the README and tests/run.sh must install the same torch"
    assert re.fullmatch(rf"python3 -m venv \.venv && \.venv/bin/pip install .+ && \.venv/bin/{PROGRAM} demo.*", demo)


@pytest.mark.parametrize(("name", "words"), COMMANDS, ids=[f"{name}:{' '.join(words)}" for name, words in COMMANDS])
def test_every_command_is_understood(name: str, words: list[str]) -> None:
    verb, *rest = words[1:]
    if verb.startswith("-"):
        assert verb in ("--help", "--version")
        return
    assert verb in app.VERBS
    module = import_module(f"precision_align.cli.{verb}")
    parser = build_verb_parser(verb, module.SUMMARY)
    module.add_arguments(parser)
    if rest and rest != ["--help"]:  # the bare name of a verb stands for the verb
        parser.parse_args(rest)


@pytest.mark.parametrize("name", READMES)
def test_table_lists_every_verb(name: str) -> None:
    listed = re.findall(rf"^\| .+ \| `{PROGRAM} (\w+)", read(name), re.MULTILINE)
    assert sorted(listed) == sorted(app.VERBS)


@pytest.mark.parametrize("name", GUIDES)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", read(name)):
        if not re.match(r"https?:", target):
            assert ((ROOT / name).parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("name", GUIDES)
def test_public_names_exist(name: str) -> None:
    import precision_align as pa

    for function in re.findall(r"\bpa\.(\w+)", read(name)):
        assert function in pa.__all__, function


def test_extras_exist() -> None:
    project = read("pyproject.toml")
    for name in READMES:
        for extras in re.findall(r"(?:precision-align|\.)\[([\w,]+)\]", read(name)):
            for extra in extras.split(","):
                assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra


NUMBERS = {
    r"max abs\(y−g\) / T > ([\d.]+)": LIMITS.z_fail,
    r"RMS error more than ([\d.]+) times": LIMITS.rho_fail,
    r"ratio needs ([\d.]+) values": LIMITS.minimum_ratio,
    r"bias \(16 bits and below, from (\d+) values on\)": LIMITS.minimum_bias,
    r"mean shift of more than ([\d.]+) T": LIMITS.bias_fail,
    r"significant at ([\d.]+) standard errors": LIMITS.t,
    r"rows and columns \(16 bits and below, from (\d+) values on\)": LIMITS.minimum_group,
    r"channels shifted by more than ([\d.]+) T": LIMITS.group_fail,
    r"From ([\d.]+) T, a ratio": LIMITS.z_warn,
    r"a ratio of ([\d.]+), a mean": LIMITS.rho_warn,
    r"a mean shift of ([\d.]+) T or": LIMITS.bias_warn,
    r"row shift of ([\d.]+) T on": LIMITS.group_warn,
    r"within ([\d.]+)·u·S": LIMITS.decomposed,
    r"ratio stays below ([\d.]+) \(warn\)": LIMITS.rho_split,
    r"raises the bound to ([\d.]+) z": LIMITS.native_slack,
    r"c = ([\d.]+) below float32": GENERIC_COEFFICIENT_LOW,
    r"below float32 and ([\d.]+) for float32": GENERIC_COEFFICIENT_FLOAT32,
    r"more than ([\d.e-]+) of the largest value for float32": RAW_LIMITS["float32"],
    r"([\d.]+) for float16": RAW_LIMITS["float16"],
    r"([\d.]+) for bfloat16": RAW_LIMITS["bfloat16"],
}


@pytest.mark.parametrize("pattern", NUMBERS)
def test_numbers_of_the_guide_are_those_of_the_code(pattern: str) -> None:
    text = " ".join(read("docs/verdicts.md").split())
    found = re.findall(pattern, text)
    assert [float(number) for number in found] == [NUMBERS[pattern]]


def test_perturbation_of_the_guide_is_that_of_the_code() -> None:
    scales = pytest.importorskip("precision_align.replay.scales")
    text = " ".join(read("docs/verdicts.md").split())
    assert scales.DRAWS == 3
    assert scales.STEP == 2.0**-20
    assert "three float64 replays with inputs perturbed by 2^-20" in text


def test_no_number_of_the_table_is_left_out() -> None:
    """Every figure in the table of tests is held against the code above."""
    table = re.search(r"^\| test \|.*?(?=^$)", read("docs/verdicts.md"), re.DOTALL | re.MULTILINE)
    assert table is not None
    rest = table.group()
    for pattern in NUMBERS:
        rest = re.sub(pattern, "", rest)
    assert re.findall(r"(?<![\w^])\d+(?:\.\d+)?", rest.replace("16 bits", "")) == []
