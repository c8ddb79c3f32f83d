"""Two checkpoints: every format reads the same, and each loss or change of a tensor is told from harmless ones."""

from __future__ import annotations

import argparse
import json
import math
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run_python

from precision_align.core.errors import DumpDamaged, DumpForeign, DumpNotFound, NothingInCommon, UsageError
from precision_align.reporting.checkpoints import describe_checkpoints
from precision_align.reporting.resultpages import render_page
from precision_align.storage.foreign.pickles import load_checked
from precision_align.training.checkpoints.comparing import compare_checkpoints
from precision_align.training.checkpoints.distributed import _Reader
from precision_align.training.checkpoints.naming import find_common_names
from precision_align.training.checkpoints.opening import open_checkpoint

torch = pytest.importorskip("torch")
State = dict[str, Any]


def make_state(seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    attention = {f"layers.0.attn.{part}.weight": draw(8, 8) for part in ("q_proj", "k_proj", "v_proj")}
    return {
        "embed.weight": draw(12, 8),
        **attention,
        "layers.0.mlp.gate_proj.weight": draw(16, 8),
        "layers.0.mlp.up_proj.weight": draw(16, 8),
        "layers.0.norm.weight": draw(8).bfloat16(),
        "count": torch.tensor(7),
    }


def save_pt(state: State, path: Path) -> Path:
    torch.save(state, path.with_suffix(".pt"))
    return path.with_suffix(".pt")


def save_trainer(state: State, path: Path) -> Path:
    return save_pt({"model": {f"module.{name}": value for name, value in state.items()}, "step": 3}, path)


def save_safetensors(state: State, path: Path) -> Path:
    """Written by hand, so that the format, not a library, is what is read."""
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.float16: "F16"}
    header, data = {}, b""
    for name, value in state.items():
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": names[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path = path.with_suffix(".safetensors")
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def save_sharded(state: State, path: Path) -> Path:
    path.mkdir()
    names = list(state)
    shards = [names[:3], names[3:]]
    for index, shard in enumerate(shards):
        save_safetensors({name: state[name] for name in shard}, path / f"model-{index}")
    places = {name: f"model-{index}.safetensors" for index, shard in enumerate(shards) for name in shard}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return path


def save_distributed(state: State, path: Path) -> Path:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no process group is there
        dcp.save({"model": state, "step": 5}, checkpoint_id=str(path))
    return path


FORMATS = (save_pt, save_trainer, save_safetensors, save_sharded, save_distributed)


def judge(reference: Path, candidate: Path, **options: Any) -> dict[str, str]:
    return {fate.name: str(fate.fate) for fate in compare_checkpoints(reference, candidate, **options).fates}


def changed(fates: dict[str, str]) -> dict[str, str]:
    return {name: fate for name, fate in fates.items() if fate != "equal"}


@pytest.mark.parametrize("save", FORMATS, ids=lambda save: save.__name__)
def test_every_format_holds_the_same(tmp_path: Path, save: Callable[[State, Path], Path]) -> None:
    reference = save_pt(make_state(), tmp_path / "reference")
    fates = judge(reference, save(make_state(), tmp_path / "candidate"))
    assert changed(fates) == {}
    assert len(fates) == len(make_state())
    other = make_state()
    other["embed.weight"][3, 3] += 1e-6
    assert changed(judge(reference, save(other, tmp_path / "changed"))) == {"embed.weight": "differs"}


@pytest.mark.parametrize("save", FORMATS, ids=lambda save: save.__name__)
def test_what_a_save_lost(tmp_path: Path, save: Callable[[State, Path], Path]) -> None:
    state = make_state()
    reference = save_pt(state, tmp_path / "reference")
    del state["layers.0.norm.weight"]
    state["embed.weight"] = state["embed.weight"].bfloat16()
    state["extra"] = torch.ones(2)
    assert changed(judge(reference, save(state, tmp_path / "candidate"))) == {
        "layers.0.norm.weight": "missing",
        "embed.weight": "rounded",
        "extra": "extra",
    }


