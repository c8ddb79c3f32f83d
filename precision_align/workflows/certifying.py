"""``certify``: the certificates of a reference's dump, computed from its recorded tensors after the run."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from precision_align.alignment.side import Node, Side
from precision_align.comparison.certificates import take_fingerprint
from precision_align.comparison.replaying import collect_state, find_moment, make_locator, make_root
from precision_align.core.errors import Unavailable, UsageError
from precision_align.storage.certificates import CertificateWriter, Entry, name_certificate
from precision_align.storage.opening import open_own


@dataclass(frozen=True)
class Certification:
    """What was written: files, records in them, and why calls have none, with how many."""

    files: Sequence[Path]
    records: int
    skipped: Counter[str]


def certify(
    dump: str | os.PathLike[str],
    *,
    replay: Any = None,
    rank: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Certification:
    """Write a certificate beside each step's files of a reference's dump.

    ``dump``: the folder; ``replay``: the reference's ``torch.nn.Module`` or a factory of it, without which stock
    ``torch.nn`` leaves are certified; ``rank``: only this one; ``progress``: told (calls done, calls in all). A later
    :func:`compare` uses the certificates for every record of a candidate that was computed from the same tensors, with
    no code of the reference.

    Raises UsageError where the dump is no folder, Unavailable without torch, DumpError where it cannot be read.
    """
    place = Path(dump)
    if not place.is_dir():
        raise UsageError(f"certify writes beside a dump's step files: {place} is not a dump's folder")
    try:
        replaying = import_module("precision_align.replay.certifying")
        judging = import_module("precision_align.replay.judging")
    except ModuleNotFoundError as error:
        raise Unavailable("certify replays the reference's code and needs torch: pip install torch") from error
    with open_own(place) as opened:
        side = Side(opened)
        root = make_root(replay)
        replayer = judging.Replayer(
            opened, root, make_locator(root, side), lambda node: node.call.attributes, lambda node: node.call.training
        )
        work = _Work(side, replayer, replaying, progress)
        files = [work.write_step(place, number, step) for number, step in work.list_steps() if rank in (None, number)]
    return Certification(files, work.records, work.skipped)


class _Work:
    """Certifies call by call; holds one call's tensors at a time."""

    def __init__(self, side: Side, replayer: Any, replaying: Any, progress: Callable[[int, int], None] | None) -> None:
        self._side, self._replayer, self._replaying, self._progress = side, replayer, replaying, progress
        self._not_replayable = import_module("precision_align.replay.replayability").NotReplayable
        self._moment: Any = None
        self._done = 0
        self.records = 0
        self.skipped: Counter[str] = Counter()

    def list_steps(self) -> list[tuple[int, int]]:
        return sorted({(node.unit.rank, node.unit.step) for node in self._side.nodes})

    def write_step(self, place: Path, rank: int, step: int) -> Path:
        path = name_certificate(place / f"rank{rank:05d}", step)
        information = {
            "run": self._side.dump.info.run,
            "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "not_covered": list(self._replaying.NOT_COVERED),
        }
        with CertificateWriter(path, information) as writer:
            for node in self._side.nodes:
                if (node.unit.rank, node.unit.step) == (rank, step):
                    self._certify_node(node, writer)
        return path

    def _certify_node(self, node: Node, writer: CertificateWriter) -> None:
        for backward in (False, True):
            if backward and not node.gradients:
                continue
            try:
                self._load(node)
                self._add_results(node, backward, writer)
            except self._not_replayable as error:
                self.skipped[str(error)] += 1
            except Exception as error:  # the user's code runs in there: one call must not end the work
                self.skipped[f"the replay raised {type(error).__name__}: {str(error)[:120]}"] += 1
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, len(self._side.nodes))

    def _load(self, node: Node) -> None:
        moment = find_moment(self._side, node)
        if moment != self._moment:
            self._replayer.load(collect_state(self._side, node))
            self._moment = moment

    def _add_results(self, node: Node, backward: bool, writer: CertificateWriter) -> None:
        mark = take_fingerprint(self._side, node, backward)
        for found in self._replaying.certify_call(self._replayer, node, backward):
            fields = {name: value for name, value in asdict(found.scale).items() if name != "values"}
            recorded = self._side.dump.values(found.record.key).astype(found.golden.dtype)
            key = str(found.record.key)
            entry = Entry(key, mark, tuple(found.record.shape), fields, found.floors, found.noise)
            writer.add(entry, found.golden, recorded, found.scale.values)
            self.records += 1
