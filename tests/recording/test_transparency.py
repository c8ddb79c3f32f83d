"""A session changes nothing: bits, graphs, random numbers, objects."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from programs import run_python

from precision_align.recording.session import capture

pytestmark = pytest.mark.live


def test_training_is_bit_equal_with_and_without_capture(kind, run_training, sink):
    plain, _, _ = run_training(kind)
    watched, model, recorder = run_training(
        kind, lambda model, optimizer: capture(model, None, sink=sink, optimizer=optimizer)
    )
    assert watched == plain
    assert not recorder.notes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    dump = sink.dump()
    assert len({record.key for record in dump.records}) == len(dump.records)
    roles = {(str(record.key.source), str(record.key.role)) for record in dump.records}
    expected = {("module", "input"), ("module", "output"), ("module", "gradient"), ("parameters", "parameter")}
    assert expected | {("optimizer", "gradient"), ("optimizer", "parameter"), ("point", "loss")} <= roles


SIMULATED = """
    import sys
    import torch
    sys.path.insert(0, {folder!r})
    import conftest
    from precision_align.devices.simulated import install_simulated
    from precision_align.recording.session import capture

    install_simulated("ascend910b")

    def train(kind, sink):
        torch.manual_seed(7)
        model = kind.build().to("npu")
        optimizer = kind.optimizer(model.parameters())

        def steps():
            for _ in range(2):
                optimizer.zero_grad()
                conftest.loss_of(model(*(x.detach().to("npu") for x in kind.batch()))).backward()
                optimizer.step()

        if sink is None:
            steps()
        else:
            with capture(model, None, sink=sink, optimizer=optimizer):
                steps()
        return [t.cpu() for t in model.state_dict().values()]

    for name in ("in-place mlp", "outer skips", "u-net", "custom", "bfloat16"):
        sink = conftest.make_sink()
        kind = conftest.KINDS[name]
        assert all(map(torch.equal, train(kind, None), train(kind, sink))), name
        dump = sink.dump()
        assert dump.info.device == "npu:0 simulated ascend910b"
        assert not any(record.reason for record in dump.records)
        assert {{r.device for r in dump.records if r.key.source == "module"}} == {{"npu:0"}}

    # Extra memory on the device: no more than allowed at a time, and the same values.
    from precision_align.recording import copies, sums
    from precision_align.recording.staging import Stager

    allowed = copies.DEVICE_BYTES = sums.DEVICE_BYTES = 1 << 12
    base = torch.arange(40 * 30 * 20, dtype=torch.float32).reshape(40, 30, 20)
    moved, real = [], torch.Tensor.copy_

    def copy(room, piece, *rest):
        moved.append((piece.device.type, piece.nbytes))
        return real(room, piece, *rest)

    torch.Tensor.copy_ = copy
    pair = torch.complex(base, base + 1)
    ways = [lambda t: t.permute(2, 0, 1), lambda t: t[:, ::2], lambda t: t, lambda t: t.conj()]
    for whole in (base, pair):
        for way in ways:
            words = Stager().stage(way(whole.to("npu"))).words
            assert words.tobytes() == way(whole).resolve_conj().contiguous().numpy().tobytes()
    torch.Tensor.copy_ = real
    sizes = [nbytes for device, nbytes in moved if device == "npu"]
    assert len(sizes) >= base.nbytes // allowed, sizes
    assert max(sizes) <= allowed

    waiting = sums.Sums()
    first, second, third = (torch.full((30, 20), float(n)).to("npu") for n in (1, 2, 3))
    held = [waiting.start(first), waiting.start(second)]
    assert [one.device.type for one in held] == ["npu", "cpu"]  # 2,400 bytes each
    totals = [waiting.finish(waiting.add(one, third), first.device) for one in held]
    assert [float(one.mean()) for one in totals] == [4.0, 5.0]
    assert waiting.start(first).device.type == "npu"  # room again
"""


def test_the_simulated_npu_computes_the_same_with_and_without_capture():
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11):
        pytest.skip("the simulated NPU needs torch 2.11")
    here = Path(__file__).resolve().parent
    code = textwrap.dedent(SIMULATED).format(folder=str(here))
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
