"""The certificate evidence provider: judges what was computed from the reference's very tensors, without its code.

A certificate holds for equal inputs alone: everything a result is computed from must have the hashes that stood there
when it was made. That is so for the calls of a candidate that was forced from the reference's dump, and for those
before the first difference of a free run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from precision_align.alignment.pairing import Alignment
from precision_align.alignment.side import Node, Side
from precision_align.comparison.replaying import Verdicts
from precision_align.core.dtypes import dtype_of
from precision_align.core.errors import DumpError
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Phase, Role, Status
from precision_align.core.trees import scalars
from precision_align.numerics.judgement import Judgement, Scale, judge
from precision_align.storage.certificates import Certificates, find_certificates

_SEVERITY = (Status.INCONCLUSIVE, Status.PASS, Status.WARN, Status.RANDOM, Status.MODE, Status.FAIL)


class CertificateProvider:
    """Adds the verdicts of the reference's certificates to those of a replay; ``count``: records they spoke of."""

    def __init__(self, alignment: Alignment) -> None:
        self._alignment = alignment
        self.count = 0
        self.invalid = 0
        self.disagreements: list[str] = []
        # only dumps on disk have any
        folders = () if alignment.reference is None else getattr(alignment.reference.dump, "folders", ())
        self._known = Certificates(find_certificates(folders))

    def combine(self, node: Node, verdicts: Verdicts, backward: bool) -> Verdicts:
        """The verdicts of both; where both speak of a record, the more severe, with what the other says."""
        if not len(self._known):
            return verdicts
        found = dict(verdicts)
        for place, (certified, record) in self._judge(node, backward):
            self.count += 1
            other = found.get(place)
            if other is None or other[0].status == Status.INCONCLUSIVE:
                found[place] = certified, record
                continue
            found[place] = self._merge(record, other[0], certified), record
        return found

    def describe(self) -> list[str]:
        """What the certificates contributed, and where the two kinds of evidence differ."""
        notes = [f"{self.count} records were judged by the reference's certificates"] if self.count else []
        if self.invalid:
            notes.append(f"{self.invalid} certificates do not hold: their records were computed from other tensors")
        return notes + self.disagreements

    def _merge(self, record: TensorRecord, replayed: Judgement, certified: Judgement) -> Judgement:
        if (replayed.status == Status.FAIL) == (certified.status == Status.FAIL):
            return replace(replayed, evidence="replay+certificate")
        text = f"replay says {replayed.status} ({replayed.why}), the certificate {certified.status} ({certified.why})"
        self.disagreements.append(f"evidence disagrees on {record.key}: {text}")
        worse = max((replayed, certified), key=lambda one: _SEVERITY.index(one.status))
        return replace(worse, why=f"{worse.why}; {text}", evidence="replay+certificate")

    def _judge(self, node: Node, backward: bool) -> Iterator[tuple[tuple[int, str], tuple[Judgement, TensorRecord]]]:
        partner = self._alignment.pairs.get(node)
        if partner is None or len(partner.children) != len(node.children):
            return
        mark = ""
        for child, record, other in _pair_results(node, partner, backward):
            entry = self._known.get(str(other.key))
            if entry is None or record.dtype != other.dtype or record.shape != entry.shape:
                continue
            mark = mark or take_fingerprint(self._alignment.candidate, node, backward, partner)
            if entry.fingerprint != mark:
                self.invalid += 1
                continue
            judgement = self._judge_record(record, other, entry.scale, entry.noise)
            if judgement is not None:
                yield (child, record.key.path), (judgement, record)

    def _judge_record(
        self, record: TensorRecord, other: TensorRecord, fields: object, noise: float
    ) -> Judgement | None:
        assert self._alignment.reference is not None
        try:
            actual = self._alignment.candidate.dump.values(record.key)
            recorded = self._alignment.reference.dump.values(other.key)
            golden, size = self._known.read(str(other.key), recorded)
        except (KeyError, DumpError):
            return None
        kind = dtype_of(record.dtype)
        wide = np.complex128 if golden.dtype.kind == "c" else np.float64
        # the floor of re-ordered arithmetic: the reference's own error where it was larger, else enlarged to it
        with np.errstate(all="ignore"):
            native = golden + (recorded.astype(wide) - golden) * noise
        scale = Scale(size, **dict(fields))  # type: ignore[call-overload]
        return replace(judge(actual.astype(wide), golden, native, scale, kind), evidence="certificate")


