"""Compares two checkpoints tensor by tensor; at most the tensors of one pair are in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np

from precision_align.alignment.partitions import list_partitions
from precision_align.core.dtypes import Array, dtype_of, widen
from precision_align.core.errors import DumpDamaged, NothingInCommon
from precision_align.numerics.metrics import Difference, measure_words
from precision_align.storage.foreign.items import Tensor
from precision_align.training.checkpoints.differences import CheckpointReport, Fate, TensorFate
from precision_align.training.checkpoints.fusing import Fusion, find_fusions
from precision_align.training.checkpoints.naming import find_common_names
from precision_align.training.checkpoints.opening import Checkpoint, open_checkpoint

_PART = 1 << 20  # values looked at in one go, so that what they widen to stays small
_SHOWN = ("rel_l2", "max_abs", "mismatched", "nonfinite")


def compare_checkpoints(
    reference: Checkpoint | str | os.PathLike[str],
    candidate: Checkpoint | str | os.PathLike[str],
    *,
    rename: Sequence[tuple[str, str]] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CheckpointReport:
    """What became of every tensor of the reference in the candidate, and what is new there.

    Either side may be a dump: then what was saved is held against the model as it was recorded. Names match without the
    parts that wrappers add; ``rename``: (regular expression, replacement) pairs, applied in order to the candidate's
    names. Fused and split projections are matched by their usual names, their layout by the values. ``progress``: told
    (done, total) after each tensor. Raises the errors of :func:`open_checkpoint`, UsageError, NothingInCommon.
    """
    ours = reference if isinstance(reference, Checkpoint) else open_checkpoint(reference)
    theirs = candidate if isinstance(candidate, Checkpoint) else open_checkpoint(candidate)
    pairs = _Pairs(ours, theirs, rename)
    fates = []
    for done, fate in enumerate(pairs.judge(), 1):
        fates.append(fate)
        progress(done, len(ours.tensors))
    if all(fate.fate in (Fate.MISSING, Fate.EXTRA) for fate in fates):
        raise NothingInCommon(
            f"{ours.path} and {theirs.path} have no tensor name in common: the reference has {_some(pairs.left)}, "
            f"the candidate {_some(pairs.right)}. Map the candidate's names with --rename 'PATTERN=REPLACEMENT'"
        )
    return CheckpointReport(ours.path, theirs.path, (ours.kind, theirs.kind), fates, (*ours.notes, *theirs.notes))


def _some(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in islice(names, 3)) or "none"


class _Pairs:
    """Both sides by their common names."""

    def __init__(self, ours: Checkpoint, theirs: Checkpoint, rename: Sequence[tuple[str, str]]) -> None:
        self.ours, self.theirs = ours, theirs
        self.left = find_common_names(ours, ())
        self.right = find_common_names(theirs, rename)
        left, right = set(self.left) - set(self.right), set(self.right) - set(self.left)
        fusions = [*find_fusions(right, left, whole_is_candidate=True)]
        fusions += find_fusions(left, right, whole_is_candidate=False)
        self.fusions = {name: fusion for fusion in fusions for name in self._left_names(fusion)}
        self.used = {name for fusion in fusions for name in self._right_names(fusion)}

    @staticmethod
    def _left_names(fusion: Fusion) -> tuple[str, ...]:
        return fusion.parts if fusion.whole_is_candidate else (fusion.whole,)

    @staticmethod
    def _right_names(fusion: Fusion) -> tuple[str, ...]:
        return (fusion.whole,) if fusion.whole_is_candidate else fusion.parts

    def judge(self) -> Iterator[TensorFate]:
        """One fate a tensor of the reference (one a fused group), then the extra ones."""
        done: set[Fusion] = set()
        for name in self.left:
            fusion = self.fusions.get(name)
            if fusion is not None:
                if fusion not in done:
                    done.add(fusion)
                    yield self._guard(fusion.whole, partial(self._judge_fusion, fusion))
            elif name in self.right:
                yield self._guard(name, partial(self._judge_pair, name))
            else:
                yield self._guard(name, partial(self._judge_missing, name))
        for name in self.right:
            if name not in self.left and name not in self.used:
                yield TensorFate(name, Fate.EXTRA, partner=self.right[name])

    @staticmethod
    def _guard(name: str, judge: Callable[[], TensorFate]) -> TensorFate:
        try:
            return judge()
        except DumpDamaged as error:
            return TensorFate(name, Fate.UNREADABLE, note=str(error.args[0]))
        except MemoryError as error:  # a few bytes can promise a tensor of any size
            return TensorFate(name, Fate.UNREADABLE, note=f"{error}: its header promises more than fits in memory")

    def _judge_pair(self, name: str) -> TensorFate:
        left, right = self.ours.load(self.left[name]), self.theirs.load(self.right[name])
        return judge_tensors(name, left, right, partner=self.right[name])

    def _judge_missing(self, name: str) -> TensorFate:
        tensor = self.ours.load(self.left[name])
        base = {"dtypes": (tensor.dtype,), "shapes": (tensor.words.shape,)}
        for other in () if self._is_constant(tensor) else self.left:
            if other != name and other in self.right and self._is_twin(tensor, other):
                return TensorFate(name, Fate.TIED, partner=other, **base)  # type: ignore[arg-type]
        return TensorFate(name, Fate.MISSING, **base)  # type: ignore[arg-type]

    def _is_twin(self, tensor: Tensor, name: str) -> bool:
        twin = self.ours.load(self.left[name])
        same = (twin.dtype, twin.words.shape) == (tensor.dtype, tensor.words.shape)
        return same and bool(np.array_equal(twin.words, tensor.words))

    @staticmethod
    def _is_constant(tensor: Tensor) -> bool:
        """All ones or zeros, as fresh norms and biases are: being equal to another tensor says nothing of them."""
        return not tensor.words.size or bool((tensor.words == tensor.words.reshape(-1)[0]).all())

    def _judge_fusion(self, fusion: Fusion) -> TensorFate:
        inner, outer = (self.ours, self.theirs) if fusion.whole_is_candidate else (self.theirs, self.ours)
        names, wholes = (self.left, self.right) if fusion.whole_is_candidate else (self.right, self.left)
        parts = [inner.load(names[part]) for part in fusion.parts]
        whole = outer.load(wholes[fusion.whole])
        title = fusion.whole if not fusion.whole_is_candidate else " + ".join(fusion.parts)
        partner = fusion.whole if fusion.whole_is_candidate else " + ".join(fusion.parts)
        if len({part.dtype for part in parts}) > 1:
            return TensorFate(title, Fate.DIFFERS, partner=partner, note="its parts have several dtypes")
        layout, joined = _choose_layout(parts, whole)
        sides = (joined, whole) if fusion.whole_is_candidate else (whole, joined)
        fate = judge_tensors(title, *sides, partner=partner)
        return TensorFate(**{**vars(fate), "layout": layout})


def _choose_layout(parts: Sequence[Tensor], whole: Tensor) -> tuple[str, Tensor]:
    """The layout under which the joined parts are nearest to the whole, and the parts joined that way."""
    words = [part.words for part in parts]
    flipped = sum(len(part) for part in words) != len(whole.words) and whole.words.ndim == 2
    best: tuple[float, str, Array] | None = None
    for name, joined in list_partitions(words):
        shaped = joined.T if flipped else joined
        if shaped.shape != whole.words.shape:
            continue
        # a sample of rows tells the layout: whole rows move
        rows = np.linspace(0, len(shaped) - 1, min(len(shaped), 64)).astype(int)
        left, right = _numbers(shaped[rows], parts[0].dtype), _numbers(whole.words[rows], whole.dtype)
        distance = float(np.linalg.norm(left - right))
        if best is None or distance < best[0]:
            best = distance, f"{name}, transposed" if flipped else name, shaped
    if best is None:
        return "no layout fits", Tensor(np.concatenate([part.reshape(-1) for part in words]), parts[0].dtype)
    return best[1], Tensor(np.ascontiguousarray(best[2]), parts[0].dtype)


def _numbers(words: Array, dtype: str) -> Array:
    return np.nan_to_num(np.asarray(widen(np.ascontiguousarray(words), dtype_of(dtype)), dtype=np.float64))


def judge_tensors(name: str, left: Tensor, right: Tensor, *, partner: str = "") -> TensorFate:
    """What became of one tensor: ``left`` is the reference's, ``right`` the candidate's."""
    about = {
        "partner": partner,
        "dtypes": (left.dtype, right.dtype),
        "shapes": (tuple(left.words.shape), tuple(right.words.shape)),
    }
    if left.words.shape != right.words.shape:
        fate, note = _judge_shapes(left, right)
        return TensorFate(name, fate, note=note, **about)  # type: ignore[arg-type]
    difference = _measure(right, left)
    metrics = {key: float(value) for key, value in difference.to_dict().items() if key in _SHOWN}
    return TensorFate(name, _judge_values(left, right, difference), metrics=metrics, **about)  # type: ignore[arg-type]


def _measure(actual: Tensor, expected: Tensor) -> Difference:
    return measure_words(actual.words, expected.words, dtype_of(actual.dtype), dtype_of(expected.dtype))


def _judge_values(left: Tensor, right: Tensor, difference: Difference) -> Fate:
    if difference.nonfinite or _holds_nan(right):
        return Fate.BROKEN
    if not difference.mismatched:
        return Fate.EQUAL if left.dtype == right.dtype else Fate.ROUNDED
    if left.dtype != right.dtype and _is_rounded(left, right, difference):
        return Fate.ROUNDED
    return Fate.DIFFERS


def _holds_nan(tensor: Tensor) -> bool:
    """Whether a value is NaN: no agreement, even with the reference's. Infinities fill the masks of right models."""
    row = dtype_of(tensor.dtype)
    flat = tensor.words.reshape(-1)
    parts = (flat[start : start + _PART] for start in range(0, flat.size, _PART))
    return row.is_floating and any(bool(np.isnan(widen(part, row)).any()) for part in parts)


