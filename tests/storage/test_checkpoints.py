"""Weights kept as a reference to a checkpoint: found, verified, and a clear error where it is gone or changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import precision_align as pa
from precision_align.core.errors import DumpDamaged, UsageError
from precision_align.core.terms import Phase, Role, Tier, Verdict
from precision_align.storage.checkpoints import EXTRA
from precision_align.storage.foreign.arrays import SAFETENSORS
from precision_align.storage.settings import Settings

torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 96), nn.Linear(96, 64).to(torch.bfloat16)
        self.register_buffer("table", torch.arange(2048.0))

    def forward(self, x):
        return self.second(torch.relu(self.first(x) + self.table[:96]).to(torch.bfloat16))


def save(model, path: Path) -> Path:
    """As torch.save, or as the safetensors format by hand (its package is not needed for reading either)."""
    path.parent.mkdir(exist_ok=True)
    if path.suffix != ".safetensors":
        torch.save({"model": model.state_dict()}, path)
        return path
    names = {dtype: code for code, dtype in SAFETENSORS.items()}
    header, data = {}, b""
    for name, tensor in model.state_dict().items():
        words = tensor.contiguous().view(torch.uint8 if tensor.dim() else tensor.dtype).numpy().tobytes()
        header[name] = {
            "dtype": names[str(tensor.dtype).replace("torch.", "")],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(words)],
        }
        data += words
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def record(model, path, checkpoint=None, steps=1, train=False):
    optimizer = torch.optim.SGD(model.parameters(), 0.1) if train else None
    storage = Settings(weights_from=None if checkpoint is None else str(checkpoint))
    with pa.capture(model, path, storage=storage, optimizer=optimizer) as recorder:
        for _ in range(steps):
            with recorder.step():
                loss = model(torch.ones(2, 64)).float().square().mean()
                if train:
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
    return path


def list_weights(dump):
    return {
        f"{record.key.scope}.{record.key.path}": record
        for record in dump.records
        if record.key.role in (Role.PARAMETER, Role.BUFFER) and record.key.phase == Phase.FORWARD
        if record.key.source == "parameters"
    }


@pytest.fixture(params=["weights.pt", "weights.safetensors"])
def checkpoint(request, tmp_path):
    return save(Net(), tmp_path / "checkpoints" / request.param)


def test_weights_are_references_and_read_as_they_were(tmp_path, checkpoint):
    plain, lean = record(Net(), tmp_path / "plain"), record(Net(), tmp_path / "lean", checkpoint)
    with pa.open_dump(plain) as whole, pa.open_dump(lean) as dump:
        weights = list_weights(dump)
        referred = {name for name, known in weights.items() if EXTRA in known.extra}
        assert referred == {"first.weight", "second.weight", ".table"}
        for name, known in weights.items():
            assert known.tier is Tier.FULL
            assert np.array_equal(dump.payload(known.key), whole.payload(list_weights(whole)[name].key))
            mapped = dump.map_payload(known.key)
            assert mapped is None or np.array_equal(mapped, dump.payload(known.key))
    sizes = [sum(file.stat().st_size for file in folder.rglob("*.h5")) for folder in (plain, lean)]
    assert sizes[1] < sizes[0] - 30_000


def test_compare_replays_from_referred_weights(tmp_path, checkpoint):
    reference = record(Net(), tmp_path / "reference", checkpoint)
    faulty = Net()
    forward = faulty.first.forward
    faulty.first.forward = lambda x: forward(x) * 1.001
    candidate = record(faulty, tmp_path / "candidate", checkpoint)
    report = pa.compare(reference, candidate, replay=Net)
    assert (report.first.scope, report.verdict) == ("first", Verdict.DIVERGED)
    assert "replay" in report.first.evidence
    assert pa.compare(reference, record(Net(), tmp_path / "same", checkpoint), replay=Net).verdict == Verdict.ALIGNED


def test_updated_weights_are_stored(tmp_path, checkpoint):
    with pa.open_dump(record(Net(), tmp_path / "d", checkpoint, steps=2, train=True)) as dump:
        updated = [
            r for r in dump.records if r.key.role == Role.PARAMETER and r.key.step == 1 and r.key.scope == "first"
        ]
        assert updated
        assert not any(EXTRA in known.extra for known in updated)
        assert all(dump.payload(known.key) is not None for known in updated)


def test_a_moved_checkpoint_is_an_error_that_says_where_to_put_it(tmp_path, checkpoint):
    folder = record(Net(), tmp_path / "d", checkpoint)
    moved = tmp_path / "elsewhere" / checkpoint.name
    moved.parent.mkdir()
    shutil.move(checkpoint, moved)
    with pa.open_dump(folder) as dump:
        known = list_weights(dump)["first.weight"]
        with pytest.raises(DumpDamaged, match=r"is gone.*put it back, or a copy beside the dump"):
            dump.payload(known.key)
    shutil.move(moved, tmp_path / checkpoint.name)
    with pa.open_dump(folder) as dump:
        assert dump.payload(known.key).shape == (96, 64)


def test_a_changed_checkpoint_is_an_error(tmp_path, checkpoint):
    folder = record(Net(), tmp_path / "d", checkpoint)
    other = Net()
    with torch.no_grad():
        other.first.weight[3, 4] += 1
    save(other, checkpoint)
    with pa.open_dump(folder) as dump:
        weights = list_weights(dump)
        with pytest.raises(DumpDamaged, match=r"has changed: its tensor .*first\.weight"):
            dump.payload(weights["first.weight"].key)
        assert dump.payload(weights["second.weight"].key).shape == (64, 96)


def test_compare_with_a_lost_checkpoint_says_so_and_does_not_call_it_aligned(tmp_path, checkpoint):
    reference = record(Net(), tmp_path / "reference", checkpoint)
    noisy = Net()
    forward = noisy.first.forward
    noisy.first.forward = lambda x: forward(x) * 1.001
    candidate = record(noisy, tmp_path / "candidate", checkpoint)
    checkpoint.unlink()
    report = pa.compare(reference, candidate, replay=Net)
    assert any("is gone" in note for note in report.notes)
    assert report.verdict != Verdict.ALIGNED


def test_no_checkpoint_is_refused_before_the_run(tmp_path):
    with pytest.raises(UsageError, match="there is no checkpoint at"):
        record(Net(), tmp_path / "d", tmp_path / "nothing.pt")