@pytest.mark.parametrize(
    ("change", "fate"),
    [
        (lambda weight: weight.T.contiguous(), "transposed"),
        (lambda weight: torch.cat([weight, torch.zeros(4, 8)]), "padded"),
        (lambda weight: weight[:-1], "shape"),
        (lambda weight: torch.cat([torch.zeros(4, 8), weight]), "shape"),
        (lambda weight: weight.half(), "rounded"),
        (lambda weight: (weight * 1.01).half(), "differs"),
        (lambda weight: weight.masked_fill(weight == weight.max(), float("nan")), "broken"),
        (lambda weight: weight.reshape(8, 12), "shape"),
        (lambda weight: weight.double(), "rounded"),
    ],
)
def test_changes_of_one_tensor(tmp_path: Path, change: Callable[[Any], Any], fate: str) -> None:
    state = make_state()
    reference = save_pt(state, tmp_path / "reference")
    state["embed.weight"] = change(state["embed.weight"])
    assert changed(judge(reference, save_pt(state, tmp_path / "candidate"))) == {"embed.weight": fate}


def test_nan_on_both_sides_is_no_equality_and_infinities_are(tmp_path: Path) -> None:
    state = make_state()
    state["mask"] = torch.full((4, 4), -math.inf).triu(1)
    state["embed.weight"][2, 5] = math.nan
    path = save_pt(state, tmp_path / "reference")
    assert changed(judge(path, path)) == {"embed.weight": "broken"}


def test_a_tensor_of_a_few_bytes_that_promises_terabytes(tmp_path: Path) -> None:
    state = {"weight": torch.ones(1).expand(2**46), "bias": torch.ones(3)}
    torch.save(state, tmp_path / "bomb.pt")
    assert changed(judge(tmp_path / "bomb.pt", tmp_path / "bomb.pt")) == {"weight": "unreadable"}


def test_a_tied_weight_that_a_format_leaves_out(tmp_path: Path) -> None:
    state = make_state()
    state["head.weight"] = state["embed.weight"]
    reference = save_pt(state, tmp_path / "reference")
    fates = judge(reference, save_safetensors(make_state(), tmp_path / "candidate"))
    assert changed(fates) == {"head.weight": "tied"}


def fuse(state: State, layout: str) -> State:
    fused = dict(state)
    parts = [fused.pop(f"layers.0.attn.{part}.weight") for part in ("q_proj", "k_proj", "v_proj")]
    whole = torch.cat(parts)
    if layout == "interleaved by 4 groups":
        whole = torch.cat([part.reshape(4, 2, 8) for part in parts], 1).reshape(24, 8)
    if layout == "in order, transposed":
        whole = whole.T.contiguous()
    fused["layers.0.attn.qkv_proj.weight"] = whole
    fused["layers.0.mlp.gate_up_proj.weight"] = torch.cat(
        [fused.pop(f"layers.0.mlp.{part}.weight") for part in ("gate_proj", "up_proj")]
    )
    return fused


@pytest.mark.parametrize("layout", ["in order", "interleaved by 4 groups", "in order, transposed"])
@pytest.mark.parametrize("split_is_reference", [True, False])
def test_fused_and_split_projections(tmp_path: Path, layout: str, split_is_reference: bool) -> None:
    sides = [save_pt(make_state(), tmp_path / "split"), save_pt(fuse(make_state(), layout), tmp_path / "fused")]
    report = compare_checkpoints(*(sides if split_is_reference else sides[::-1]))
    assert not report.faults
    assert layout in {fate.layout for fate in report.fates}
    assert all(fate.fate == "equal" for fate in report.fates)


def test_a_fused_projection_in_the_wrong_order(tmp_path: Path) -> None:
    wrong = make_state()
    names = [f"layers.0.attn.{part}.weight" for part in ("q_proj", "k_proj")]
    wrong[names[0]], wrong[names[1]] = wrong[names[1]], wrong[names[0]]
    paths = save_pt(make_state(), tmp_path / "split"), save_pt(fuse(wrong, "in order"), tmp_path / "fused")
    (fault,) = compare_checkpoints(*paths).faults
    assert fault.partner == "layers.0.attn.qkv_proj.weight"
    assert fault.fate == "differs"


