"""Several real processes: sharded parameters, distributed tensors, a rank that dies."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
import torch
from programs import make_environment, run_python

from precision_align.core.terms import Phase, Role, Source
from precision_align.storage.opening import open_dump

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]


def torchrun(folder, text, processes):
    (folder / "script.py").write_text(textwrap.dedent(text))
    environment = make_environment()
    environment.pop("RANK", None)
    words = ("--standalone", "--nproc-per-node", processes, "script.py")
    return run_python("-m", "torch.distributed.run", *words, cwd=folder, env=environment)


SHARDED = """
    import torch
    import torch.distributed as distributed
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from precision_align.recording.session import capture

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))

    def train(path, seed=0, force=None):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        def steps():
            for _ in range(2):
                model(torch.randn(3, 4)).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        if path:
            with capture(model, path, optimizer=optimizer, force=force):
                steps()
        else:
            steps()
        return [p._local_tensor.detach().clone() for p in model.parameters()]

    plain = train(None)
    assert all(map(torch.equal, plain, train("sharded")))
    distributed.barrier()
    assert all(map(torch.equal, plain, train("forced", seed=1, force="sharded")))

    class Passing(nn.Module):
        def forward(self, x):
            return x.redistribute(placements=[Replicate()])

    whole = torch.arange(10.0).reshape(5, 2)
    model = Passing()
    with capture(model, "tensors"):
        model(distribute_tensor(whole, mesh, [Shard(0)]))
    distributed.barrier()
    distributed.destroy_process_group()
"""


@pytest.mark.skipif(torch.__version__ < "2.6", reason="fully_shard and DTensor have their public names from torch 2.6")
def test_sharded_parameters_and_distributed_tensors(tmp_path):
    done = torchrun(tmp_path, SHARDED, 2)
    assert done.returncode == 0, done.stderr[-3000:]
    dump = open_dump(tmp_path / "sharded")
    assert dump.ranks == [0, 1]
    assert [info.capture["layout"]["meshes"] for info in dump.infos] == [[{"mesh": [0, 1], "names": ["dp"]}]] * 2
    assert [info.capture["layout"]["local_rank"] for info in dump.infos] == [0, 1]
    assert not [r for r in dump.records if r.reason], [r.reason for r in dump.records if r.reason]
    weights = [r for r in dump.records if r.key.source == Source.PARAMETERS and r.key.role == Role.PARAMETER]
    first = [r for r in weights if (r.key.scope, r.key.path, r.key.step) == ("0", "weight", 0)]
    assert [r.extra["shard"]["placements"] for r in first] == [["Shard(0)"]] * 2
    assert [r.extra["shard"]["coordinate"] for r in first] == [[0], [1]]
    torch.manual_seed(0)
    expected = torch.nn.Linear(4, 8).weight.detach().numpy()
    assert np.array_equal(np.concatenate([dump.values(r.key) for r in first]), expected)
    states = [r for r in dump.records if r.key.role == Role.STATE and "exp_avg" in r.key.path]
    assert states
    assert all("shard" in r.extra for r in states)
    forced = open_dump(tmp_path / "forced")  # from other parameters, which the reference's shards replaced
    for record in forced.records:
        key = record.key
        if key.source in (Source.PARAMETERS, Source.OPTIMIZER) and key.phase != Phase.BACKWARD and key.step:
            assert record.digest == dump.get(key).digest, key
    assert not [note for note in forced.notes if "not forced" in note]
    tensors = open_dump(tmp_path / "tensors")
    given = [r for r in tensors.records if r.key.role == Role.INPUT]
    assert [r.shape for r in given] == [(3, 2), (2, 2)]
    assert [r.extra["shard"]["global_shape"] for r in given] == [[5, 2]] * 2
    returned = [r for r in tensors.records if r.key.role == Role.OUTPUT]
    assert [r.extra["shard"]["placements"] for r in returned] == [["Replicate"]] * 2
    assert all(np.array_equal(tensors.values(r.key), np.arange(10.0).reshape(5, 2)) for r in returned)


DYING = """
    import os, pathlib, signal, time
    import torch
    from torch import nn
    from precision_align.recording.session import capture

    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    model = nn.Linear(64, 64)
    with capture(model, "some", ranks="1,3") as recorder:
        model(torch.ones(1, 64))
    with capture(model, "dump") as recorder:
        for step in range(4):
            with recorder.step():
                model(torch.randn(2, 64)).sum().backward()
                if rank == 2 and step == 3:
                    while len(list(pathlib.Path().glob("done*"))) < 3:
                        time.sleep(0.05)
                    os.kill(os.getpid(), signal.SIGKILL)
    pathlib.Path(f"done{rank}").touch()
"""


def test_a_rank_that_dies_leaves_whole_files_and_the_others_are_complete(tmp_path):
    done = torchrun(tmp_path, DYING, 4)
    assert done.returncode != 0
    dump = open_dump(tmp_path / "dump")
    assert dump.ranks == [0, 1, 2, 3]
    assert open_dump(tmp_path / "some").ranks == [1, 3]
    steps = {rank: {r.key.step for r in dump.records if r.key.rank == rank} for rank in range(4)}
    assert {0, 1} <= steps[2] <= {0, 1, 2}  # the last finished step is written in the background
    assert steps[0] == steps[1] == steps[3] == {0, 1, 2, 3}
    assert dump.notes
    for record in dump.records:
        dump.payload(record.key)  # the hash is verified
