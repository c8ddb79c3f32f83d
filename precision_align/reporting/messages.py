"""Error messages in Chinese: a sentence for each frequent one, and what to do for every code.

Errors carry English text. The table holds the sentences that users meet most; a message that is not in it is shown as
it is, with its title and advice translated. Standard library only, and Python 3.9: the live verbs use it too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from precision_align.reporting.trainingtexts import TRAINING_SENTENCES

# code -> what to do next (English, Chinese); and the word by which an English message shows that it says so already
ADVICE = {
    "PA100": ("see --help", "用 --help 查看用法后重试"),
    "PA110": ("correct the file and try again", "请按所列问题修改文件后重试"),
    "PA200": ("check its path and permissions", "请检查路径与权限"),
    "PA201": (
        "'precision-align capture -o DUMP -- train.py' records a run",
        "请检查路径；用 precision-align capture -o DUMP -- train.py 录制一次运行",
    ),
    "PA202": ("record it again", "文件不完整或被改动过，请重新录制"),
    "PA203": ("name the folder that 'capture' wrote", "请给出 capture 写出的目录"),
    "PA204": (
        "upgrade with: pip install -U precision-align",
        "请升级：pip install -U precision-align",
    ),
    "PA205": ("compare two runs of the same model", "请确认两次运行使用的是同一个模型、并有共同的步骤"),
    "PA206": ("see 'precision-align loss --help'", "请看 precision-align loss --help 中支持的格式"),
    "PA207": ("name the model with --model, or see docs/recording.md", "用 --model 指明模型，或参阅 docs/recording.md"),
    "PA210": ("free some space, or name another place", "请释放空间，或写到别处"),
    "PA300": ("install it, or choose another", "请安装所缺组件，或换一种方式"),
    "PA999": (
        "run again with PRECISION_ALIGN_TRACEBACK=1 to see where",
        "设置 PRECISION_ALIGN_TRACEBACK=1 后重新运行可查看位置",
    ),
}
_SAID = {"PA201": "precision-align", "PA202": "again", "PA203": "name"}

# (English message, Chinese message); {fields} are taken over
SENTENCES: Sequence[tuple[str, str]] = (
    ("there is no dump at {path}", "{path} 处没有转储"),
    ("no file or folder at {path}", "{path} 处没有文件或目录"),
    ("the folder {path} is empty: name the folder that `capture` wrote", "目录 {path} 是空的"),
    ("the folder {path} holds no dump: name the folder that `capture` wrote", "目录 {path} 中没有转储"),
    (
        "{path} is not a dump: it is not an HDF5 file; name the folder that `capture` wrote",
        "{path} 不是转储：不是 HDF5 文件",
    ),
    ("{path} is an HDF5 file, but not a dump of this package", "{path} 是 HDF5 文件，但不是本工具的转储"),
    ("{path} is truncated or damaged: {reason}; record it again", "{path} 被截断或已损坏（{reason}）"),
    ("{path} is not complete: its writer was stopped; record it again", "{path} 不完整：写入过程被中断"),
    (
        "{path}: the table `{name}` was changed after it was written; record it again",
        "{path}：表 {name} 在写入后被改动过",
    ),
    ("{path}: the payload of {key} does not fit its hash; record it again", "{path}：{key} 的数据与其哈希不符"),
    ("{path} cannot be read: {reason}", "{path} 无法读取（{reason}）"),
    (
        "the two dumps have not one module in common: the candidate calls {ours}, the reference {theirs}. Are these "
        "runs of the same model?",
        "两个转储没有任何共同的模块：候选调用了 {ours}，参考调用了 {theirs}。两次运行是同一个模型吗？",
    ),
    (
        "{path} already holds a dump: choose another folder, --overwrite or --append",
        "{path} 中已有转储：请换一个目录，或加 --overwrite 或 --append",
    ),
    (
        "no script is given: end the command with -- script.py ARGUMENTS, or -- -m MODULE ARGUMENTS",
        "没有给出脚本：请在命令末尾写 -- script.py 参数，或 -- -m 模块 参数",
    ),
    ("there is no script {name} here ({folder})", "当前目录（{folder}）中没有脚本 {name}"),
    (
        "cannot read the steps {steps}: {part} is neither a number nor a range like 10-12",
        "无法理解步骤 {steps}：{part} 既不是数字，也不是 10-12 这样的范围",
    ),
    (
        "the following arguments are required: {names}. See '{command} --help'.",
        "缺少必需的参数：{names}。请看 '{command} --help'。",
    ),
    (
        "unrecognized arguments: {words}. Did you mean {near}? See '{command} --help'.",
        "无法识别的参数：{words}。是否想输入 {near}？请看 '{command} --help'。",
    ),
    ("unrecognized arguments: {words}. See '{command} --help'.", "无法识别的参数：{words}。请看 '{command} --help'。"),
    (
        "argument {name}: expected one argument. See '{command} --help'.",
        "参数 {name} 需要一个值。请看 '{command} --help'。",
    ),
    (
        "argument {name}: invalid choice: {given} (choose from {known}). See '{command} --help'.",
        "参数 {name} 的值 {given} 无效，可选：{known}。请看 '{command} --help'。",
    ),
    (
        "argument {name}: invalid int value: {given}. See '{command} --help'.",
        "参数 {name} 的值 {given} 不是整数。请看 '{command} --help'。",
    ),
    (
        "compare takes a reference and a candidate, not {count} dumps",
        "compare 需要一个参考和一个候选，而不是 {count} 个转储",
    ),
    (
        "compare needs REFERENCE and CANDIDATE, or a dump and the reference's code: --replay MODULE:FACTORY",
        "compare 需要 参考 和 候选 两个转储，或一个转储加参考代码：--replay MODULE:FACTORY",
    ),
    (
        "--replay {text}: write MODULE:FACTORY, for example train:build_model or model.py:GPT",
        "--replay {text}：请写成 MODULE:FACTORY，例如 train:build_model 或 model.py:GPT",
    ),
    (
        "--replay {text} ended the program ({call}) while it was imported; put what it runs under if __name__ == "
        "'__main__':",
        "--replay {text} 在导入时结束了程序（{call}）；请把要执行的代码放在 if __name__ == '__main__': 之下",
    ),
    (
        "code that was run for this command ended the program ({call}): there is no result",
        "为本命令运行的代码结束了程序（{call}）：没有结果",
    ),
    ("--replay {text}: {error}", "--replay {text}：{error}"),
    (
        "the replay factory {name} raised {error}; it is called without arguments and returns the reference's module",
        "重放工厂 {name} 抛出了 {error}；它应当无参数调用，并返回参考模型",
    ),
    ("the replay factory returned {type}, not a torch.nn.Module", "重放工厂返回了 {type}，而不是 torch.nn.Module"),
    (
        "no record's key contains {key}; 'precision-align show DUMP --limit 0' lists them",
        "没有键包含 {key} 的记录；precision-align show DUMP --limit 0 列出全部",
    ),
    ("there is no step {step} in this dump; it has {known}", "该转储中没有第 {step} 步；现有：{known}"),
    ("there is no rank {rank} in this dump; it has {known}", "该转储中没有进程 {rank}；现有：{known}"),
    ("no module fits --scope {scope}; there are {known}", "没有模块符合 --scope {scope}；现有：{known}"),
    ("{path} is not an empty folder: choose another one for the export", "{path} 不是空目录：请换一个目录导出"),
    (
        "{path}: no such file; 'precision-align compare ... -o report.json' writes one",
        "{path}：没有这个文件；用 precision-align compare ... -o report.json 生成",
    ),
    (
        "{path} is a folder, not a saved report; name a report.json, or look at a dump with 'show'",
        "{path} 是目录，不是保存的报告；请给出 report.json，或用 show 查看转储",
    ),
    (
        "{path}: not a saved report; 'precision-align compare ... -o report.json' writes one",
        "{path}：不是保存的报告；用 precision-align compare ... -o report.json 生成",
    ),
    (
        "{path}: the suffix {suffix} names no form of report; use .json, .html, .md (Markdown), .xml (JUnit), .csv or "
        ".xlsx (the table)",
        "{path}：后缀 {suffix} 不是报告格式；可用 .json、.html、.md、.xml（JUnit）、.csv 或 .xlsx（表格）",
    ),
    (
        "{count} records are more than an Excel sheet holds; use .csv",
        "{count} 条记录超出 Excel 工作表的容量；请用 .csv",
    ),
    (
        "Excel sheets need openpyxl: pip install 'precision-align[xlsx]' (.csv needs nothing, and Excel reads it)",
        "Excel 表格需要 openpyxl：pip install 'precision-align[xlsx]'（.csv 无需安装任何包，Excel 也能打开）",
    ),
    (
        "report needs RESULT.json, or --schema",
        "report 需要 RESULT.json，或 --schema",
    ),
    (
        "{path}: there is no folder {folder}; make it, or name another place",
        "{path}：目录 {folder} 不存在；请先创建，或换一个位置",
    ),
    ("cannot write to stdout: {reason}", "无法写入标准输出：{reason}"),
    (
        "this needs {name}, which is not installed: pip install {package}",
        "此功能需要 {name}，尚未安装：pip install {package}",
    ),
)

# reasons why a comparison ends without a verdict: the first note of such a report
REASONS: Sequence[tuple[str, str]] = (
    ("no output of the model and no optimizer step could be judged", "模型的输出和优化器更新都无法判定"),
    (
        "the runs differ, and what may be the cause could not be judged: {count} in all, first {place} ({why}); with "
        "the reference's code, --replay MODULE:FACTORY, more can be",
        "两次运行不同，而可能的起因无法判定：共 {count} 条，最早在 {place}（{why}）；"
        "用 --replay MODULE:FACTORY 给出参考代码可判定更多",
    ),
    (
        "{side}: {path}: the capture was not closed, later steps may be missing",
        "{side}：{path}：录制没有正常结束，之后的步骤可能缺失",
    ),
    (
        "{side}: {path}: {missing} of {all} files are missing{where}",
        "{side}：{path}：{all} 个文件中缺少 {missing} 个{where}",
    ),
    (
        "candidate: {scope} raised {error} in step {step} (call {call})",
        "候选：{scope} 在第 {step} 步（调用 {call}）抛出了 {error}",
    ),
)
_WORDS = {"candidate": "候选", "reference": "参考"}


def translate_message(text: str, language: str) -> str:
    """A message in ``language``: its Chinese sentence where the table has one, else the text as it is."""
    if language != "zh":
        return text
    for pattern, chinese in _compile_sentences():
        found = pattern.fullmatch(text)
        if found:
            return chinese.format(**{name: _WORDS.get(part, part) for name, part in found.groupdict().items()})
    return text


def advise(code: str, text: str, language: str) -> str:
    """What to do next; "" in English where ``text``, the message, says it already or stands for itself."""
    if code not in ADVICE:
        return ""
    english, chinese = ADVICE[code]
    if language == "zh":
        return chinese
    return english if code in _SAID and _SAID[code] not in text else ""


@lru_cache(maxsize=1)
def _compile_sentences() -> list[tuple[re.Pattern[str], str]]:
    return [(_compile(english), chinese) for english, chinese in (*SENTENCES, *REASONS, *TRAINING_SENTENCES)]


def _compile(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    names = [f"(?P<{part}>.+?)" if index % 2 else re.escape(part) for index, part in enumerate(parts)]
    return re.compile("".join(names), re.DOTALL)
