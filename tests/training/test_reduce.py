"""The smallest model that still shows a fault, on nine pairs of model and fault (five families of models)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from programs import run_python

from precision_align.core.errors import UsageError
from precision_align.training.reductions import cut, find_dimensions

torch = pytest.importorskip("torch")
CONFIG = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "seq_length": 16,
    "batch_size": 4,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
PROGRAM = """
import torch
from torch import nn

FAULT = "norm"


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.groups = c["num_attention_heads"], c["num_key_value_heads"]
        self.size = c["hidden_size"] // self.heads
        self.q = nn.Linear(c["hidden_size"], self.heads * self.size, bias=False)
        self.kv = nn.Linear(c["hidden_size"], 2 * self.groups * self.size, bias=False)
        self.scale = self.size ** -0.5

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(x).view(b, n, 2, self.groups, self.size).permute(2, 0, 3, 1, 4)
        repeat = self.heads // self.groups
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        scores = q @ k.transpose(-1, -2) * self.scale
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1)


class Act(nn.Module):
    def forward(self, x):
        return nn.functional.gelu(x)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.attend = Norm(c["hidden_size"], c["rms_norm_eps"]), Attention(c)
        self.up, self.act = nn.Linear(c["hidden_size"], c["intermediate_size"]), Act()
        self.down = nn.Linear(c["intermediate_size"], c["hidden_size"])

    def forward(self, x):
        x = x + self.attend(self.norm(x))
        return x + self.down(self.act(self.up(x)))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Tail(nn.Linear):
    def forward(self, x):  # loses what lies behind the eighth place of a sequence
        y = super().forward(x)
        return torch.cat((y[:, :8], y[:, 8:] * 0.9), 1)


def spoil(model, fault):
    last = model.layers[-1]
    if fault == "norm":
        last.norm.eps = 0.1
    elif fault == "scale":
        last.attend.scale *= 1.1
    elif fault == "gelu":
        last.act.forward = lambda x: nn.functional.gelu(x, approximate="tanh") * 1.01
    elif fault == "third layer" and len(model.layers) > 2:
        model.layers[2].norm.eps = 0.1
    elif fault == "long sequence":
        model.layers[0].up.__class__ = Tail


def build(c):
    reference, candidate = Model(c).eval(), Model(c).eval()
    spoil(candidate, FAULT)
    shape, generator = (c["batch_size"], c["seq_length"]), torch.Generator().manual_seed(1)
    return reference, candidate, torch.randint(0, c["vocab_size"], shape, generator=generator)
