"""C++, CUDA, build files, shell, Docker, configuration and requirements: by pattern, line by line, without comments."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from pathlib import PurePath

from precision_align.scanner.matching import RuleIndex
from precision_align.scanner.python_source import Hit

PYTHON = "python"
_BY_SUFFIX = {
    ".py": PYTHON,
    ".pyi": PYTHON,
    **dict.fromkeys((".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hh", ".hpp", ".inl"), "cpp"),
    **dict.fromkeys((".cmake", ".mk", ".bazel", ".bzl"), "build"),
    **dict.fromkeys((".sh", ".bash", ".zsh", ".slurm", ".sbatch"), "shell"),
    **dict.fromkeys((".yaml", ".yml", ".json", ".ini", ".cfg", ".conf"), "config"),
    ".toml": "config",
}
_BY_NAME = (
    ("CMakeLists.txt", "build"),
    ("Makefile*", "build"),
    ("BUILD", "build"),
    ("WORKSPACE", "build"),
    ("Dockerfile*", "docker"),
    ("*.dockerfile", "docker"),
    ("*requirements*.txt", "requirements"),
    ("*requirements*.in", "requirements"),
    ("environment*.yml", "requirements"),
    ("environment*.yaml", "requirements"),
    ("pyproject.toml", "requirements"),
    ("setup.cfg", "requirements"),
)
# an #include keeps its text; else comments and literals go, line breaks stay
_CPP_NOISE = re.compile(
    r"(?P<include>^[ \t]*\#[ \t]*include[^\n]*)|//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'",
    re.MULTILINE | re.DOTALL,
)
_HASH_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")


def classify(path: str) -> str:
    """Kind of a file by its name: "python", one of the rules' kinds, or "" for what is not read."""
    pure = PurePath(path)
    for pattern, kind in _BY_NAME:
        if fnmatch.fnmatchcase(pure.name, pattern):
            return kind
    return _BY_SUFFIX.get(pure.suffix.lower(), "")


def scan_text(text: str, kind: str, path: str, index: RuleIndex) -> Iterator[Hit]:
    """Hits of one file; at most one a line and rule."""
    suffix = PurePath(path).suffix.lower()
    if suffix in index.suffixes:
        yield Hit(index.suffixes[suffix], 1, 0, PurePath(path).name)
    for number, line in enumerate(strip_comments(text, kind).splitlines(), 1):
        if line.strip():
            for rule, found in index.find_text(kind, line):
                yield Hit(rule, number, found.start(), found.group().strip())


def strip_comments(text: str, kind: str) -> str:
    """The text with comments blanked, and for C++ literals too; the number of lines stays."""
    if kind == "cpp":
        return _CPP_NOISE.sub(lambda found: found["include"] or "\n" * found.group().count("\n") or " ", text)
    if kind in ("shell", "docker", "requirements", "build") or (kind == "config" and not _is_json(text)):
        return "\n".join(_HASH_COMMENT.sub("", line) for line in text.splitlines())
    return text


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")