def _is_rounded(left: Tensor, right: Tensor, difference: Difference) -> bool:
    """Whether no value is further off than the coarser dtype's rounding, relative or absolute near its underflow."""
    coarse = max((dtype_of(side.dtype) for side in (left, right)), key=lambda row: row.roundoff)
    if not coarse.is_floating:
        return False
    if difference.max_rel <= coarse.roundoff * (1 + 1e-6):
        return True
    numbers = [_numbers(side.words, side.dtype) for side in (left, right)]
    allowed = np.maximum(coarse.roundoff * (1 + 1e-6) * np.abs(numbers[0]), coarse.smallest * coarse.roundoff)
    return bool((np.abs(numbers[1] - numbers[0]) <= allowed).all())


def _judge_shapes(left: Tensor, right: Tensor) -> tuple[Fate, str]:
    """Shapes that differ in a known way: transposed, or padded with rows that nobody looks up."""
    one, other = left.words.shape, right.words.shape
    if one == other[::-1] and len(one) == 2 and not _measure(_turn(right), left).mismatched:
        return Fate.TRANSPOSED, ""
    if (
        len(one) == len(other)
        and one[1:] == other[1:]
        and min(len(one), one[0] if one else 0, other[0] if other else 0)
    ):
        rows = min(one[0], other[0])
        cut = [Tensor(np.ascontiguousarray(side.words[:rows]), side.dtype) for side in (left, right)]
        if not _measure(cut[1], cut[0]).mismatched:
            longer = "the candidate" if other[0] > one[0] else "the reference"
            return (
                Fate.PADDED if other[0] > one[0] else Fate.SHAPE
            ), f"{longer} has {abs(one[0] - other[0])} more rows"
    return Fate.SHAPE, ""


def _turn(tensor: Tensor) -> Tensor:
    return Tensor(np.ascontiguousarray(tensor.words.T), tensor.dtype)