"""


def test_dimensions_keep_their_ratios() -> None:
    found = {dimension.name: dimension for dimension in find_dimensions(CONFIG)}
    assert set(found) == {"layers", "batch", "sequence", "vocabulary", "width"}
    assert found["width"].factors == (2,)
    small = cut(CONFIG, found["width"], 2)
    assert small["hidden_size"] // small["num_attention_heads"] == 8
    assert small["num_attention_heads"] // small["num_key_value_heads"] == 2
    assert small["intermediate_size"] == 2 * small["hidden_size"]
    assert small["rms_norm_eps"] == 1e-6
    assert small["tie_word_embeddings"] is False
    assert found["layers"].factors == (3, 2)


def test_no_fewer_experts_than_are_chosen() -> None:
    (experts,) = find_dimensions({"num_experts": 8, "num_experts_per_tok": 2})
    assert experts.factors[0] == 4


@pytest.mark.parametrize(
    ("fault", "kept"),
    [
        ("norm", {"num_hidden_layers": 1, "seq_length": 1, "batch_size": 1}),
        ("scale", {"num_hidden_layers": 1, "batch_size": 1}),
        ("gelu", {"num_hidden_layers": 1, "seq_length": 1}),
        ("third layer", {"num_hidden_layers": 3, "seq_length": 1}),
        ("long sequence", {"num_hidden_layers": 1, "batch_size": 1, "seq_length": 9}),
    ],
)
def test_a_fault_is_kept_in_the_smallest_model(fault: str, kept: dict[str, int]) -> None:
    from precision_align.workflows.reducing import reduce_model

    made: dict[str, Any] = {"__name__": "reduced_model"}
    exec(PROGRAM.replace('FAULT = "norm"', f"FAULT = {fault!r}"), made)
    found = reduce_model(made["build"], CONFIG)
    assert {name: found.config[name] for name in kept} == kept
    assert found.config["hidden_size"] == 16
    assert found.factor > 2
    assert any(trial.shows for trial in found.trials)


@pytest.mark.parametrize(
    ("build", "config", "kept", "fault"),
    [
        (
            "convolution",
            {"width": 8, "depth": 3, "batch_size": 2, "image_size": 8},
            {"width": 1, "depth": 1, "batch_size": 1, "image_size": 1},
            "BatchNorm2d in blocks.*.*",
        ),
        (
            "recurrent",
            {"hidden_size": 8, "num_layers": 2, "vocab_size": 16, "seq_len": 4, "batch_size": 2},
            {"hidden_size": 1, "num_layers": 1, "seq_len": 1, "batch_size": 1},
            "in cell",
        ),
        (  # weights that are not divided by their sum show only where not every expert is chosen
            "experts",
            {"hidden_size": 8, "inner": 16, "num_experts": 8, "top_k": 2, "num_layers": 2, "batch_size": 4},
            {"hidden_size": 1, "inner": 2, "num_experts": 4, "top_k": 2, "num_layers": 1, "batch_size": 1},
            "Experts in layers.*",
        ),
        (
            "vision",
            {"embed_dim": 16, "num_heads": 2, "depth": 2, "image_size": 8, "patch_size": 2, "batch_size": 2},
            {"embed_dim": 8, "num_heads": 1, "depth": 1, "image_size": 2, "patch_size": 2, "batch_size": 1},
            "LayerNorm in layers.*.norm*",
        ),
    ],
    ids=["convolution", "recurrent", "experts", "vision"],
)
def test_other_families(
    build: str, config: dict[str, int], kept: dict[str, int], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import reduced_families

    from precision_align.workflows.reducing import reduce_model

    found = reduce_model(getattr(reduced_families, build), config)
    assert {name: found.config[name] for name in kept} == kept
    assert fault in found.fault
    assert found.factor > 4


def test_images_keep_whole_patches() -> None:
    (image,) = find_dimensions({"image_size": 32, "patch_size": 8})
    assert (image.name, image.factors) == ("image", (4, 2))
    assert find_dimensions({"image_size": 30, "patch_size": 8}) == []


@pytest.mark.parametrize("build", [lambda config: 1 / 0, lambda config: (1, 2)], ids=["raises", "no triple"])
def test_a_build_that_fails_as_it_is(build: Any) -> None:
    from precision_align.workflows.reducing import reduce_model

    with pytest.raises(UsageError, match="cannot be built or run"):
        reduce_model(build, CONFIG)


def test_without_a_fault_there_is_nothing_to_keep() -> None:
    from precision_align.workflows.reducing import reduce_model

    made: dict[str, Any] = {"__name__": "reduced_model"}
    exec(PROGRAM.replace('FAULT = "norm"', 'FAULT = ""'), made)
    with pytest.raises(UsageError, match="no divergence"):
        reduce_model(made["build"], CONFIG)


def test_the_verb(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(PROGRAM)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 2, "seq_length": 4}))
    words = ["reduce", "model.py:build", "config.json", "--save-config", "small.json", "--json"]
    done = run_python("-m", "precision_align", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "small.json").read_text())["num_hidden_layers"] == 1
    assert "layers.*.norm" in json.loads(done.stdout)["fault"]
    (tmp_path / "config.json").write_text("[")
    assert run_python("-m", "precision_align", *words, cwd=tmp_path).returncode == 2
