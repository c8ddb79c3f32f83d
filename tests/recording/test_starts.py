"""Start packs: two runs with different seeds, and different scripts, begin equal, and say where they do not."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from precision_align.cli.app import main
from precision_align.core.errors import UsageError
from precision_align.core.terms import Role, Source
from precision_align.devices.simulated import is_supported
from precision_align.recording.masks import FUSED, Mask, apply_mask, attend
from precision_align.recording.session import capture
from precision_align.storage.opening import open_dump

pytestmark = pytest.mark.live
ROOT = Path(__file__).resolve().parents[2]


class Drawing(nn.Module):
    """Draws in every way that is followed."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Linear(8, 16), nn.Linear(16, 3)
        self.attention = nn.MultiheadAttention(16, 4, dropout=0.2, batch_first=True)
        self.drop, self.planes, self.selu = nn.Dropout(0.3), nn.Dropout2d(0.5), nn.AlphaDropout(0.2)
        self.lstm = nn.LSTM(16, 16, 2, dropout=0.3, batch_first=True)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x, scale=1.0):
        h = self.embed(x)
        h = h + self.attention(h, h, h, need_weights=False)[0] + self.attention(h, h, h)[0]
        h = self.planes(self.selu(self.drop(h))[..., None])[..., 0]
        h = h + self.lstm(h)[0] + torch.rand_like(h) * 0.1 + torch.empty_like(h).bernoulli_(0.5)
        q = h[:, None]
        h = h + functional.scaled_dot_product_attention(q, q, q, dropout_p=0.3)[:, 0]
        h = self.norm(h.transpose(1, 2)).transpose(1, 2)
        return self.out(functional.gumbel_softmax(h) * scale).mean(1)


class Small(nn.Module):
    def __init__(self, width=4, p=0.5):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, width), nn.Dropout(p), nn.Linear(width, 2)

    def forward(self, x):
        return self.last(self.drop(self.first(x)))


def train(seed, path, *, make=Drawing, lr=0.01, warm=0, steps=2, wrap=lambda model: model, loss=None, **options):
    """Two micro-batches a step; ``warm``: steps before the session."""
    torch.manual_seed(seed)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    called = wrap(model)
    width = next(model.parameters()).shape[1]

    def step():
        for _ in range(2):
            x, y = torch.randn(4, 5, width), torch.randint(0, 2, (4,))
            out = called(x)
            functional.cross_entropy(out if out.dim() == 2 else out.mean(1), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    for _ in range(warm):
        step()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with capture(called, path, optimizer=optimizer, **options) as recorder:
            for _ in range(steps):
                with recorder.step():
                    step()
    return open_dump(path), schedule.get_last_lr(), "\n".join(str(warning.message) for warning in caught)


def digests(dump):
    return {str(record.key): record.digest for record in dump.records}


def test_an_equal_start_to_the_last_bit(tmp_path):
    pack, again = tmp_path / "start", tmp_path / "again"
    plain, _, _ = train(1, tmp_path / "plain", warm=1, steps=1)
    reference, rate, told = train(1, tmp_path / "reference", warm=1, steps=1, save_start=pack)
    assert digests(plain) == digests(reference), "capture changed the numbers"
    assert told == "", "everything was matched"
    options = {"start_from": pack, "save_start": again}
    candidate, own_rate, told = train(2, tmp_path / "candidate", lr=3.0, steps=1, **options)
    assert digests(candidate) == digests(reference)
    assert own_rate == rate
    assert "lr: 3.0 by 0.005" in told
    assert digests(open_dump(again)) == digests(open_dump(pack))
    masks = [r.key for r in open_dump(pack).records if r.key.source == Source.FUNCTION and r.key.role == Role.OUTPUT]
    assert {key.op for key in masks} == {
        "dropout",
        "feature_dropout",
        "alpha_dropout",
        "attention",
        "bernoulli_",
        "rand_like",
        "exponential_",
    }
    torch.manual_seed(2)
    (weight,) = (
        r.key for r in reference.records if str(r.key).endswith("parameters/embed/0/first//0/forward/parameter/weight")
    )
    assert not torch.equal(torch.from_numpy(reference.payload(weight)), Drawing().embed.weight), "the seeds differ"


def test_what_does_not_match_is_said(tmp_path):
    train(1, tmp_path / "reference", make=Small, warm=1, save_start=tmp_path / "start")

    def make():
        model = Small(width=6, p=0.25)
        model.extra = nn.Linear(2, 2)
        return model

    dump, _, told = train(2, tmp_path / "candidate", make=make, start_from=tmp_path / "start")
    for text in (*dump.notes, told):
        assert "\n" in text or text
    notes = "\n".join(dump.notes)
    for expected in (
        "parameter 'first.weight'",
        "its shape is (4, 4) in the reference",
        "it is in this model, and not in the pack: it begins as the script made it: 2 ('extra.weight', 'extra.bias')",
        "p is 0.5 in the pack and 0.25 here: an own mask was drawn",
    ):
        assert expected in notes
        assert expected in told


def test_draws_that_are_not_followed_are_named(tmp_path):
    class Leaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.act = nn.Linear(4, 2), nn.RReLU()

        def forward(self, x):
            return self.act(self.inner(x))

    _, _, told = train(1, tmp_path / "reference", make=Leaky, save_start=tmp_path / "start")
    assert "the start pack lacks numbers were drawn" in told
    assert "('act')" in told
    candidate, _, told = train(2, tmp_path / "candidate", make=Leaky, start_from=tmp_path / "start")
    assert "not equal at the start, numbers were drawn" in told
    assert any("('act')" in note for note in candidate.notes)


def test_names_behind_wrappers_are_found(tmp_path):
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args):
            return self.module(*args)

    reference, _, _ = train(1, tmp_path / "reference", make=Small, save_start=tmp_path / "start")
    candidate, _, told = train(2, tmp_path / "candidate", make=Small, wrap=Wrapper, start_from=tmp_path / "start")
    assert told == ""
    outputs = {r.key.scope: r.digest for r in candidate.records if r.key.role == Role.OUTPUT and r.key.step == 1}
    own = {r.key.scope: r.digest for r in reference.records if r.key.role == Role.OUTPUT and r.key.step == 1}
    assert {f"module.{scope}".rstrip("."): digest for scope, digest in own.items()} | {"": own[""]} == outputs


