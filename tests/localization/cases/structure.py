"""What surrounds the arithmetic: wrappers, sharing, arguments, outputs, hooks, what is called and what is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import torch
from localization_cases import Pair, case
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations


class Tied(nn.Module):
    """Head and embedding share a parameter. ``untied``: the candidate's head keeps a stale copy."""

    def __init__(self, untied: bool) -> None:
        super().__init__()
        self.emb, self.fc, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = nn.Parameter(self.emb.weight.detach() * 1.05) if untied else self.emb.weight

    def forward(self, ids):
        return self.head(self.fc(self.emb(ids)))


@case("head", "tied weights not tied after loading", site="parameters")
def untied_head(faulty: bool) -> Pair:
    torch.manual_seed(40)
    return Tied(faulty), (torch.randint(0, 20, (3, 5)),)


class Shared(nn.Module):
    """One layer three times. ``wrong_call``: the number of the call that gets something else."""

    def __init__(self, wrong_call: int) -> None:
        super().__init__()
        self.layer, self.out, self.wrong_call = nn.Linear(8, 8), nn.Linear(8, 2), wrong_call

    def forward(self, x):
        for number in range(3):
            x = torch.tanh(self.layer(x * 1.01 if number == self.wrong_call else x))
        return self.out(x)


@case("", "a layer used three times", site="inline", call=0)
def reused_layer_gets_something_else(faulty: bool) -> Pair:
    torch.manual_seed(41)
    return Shared(1 if faulty else -1), (torch.randn(4, 8),)


class Counting(nn.Module):
    """Wrong from its second call on."""

    def __init__(self, faulty: bool) -> None:
        super().__init__()
        self.w, self.faulty = nn.Parameter(torch.randn(8, 8) * 0.3), faulty
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, x):
        self.calls += 1
        y = x @ self.w
        return y + 0.01 if self.faulty and int(self.calls) == 3 else y


class Repeated(nn.Module):
    def __init__(self, faulty: bool) -> None:
        super().__init__()
        self.step, self.out = Counting(faulty), nn.Linear(8, 2)

    def forward(self, x):
        for _ in range(4):
            x = torch.tanh(self.step(x))
        return self.out(x)


@case("step", "state from an earlier call", site="module", call=2)
def wrong_in_the_third_call(faulty: bool) -> Pair:
    torch.manual_seed(42)
    return Repeated(faulty), (torch.randn(4, 8),)


class KeywordLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, *, hidden, scale=1.0, mask=None, mode="mean"):
        y = self.fc(hidden) * scale
        if mask is not None:
            y = y * mask[..., None]
        return y.mean(1) if mode == "mean" else y.amax(1)


