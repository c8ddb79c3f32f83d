"""The command as a whole: help, mistakes, languages, pipes, crashes."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from precision_align import __version__
from precision_align.cli import app
from precision_align.cli.failures import is_full, phrase_error, recognize
from precision_align.cli.parsers import suggest
from precision_align.core import errors
from precision_align.reporting.languages import TEXTS, detect_language, say
from precision_align.reporting.messages import ADVICE


def test_help_lists_every_verb_with_its_summary(command: Any) -> None:
    for words in ((), ("--help",), ("-h",), ("--lang", "en", "--help")):
        outcome = command(*words)
        assert (outcome.status, outcome.err) == (0, "")
        for verb in app.VERBS:
            assert f"  {verb} " in outcome.out
            assert say("en", f"verb.{verb}") in outcome.out
    assert max(len(line) for line in outcome.out.splitlines()) <= 80


@pytest.mark.parametrize("verb", app.VERBS)
def test_every_verb_is_a_module_whose_summary_is_the_one_in_the_help(verb: str) -> None:
    module = import_module(f"precision_align.cli.{verb}")
    assert say("en", f"verb.{verb}") == module.SUMMARY
    assert callable(module.add_arguments)
    assert callable(module.run)


@pytest.mark.parametrize("verb", app.VERBS)
def test_help_of_a_verb(command: Any, verb: str) -> None:
    outcome = command(verb, "--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"usage: precision-align {verb}")
    assert "--json" in outcome.out


@pytest.mark.parametrize("words", [["--help"], ["--version"], *([verb, "--help"] for verb in app.VERBS)])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys; from precision_align.cli.app import main; status = main(sys.argv[1:]); "
        "heavy = [name for name in ('numpy', 'h5py', 'torch', 'jinja2') if name in sys.modules]; "
        "sys.exit(f'loaded {heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_version(command: Any) -> None:
    assert command("--version").out == f"precision-align {__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shwo", "x"], "Did you mean 'show'?"),
        (["Compare", "a", "b"], "Did you mean 'compare'?"),
        (["qqqq"], "there is no verb 'qqqq'. See 'precision-align --help'."),
        (["--jsn", "show"], "Did you mean '--json'?"),
        (["--lang", "fr", "show", "x"], "--lang takes en or zh, not 'fr'"),
        (["--lang"], "--lang takes en or zh"),
        (["--json"], "no verb is given"),
        (["report"], "report needs RESULT.json"),
        (["report", "x.json", "--jsn"], "Did you mean '--json'?"),
        (["report", "x.json", "y.json"], "unrecognized arguments: y.json"),
        (["report", "x.json", "--lang", "fr"], "choose from"),
        (["report", "x.json", "-o"], "expected one argument"),
        (["show", "x", "--limit", "many"], "invalid int value"),
        (["show", "x", "--limit", "-3"], "--limit takes"),
        (["show", "x", "--format", "csv"], "choose from"),
        (["compare", "a", "b", "c"], "not 3 dumps"),
        (["compare", "a"], "compare needs REFERENCE and CANDIDATE"),
        (["compare", "a", "b", "--min-coverage", "2"], "'2' is not a share between 0 and 1"),
        (["compare", "a", "b", "--min-coverage", "half"], "'half' is not a share"),
        (["compare", "a", "--replay", "model"], "write MODULE:FACTORY"),
        (["compare", "a", "--replay", "no_such_module:x"], "No module named 'no_such_module'"),
        (["compare", "a", "b", "-o", "x.pdf"], "names no form of report"),
        (["compare", "a", "b", "-o", "no/where.html"], "there is no folder no"),
        (["doctor", "--device", "tpu"], 'Unknown device "tpu"'),
    ],
)
def test_wrong_use_is_told_with_its_code(command: Any, words: list[str], said: str) -> None:
    outcome = command(*words)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("error [PA100] ")
    assert said in outcome.err


@pytest.mark.parametrize("verb", ["report", "show", "compare"])
def test_missing_file(command: Any, verb: str) -> None:
    words = ["a", "b"] if verb == "compare" else ["a"]
    outcome = command(verb, *words)
    assert (outcome.status, outcome.out) == (3, "")
    assert outcome.err.startswith("error [PA201] ")


def test_languages(command: Any) -> None:
    chinese = command("--lang", "zh", "--help").out
    assert "用法" in chinese
    assert say("zh", "verb.compare") in chinese
    assert command("--help", LANG="zh_CN.UTF-8").out == chinese
    assert command("--help", LANG="zh_CN.UTF-8", LC_ALL="C.UTF-8").out == command("--help").out
    refused = command("shwo", LANG="zh_CN.UTF-8")
    assert refused.err.startswith("错误 [PA100] 命令行或调用有误")
    assert "是否想输入 'show'" in refused.err
    assert "没有" not in command("shwo", "--lang", "en", LANG="zh_CN.UTF-8").err


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "latin-1"])
def test_any_terminal_encoding(command: Any, findings: ModuleType, encoding: str) -> None:
    folder = command.folder / "目录 é"
    folder.mkdir()
    path = findings.make_diverged().save(folder / "结果.json")
    for language in ("en", "zh"):
        for words, status in (("report", path), 0), (("report", folder / "无.json"), 3):
            program = [sys.executable, "-m", "precision_align", *map(str, words), "--lang", language]
            assert command.launch(program, (), {"PYTHONIOENCODING": encoding}).status == status


def test_closed_pipe_is_quiet(command: Any, findings: ModuleType) -> None:
    path = findings.make_diverged(records=findings.make_records(60, 20)).save(command.folder / "r.json")
    done = command.launch(
        ["bash", "-c", '"$0" "$@" | head -c 10; exit ${PIPESTATUS[0]}', sys.executable, "-m", "precision_align"],
        ("report", path, "--json"),
        {},
    )
    assert (done.status, done.out, done.err) == (app.PIPE_CLOSED, '{\n "format"'[:10], "")


def test_unexpected_error_is_one_line_and_traceback_on_request(command: Any) -> None:
    code = (
        "import sys; from precision_align.cli import app, report; "
        "report.run = lambda arguments: 1 / 0; sys.exit(app.main(['report', 'x']))"
    )
    short = command.run_python("-c", code)
    assert short.status == app.CRASHED
    assert short.err.count("\n") == 1
    assert short.err.startswith("error [PA999] unexpected ZeroDivisionError: division by zero.")
    assert "PRECISION_ALIGN_TRACEBACK=1" in short.err
    long = command.run_python("-c", code, PRECISION_ALIGN_TRACEBACK="1")
    assert "Traceback (most recent call last)" in long.err


def test_missing_package_is_named(command: Any, tmp_path: Path) -> None:
    file = tmp_path / "step00000000-00000000.part000.h5"
    file.write_bytes(b"\x89HDF\r\n\x1a\n")
    code = (
        "import sys; sys.modules['h5py'] = None; from precision_align.cli import app; "
        f"sys.exit(app.main(['show', {str(file)!r}, '--lang', 'en']))"
    )
    outcome = command.launch([sys.executable, "-c", code], (), {})
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err == "error [PA300] this needs h5py, which is not installed: pip install h5py\n"
    assert recognize(ModuleNotFoundError("No module named 'mine'", name="mine")) is None


def test_interrupt_is_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from precision_align.cli import report

    def interrupt(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "run", interrupt)
    assert app.main(["report", "x", "--lang", "en"]) == app.INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


def find_errors(kind: type[errors.PrecisionAlignError]) -> list[type[errors.PrecisionAlignError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in find_errors(child))]


@pytest.mark.parametrize("kind", find_errors(errors.PrecisionAlignError)[1:])
def test_every_error_has_a_code_and_a_chinese_title_and_advice(kind: type[errors.PrecisionAlignError]) -> None:
    shown = phrase_error(kind("what: where"), "zh")
    title = say("zh", f"title.{kind.code}")
    assert shown == f"错误 [{kind.code}] {title}：what: where。建议：{ADVICE[kind.code][1]}"
    assert phrase_error(kind("what: where"), "en").startswith(f"error [{kind.code}] what: where")


def test_both_languages_take_the_same_values() -> None:
    import string

    for key, texts in TEXTS.items():
        fields = [{name for _, name, _, _ in string.Formatter().parse(text) if name} for text in texts]
        assert fields[0] == fields[1], key
        assert all(texts), key


@pytest.mark.parametrize(
    ("variables", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "ZH"}, "zh"),
        ({"LANG": "zh_CN", "LC_ALL": "en_US"}, "en"),
        ({"LANG": "en_US", "LC_MESSAGES": "zh_TW.UTF-8"}, "zh"),
        ({"LANG": "C"}, "en"),
        ({"LANG": ""}, "en"),
    ],
)
def test_language_of_the_locale(variables: dict[str, str], language: str) -> None:
    assert detect_language(variables) == language


def test_suggestions() -> None:
    assert suggest("compair", app.VERBS) == "Did you mean 'compare'?"
    assert suggest("zzz", app.VERBS) == ""


def test_options_stand_anywhere(command: Any, findings: ModuleType) -> None:
    path = findings.make_aligned().save(command.folder / "r.json")
    answers = [command("--json", "report", path), command("report", "--json", path), command("report", path, "--json")]
    assert {answer.status for answer in answers} == {0}
    assert len({answer.out for answer in answers}) == 1
    assert json.loads(answers[0].out)["verdict"] == "aligned"


def test_main_returns_the_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["show", str(tmp_path / "nothing")]) == 3
    assert app.main(["--version"]) == 0
    assert app.main(["show", "--help"]) == 0
    assert capsys.readouterr().out.startswith("precision-align ")


def test_code_of_the_user_that_leaves_decides_no_status(command: Any) -> None:
    for call, shown in (
        ("sys.exit(0)", "sys.exit(0)"),
        ("sys.exit()", "sys.exit()"),
        ("sys.exit('x')", "sys.exit('x')"),
    ):
        code = (
            "import sys; from precision_align.cli import app, report; "
            f"report.run = lambda arguments: {call}; sys.exit(app.main(['report', 'x', '--lang', 'en']))"
        )
        outcome = command.run_python("-c", code)
        assert (outcome.status, outcome.out) == (2, "")
        assert f"ended the program ({shown}): there is no result" in outcome.err


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", ["--help", "--version", "report r.json", "report r.json --json", "doctor"])
def test_full_stdout(command: Any, findings: ModuleType, words: str) -> None:
    findings.make_diverged().save(command.folder / "r.json")
    program = ["bash", "-c", f'"$0" -m precision_align {words} > {FULL}', sys.executable]
    outcome = command.launch(program, (), {"LANG": "C.UTF-8"})
    assert outcome.status == 3
    assert outcome.err == "error [PA210] cannot write to stdout: no space left on device\n"
    chinese = command.launch(program, (), {"LANG": "zh_CN.UTF-8"})
    assert chinese.err.startswith("错误 [PA210] 磁盘已满：无法写入标准输出：")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("where", [f"2>{FULL}", "2>&-"])
def test_stderr_that_takes_nothing_changes_no_status(command: Any, where: str) -> None:
    outcome = command.launch(["bash", "-c", f'"$0" -m precision_align show nothing {where}', sys.executable], (), {})
    assert (outcome.status, outcome.out, outcome.err) == (3, "", "")


def test_closed_stdout_changes_no_status(command: Any) -> None:
    outcome = command.launch(["bash", "-c", '"$0" -m precision_align --version >&-', sys.executable], (), {})
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")


def test_a_path_that_is_nearly_right(command: Any, findings: ModuleType) -> None:
    findings.make_aligned().save(command.folder / "result.json")
    (command.folder / "runs").mkdir()
    (command.folder / "runs" / "candidate").mkdir()
    assert "Did you mean 'result.json'?" in command("report", "resutl.json").err
    assert "Did you mean 'runs/candidate'?" in command("show", "runs/candidat").err
    assert "是否想输入 'runs/candidate'？" in command("show", "runs/candidat", "--lang", "zh").err
    far = command("show", "qqqq").err
    assert far.startswith("error [PA201] there is no dump at qqqq; 'precision-align capture -o DUMP -- train.py'")
    chinese = command("show", "qqqq", "--lang", "zh").err
    assert chinese.startswith("错误 [PA201] 路径不存在：qqqq 处没有转储。建议：")


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (
            RuntimeError("Unable to flush (file write failed: errno = 28, error message = 'No space left on device')"),
            True,
        ),
        (OSError("24576 requested and 10208 written"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (RuntimeError("errno = 285"), False),
        (ValueError("no"), False),
    ],
)
def test_full_disks_are_recognized(error: Exception, full: bool) -> None:
    assert is_full(error) is full
    outer = RuntimeError("flush failed")
    outer.__context__ = error
    assert is_full(outer) is full
    known = recognize(outer)
    assert (known is not None and known.code == "PA210") is full
