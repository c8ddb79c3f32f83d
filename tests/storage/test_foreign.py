"""Recordings of other tools as dumps: what they hold, what names mean, and that no file runs code."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import precision_align as pa
from precision_align.core.errors import DumpDamaged, DumpForeign, UsageError
from precision_align.core.terms import Phase, Role, Source, Tier
from precision_align.storage.foreign.naming import Naming, read_naming
from precision_align.storage.opening import open_dump

TENSORS: dict[str, torch.Tensor] = {
    "float32": torch.randn(3, 4),
    "transposed": torch.randn(5, 2).t(),
    "slice": torch.arange(40).reshape(5, 8)[1:4, ::2],
    "expanded": torch.ones(1, 3).expand(4, 3),
    "bfloat16": torch.randn(7).bfloat16(),
    "float16": torch.randn(7).half(),
    "float8": torch.randn(6).to(torch.float8_e4m3fn),
    "bool": torch.tensor([True, False, True]),
    "complex": torch.randn(3, dtype=torch.complex64),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
}


def words_of(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().contiguous()
    return (
        plain.view(torch.uint8).numpy().tobytes()
        if plain.dim()
        else plain.reshape(1).view(torch.uint8).numpy().tobytes()
    )


def by_path(dump: Any) -> dict[str, Any]:
    return {f"{record.key.scope}.{record.key.path}".strip("."): record for record in dump.records}


def test_a_dictionary_of_tensors(tmp_path: Path) -> None:
    torch.save({"model": dict(TENSORS), "list": [torch.nn.Parameter(torch.ones(2))], "epoch": 3}, tmp_path / "x.pt")
    with open_dump(tmp_path / "x.pt") as dump:
        found = by_path(dump)
        assert set(found) == {f"model.{name}" for name in TENSORS} | {"list.0"}
        for name, tensor in TENSORS.items():
            record = found[f"model.{name}"]
            assert (record.dtype, record.shape) == (str(tensor.dtype)[6:], tuple(tensor.shape))
            assert dump.payload(record.key).tobytes() == words_of(tensor)
            view = dump.map_payload(record.key)
            assert view is not None
            assert not view.flags.writeable
            assert view.tobytes() == words_of(tensor)
        key = found["model.float32"].key
        assert (key.source, key.role, key.scope, key.path) == (Source.PARAMETERS, Role.PARAMETER, "model", "float32")


class Boom:
    def __reduce__(self) -> Any:
        return os.mkdir, ("boom",)


@pytest.mark.parametrize("how", ["class", "module", "builtin"])
def test_no_code_of_a_pickle_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.chdir(tmp_path)
    evil = {"class": Boom(), "module": torch.nn.Linear(2, 2), "builtin": print}[how]
    torch.save({"weight": torch.ones(2), "evil": evil}, tmp_path / "x.pt")
    with pytest.raises(DumpDamaged, match="is not loaded; save a tensor or a dictionary"):
        open_dump(tmp_path / "x.pt")
    assert not (tmp_path / "boom").exists()
    np.save(tmp_path / "y.npy", np.array([Boom()], dtype=object), allow_pickle=True)
    with open_dump(tmp_path / "y.npy") as dump:
        (record,) = dump.records
        assert record.tier is Tier.FINGERPRINT
        assert "Python objects" in record.reason
    assert not (tmp_path / "boom").exists()


def test_a_pickle_whose_tensor_reaches_out_of_its_storage(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(4)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    (name,) = [name for name in entries if name.endswith("data.pkl")]
    assert entries[name].count(b"K\x04\x85") == 1  # the shape (4,)
    entries[name] = entries[name].replace(b"K\x04\x85", b"K\xff\x85")
    with zipfile.ZipFile(tmp_path / "y.pt", "w") as archive:
        for entry, data in entries.items():
            archive.writestr(entry, data)
    with open_dump(tmp_path / "y.pt") as dump:
        assert "larger than its storage" in dump.records[0].reason


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02}q\x00.", b"x" * 100])
@pytest.mark.parametrize("suffix", [".pt", ".npz", ".safetensors"])
def test_nonsense_is_damaged(tmp_path: Path, suffix: str, content: bytes) -> None:
    (tmp_path / f"x{suffix}").write_bytes(content)
    with pytest.raises(DumpDamaged, match="x"):
        open_dump(tmp_path / f"x{suffix}")


def test_the_old_format_of_torch_says_what_to_do(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(DumpDamaged, match="weights_only=True"):
        open_dump(tmp_path / "x.pt")


def write_safetensors(path: Path, header: Any, data: bytes) -> None:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_safetensors(tmp_path: Path) -> None:
    half, plain = np.array([0x3F80, 0x4000], "<u2"), np.arange(6, dtype="<f4").reshape(2, 3)
    header = {
        "__metadata__": {"format": "pt"},
        "layer.half": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "layer.plain": {"dtype": "F32", "shape": [2, 3], "data_offsets": [4, 28]},
        "layer.lie": {"dtype": "F32", "shape": [99], "data_offsets": [4, 28]},
        "layer.outside": {"dtype": "F32", "shape": [99], "data_offsets": [4, 400]},
        "layer.odd": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]},
    }
    write_safetensors(tmp_path / "x.safetensors", header, half.tobytes() + plain.tobytes())
    with open_dump(tmp_path / "x.safetensors") as dump:
        found = by_path(dump)
        assert np.array_equal(dump.values(found["layer.half"].key), [1.0, 2.0])
        assert np.array_equal(dump.payload(found["layer.plain"].key), plain)
        for name in ("lie", "outside", "odd"):
            assert found[f"layer.{name}"].tier is Tier.FINGERPRINT
            assert found[f"layer.{name}"].reason
    write_safetensors(tmp_path / "y.safetensors", b"[1]", b"")
    with pytest.raises(DumpDamaged):
        open_dump(tmp_path / "y.safetensors")


def test_a_folder_of_arrays_with_a_rule(tmp_path: Path) -> None:
    for step in (3, 4):
        for role, values in (("in", np.ones(4)), ("out", np.full(4, float(step)))):
            place = tmp_path / "d" / f"s{step}" / f"net.fc1-{role}.npy"
            place.parent.mkdir(parents=True, exist_ok=True)
            np.save(place, values)
    np.savez(tmp_path / "d" / "other.npz", a=np.ones(2))
    rule = tmp_path / "rule.toml"
    rule.write_text('pattern = "s{step}/{scope}-{role}"\n[rename]\nin = "input"\nout = "output"\n')
    with open_dump(tmp_path / "d", rule) as dump:
        assert dump.steps == [3, 4]
        assert [(call.step, call.scope) for call in dump.calls] == [(3, "net.fc1"), (4, "net.fc1")]
        assert {(record.key.step, record.key.role) for record in dump.records} == {
            (step, role) for step in (3, 4) for role in (Role.INPUT, Role.OUTPUT)
        }
        assert any("other" in note and "do not fit" in note for note in dump.notes)
    with pytest.raises(DumpForeign, match="fits the naming rule"):
        open_dump(tmp_path / "d", "nothing/{scope}")
    with open_dump(tmp_path / "d") as dump:  # without a rule: outputs of scopes of their names
        assert {record.key.scope for record in dump.records} == {
            "s3.net.fc1-in",
            "s3.net.fc1-out",
            "s4.net.fc1-in",
            "s4.net.fc1-out",
            "other.a",
        }


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [("{scop}", "unknown fields scop"), ("{step}{step}", "twice")],
)
def test_rules_that_make_no_sense(rule: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        read_naming(rule)


def test_a_rule_file_that_makes_no_sense(tmp_path: Path) -> None:
    for text, complaint in (("pattrn = 'x'", "unknown keys pattrn"), ("pattern = 3", "is a text"), ("= =", "read")):
        (tmp_path / "r.toml").write_text(text)
        with pytest.raises(UsageError, match=complaint):
            read_naming(tmp_path / "r.toml")


def test_names_to_keys() -> None:
    key = Naming("{scope}.{phase}.{call}.{role}.{path}").read("net.fc1.backward.2.grad.output.0")
    assert key is not None
    assert (key.scope, key.phase, key.call, key.role, key.path) == (
        "net.fc1",
        Phase.BACKWARD,
        2,
        Role.GRADIENT,
        "output.0",
    )
    assert Naming("{scope}.{role}").read("net.nonsense") is None


def test_a_naming_rule_for_a_dump_of_ours(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="naming rule is for files of other tools"):
        open_dump(tmp_path / "empty", "{scope}")


def write_msprobe(folder: Path, scale: float = 1.0, *, tensors: bool = True) -> None:
    """The layout of mindstudio-probe 26.2: a block with two layers, level L0, one step, forward and backward."""
    rank = folder / "step5" / "proc4711"
    (rank / "dump_tensor_data").mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    data: dict[str, Any] = {}

    def tensor(name: str, factor: float = 1.0) -> dict[str, Any]:
        value = torch.randn(2, 3, generator=generator) * factor
        entry: dict[str, Any] = {
            "type": "torch.Tensor",
            "dtype": "torch.float32",
            "shape": [2, 3],
            "requires_grad": True,
        }
        entry |= {
            "Max": float(value.max()),
            "Min": float(value.min()),
            "Mean": float(value.mean()),
            "Norm": float(value.norm()),
        }
        if tensors:
            torch.save(value, rank / "dump_tensor_data" / f"{name}.pt")
            entry["data_name"] = f"{name}.pt"
        return entry

    def forward(name: str, factor: float = 1.0, **kwargs: Any) -> None:
        data[name] = {
            "input_args": [tensor(f"{name}.input.0"), {"type": "int", "value": 7}],
            "input_kwargs": kwargs,
            "output": [tensor(f"{name}.output.0", factor)],
            "parameters": {"weight": tensor(f"{name}.parameters.weight")},
        }

    forward("Module.block.fc1.Linear.forward.0")
    forward("Module.block.fc2.Linear.forward.0", scale, mask=None)
    forward("Module.block.Block.forward.0", scale)
    data["Module.block.fc2.Linear.parameters_grad.0"] = {
        "weight": [tensor("Module.block.fc2.Linear.parameters_grad.0.weight")]
    }
    name = "Module.block.fc2.Linear.backward.0"
    data[name] = {"input": [tensor(f"{name}.input.0")], "output": [None, tensor(f"{name}.output.1")]}
    data["Functional.relu.0.forward"] = {
        "input_args": [tensor("Functional.relu.0.forward.input.0")],
        "input_kwargs": {},
        "output": [],
    }
    content = {"task": "tensor", "level": "L0", "framework": "pytorch", "dump_data_dir": "/gone", "data": data}
    (rank / "dump.json").write_text(json.dumps(content))
    parents = {
        "Module.block.fc1.Linear.forward.0": "Module.block.Block.forward.0",
        "Module.block.fc2.Linear.forward.0": "Module.block.Block.forward.0",
        "Module.block.Block.forward.0": None,
    }
    (rank / "construct.json").write_text(json.dumps(parents))


def test_a_dump_of_msprobe(tmp_path: Path) -> None:
    write_msprobe(tmp_path / "m")
    for place in (tmp_path / "m", tmp_path / "m" / "step5", tmp_path / "m" / "step5" / "proc4711"):
        with open_dump(place) as dump:
            assert (dump.steps, dump.ranks) == ([5], [0])
            assert [(call.scope, call.kind, call.leaf) for call in dump.calls] == [
                ("block.fc1", "Linear", True),
                ("block.fc2", "Linear", True),
                ("block", "Block", False),
            ]
            block = dump.calls[2]
            assert [call.parent for call in dump.calls] == [block.identity, block.identity, -1]
            assert all(block.enter < call.enter < call.exit < block.exit for call in dump.calls[:2])
            keys = {(r.key.source, r.key.scope, r.key.phase, r.key.role, r.key.path) for r in dump.records}
            assert (Source.MODULE, "block.fc2", Phase.BACKWARD, Role.GRADIENT, "output") in keys
            assert (Source.MODULE, "block.fc2", Phase.BACKWARD, Role.GRADIENT, "input.args.1") in keys
            assert (Source.PARAMETERS, "block.fc2", Phase.BACKWARD, Role.GRADIENT, "weight") in keys
            assert (Source.PARAMETERS, "block.fc1", Phase.FORWARD, Role.PARAMETER, "weight") in keys
            assert all(record.tier is Tier.FULL and record.statistics for record in dump.records)


def test_msprobe_statistics_only(tmp_path: Path) -> None:
    write_msprobe(tmp_path / "m", tensors=False)
    with open_dump(tmp_path / "m") as dump:
        record = dump.records[0]
        assert record.tier is Tier.STATISTICS
        assert record.statistics is not None
        assert record.statistics.numel == 6
        with pytest.raises(KeyError, match="only statistics"):
            dump.payload(record.key)


def test_comparing_two_dumps_of_msprobe(tmp_path: Path) -> None:
    write_msprobe(tmp_path / "a")
    write_msprobe(tmp_path / "b")
    write_msprobe(tmp_path / "c", scale=1.5)
    assert pa.compare(tmp_path / "a", tmp_path / "b").verdict == "aligned"
    report = pa.compare(tmp_path / "a", tmp_path / "c")
    assert report.verdict == "diverged"
    assert report.first is not None
    assert report.first.scope == "block.fc2"


@pytest.mark.parametrize("damage", ["{", "[]", '{"data": 3}'])
def test_a_broken_index_of_msprobe(tmp_path: Path, damage: str) -> None:
    write_msprobe(tmp_path / "m")
    (tmp_path / "m" / "step5" / "proc4711" / "dump.json").write_text(damage)
    with pytest.raises(DumpDamaged, match=r"dump\.json"):
        open_dump(tmp_path / "m")


def test_tensor_files_that_are_gone_or_evil_are_told(tmp_path: Path) -> None:
    write_msprobe(tmp_path / "m")
    folder = tmp_path / "m" / "step5" / "proc4711" / "dump_tensor_data"
    (folder / "Module.block.fc1.Linear.forward.0.output.0.pt").unlink()
    (folder / "Module.block.fc1.Linear.forward.0.input.0.pt").write_bytes(pickle.dumps(print))
    with open_dump(tmp_path / "m") as dump:
        bad = [record.reason for record in dump.records if record.reason]
        assert len(bad) == 2
        assert any("No such file" in reason for reason in bad)


def test_msprobe_data_names_stay_in_their_folder(tmp_path: Path) -> None:
    write_msprobe(tmp_path / "m")
    path = tmp_path / "m" / "step5" / "proc4711" / "dump.json"
    torch.save(torch.ones(2, 3), tmp_path / "secret.pt")
    path.write_text(path.read_text().replace("Module.block.fc1.Linear.forward.0.output.0.pt", "../../../secret.pt"))
    with open_dump(tmp_path / "m") as dump:
        record = next(r for r in dump.records if r.key.scope == "block.fc1" and r.key.role is Role.OUTPUT)
        assert record.tier is not Tier.FULL


def test_reading_files_without_hashes_is_told(tmp_path: Path) -> None:
    write_msprobe(tmp_path / "a")
    seen: list[tuple[int, int]] = []
    pa.compare(tmp_path / "a", tmp_path / "a", reading=lambda done, total: seen.append((done, total)))
    total = 2 * len(open_dump(tmp_path / "a").records)
    assert seen == [(number, total) for number in range(1, total + 1)]
