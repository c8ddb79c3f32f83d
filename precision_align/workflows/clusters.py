"""A comparison on the workers of a Dask cluster: each measures shares, and their parts come back here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from precision_align.comparison.engine import Progress
from precision_align.core.errors import Unavailable, UsageError
from precision_align.workflows.factories import load_factory
from precision_align.workflows.sharding import Job, Shard, find_shards, has_part, measure_shard

SHARES_PER_WORKER = 4  # so that one slow share, or one that is begun anew elsewhere, holds up little
_CONNECT_SECONDS = 30
# A share goes to another worker as often when the one that had it is gone; then the share itself is what kills them.
_RETRIES = 3


def measure_on_cluster(job: Job, replay: str | None, folder: Path, cluster: str, progress: Progress) -> None:
    """Have every share measured; parts that are there already and fit are kept.

    ``cluster``: a scheduler's address ("tcp://host:8786"), or how many worker processes to start here. ``replay``: the
    text that ``job.replay`` was loaded from: workers import it themselves, and must see the dumps under these paths.
    Raises Unavailable where Dask is not installed or nobody answers, DumpError, UsageError.
    """
    with _connect(cluster) as client:
        count = _choose_count(folder, len(client.scheduler_info(n_workers=-1)["workers"]))
        shards = [Shard(index, count) for index in range(1, count + 1)]
        waiting = [shard for shard in shards if not has_part(job, shard, folder)]
        done = count - len(waiting)
        sides = [None if side is None else _absolute(side) for side in (job.reference, job.candidate)]
        files = [None if file is None else _absolute(file) for file in (job.layout, job.rename)]
        words = (*sides, job.naming, *files, replay, str(Path.cwd()))
        futures = [client.submit(_measure_remotely, words, shard, pure=False, retries=_RETRIES) for shard in waiting]
        for future in _import().as_completed(futures):
            name, content = future.result()
            _write(folder / name, content)
            done += 1
            progress(done, count)


def _measure_remotely(words: tuple[Any, ...], shard: Shard) -> tuple[str, bytes]:
    """On a worker: the part's name and its bytes."""
    reference, candidate, naming, layout, rename, replay, folder = words
    code = None if replay is None else load_factory(replay, folder=Path(folder))
    with tempfile.TemporaryDirectory() as place:
        path = measure_shard(Job(reference, candidate, code, naming, layout, rename), shard, Path(place))
        return path.name, path.read_bytes()


def _choose_count(folder: Path, workers: int) -> int:
    try:
        return find_shards(folder)[0].count
    except UsageError:
        return max(1, workers) * SHARES_PER_WORKER


def _write(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.tmp")
    draft.write_bytes(content)
    draft.replace(target)


def _absolute(side: str) -> str:
    return side if "://" in side else str(Path(side).absolute())


@contextmanager
def _connect(cluster: str) -> Iterator[Any]:
    distributed = _import()
    if cluster.isdecimal() and int(cluster):
        with (
            distributed.LocalCluster(
                n_workers=int(cluster), threads_per_worker=1, dashboard_address=None, silence_logs=50
            ) as local,
            distributed.Client(local) as client,
        ):
            yield client
        return
    try:
        client = distributed.Client(cluster, timeout=_CONNECT_SECONDS)
    except ValueError as error:
        raise UsageError(f"--dask {cluster!r}: write tcp://HOST:PORT, or a number of workers to start here") from error
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"no Dask scheduler answers at {cluster}: {error or 'timeout'}") from error
    with client:
        yield client


def _import() -> Any:
    os.environ.setdefault("DASK_DISTRIBUTED__LOGGING__DISTRIBUTED", "error")
    try:
        import distributed
    except ImportError as error:
        raise Unavailable("Dask is not installed: pip install 'precision-align[cluster]'") from error
    return distributed