def take_fingerprint(side: Side, node: Node, backward: bool, forced: Node | None = None) -> str:
    """One hash of everything that a call's own code computes from.

    ``forced``: the reference's call, whose values went on in the place of outputs that were replaced.
    """
    parts = [str(node.call.training), *(f"{path}={leaf}" for path, leaf in scalars(node.call.arguments))]
    parts += [_mark("input", path, record) for path, record in node.inputs.items()]
    parts += [_mark("buffer", path, record) for path, record in node.buffers.items() if path.startswith("before.")]
    state = side.parameters_at(node.unit.rank, node.unit.step, node.call.enter)
    prefix = f"{node.scope}." if node.scope else ""
    for (scope, name), record in state.items():
        if scope == node.scope or scope.startswith(prefix):
            parts.append(_mark(scope, name, record))
    for number, child in enumerate(node.children):
        twin = forced.children[number] if forced is not None else None
        parts += [_mark(f"child{number}", *item) for item in _list_returned(child, twin)]
        if backward:
            given = child.select(Phase.BACKWARD, Role.GRADIENT)
            parts += [_mark(f"child{number}", path, record) for path, record in given.items() if _is_input(path)]
    if backward:
        parts += [_mark("gradient", *item) for item in _list_arriving(node, forced)]
    return hashlib.blake2b("\n".join(sorted(parts)).encode(), digest_size=16).hexdigest()


def _mark(what: str, path: str, record: TensorRecord) -> str:
    return f"{what}/{path}/{record.dtype}/{record.shape}/{record.digest.hex()}"


def _is_input(path: str) -> bool:
    return path.partition(".")[0] == "input"


def _list_returned(child: Node, twin: Node | None) -> Iterator[tuple[str, TensorRecord]]:
    """What the caller went on with: the reference's tensor where it was put in the place of an output.

    An output that is an input handed through is no source of its own: a replay goes on with what it gave.
    """
    for path, record in child.outputs.items():
        if str(record.extra.get("same_as", "")).startswith("input"):
            continue
        replaced = record.extra.get("forced") and twin is not None
        yield path, (twin.outputs.get(path, record) if replaced and twin is not None else record)


def _list_arriving(node: Node, twin: Node | None) -> Iterator[tuple[str, TensorRecord]]:
    for path, record in node.gradients.items():
        if path.partition(".")[0] == "output":
            output = node.outputs.get(path[len("output") :].lstrip("."))
            replaced = output is not None and output.extra.get("forced") and twin is not None
            yield path, (twin.gradients.get(path, record) if replaced and twin is not None else record)


def _pair_results(node: Node, partner: Node, backward: bool) -> Iterator[tuple[int, TensorRecord, TensorRecord]]:
    """(child or -1, candidate's record, reference's) of what the call's own code makes."""
    phase, role = (Phase.BACKWARD, Role.GRADIENT) if backward else (Phase.FORWARD, Role.INPUT)
    for number, (child, twin) in enumerate(zip(node.children, partner.children)):
        for path, record in child.select(phase, role).items():
            if not backward or path.partition(".")[0] == "output":
                other = twin.tensors.get((phase, role, path))
                if other is not None:
                    yield number, record, other
    own = node.gradients if backward else {**node.outputs, **node.buffers}
    twins = partner.gradients if backward else {**partner.outputs, **partner.buffers}
    for path, record in own.items():
        made = path.partition(".")[0] in ("input", "parameter") if backward else not path.startswith("before.")
        if made and path in twins:
            yield -1, record, twins[path]
