"""What a torch_npu wheel says of itself: operators and schemas, deprecations, CPU kernels, documented dtypes.

Read from the file as PyPI serves it (or from a folder it was unpacked to); nothing in it is imported or run, and no
CANN is needed. Where each fact stands was found by comparing nine wheels from 2.1.0.post8 to 2.14.0: the operator list
(``npu_native_functions_by_codegen.yaml``) holds every ``npu`` schema that the library registers, and the texts of its
deprecation and CPU-fallback warnings stand in ``libtorch_npu.so``.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from precision_align.core.errors import UsageError

OPERATOR_LIST = "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml"
LIBRARY = "torch_npu/lib/libtorch_npu.so"
DOCUMENTATION = "torch_npu/_op_plugin_docs.py"
ATB_LIST = "torch_npu/op_plugin/atb/_atb_ops.py"
VERSION = "torch_npu/version.py"
NAMESPACES = {"custom": "npu", "supported": "aten", "autograd": "aten"}

_DEPRECATED = re.compile(
    rb"torch_npu\.(\w+) is deprecated and will be removed in future version\.(?: Use ([\w. ]+?) instead\.)?"
)
_CPU_KERNEL = re.compile(
    rb"(?:kernel \[(?P<kernel>[\w.]+)\]|(?P<bare>[a-z_0-9]+(?:\.\w+)?)) is not supported by NPU currently"
    rb"\. ?Now this kernel is running on CPU"
    rb"|The operator (?P<list>'?aten::[\w.:, and']+?) (?:is (?:currently )?not|need to be met)"
)
_DTYPE = re.compile(  # ASCII: Chinese characters beside a name are no part of it
    r"\b(?:bool|u?int(?:4|8|16|32|64)|(?:hi)?float(?:8(?:_e\dm\d\w*)?|16|32|64)|bfloat16|complex(?:32|64|128))\b",
    re.ASCII,
)


@dataclass(frozen=True)
class Operator:
    """One overload. ``schema``: its text, or only its name where the list gives no more; ``kernels``: "acl_op" and the
    like, as far as the list names them.
    """

    name: str
    schema: str
    kernels: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """Name without namespace and overload."""
        return self.name.partition("::")[2].partition(".")[0]


@dataclass(frozen=True)
class Inventory:
    """All that was read from one wheel.

    ``operators``: "npu::name.overload" or "aten::..." -> Operator; ``deprecated``: name -> what to use instead (or "");
    ``cpu``: aten operators whose NPU kernel runs, or may run, on the CPU; ``dtypes``: name -> dtypes that its page in
    the wheel names; ``atb``: operators of the ATB package.
    """

    version: str
    revision: str
    operators: Mapping[str, Operator]
    deprecated: Mapping[str, str] = field(default_factory=dict)
    cpu: frozenset[str] = frozenset()
    dtypes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    atb: frozenset[str] = frozenset()


def read_wheel(path: str | Path) -> Inventory:
    """Read a wheel file, or a folder that holds ``torch_npu/``. Raises UsageError where it is neither."""
    source = _open(Path(path))
    listing = source.read(OPERATOR_LIST)
    if listing is None:
        raise UsageError(f"{path} is no torch_npu wheel: it holds no {OPERATOR_LIST}")
    version, revision = _read_version((source.read(VERSION) or b"").decode("utf-8", "replace"))
    library = source.read(LIBRARY) or b""
    return Inventory(
        version,
        revision,
        {operator.name: operator for operator in _read_operators(listing.decode("utf-8", "replace"))},
        _find_deprecated(library),
        _find_cpu_kernels(library),
        _find_dtypes((source.read(DOCUMENTATION) or b"").decode("utf-8", "replace")),
        _find_atb((source.read(ATB_LIST) or b"").decode("utf-8", "replace")),
    )


class _Folder:
    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, name: str) -> bytes | None:
        file = self.root / name
        return file.read_bytes() if file.is_file() else None


class _Archive:
    def __init__(self, path: Path) -> None:
        self.archive = zipfile.ZipFile(path)

    def read(self, name: str) -> bytes | None:
        try:
            return self.archive.read(name)
        except KeyError:
            return None


def _open(path: Path) -> _Folder | _Archive:
    if path.is_dir():
        return _Folder(path)
    try:
        return _Archive(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{path} is neither a wheel nor a folder ({error}): get one with "
            "pip download --no-deps --only-binary=:all: torch_npu==VERSION"
        ) from error


def _read_version(text: str) -> tuple[str, str]:
    found = dict(re.findall(r"^(__version__|git_version)\s*=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE))
    return found.get("__version__", "unknown"), found.get("git_version", "")


def _read_operators(text: str) -> Iterable[Operator]:
    """Generated YAML of one shape, an entry "- func: schema" with plain keys below: no YAML reader is needed."""
    section, entry = "", {}
    entries: list[tuple[str, dict[str, str]]] = []
    for line in text.splitlines():
        head = re.match(r"([a-z_]+):", line)
        if head:
            section = head[1]
        elif line.startswith("- "):
            entry = _start_entry(line[2:])
            entries.append((section, entry))
        elif line.startswith("  ") and not line.startswith("   "):
            key, _, value = line.strip().partition(":")
            entry[key] = value.strip()
    for name, fields in entries:
        schema = fields.get("func", "").strip("'\"")
        if name in NAMESPACES and schema:
            kernels = tuple(part.strip() for part in fields.get("impl_ns", "").split(",") if part.strip())
            yield Operator(f"{NAMESPACES[name]}::{schema.partition('(')[0].strip()}", schema, kernels)


def _start_entry(text: str) -> dict[str, str]:
    key = re.match(r"(\w+):(?= |$)", text)
    return {key[1]: text[key.end() :].strip()} if key else {"func": text.strip()}


def _find_deprecated(library: bytes) -> dict[str, str]:
    hits = _DEPRECATED.finditer(library)
    return {hit[1].decode(): (hit[2] or b"").decode().strip() for hit in hits}


def _find_cpu_kernels(library: bytes) -> frozenset[str]:
    names: set[str] = set()
    for hit in _CPU_KERNEL.finditer(library):
        if hit["list"]:
            names.update(re.findall(r"aten::([\w.]+)", hit["list"].decode()))
        else:
            names.add((hit["kernel"] or hit["bare"]).decode())
    return frozenset(names)


def _find_dtypes(source: str) -> dict[str, frozenset[str]]:
    """From the pages' free text: a hint of what was tested, not a limit (see the facts on doc and registration)."""
    found: dict[str, frozenset[str]] = {}
    for call in _list_calls(source):
        if len(call.args) == 2 and all(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in call.args):
            name, text = (str(argument.value) for argument in call.args if isinstance(argument, ast.Constant))
            lines = [line for line in text.splitlines() if "数据类型" in line or "dtype" in line.lower()]
            found[name] = frozenset(_DTYPE.findall("\n".join(lines).lower()))
    return found


def _list_calls(source: str) -> list[ast.Call]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    return [node.value for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]


def _find_atb(source: str) -> frozenset[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return frozenset()
    lists = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)]
    items = [item.value for node in lists for item in node.elts if isinstance(item, ast.Constant)]
    return frozenset(str(item) for item in items if "npu" in str(item))