def test_names_that_are_mapped(tmp_path: Path) -> None:
    reference = save_pt(make_state(), tmp_path / "reference")
    renamed = {f"decoder.{name.replace('layers', 'blocks')}": value for name, value in make_state().items()}
    candidate = save_pt(renamed, tmp_path / "candidate")
    with pytest.raises(NothingInCommon, match=r"--rename"):
        compare_checkpoints(reference, candidate)
    assert changed(judge(reference, candidate, rename=[(r"^decoder\.", ""), ("^blocks", "layers")])) == {}
    with pytest.raises(UsageError, match="both be called"):
        compare_checkpoints(reference, candidate, rename=[(".*", "one")])
    with pytest.raises(UsageError, match="rename"):
        compare_checkpoints(reference, candidate, rename=[("(", "")])


def test_a_checkpoint_against_the_live_model(tmp_path: Path, training: Any) -> None:
    run = training("convolution")
    dump = run.run()
    saved = save_pt({"state_dict": run.model.state_dict()}, tmp_path / "saved")
    assert "live model" in compare_checkpoints(dump, saved).kinds[0]
    assert not compare_checkpoints(dump, saved).faults
    stale = {name: value.clone() for name, value in run.model.state_dict().items() if name != "0.bias"}
    stale["5.weight"] += 1.0
    fates = changed(judge(dump, save_pt(stale, tmp_path / "stale")))
    assert {"0.bias": "missing", "5.weight": "differs"}.items() <= fates.items()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    good = save_pt(make_state(), tmp_path / "good")
    with pytest.raises(DumpNotFound):
        open_checkpoint(tmp_path / "nowhere.pt")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DumpForeign, match="no form of checkpoint"):
        open_checkpoint(tmp_path / "notes.txt")
    (tmp_path / "cut.pt").write_bytes(good.read_bytes()[:500])
    with pytest.raises(DumpDamaged):
        open_checkpoint(tmp_path / "cut.pt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DumpForeign, match="no checkpoint"):
        open_checkpoint(tmp_path / "empty")


def test_what_megatron_saves_beside_its_tensors_is_passed_over(tmp_path: Path) -> None:
    arguments = argparse.Namespace(lr=1e-3, sizes=[1, 2], table=torch.ones(2))
    beside = {"args": arguments, "rng_state": [{"np_rng_state": np.random.get_state(), "torch": torch.get_rng_state()}]}
    torch.save({"model": make_state(), **beside, "iteration": 7}, tmp_path / "model_optim_rng.pt")
    tensors = find_common_names(open_checkpoint(tmp_path / "model_optim_rng.pt"), ())
    assert set(make_state()) < set(tensors)
    assert set(tensors) - set(make_state()) == {"args.table", "rng_state.0.torch"}


def test_a_model_with_a_head_beside_its_model(tmp_path: Path) -> None:
    """As Hugging Face names it: "model" is a module in one file and a dictionary around it in another."""
    state = {**{f"model.{name}": value for name, value in make_state().items()}, "lm_head.weight": torch.randn(4, 8)}
    reference = save_pt(state, tmp_path / "reference")
    for number, save in enumerate((save_trainer, save_sharded, save_distributed, save_safetensors)):
        fates = judge(reference, save(state, tmp_path / str(number)))
        assert set(changed(fates)) <= {"step"}, save.__name__
    renamed = {name.replace("model.", "transformer."): value for name, value in state.items()}
    candidate = save_pt(renamed, tmp_path / "renamed")
    assert changed(judge(reference, candidate, rename=[(r"^transformer\.", "model.")])) == {}


def test_a_lost_tensor_of_ones_is_not_taken_for_tied(tmp_path: Path) -> None:
    state = {**make_state(), "a.weight": torch.ones(8), "b.weight": torch.ones(8)}
    reference = save_pt(state, tmp_path / "reference")
    del state["b.weight"]
    assert changed(judge(reference, save_pt(state, tmp_path / "candidate"))) == {"b.weight": "missing"}


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_nothing_in_a_checkpoint_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": torch.ones(2), "evil": Harmful()}, "evil.pt")
    (tmp_path / "raw.bin").write_bytes(pickle.dumps(Harmful()))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / ".metadata").write_bytes(pickle.dumps(Harmful()))
    for place in ("evil.pt", "raw.bin", "folder"):
        with pytest.raises(DumpDamaged):
            open_checkpoint(place)
    # a name of a package that is passed over is not imported either: its object is nothing but its fields
    torch.save({"weight": torch.ones(2), "evil": Harmful()}, "passed.pt")
    with zipfile.ZipFile("passed.pt") as old, zipfile.ZipFile("renamed.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"cposix\nmkdir\n", b"cnumpy\nmkdir\n"))
    assert set(open_checkpoint("renamed.pt").tensors) == {"weight"}
    assert not Path("ran").exists()


@pytest.mark.parametrize(("data", "words"), [(b"", "is empty"), (b"PK\3\4 and no end", "cut off"), (b"old", "1.6")])
def test_what_a_file_that_is_no_archive_is(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "model.pt").write_bytes(data)
    with pytest.raises(DumpDamaged, match=words):
        open_checkpoint(tmp_path / "model.pt")


def test_an_index_that_promises_more_than_there_is(tmp_path: Path) -> None:
    folder = save_sharded(make_state(), tmp_path / "sharded")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["ghost.weight"] = "model-0.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert any("ghost.weight" in note for note in open_checkpoint(folder).notes)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(DumpDamaged, match=r"model-1\.safetensors"):
        open_checkpoint(folder)


def test_a_distributed_checkpoint_that_lost_a_file(tmp_path: Path) -> None:
    folder = save_distributed(make_state(), tmp_path / "distributed")
    reference = save_pt(make_state(), tmp_path / "reference")
    for part in folder.glob("*.distcp"):
        part.unlink()
    assert set(judge(reference, folder).values()) == {"unreadable"}
    (folder / ".metadata").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(DumpDamaged, match=r"os\.system"):
        open_checkpoint(folder)


def test_chunks_of_several_ranks_are_put_together(tmp_path: Path) -> None:
    script = tmp_path / "save.py"
    script.write_text(SHARDED)
    done = run_python(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert changed(judge(tmp_path / "whole.pt", tmp_path / "distributed")) == {}
    assert len(list((tmp_path / "distributed").glob("*.distcp"))) == 2


SHARDED = """
import os
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as processes


def work(rank, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(42, dtype=torch.float32).reshape(7, 6)
    state = {"rows": distribute_tensor(whole, mesh, [Shard(0)]), "columns": distribute_tensor(whole, mesh, [Shard(1)])}
    dcp.save(state, checkpoint_id=folder + "/distributed")
    if rank == 0:
        torch.save({"rows": whole, "columns": whole}, folder + "/whole.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    processes.start_processes(work, (sys.argv[1],), 2, start_method="fork")  # torch is imported once
"""


def test_the_verb_and_its_page(tmp_path: Path) -> None:
    state = make_state()
    reference = save_pt(state, tmp_path / "reference")
    state["embed.weight"] = state["embed.weight"] * 2
    candidate = save_safetensors(state, tmp_path / "candidate")
    words = ("-m", "precision_align", "checkpoint", reference, candidate)
    done = run_python(*words, "--json", "-o", tmp_path / "p.html")
    result = json.loads(done.stdout)
    assert (done.returncode, result["counts"]) == (1, {"equal": 7, "differs": 1})
    assert result["tensors"][0]["metrics"]["rel_l2"] == pytest.approx(1.0)
    assert "embed." in (tmp_path / "p.html").read_text("utf-8")
    same = run_python(*words[:-1], reference)
    assert (same.returncode, same.stdout.startswith("EQUAL")) == (0, True)
    wrong = run_python(*words, "--rename", "x")
    assert (wrong.returncode, "PATTERN=REPLACEMENT" in wrong.stderr) == (2, True)


def test_every_fate_reads_well_in_both_languages(tmp_path: Path) -> None:
    state = make_state()
    reference = save_pt(state, tmp_path / "reference")
    del state["count"]
    state["embed.weight"] = state["embed.weight"].half() * np.float32(1.5)
    report = compare_checkpoints(reference, save_pt(fuse(state, "in order"), tmp_path / "candidate"))
    for language, word in (("en", "missing"), ("zh", "缺失")):
        assert word in render_page(describe_checkpoints(report, language), 100)


def test_the_member_of_an_enum_is_its_name_and_nothing_is_looked_up() -> None:
    """Python up to 3.11.3 pickles a member as getattr(its class, its name)."""
    owner = b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"
    data = b"\x80\x02cbuiltins\ngetattr\n" + owner + b"X\x08\x00\x00\x00__init__\x86R."
    assert load_checked(_Reader, data) == "__init__"
