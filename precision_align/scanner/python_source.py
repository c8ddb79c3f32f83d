"""Python source by its syntax tree: comments, docstrings and look-alike names of other packages are no hits."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from precision_align.scanner.matching import Call, RuleIndex
from precision_align.scanner.rules import Rule

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
MODULES = frozenset({"torch.cuda", "torch.nn", "torch.nn.functional", "torch.distributed", "torch.cuda.amp"})
_IMPORTERS = ("importlib.import_module", "importlib.util.find_spec", "__import__")


@dataclass(frozen=True)
class Hit:
    """A rule met at a place; lines from 1, columns from 0."""

    rule: Rule
    line: int
    column: int
    name: str


def parse_python(text: str) -> ast.Module:
    """Raises SyntaxError, ValueError. Warnings about the user's source (invalid escapes) are none of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def scan_python(tree: ast.Module, index: RuleIndex, local: frozenset[str] = frozenset()) -> list[Hit]:
    """``local``: names of packages that lie in the tree being scanned: their imports are the user's own code."""
    return _Scan(index, collect_aliases(tree), local).run(tree)


def collect_aliases(tree: ast.Module) -> dict[str, str]:
    """Local name -> full name, for every import of the file, and for assignments like ``cuda = torch.cuda``.

    Relative imports keep their dots and so match nothing.
    """
    aliases: dict[str, str] = {}
    for node in _list_bindings(tree.body):
        if isinstance(node, ast.Assign):
            _bind_assignment(node, aliases)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                aliases[alias.asname or top] = alias.name if alias.asname else top
        else:
            package = "." * node.level + (node.module or "")
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{package}.{alias.name}"
    return aliases


def _list_bindings(body: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom | ast.Assign]:
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign)):
            yield node
            continue
        for name in _BLOCKS:
            inner = getattr(node, name, None)
            if isinstance(inner, list):
                yield from _list_bindings(inner)


def _bind_assignment(node: ast.Assign, aliases: dict[str, str]) -> None:
    """A module of torch under another name."""
    target = node.targets[0]
    if len(node.targets) == 1 and isinstance(target, ast.Name) and isinstance(node.value, ast.Attribute):
        name, imported = resolve(node.value, aliases)
        if imported and name in MODULES:
            aliases[target.id] = name


