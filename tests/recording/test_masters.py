"""Optimizers that update copies or pieces, after the protocols of Megatron-core and DeepSpeed; the packages themselves
are trained by ``tests/launching/frameworks``.
"""

from __future__ import annotations

import pytest
from torch import nn

from precision_align.recording.launching import run_script
from precision_align.recording.watching import LaunchOptions
from precision_align.storage.opening import open_dump

pytestmark = pytest.mark.live

HEAD = """
import torch
from types import SimpleNamespace
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
parameters = list(net.parameters())
"""

LOOP = """
for step in range(2):
    for micro in range(2):
        net(torch.full((2, 3), step + micro + 1.0)).square().mean().backward()
    update()
"""

# Megatron: gradients in main_grad (.grad is taken away as soon as it comes), fp32 copies of which this rank has a piece
MEGATRON = """
net.bfloat16()
for p in parameters:
    p.main_grad = torch.zeros(p.shape)
    p.main_param = p.detach().float().reshape(-1)[: (p.numel() + 1) // 2].clone()
def collect(p):
    p.main_grad.add_(p.grad)
    p.grad = None
for p in parameters:
    p.register_post_accumulate_grad_hook(collect)
inner = torch.optim.Adam([p.main_param for p in parameters], lr=0.1)
def update():
    for p in parameters:
        p.main_param.grad = p.main_grad.reshape(-1)[: p.main_param.numel()].clone()
    inner.step()
    for p in parameters:
        p.data.view(-1)[: p.main_param.numel()].copy_(p.main_param)
        p.main_grad.zero_()
""" + LOOP.replace("torch.full((2, 3), step + micro + 1.0)", "torch.full((2, 3), step + micro + 1.0).bfloat16()")

# Megatron's distributed optimizer on fp32 parameters: pieces of the parameters' own memory
IN_PLACE = (
    """
pieces = [p.detach().view(-1)[: (p.numel() + 1) // 2] for p in parameters]
for p in parameters:
    p.main_param, p.main_grad = None, torch.zeros(p.shape)
inner = torch.optim.Adam(pieces, lr=0.1)
def update():
    for p, piece in zip(parameters, pieces):
        piece.grad = p.grad.reshape(-1)[: piece.numel()].clone()
        p.grad = None
    inner.step()
"""
    + LOOP
)

# ZeRO 1 and 2: all of one group in a flat fp32 buffer of which each parameter knows its fragment
FLAT = (
    """
flat = torch.cat([p.detach().reshape(-1) for p in parameters])
start = 0
for p in parameters:
    p._hp_mapping = SimpleNamespace(hp_fragment=flat.narrow(0, start, p.numel()))
    start += p.numel()
inner = torch.optim.Adam([flat], lr=0.1)
def update():
    flat.grad = torch.cat([p.grad.reshape(-1) for p in parameters])
    inner.step()
    for p in parameters:
        p.data.copy_(p._hp_mapping.hp_fragment.view(p.shape))
        p.grad = None
"""
    + LOOP
)


def record(tmp_path, text):
    (tmp_path / "train.py").write_text(HEAD + text)
    run_script([str(tmp_path / "train.py")], LaunchOptions(str(tmp_path / "dump")))
    return open_dump(tmp_path / "dump")


@pytest.mark.parametrize(
    ("text", "shapes", "kind"),
    [
        (MEGATRON, {(6,), (2,), (4,), (1,)}, "torch.optim.adam.Adam on fp32 copies or pieces"),
        (IN_PLACE, {(6,), (2,), (4,), (1,)}, "torch.optim.adam.Adam on fp32 copies or pieces"),
        (FLAT, {(4, 3), (4,), (2, 4), (2,)}, "torch.optim.adam.Adam"),
    ],
)
def test_what_an_optimizer_holds_is_recorded_under_the_parameters_name(tmp_path, text, shapes, kind):
    dump = record(tmp_path, text)
    calls = [(call.step, call.micro, call.kind) for call in dump.calls if call.scope == "optimizer:0"]
    assert calls == [(step, 1, kind) for step in range(2)]
    assert not dump.notes
    mine = [r for r in dump.records if r.key.source == "optimizer" and r.key.step == 1]
    for role, paths in (
        ("gradient", {"weight", "bias"}),
        ("parameter", {"weight", "bias"}),
        (
            "state",
            {
                f"{when}.{name}.{local}"
                for when in ("before", "after")
                for name in ("exp_avg", "exp_avg_sq", "step")
                for local in ("weight", "bias")
            },
        ),
    ):
        rows = [r for r in mine if r.key.role == role]
        assert {(r.key.scope, r.key.path) for r in rows} == {(scope, path) for scope in "01" for path in paths}
        assert {tuple(r.shape) for r in rows if ".step." not in r.key.path} == shapes


PARTITIONED = """
whole = {id(p): p.detach().clone() for p in parameters}
def gather(module, args):
    for p in module._parameters.values():
        p.data = whole[id(p)]
def release(module, args, output):
    for p in module._parameters.values():
        p.data = torch.empty(0)
for p in parameters:
    p.ds_tensor = p.detach().reshape(-1)[:2].clone()
for module in net:
    module.register_forward_pre_hook(gather)
    module.register_forward_hook(release)
    release(module, None, None)
with torch.no_grad():
    net(torch.ones(1, 3))
    net(torch.ones(1, 3))
"""


def test_partitioned_parameters_are_read_while_they_are_there(tmp_path):
    dump = record(tmp_path, PARTITIONED)
    rows = [r for r in dump.records if r.key.source == "parameters"]
    assert [(r.key.step, r.key.scope, r.key.path, tuple(r.shape)) for r in rows] == [
        (step, scope, path, shape)
        for step in range(2)
        for scope, path, shape in (
            ("0", "weight", (4, 3)),
            ("0", "bias", (4,)),
            ("1", "weight", (2, 4)),
            ("1", "bias", (2,)),
        )
    ]
    assert not dump.notes


def test_a_wrapper_around_an_optimizer_does_not_double_the_step(tmp_path):
    """Accelerate's is an Optimizer itself, and steps through the one inside."""
    text = (
        """
class Wrapper(torch.optim.Optimizer):
    def __init__(self, optimizer):
        self.optimizer = optimizer
    param_groups = property(lambda self: self.optimizer.param_groups)
    def step(self):
        self.optimizer.step()
wrapper = Wrapper(torch.optim.SGD(parameters, 0.1))
def update():
    wrapper.step()
    for p in parameters:
        p.grad = None
"""
        + LOOP
    )
    dump = record(tmp_path, text)
    assert [(c.step, c.micro) for c in dump.calls if c.scope == ""] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_the_number_of_a_step_is_the_frameworks():
    from precision_align.recording.counters import find_counter

    engine = type("DeepSpeedEngine", (nn.Module,), {"__module__": "deepspeed.runtime.engine"})()
    engine.global_steps = 41
    counter = find_counter(engine)
    assert counter is not None
    engine.global_steps = 42
    assert counter() == 42
    assert find_counter(nn.Linear(1, 1)) is None
