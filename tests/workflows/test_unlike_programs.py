"""One model in two programs: other names, fused and separate projections. Clean runs align, faults stand in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink
from precision_align.workflows.comparing import compare

torch.set_num_threads(1)
WIDTH, HEADS, GROUPS, HIDDEN = 16, 4, 2, 24
SIZE = WIDTH // HEADS
SIZES = {"q": WIDTH, "k": GROUPS * SIZE, "v": GROUPS * SIZE}

NAMES = {
    "reference": {
        "layers": "layers",
        "attention": "self_attn",
        "mlp": "mlp",
        "first": "input_norm",
        "second": "post_norm",
        "q": "q_proj",
        "k": "k_proj",
        "v": "v_proj",
        "o": "o_proj",
        "gate": "gate_proj",
        "up": "up_proj",
        "down": "down_proj",
        "embed": "embed",
        "norm": "norm",
        "head": "head",
        "qkv": "qkv_proj",
        "act": "act",
        "gate_up": "gate_up_proj",
    },
    "other": {
        "layers": "blocks",
        "attention": "attn",
        "mlp": "ffn",
        "first": "ln_a",
        "second": "ln_b",
        "q": "wq",
        "k": "wk",
        "v": "wv",
        "o": "wo",
        "gate": "w1",
        "up": "w3",
        "down": "w2",
        "embed": "tokens",
        "norm": "final",
        "head": "logits",
        "qkv": "c_attn",
        "act": "silu",
        "gate_up": "c_fc",
    },
}


class Faulty(nn.Linear):
    """``rows``: which of its outputs are wrong by 1 %; ``back``: the gradient of its input is."""

    rows = None
    back = False

    def forward(self, x):
        if self.back:
            x = Grow.apply(x)
        out = super().forward(x)
        if self.rows is not None:
            factor = torch.ones(out.shape[-1])
            factor[self.rows] = 1.01
            out = out * factor
        return out


class Grow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.01


class Part(nn.Module):
    """Modules under the names of one program."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def put(self, name, module):
        setattr(self, self.names[name], module)

    def __getitem__(self, name):
        return getattr(self, self.names[name])