def resolve(node: ast.expr, aliases: Mapping[str, str]) -> tuple[str, bool]:
    """Dotted text of a name or an attribute chain, and whether its head is an import: ("torch.cuda.Stream", True)."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ".".join(reversed(parts)), False
    head = aliases.get(node.id)
    return ".".join([head if head is not None else node.id, *reversed(parts)]), head is not None


class _Scan:
    """One walk over one tree. ``explained``: ids of nodes that a hit of their parent accounts for already."""

    def __init__(self, index: RuleIndex, aliases: Mapping[str, str], local: frozenset[str]) -> None:
        self.index, self.aliases, self.local = index, aliases, local
        self.hits: list[Hit] = []
        self.explained: set[int] = set()
        self.handlers: dict[type[ast.AST], Callable[[Any], None]] = {
            ast.Import: self._see_import,
            ast.ImportFrom: self._see_import_from,
            ast.Attribute: self._see_attribute,
            ast.Name: self._see_name,
            ast.Call: self._see_call,
            ast.Compare: self._see_compare,
            ast.Subscript: self._see_subscript,
            ast.Constant: self._see_constant,
            ast.JoinedStr: self._see_fstring,
            ast.ClassDef: self._see_class,
            ast.FunctionDef: self._see_function,
            ast.AsyncFunctionDef: self._see_function,
            ast.Expr: self._see_expression,
        }

    def run(self, tree: ast.Module) -> list[Hit]:
        stack: list[ast.AST] = [tree]
        while stack:
            node = stack.pop()
            handler = self.handlers.get(type(node))
            if handler is not None:
                handler(node)
            if not isinstance(node, ast.Attribute) or id(node) not in self.explained:
                stack.extend(ast.iter_child_nodes(node))
        return sorted(self.hits, key=lambda hit: (hit.line, hit.column))

    def _add(self, rule: Rule | None, node: ast.AST, name: str) -> bool:
        if rule is None:
            return False
        self.hits.append(Hit(rule, getattr(node, "lineno", 1), getattr(node, "col_offset", 0), name))
        return True

    def _is_local(self, name: str) -> bool:
        return name.startswith(".") or name.partition(".")[0] in self.local

    def _see_import(self, node: ast.Import) -> None:
        for alias in node.names:
            if not self._is_local(alias.name):
                rule = self.index.find_import(alias.name) or self.index.find_name(alias.name)
                self._add(rule, node, alias.name)

    def _see_import_from(self, node: ast.ImportFrom) -> None:
        if node.level or not node.module or self._is_local(node.module):
            return
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            self._add(self.index.find_import(full) or self.index.find_name(full), node, full)

    def _see_attribute(self, node: ast.Attribute) -> None:
        name, imported = resolve(node, self.aliases)
        if imported:
            self.explained.add(id(node))
            if not self._is_local(name):
                self._add(self.index.find_name(name), node, name)
            return
        receiver = name.rpartition(".")[0].rpartition(".")[2]
        self._add(self.index.find_attribute(receiver, node.attr), node, node.attr)

    def _see_name(self, node: ast.Name) -> None:
        full = self.aliases.get(node.id)
        if full is not None and "." in full and not self._is_local(full) and isinstance(node.ctx, ast.Load):
            self._add(self.index.find_name(full), node, full)

    def _see_call(self, node: ast.Call) -> None:
        name, imported = resolve(node.func, self.aliases)
        last = name.rpartition(".")[2]
        importer = (name if imported else last) in _IMPORTERS
        if not importer and not self.index.may_match(name, last, (keyword.arg for keyword in node.keywords)):
            return
        call = self._describe(node, name, imported)
        if importer and self._see_import_call(node, call):
            return
        hit = self.index.find_call(call)
        hits = [hit] if hit else []
        taken = {name for h in hits for name in h.named}
        hits += [h for h in self.index.find_keywords(call) if not taken.intersection(h.named)]
        named = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        for found in hits:
            self._add(found.rule, node, call.name or call.last)
            for value in (*(node.args[i] for i in found.positional), *(named[name] for name in found.named)):
                self._explain(value)

    def _see_import_call(self, node: ast.Call, call: Call) -> bool:
        """importlib.import_module("flash_attn") is an import."""
        name = call.positional[0] if call.positional else ""
        return not self._is_local(name) and self._add(self.index.find_import(name), node, name)

    def _explain(self, node: ast.expr) -> None:
        """A literal that a rule for its call accounts for; a call or a name inside may still be a hit of its own."""
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            self.explained.add(id(node))

    def _describe(self, node: ast.Call, name: str, imported: bool) -> Call:
        is_method = isinstance(node.func, ast.Attribute) and not imported
        full = name if imported and not self._is_local(name) else ""
        return Call(
            full,
            name.rpartition(".")[2],
            is_method,
            [self._render(argument) for argument in node.args],
            {keyword.arg: self._render(keyword.value) for keyword in node.keywords if keyword.arg},
        )

    def _render(self, node: ast.expr) -> str:
        """An argument as text: see :class:`~precision_align.scanner.matching.Call`."""
        if isinstance(node, ast.Constant):
            is_int = isinstance(node.value, int) and not isinstance(node.value, bool)
            return "<int>" if is_int else str(node.value)
        if isinstance(node, ast.JoinedStr):
            return _read_head(node)
        if isinstance(node, ast.Lambda):
            return "<lambda>"
        target = node.func if isinstance(node, ast.Call) else node
        return resolve(target, self.aliases)[0] if isinstance(target, (ast.Name, ast.Attribute)) else ""

    def _see_compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        literals = [literal for side in sides for literal in _list_literals(side)]
        if any(str(literal.value).partition(":")[0] in ("npu", "hccl") for literal in literals):
            for literal in literals:  # asks for NPU too: ported already
                self.explained.add(id(literal))
            return
        for literal in literals:
            rule = self.index.find_compared(str(literal.value))
            if rule is not None:
                self.explained.add(id(literal))
                self._add(rule, node, str(literal.value))

    def _see_subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            last = resolve(node.value, self.aliases)[0].rpartition(".")[2]
            if self._add(self.index.find_subscript(last, node.slice.value), node, f"{last}[{node.slice.value!r}]"):
                self.explained.add(id(node.slice))

    def _see_constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and id(node) not in self.explained:
            self._add(self.index.find_string(node.value), node, node.value)

    def _see_fstring(self, node: ast.JoinedStr) -> None:
        for part in node.values:
            self.explained.add(id(part))
        if id(node) not in self.explained:
            self._add(self.index.find_string(_read_head(node)), node, _read_head(node))

    def _see_class(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            name, imported = resolve(base, self.aliases)
            if imported:
                self._add(self.index.find_base(name), node, name)

    def _see_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = resolve(target, self.aliases)[0]
            self._add(self.index.find_decorator(name), decorator, name)

    def _see_expression(self, node: ast.Expr) -> None:
        """A literal that stands alone is a docstring or a comment."""
        self._explain(node.value)


def _read_head(node: ast.JoinedStr) -> str:
    """The literal beginning of an f-string: "cuda:" of f"cuda:{index}"."""
    first = node.values[0] if node.values else None
    return str(first.value) if isinstance(first, ast.Constant) else ""


def _list_literals(node: ast.expr) -> list[ast.Constant]:
    """The text itself, or those of a tuple, list or set of texts."""
    items = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    return [item for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