def test_masks_are_the_same_when_a_block_is_run_again(tmp_path):
    class Rerun(Small):
        def forward(self, x):
            return self.last(checkpoint(lambda h: self.drop(self.first(h)), x, use_reentrant=False))

    reference, _, _ = train(1, tmp_path / "reference", make=Rerun, save_start=tmp_path / "start")
    candidate, _, told = train(2, tmp_path / "candidate", make=Rerun, start_from=tmp_path / "start")
    assert told == ""
    assert digests(candidate) == digests(reference)


def test_optimizer_state_and_batches_alone_make_the_difference(tmp_path):
    """A pack whose state is left out does not give an equal run: the equal one above is no accident."""
    reference, _, _ = train(1, tmp_path / "reference", make=Small, warm=2, save_start=tmp_path / "start", steps=1)
    fresh, _, _ = train(1, tmp_path / "fresh", make=Small, start_from=tmp_path / "start", steps=1)
    assert digests(fresh) == digests(reference)
    states = [r for r in fresh.records if r.key.role == Role.STATE and r.key.path.startswith("before.exp_avg")]
    assert states
    assert all(record.statistics.l2 > 0 for record in states)


def test_a_checkpoint_stands_for_the_weights(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"of any format")
    options = {"save_start": tmp_path / "start", "checkpoint": tmp_path / "weights.pt"}
    train(1, tmp_path / "reference", make=Small, **options)
    pack = open_dump(tmp_path / "start")
    weights = [r for r in pack.records if r.key.source == Source.PARAMETERS and r.key.role == Role.PARAMETER]
    assert {str(record.tier) for record in weights} == {"fingerprint"}

    def load():
        torch.manual_seed(1)
        return Small()

    _, _, told = train(2, tmp_path / "loaded", make=load, start_from=tmp_path / "start")
    assert told == ""
    _, _, told = train(2, tmp_path / "forgotten", make=Small, start_from=tmp_path / "start")
    assert "load weights.pt (sha256 " in told


def test_a_pack_that_is_damaged_or_lacks_a_rank_never_ends_training(tmp_path):
    train(1, tmp_path / "reference", make=Small, save_start=tmp_path / "start", steps=1)
    (part,) = (tmp_path / "start").rglob("*.h5")
    words = bytearray(part.read_bytes())
    offset = words.index(open_dump(tmp_path / "start").payload(find_mask(tmp_path / "start").key).tobytes())
    words[offset] ^= 1
    part.write_bytes(words)
    dump, _, told = train(2, tmp_path / "candidate", make=Small, start_from=tmp_path / "start", steps=1, rank=1)
    assert "does not fit its hash" in told
    assert "rank 1 began as rank 0" in told
    assert {record.key.step for record in dump.records} == {0}


def find_mask(pack):
    return next(record for record in open_dump(pack).records if record.key.op == "dropout")