class Keywords(nn.Module):
    """Calls its layer with keywords only. ``what``: the argument that differs."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layer, self.head, self.what = KeywordLayer(), nn.Linear(8, 2), what

    def forward(self, x, mask):
        keywords: dict[str, Any] = {"hidden": x, "scale": 0.5, "mask": mask}
        if self.what == "scale":
            keywords["scale"] = 0.25
        if self.what == "none":
            keywords["mask"] = None
        if self.what == "mode":
            keywords["mode"] = "max"
        if self.what == "tensor":
            keywords["hidden"] = x * 1.01
        return self.head(self.layer(**keywords))


def _register_keywords(what: str) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(43)
        mask = (torch.arange(5)[None] < torch.tensor([[5], [3]])).float()
        return Keywords(what if faulty else ""), {"x": torch.randn(2, 5, 8), "mask": mask}

    build.__name__ = f"keyword_argument_{what}"
    case("", "optimum-habana#2353: arguments by keyword", site="inline")(build)


for _what in ("scale", "none", "mode", "tensor"):
    _register_keywords(_what)


@dataclass
class Output:
    last: torch.Tensor
    pooled: Optional[torch.Tensor] = None
    extra: Any = None


class Moments(NamedTuple):
    mean: torch.Tensor
    spread: torch.Tensor


class Encoder(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fc, self.fault = nn.Linear(8, 8), fault

    def forward(self, x):
        h = self.fc(x)
        pooled = h.mean(1) if self.fault != "pooled" else h[:, 0]
        cache = {"k": (h[..., :4], None), "n": 2 if self.fault != "number" else 3}
        spread = h.std((1, 2), unbiased=self.fault != "nested")
        return Output(h, pooled, [Moments(h.mean((1, 2)), spread), cache])


class Structured(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.enc, self.head = Encoder(fault), nn.Linear(8, 2)

    def forward(self, x):
        out = self.enc(x)
        moments, cache = out.extra
        return {"logits": self.head(out.pooled) * cache["n"], "spread": moments.spread, "k": cache["k"][0]}


def _register_structured(fault: str, site: str) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(44)
        return Structured(fault if faulty else ""), (torch.randn(3, 5, 8),)

    build.__name__ = f"structured_output_{fault}"
    case("enc", "dense-attention#14: outputs that are not a tensor", site=site)(build)


for _what in ("pooled", "nested", "number"):
    _register_structured(_what, "inline")


class Wrap(nn.Module):
    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        setattr(self, name, module)
        self.name = name

    def forward(self, *args, **kwargs):
        return getattr(self, self.name)(*args, **kwargs)


class Doubling(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.fc, self.factor = nn.Linear(8, 8), factor

    def forward(self, x):
        return self.fc(x) * self.factor


@case("1", "wrapper parts on one side", site="inline")
def wrapped_candidate(faulty: bool) -> Pair:
    torch.manual_seed(45)
    model = nn.Sequential(nn.Linear(8, 8), Doubling(2.02 if faulty else 2.0), nn.Linear(8, 2))
    if faulty:
        model[1] = Wrap(model[1], "_checkpoint_wrapped_module")
        model = Wrap(Wrap(model, "_orig_mod"), "module")
    return model, (torch.randn(4, 8),)


@case(None, "wrapper parts on one side", phase="backward")
def wrapped_candidate_is_right(faulty: bool) -> Pair:
    torch.manual_seed(45)
    model = nn.Sequential(nn.Linear(8, 8), Doubling(2.0), nn.Linear(8, 2))
    return (Wrap(model, "module") if faulty else model), (torch.randn(4, 8),)


@case("1", "wrapper parts on the reference's side", site="inline")
def wrapped_reference(faulty: bool) -> Pair:
    torch.manual_seed(45)
    model = nn.Sequential(nn.Linear(8, 8), Doubling(2.02 if faulty else 2.0), nn.Linear(8, 2))
    return (model if faulty else Wrap(model, "module")), (torch.randn(4, 8),)


@case(None, "weight norm as a parametrization on both sides", phase="step")
def parametrized(faulty: bool) -> Pair:
    torch.manual_seed(46)
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 2))
    model.opt = torch.optim.SGD(model.parameters(), lr=0.1, foreach=faulty)
    return model, (torch.randn(4, 8),)


class UsesWeights(nn.Module):
    """Never calls its child: takes the weights. ``factor`` is the fault."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.emb, self.fc, self.factor = nn.Embedding(20, 8), nn.Linear(8, 8), factor

    def forward(self, ids):
        x = functional.linear(self.emb(ids), self.fc.weight * self.factor, self.fc.bias)
        return functional.linear(x, self.emb.weight)


@case("", "a module used only through its weights", site="inline")
def only_the_weights_are_used(faulty: bool) -> Pair:
    torch.manual_seed(47)
    return UsesWeights(1.02 if faulty else 1.0), (torch.randint(0, 20, (3, 5)),)


@case(None, "a module used only through its weights", phase="backward")
def only_the_weights_are_used_rightly(faulty: bool) -> Pair:
    torch.manual_seed(47)
    return UsesWeights(1.0), (torch.randint(0, 20, (3, 5)),)


class InPlace(nn.Module):
    """``style``: writes into its input, into a view of it, or makes new tensors."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2, self.style = nn.Linear(8, 8), Act(style), nn.Linear(8, 8), style

    def forward(self, x):
        y = self.act(self.fc1(x))
        z = self.fc2(y)
        if self.style == "inplace":
            z += x
            z[:, :2].mul_(2)
            return z
        z = z + x
        return torch.cat((z[:, :2] * 2, z[:, 2:]), 1)


class Act(nn.Module):
    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style

    def forward(self, x):
        if self.style == "inplace":
            return x.mul_(0.5).sigmoid_()
        return torch.sigmoid(x * 0.5)


@case(None, "in-place operations on one side", phase="backward")
def in_place_operations(faulty: bool) -> Pair:
    torch.manual_seed(48)
    return nn.Sequential(*(InPlace("inplace" if faulty else "") for _ in range(2))), (torch.randn(4, 8),)


@case(None, "in-place operations on the reference's side", phase="backward")
def in_place_reference(faulty: bool) -> Pair:
    torch.manual_seed(48)
    return nn.Sequential(*(InPlace("" if faulty else "inplace") for _ in range(2))), (torch.randn(4, 8),)


class Skips(nn.Module):
    """``fault``: leaves out a layer, calls one twice, or in another order."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.layers, self.head, self.fault = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), nn.Linear(8, 2), fault

    def forward(self, x):
        order = {"skip": (0, 2), "twice": (0, 1, 1, 2), "order": (1, 0, 2)}.get(self.fault, (0, 1, 2))
        for number in order:
            x = torch.tanh(self.layers[number](x))
        return self.head(x)


def _register_skips(fault: str) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(49)
        return Skips(fault if faulty else ""), (torch.randn(4, 8),)

    build.__name__ = f"layers_{fault}"
    case("", "layers left out, repeated, exchanged", site="inline")(build)


for _what in ("skip", "twice", "order"):
    _register_skips(_what)