class Attention(Part):
    def __init__(self, names, order):
        super().__init__(names)
        self.order = order
        if order is None:
            for name, size in SIZES.items():
                self.put(name, Faulty(WIDTH, size, bias=False))
        else:
            self.put("qkv", Faulty(WIDTH, sum(SIZES.values()), bias=False))
        self.put("o", Faulty(WIDTH, WIDTH, bias=False))

    def project(self, x):
        if self.order is None:
            return self["q"](x), self["k"](x), self["v"](x)
        whole, places = self["qkv"](x), np.argsort(self.order, kind="stable")
        ends = np.cumsum([0, *SIZES.values()])
        return tuple(whole[..., places[start:end].tolist()] for start, end in zip(ends, ends[1:]))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (one.view(batch, length, -1, SIZE).transpose(1, 2) for one in self.project(x))
        k, v = (one.repeat_interleave(HEADS // GROUPS, 1) for one in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self["o"](mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Mlp(Part):
    def __init__(self, names, fused):
        super().__init__(names)
        self.fused = fused
        if fused:
            self.put("gate_up", Faulty(WIDTH, 2 * HIDDEN))
        else:
            self.put("gate", Faulty(WIDTH, HIDDEN))
            self.put("up", Faulty(WIDTH, HIDDEN))
        self.put("act", nn.SiLU())
        self.put("down", Faulty(HIDDEN, WIDTH, bias=False))

    def forward(self, x):
        gate, up = self["gate_up"](x).chunk(2, -1) if self.fused else (self["gate"](x), self["up"](x))
        return self["down"](self["act"](gate) * up)


class Layer(Part):
    def __init__(self, names, order, fused):
        super().__init__(names)
        self.put("first", nn.LayerNorm(WIDTH))
        self.put("attention", Attention(names, order))
        self.put("second", nn.LayerNorm(WIDTH))
        self.put("mlp", Mlp(names, fused))

    def forward(self, x):
        x = x + self["attention"](self["first"](x))
        return x + self["mlp"](self["second"](x))


class Llama(Part):
    def __init__(self, names="reference", order=None, fused=False):
        super().__init__(NAMES[names])
        self.put("embed", nn.Embedding(50, WIDTH))
        self.put("layers", nn.ModuleList(Layer(self.names, order, fused) for _ in range(2)))
        self.put("norm", nn.LayerNorm(WIDTH))
        self.put("head", Faulty(WIDTH, 50, bias=False))

    def forward(self, tokens):
        x = self["embed"](tokens)
        for layer in self["layers"]:
            x = layer(x)
        return self["head"](self["norm"](x))


def make(names="reference", order=None, fused=False):
    """The same weights whatever the program."""
    torch.manual_seed(0)
    plain = Llama()
    model = Llama(names, order, fused)
    pairs = [(plain["embed"], model["embed"]), (plain["norm"], model["norm"]), (plain["head"], model["head"])]
    for left, right in zip(plain["layers"], model["layers"]):
        pairs += [(left["first"], right["first"]), (left["second"], right["second"])]
        attention, mlp = (left["attention"], right["attention"]), (left["mlp"], right["mlp"])
        pairs += [(attention[0]["o"], attention[1]["o"]), (mlp[0]["down"], mlp[1]["down"])]
        if order is None:
            pairs += [(attention[0][name], attention[1][name]) for name in SIZES]
        else:
            whole = torch.cat([attention[0][part].weight for part in SIZES])
            attention[1]["qkv"].weight.data = whole[order.tolist()].detach().clone()
        if fused:
            for name in ("weight", "bias"):
                whole = torch.cat([getattr(mlp[0][part], name) for part in ("gate", "up")])
                getattr(mlp[1]["gate_up"], name).data = whole.detach().clone()
        else:
            pairs += [(mlp[0][name], mlp[1][name]) for name in ("gate", "up")]
    for left, right in pairs:
        right.load_state_dict(left.state_dict())
    return model


def lay(groups):
    """Row order of a fused weight: the parts cut into groups, which stand together."""
    ends = np.cumsum([0, *SIZES.values()])
    cut = [np.arange(start, end).reshape(groups, -1) for start, end in zip(ends, ends[1:])]
    return np.concatenate(cut, axis=1).ravel()


FORMS = {
    "renamed": {"names": "other"},
    "fused by groups": {"order": lay(GROUPS), "fused": True},
    "renamed and fused": {"names": "other", "order": lay(GROUPS), "fused": True},
}


def record(model, spoil=None, folder=None, warm_up=0, steps=1):
    if spoil is not None:
        spoil(model)
    sink = None if folder else MemorySink()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(3)
    with capture(model, folder, sink=sink, optimizer=optimizer) as recorder:
        for _ in range(warm_up):
            with recorder.step():
                model(torch.zeros(1, 3, dtype=torch.long))
        for _ in range(steps):
            with recorder.step():
                optimizer.zero_grad()
                tokens = torch.randint(0, 50, (2, 7), generator=generator)
                logits = model(tokens[:, :-1])
                F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
                optimizer.step()
    return folder or sink.dump()


@pytest.fixture(scope="module")
def references():
    """Whether fused -> (its dump, its code)."""
    forms = {False: {}, True: {"order": lay(GROUPS), "fused": True}}
    return {fused: (record(make(**form)), lambda form=form: make(**form)) for fused, form in forms.items()}


def share(report):
    parts = report.coverage.values()
    return sum(part.judged for part in parts) / sum(part.recorded for part in parts)


def list_ways(report):
    return {way: sum(pair.way == way for pair in report.modules) for way in {pair.way for pair in report.modules}}


CLEAN = [*((form, True) for form in FORMS), ("renamed and fused", False)]


@pytest.mark.parametrize(("form", "with_code"), CLEAN)
def test_a_clean_run_is_aligned(references, form, with_code):
    reference, code = references[False]
    report = compare(reference, record(make(**FORMS[form])), replay=code if with_code else None)
    assert report.verdict == "aligned", (report.first, report.notes)
    assert share(report) > 0.9, [(row.key, row.note) for row in report.records if row.status in UNJUDGED]
    ways = list_ways(report)
    assert not {"inserted", "removed", "unresolved"} & set(ways), report.modules
    assert ways.get("fused", 0) == (4 if "fused" in form else 0)
    assert ("by content" in ways) == ("renamed" in form)


UNJUDGED = ("inconclusive", "missing")


def test_separate_modules_against_a_fused_reference(references):
    reference, code = references[True]
    report = compare(reference, record(make("other")), replay=code)
    assert (report.verdict, list_ways(report).get("fused")) == ("aligned", 4), report.first
    assert share(report) > 0.9
    assert any("interleaved by 2 groups" in pair.note for pair in report.modules if pair.way == "fused")


def spoil_key(model):
    attention = model["layers"][1]["attention"]
    if attention.order is None:
        attention["k"].rows = slice(None)
    else:
        attention["qkv"].rows = torch.as_tensor(np.flatnonzero((attention.order >= 16) & (attention.order < 24)))


def spoil_down(model):
    model["layers"][0]["mlp"]["down"].rows = slice(None)


def spoil_back(model):
    model["layers"][1]["attention"]["qkv"].back = True


FAULTS = {
    "key": (spoil_key, ("layers.1.self_attn.k_proj", "forward")),
    "down": (spoil_down, ("layers.0.mlp.down_proj", "forward")),
    "back": (spoil_back, None),
}


PLACES = [("renamed", "key"), ("renamed", "down"), ("renamed and fused", "key"), ("renamed and fused", "back")]


@pytest.mark.parametrize(("form", "fault"), PLACES)
def test_a_fault_stands_at_its_module(references, form, fault):
    reference, code = references[False]
    spoil, place = FAULTS[fault]
    report = compare(reference, record(make(**FORMS[form]), spoil), replay=code)
    expected = place or ("blocks.1.attn.c_attn", "backward")
    assert (report.first.scope, report.first.phase) == expected
    if form == "renamed":
        own = {"key": "blocks.1.attn.wk", "down": "blocks.0.ffn.w2"}[fault]
        assert report.first.evidence.endswith(f"the candidate's {own}")


def test_a_fault_in_separate_modules_against_a_fused_reference(references):
    reference, code = references[True]
    report = compare(reference, record(make(), spoil_key), replay=code)
    assert (report.first.scope, report.first.phase) == ("layers.1.self_attn.qkv_proj", "forward")
    assert report.first.explanations[0].text == "confined to the candidate's layers.1.self_attn.k_proj"


def test_steps_are_shifted_and_the_program_is_another(references):
    """A warm-up forward on one side, and two steps, so that every state is carried on."""
    reference = record(make(), steps=2)
    candidate, again = (record(make("other", lay(GROUPS), fused=True), warm_up=1, steps=2) for _ in range(2))
    report = compare(reference, candidate, replay=make, again=[again])
    assert report.verdict == "aligned", report.first
    assert any("candidate step k matches reference step k-1" in note for note in report.notes)
    assert any("1 further run agrees bit for bit" in note for note in report.notes)


def write_arrays(model, folder):
    """What another tool leaves: outputs alone, numbered, under names of its own."""
    folder.mkdir()
    files = []

    def save(name):
        def hook(module, inputs, output):
            files.append(folder / f"{len(files):04d}_Net.{name or 'top'}.npy")
            np.save(files[-1], output.detach().numpy())

        return hook

    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList):
            module.register_forward_hook(save(name))
    model(torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(3))[:, :-1])
    return str(folder)


def spoil_wholly(model):
    down = model["layers"][0]["mlp"]["down"]
    forward = down.forward
    down.forward = lambda x: torch.randn(forward(x).shape, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (None, None),
        (spoil_key, "layers.1.self_attn.k_proj"),
        (spoil_down, "layers.0.mlp.down_proj"),
        (spoil_wholly, "layers.0.mlp.down_proj"),
    ],
)
def test_a_folder_of_arrays_with_names_of_its_own(references, tmp_path, spoil, place):
    model = make("other")
    if spoil is not None:
        spoil(model)
    report = compare(references[False][0], write_arrays(model, tmp_path / "arrays"))
    assert (report.first and report.first.scope) == place
    assert report.verdict == ("aligned" if place is None else "diverged")
    assert share(report) == 1
    assert list_ways(report) == {"by content": len(report.modules)}