def test_a_plain_dump_is_no_start_pack(tmp_path):
    train(1, tmp_path / "plain", make=Small)
    with pytest.raises(UsageError, match="no start pack"):
        capture(Small(), tmp_path / "candidate", start_from=tmp_path / "plain")
    assert not (tmp_path / "candidate").exists()
    with pytest.raises(UsageError, match="give save_start too"):
        capture(Small(), tmp_path / "candidate", checkpoint="weights.pt")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_masks_are_applied_as_the_kernels_do(dtype):
    torch.manual_seed(0)
    x = torch.randn(64, 33, dtype=dtype)
    state = torch.get_rng_state()
    dropped = functional.dropout(x, 0.3)
    torch.set_rng_state(state)
    keep = torch.empty_like(x).bernoulli_(0.7).bool()
    assert torch.equal(apply_mask(x, Mask(keep, 0.3)), dropped)
    torch.set_rng_state(state)
    for name in ("alpha_dropout", "feature_alpha_dropout", "dropout1d"):
        torch.set_rng_state(state)
        whole = x if name == "alpha_dropout" else x[None]
        expected = getattr(functional, name)(whole.clone(), 0.3, True)
        torch.set_rng_state(state)
        mask = Mask(torch.empty_like(whole if name == "alpha_dropout" else whole[..., :1]).bernoulli_(0.7).bool(), 0.3)
        assert torch.equal(apply_mask(whole, mask, alpha="alpha" in name), expected), name
    if dtype == torch.bfloat16:
        return  # the CPU's native_dropout rounds the factor to bfloat16 first, the fused kernel does not
    # 0.75 is exact in float32: there the CPU's own native_dropout rounds as the fused kernel does
    leaf = x.clone().requires_grad_()
    expected, keep = torch.native_dropout(leaf, 0.25, True)
    expected.sum().backward()
    own = x.clone().requires_grad_()
    result = apply_mask(own, Mask(keep, 0.25, FUSED))
    result.sum().backward()
    assert torch.equal(result, expected)
    assert torch.equal(own.grad, leaf.grad)
    with pytest.raises(ValueError, match="the mask has shape"):
        apply_mask(x, Mask(keep[:3], 0.3))


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
def test_attention_with_a_mask_of_dropout_is_attention(options):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind(0)
    everything = Mask(torch.ones(2, 4, 5, 5, dtype=torch.bool), 0.0)
    expected = functional.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(attend(q, k, v, everything, **options), expected)
    allowed = torch.rand(5, 5) < 0.7
    allowed.fill_diagonal_(True)
    if not options:
        expected = functional.scaled_dot_product_attention(q, k, v, allowed)
        torch.testing.assert_close(attend(q, k, v, everything, attn_mask=allowed), expected)


def test_gradient_scalers_go_along(tmp_path):
    def run(seed, scale, **options):
        torch.manual_seed(seed)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale) if hasattr(torch.amp, "GradScaler") else None
        if scaler is None:
            pytest.skip("torch before 2.3 scales on CUDA only")
        with capture(model, tmp_path / f"run{seed}", optimizer=optimizer, **options) as recorder, recorder.step():
            scaler.scale(model(torch.randn(2, 4)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale()

    assert run(1, 8.0, save_start=tmp_path / "start") == 8.0
    assert run(2, 1024.0, start_from=tmp_path / "start") == 8.0


SCRIPT = """
    import sys
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(int(sys.argv[1]))
    device = "cpu"
    if len(sys.argv) > 2:
        from precision_align.devices.simulated import install_simulated
        install_simulated(sys.argv[2])
        device = "npu"
    model = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Dropout(0.4), nn.Linear(12, 3)).to(device)
    optimizer, criterion = torch.optim.AdamW(model.parameters(), 0.01), nn.CrossEntropyLoss()
    for step in range(2):
        x, y = torch.randn(8, 6).to(device), torch.randint(0, 3, (8,)).to(device)
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def launch(folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    code = "import sys; from precision_align.cli.app import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_two_processes_without_a_shared_folder(tmp_path):
    """The reference on the CPU, the candidate on the simulated NPU; only volumes pass between their folders."""
    there, here = tmp_path / "there", tmp_path / "here"
    for place in (there, here):
        place.mkdir()
        (place / "train.py").write_text(textwrap.dedent(SCRIPT))
    launch(there, "capture", "-o", "reference", "--save-start", "start", "--", "train.py", "1")
    for name in ("start", "reference"):
        assert main(["pack", str(there / name), "-o", str(tmp_path / "carried" / name), "--volume", "20KB"]) == 0
        assert main(["unpack", str(tmp_path / "carried" / name), "-o", str(here / name)]) == 0
    device = ["none"] if is_supported() else []
    told = launch(
        here, "capture", "-o", "own", "--start-from", "start", "--save-start", "again", "--", "train.py", "2", *device
    )
    assert "started from" in told
    assert "not equal" not in told
    assert digests(open_dump(here / "again")) == digests(open_dump(there / "start"))
    reference, candidate = open_dump(here / "reference"), open_dump(here / "own")
    assert candidate.info.device.startswith("npu" if device else "cpu")
    equal = digests(reference)
    chosen = [
        record
        for record in candidate.records
        if record.key.step == 0
        and (record.key.role in (Role.PARAMETER, Role.INPUT) or record.key.scope == "2")
        and record.key.source != Source.OPTIMIZER
    ]
    assert len(chosen) > 12
    assert [str(record.key) for record in chosen if equal[str(record.key)] != record.digest] == []
