"""A dump without data: what reveals values, or where and by whom it was made, is taken out before it is packed.

Left are shapes, dtypes, strides, the structure of calls and arguments, classes of torch, operators of torch, and, with
a secret that both sides keep, hashes of tensors and stand-ins of names: equal ones are equal, and no more can be told.
A plain hash of a small tensor, or a plain hash of a likely name, would be found by trying all that it may be of. For
the same reason no sketch is kept: of a tensor with fewer elements than buckets it is the tensor itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from precision_align.core.dtypes import DTYPES
from precision_align.core.errors import NothingInCommon, UsageError
from precision_align.core.keys import Key
from precision_align.core.records import FUNCTION_SCOPE, OPERATOR_SCOPE, OPTIMIZER_SCOPE, Call, Point, RunInfo
from precision_align.core.terms import Tier
from precision_align.core.trees import Tree
from precision_align.core.wrappers import WRAPPER_PARTS
from precision_align.storage.entries import Entry
from precision_align.storage.handles import create_file

NO_DATA = "no_data"  # in RunInfo.capture
REASON = "left out by pack --no-data"
_KEY_BYTES = 32
_TOKEN_BYTES = 6  # 48 bits: of a million names two are the same with a chance of 2 in 1000
_PLACE_DIGITS = 3  # of numbers that stay: of layers and list items, few have 1000
# The parts of paths that this package makes, and torch's own names of parameters and buffers.
_OWN_PARTS = frozenset(
    [
        "args",
        "kwargs",
        "input",
        "output",
        "parameter",
        "before",
        "after",
        "written",
        "last",
        "loss",
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "num_batches_tracked",
        "in_proj_weight",
        "in_proj_bias",
        "exp_avg",
        "exp_avg_sq",
        "momentum_buffer",
        "step",
    ]
)
_OPEN_CLASSES = re.compile(r"(torch|builtins|collections|optimizer)\.[\w.]+")
_OPEN_OPERATORS = re.compile(r"(aten\.|torch\.nn\.functional\.|torch\.)[a-z0-9_.]+(?<!\.)")
_SAFE_EXTRA = ("share", "shared", "recomputed", "expanded")
_SAFE_MODES = ("inference", "phase", "module_call", "computes")
_SOURCES = frozenset({"modules", "gradients", "parameters", "optimizer", "operators", "functions"})
_DTYPES = frozenset(DTYPES)
_LAYOUTS = frozenset({"strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "nested"})
_DEVICES = frozenset({"cpu", "cuda", "npu", "xpu", "mps", "hpu", "meta", "privateuseone"})
_SCALARS = {"float": "float", "complex": "complex", "slice": "slice", "ellipsis": "ellipsis", "torch.Size": "tuple"}
_VERSION = re.compile(r"\d+(\.\d+)*")
_PREFIXES = (OPERATOR_SCOPE, FUNCTION_SCOPE, OPTIMIZER_SCOPE)
SCRIPT_SCOPE = "(script)"


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """The secret of a file, 32 bytes; made, mode 0600, where there is none. Raises UsageError for anything else."""
    place = Path(path)
    try:
        if not place.exists():
            descriptor = create_file(place, os.O_WRONLY | os.O_EXCL)
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.urandom(_KEY_BYTES))
            place.chmod(0o600)
        data = place.read_bytes()
    except OSError as error:
        raise UsageError(f"the key file {place} cannot be used: {error.strerror}") from error
    if len(data) != _KEY_BYTES:
        raise UsageError(f"{place} is no key file of ours, it has {len(data)} bytes: name a new file, and it is made")
    return data


class Redactor:
    """Implements :class:`~precision_align.storage.rewriting.Redaction`.

    ``secret``: None for no hashes at all, and names that mean nothing to anybody; ``keep_names``: of modules, classes,
    operators and arguments.
    """

    def __init__(self, secret: bytes | None, keep_names: bool = False) -> None:
        self._secret = os.urandom(_KEY_BYTES) if secret is None else secret
        self._hashes, self._keep_names = secret is not None, keep_names
        self._known: dict[str, str] = {}

    def _hash(self, data: bytes, size: int) -> bytes:
        return hashlib.blake2b(data, key=self._secret, digest_size=size).digest()

    def save_names(self, path: Path) -> None:
        """Add stand-ins and what they stand for to a JSON file, mode 0600: who keeps the secret keeps this too."""
        try:
            known = json.loads(path.read_text("utf-8")) if path.exists() else {}
            known.update({token: text for text, token in self._known.items()})
            with os.fdopen(create_file(path, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
                file.write(json.dumps(dict(sorted(known.items())), indent=1))
            path.chmod(0o600)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the names cannot be written to {path}: {error}; remove it, or name another key"
            ) from error

    def _token(self, text: str) -> str:
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = "x" + self._hash(text.encode("utf-8", "surrogatepass"), _TOKEN_BYTES).hex()
        return found

    # Names

    def scope(self, text: str) -> str:
        """A module's path, behind the prefix that operators and functions have."""
        for prefix in _PREFIXES:
            if text.startswith(prefix):
                return prefix + self.scope(text[len(prefix) :])
        return self._dotted(text, WRAPPER_PARTS) if text != SCRIPT_SCOPE else text

    def _dotted(self, text: str, known: Iterable[str]) -> str:
        if self._keep_names:
            return text
        return ".".join(part if part in known or _is_number(part) else self._token(part) for part in text.split("."))

    def path(self, text: str) -> str:
        """A place in an argument structure, or the local name of a parameter."""
        return self._dotted(text, _OWN_PARTS)

    def class_name(self, text: str) -> str:
        """A class of torch or Python keeps its name."""
        return text if not text or self._keep_names or _OPEN_CLASSES.fullmatch(text) else self._token(text)

    def operator(self, text: str) -> str:
        """An operator of torch keeps its name."""
        return text if not text or self._keep_names or _OPEN_OPERATORS.fullmatch(text) else self._token(text)

    # What a dump holds

    def entry(self, entry: Entry) -> Entry:
        """Shape, dtype and strides, and a hash under the secret."""
        record = entry.draft
        digest = self._hash(entry.digest, len(entry.digest)) if entry.digest and self._hashes else b""
        left = replace(
            record,
            key=self._key(record.key),
            dtype=record.dtype if record.dtype in _DTYPES else "unknown",
            layout=record.layout if record.layout in _LAYOUTS else "other",
            device=_device_kind(record.device),
            reason=REASON,
            extra={name: True for name in _SAFE_EXTRA if record.extra.get(name)},
        )
        return Entry(left, Tier.FINGERPRINT, digest, None, entry.nbytes, REASON)

    def _key(self, key: Key) -> Key:
        return replace(key, scope=self.scope(key.scope), op=self.operator(key.op), path=self.path(key.path))

    def call(self, call: Call) -> Call:
        """Its place and structure."""
        kind = self.operator(call.kind) if call.scope.startswith(_PREFIXES[:2]) else self.class_name(call.kind)
        return replace(
            call,
            scope=self.scope(call.scope),
            kind=kind,
            arguments=self.tree(call.arguments),
            output=self.tree(call.output),
            attributes=None,
            autocast={
                device: dtype for device, dtype in call.autocast.items() if device in _DEVICES and dtype in _DTYPES
            },
            modes={name: call.modes[name] for name in _SAFE_MODES if _is_safe_mode(call.modes.get(name))},
            source="",
            error="an error was raised" if call.error else "",
        )

    def tree(self, tree: Tree) -> Tree:
        """The nesting: of what is no tensor and no container only the type."""
        kind = tree["kind"]
        if kind == "tensor":
            return {"kind": "tensor", "path": self.path(tree["path"])}
        if kind == "scalar":
            return {"kind": "object", "class": f"builtins.{type(tree['value']).__name__}"}
        if kind in _SCALARS:
            return {"kind": "object", "class": f"builtins.{_SCALARS[kind]}"}
        if kind.startswith("torch."):
            return {"kind": "object", "class": kind}
        left: dict[str, Any] = {"kind": kind, "class": self.class_name(tree.get("class", ""))}
        if "keys" in tree:
            left["keys"] = [self._tree_key(key) for key in tree["keys"]]
        if "items" in tree:
            left["items"] = [self.tree(item) for item in tree["items"]]
        return left if "class" in tree else {name: value for name, value in left.items() if name != "class"}

    def _tree_key(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.path(key)
        value = key.get("value")
        return {"kind": "scalar", "value": self.path(value) if isinstance(value, str) else self._token(repr(value))}

    def points(self, points: Iterable[Point]) -> list[Point]:
        """A loss curve is data."""
        return []

    def info(self, info: RunInfo) -> RunInfo:
        """Rank, versions, classes and names of torch."""
        sources = info.capture.get("sources", ())
        mark = self._hash(b"which key", _TOKEN_BYTES).hex() if self._hashes else ""
        return RunInfo(
            run=self._hash(info.run.encode(), 16).hex(),
            created="",
            rank=info.rank,
            world=info.world,
            device=_device_kind(info.device),
            versions=dict(_read_versions(info.versions)),
            capture={"sources": [name for name in sources if name in _SOURCES], NO_DATA: mark},
            modules={self.scope(name): self.class_name(kind) for name, kind in info.modules.items()},
            aliases={self.scope(name): [self.scope(other) for other in more] for name, more in info.aliases.items()},
            parameters={
                self._full_name(name): [self._full_name(other) for other in more]
                for name, more in info.parameters.items()
            },
            optimizer={
                scope: {"class": self.class_name(str(described.get("class", ""))), "groups": []}
                for scope, described in info.optimizer.items()
            },
            forced=info.forced,
            notes=(f"packed without data: values, statistics, {'' if self._hashes else 'hashes, '}names and places",),
        )

    def _full_name(self, name: str) -> str:
        scope, dot, local = name.rpartition(".")
        return self.scope(scope) + dot + self.path(local)


def require_one_secret(reference: RunInfo, candidate: RunInfo) -> None:
    """Raise NothingInCommon where hashes and names of two runs were made in two ways: all of them would differ."""
    ours, theirs = candidate.capture.get(NO_DATA), reference.capture.get(NO_DATA)
    if ours != theirs or (ours is not None and not ours):
        raise NothingInCommon(
            "packs without data can be compared where both sides were packed with --no-data and the same --key: "
            f"the reference {_describe_secret(theirs)}, the candidate {_describe_secret(ours)}"
        )


def _describe_secret(mark: str | None) -> str:
    return "has its data" if mark is None else f"has key {mark}" if mark else "has no key"


def _is_number(part: str) -> bool:
    """Whether it is a place in a list or a layer's number; a longer one may be the key of a dict, such as an id."""
    return part.isascii() and (part.isdigit() or not part) and len(part) <= _PLACE_DIGITS


def _is_safe_mode(value: Any) -> bool:
    return isinstance(value, (bool, int)) or value in ("forward", "backward", "step")


def _device_kind(device: str) -> str:
    kind = device.partition(":")[0].partition(" ")[0]
    return kind if kind in _DEVICES else "other"


def _read_versions(versions: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """The numbers of the packages that matter; the rest of a version's text may name a site or a build."""
    for name in ("python", "torch", "numpy", "cuda", "torch_npu", "cann"):
        found = _VERSION.match(str(versions.get(name, "")))
        if found:
            yield name, found.group()
