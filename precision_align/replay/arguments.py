"""What a call was given, by parameter name, however it was passed; and where two calls were given different things.

``layer(x, mask)``, ``layer(x, mask=mask)`` and ``layer(x, mask, mode="mean")`` with the default spelled out are the
same call.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Callable, Optional

from precision_align.core.trees import Tree, flatten, join
from precision_align.replay.values import is_tensor

_VALUES = ("scalar", "float", "complex", "slice", "ellipsis", "torch.dtype", "torch.Size")
# The one kind of text that must differ between two devices.
_DEVICE = re.compile(r"(cpu|cuda|npu|gpu|xpu|mps|mlu|hpu|musa)(:\d+)?")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

Pair = tuple[str, Optional[Tree], Optional[Tree]]  # place, the reference's leaf, the candidate's; None: not there


def bind_arguments(tree: Tree, forward: Callable[..., Any]) -> Tree:
    """The argument tree {"args", "kwargs"} of a call by the parameter names of ``forward``, defaults filled in.

    As it is where the callable has no signature, or would not take these arguments.
    """
    parts = dict(zip((key["value"] for key in tree["keys"]), tree["items"]))
    try:
        names = [key["value"] for key in parts["kwargs"]["keys"]]
        keywords = dict(zip(names, parts["kwargs"]["items"]))
        bound = inspect.signature(forward).bind(*parts["args"]["items"], **keywords)
    except (TypeError, ValueError, KeyError):
        return tree
    given = dict(bound.arguments)
    bound.apply_defaults()
    found: dict[str, Tree] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind in _VARIADIC:
            items = value if isinstance(value, dict) else dict(enumerate(value))
            found[name] = _make_container(items)
        else:
            found[name] = value if name in given else flatten(value, is_tensor)[0]
    return _make_container(found)


def _make_container(items: dict[Any, Tree]) -> Tree:
    keys = [{"kind": "scalar", "value": key} for key in items]
    return {"kind": "dict", "class": "builtins.dict", "keys": keys, "items": list(items.values())}


def pair_leaves(reference: Tree, candidate: Tree, place: str = "") -> Iterator[Pair]:
    """The leaves of two trees side by side, containers matched by key or index whatever their class."""
    ours, theirs = _children(candidate), _children(reference)
    if ours is None or theirs is None:
        yield place, reference, candidate
        return
    for key in dict.fromkeys([*theirs, *ours]):
        below = join(place, key)
        if key in ours and key in theirs:
            yield from pair_leaves(theirs[key], ours[key], below)
        else:
            yield below, theirs.get(key), ours.get(key)


def _children(tree: Tree) -> Optional[dict[Any, Tree]]:
    if "items" not in tree or tree["kind"] == "slice":
        return None
    keys = tree.get("keys")
    if keys is None:
        return dict(enumerate(tree["items"]))
    plain = [key.get("value", str(key)) if isinstance(key, dict) else key for key in keys]
    return dict(zip(plain, tree["items"]))


def rename_tensors(reference: Tree, candidate: Tree) -> dict[str, str]:
    """Path of a tensor in the reference's tree -> its path in the candidate's."""
    return {
        left["path"]: right["path"]
        for _, left, right in pair_leaves(reference, candidate)
        if left is not None and right is not None and left["kind"] == right["kind"] == "tensor"
    }


def list_differences(reference: Tree, candidate: Tree) -> Iterator[tuple[str, Tree, Tree]]:
    """(place, reference's leaf, candidate's leaf) where numbers, flags or texts differ, or only one is a tensor."""
    for place, left, right in pair_leaves(reference, candidate):
        if left is None or right is None:
            continue  # an entry that one side lacks may be one that nobody reads
        if _holds_tensor(left) != _holds_tensor(right):
            yield place, left, right
            continue
        kinds = {left["kind"], right["kind"]}
        if not kinds <= set(_VALUES):
            continue
        if not _is_same(left, right):
            yield place, left, right


def _holds_tensor(tree: Tree) -> bool:
    return tree["kind"] == "tensor" or any(_holds_tensor(item) for item in tree.get("items", ()))


def _is_same(left: Tree, right: Tree) -> bool:
    ours, theirs = right.get("value"), left.get("value")
    if isinstance(ours, str) and isinstance(theirs, str) and _DEVICE.fullmatch(ours) and _DEVICE.fullmatch(theirs):
        return True
    if left["kind"] == right["kind"] == "slice":
        return bool(left["items"] == right["items"])
    return type(ours) is type(theirs) and bool(ours == theirs)


def describe_leaf(leaf: Tree) -> str:
    """A leaf in words, for a message."""
    if _holds_tensor(leaf):
        return "a tensor" if leaf["kind"] == "tensor" else f"a {leaf['kind']} of tensors"
    return repr(leaf.get("value", leaf["kind"]))
