"""Every stock torch.nn leaf is replayed from its recorded attributes, without any code of the user."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precision_align.core.terms import Phase, Role, Site, Status

G = torch.Generator().manual_seed(0)
IDS = torch.randint(0, 10, (4, 6), generator=G)
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0])


def r(*shape):
    return torch.randn(*shape, generator=G)


def p(*shape):
    return torch.rand(*shape, generator=G)


POINTWISE = {
    "ReLU6": nn.ReLU6,
    "LeakyReLU": lambda: nn.LeakyReLU(0.2),
    "PReLU": lambda: nn.PReLU(6),
    "RReLU": lambda: nn.RReLU().eval(),
    "ELU": lambda: nn.ELU(0.7),
    "CELU": lambda: nn.CELU(0.7),
    "SELU": nn.SELU,
    "GELU": nn.GELU,
    "GELU tanh": lambda: nn.GELU("tanh"),
    "SiLU": nn.SiLU,
    "Mish": nn.Mish,
    "Sigmoid": nn.Sigmoid,
    "Tanh": nn.Tanh,
    "Hardtanh": lambda: nn.Hardtanh(-0.5, 2.0),
    "Hardswish": nn.Hardswish,
    "Hardsigmoid": nn.Hardsigmoid,
    "Hardshrink": lambda: nn.Hardshrink(0.3),
    "Softshrink": lambda: nn.Softshrink(0.3),
    "Tanhshrink": nn.Tanhshrink,
    "Softplus": lambda: nn.Softplus(2.0, 3.0),
    "Softsign": nn.Softsign,
    "LogSigmoid": nn.LogSigmoid,
    "GLU": lambda: nn.GLU(1),
    "Threshold": lambda: nn.Threshold(0.1, 20.0),
    "Softmax": lambda: nn.Softmax(-1),
    "LogSoftmax": lambda: nn.LogSoftmax(1),
    "Softmin": lambda: nn.Softmin(-1),
    "LayerNorm": lambda: nn.LayerNorm((6, 4), eps=1e-3),
    "LayerNorm without weights": lambda: nn.LayerNorm(4, elementwise_affine=False),
    "LayerNorm without bias": lambda: nn.LayerNorm(4, bias=False),
    "LocalResponseNorm": lambda: nn.LocalResponseNorm(2),
    "GroupNorm": lambda: nn.GroupNorm(3, 6),
    "BatchNorm1d": lambda: nn.BatchNorm1d(6, momentum=0.3),
    "BatchNorm1d eval": lambda: nn.BatchNorm1d(6).eval(),
    "BatchNorm1d bare": lambda: nn.BatchNorm1d(6, affine=False, track_running_stats=False),
    "InstanceNorm1d": lambda: nn.InstanceNorm1d(6),
    "InstanceNorm1d tracking": lambda: nn.InstanceNorm1d(6, affine=True, track_running_stats=True),
    "Linear": lambda: nn.Linear(4, 5),
    "Linear without bias": lambda: nn.Linear(4, 5, bias=False),
    "Conv1d": lambda: nn.Conv1d(6, 4, 3, padding=1, groups=2),
    "ConvTranspose1d": lambda: nn.ConvTranspose1d(6, 4, 3),
    "Upsample": lambda: nn.Upsample(scale_factor=2),
    "AvgPool1d": lambda: nn.AvgPool1d(2),
    "MaxPool1d": lambda: nn.MaxPool1d(2),
    "AdaptiveAvgPool1d": lambda: nn.AdaptiveAvgPool1d(3),
    "LPPool1d": lambda: nn.LPPool1d(2, 2),
    "ReplicationPad1d": lambda: nn.ReplicationPad1d(2),
    "ConstantPad1d": lambda: nn.ConstantPad1d(2, 0.3),
    "Flatten": nn.Flatten,
    "Identity": nn.Identity,
    "Dropout eval": lambda: nn.Dropout(0.3).eval(),
    "Dropout 0": lambda: nn.Dropout(0.0),
}
PLANE = {
    "Conv2d": lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2, padding_mode="reflect", padding=1),
    "Conv2d same": lambda: nn.Conv2d(4, 6, 3, padding="same", bias=False),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1),
    "BatchNorm2d": lambda: nn.BatchNorm2d(4),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(4, affine=True),
    "MaxPool2d": lambda: nn.MaxPool2d(2, return_indices=True),
    "AvgPool2d": lambda: nn.AvgPool2d(3, padding=1, count_include_pad=False),
    "AdaptiveMaxPool2d": lambda: nn.AdaptiveMaxPool2d((2, 3)),
    "Upsample bilinear": lambda: nn.Upsample(size=(7, 9), mode="bilinear", align_corners=True),
    "UpsamplingNearest2d": lambda: nn.UpsamplingNearest2d(scale_factor=2),
    "PixelShuffle": lambda: nn.PixelShuffle(2),
    "PixelUnshuffle": lambda: nn.PixelUnshuffle(2),
    "ChannelShuffle": lambda: nn.ChannelShuffle(2),
    "ZeroPad2d": lambda: nn.ZeroPad2d(1),
    "ReflectionPad2d": lambda: nn.ReflectionPad2d(1),
    "CircularPad2d": lambda: nn.CircularPad2d(1),
    "Unfold": lambda: nn.Unfold(2),
    "Softmax2d": nn.Softmax2d,
    "CrossMapLRN2d": lambda: nn.CrossMapLRN2d(2),
}
OTHER = {
    "Bilinear": (lambda: nn.Bilinear(4, 5, 3), (r(2, 4), r(2, 5))),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), (r(1, 2, 4, 4, 4),)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 3, 2), (r(1, 2, 3, 3, 3),)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(2), (r(2, 2, 3, 3, 3),)),
    "Embedding": (lambda: nn.Embedding(10, 5, padding_idx=0), (IDS,)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(10, 5), (IDS,)),
    "EmbeddingBag max": (lambda: nn.EmbeddingBag(10, 5, mode="max"), (IDS,)),
    "Fold": (lambda: nn.Fold((4, 5), 2), (r(1, 4, 12),)),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 3)), (r(2, 6),)),
    "LSTM": (lambda: nn.LSTM(5, 7, num_layers=2, bidirectional=True, batch_first=True), (r(2, 4, 5),)),
    "LSTM projected": (lambda: nn.LSTM(5, 7, proj_size=3), (r(4, 2, 5),)),
    "GRU": (lambda: nn.GRU(5, 7), (r(4, 2, 5),)),
    "RNN relu": (lambda: nn.RNN(5, 7, nonlinearity="relu", bias=False), (r(4, 2, 5),)),
    "LSTMCell": (lambda: nn.LSTMCell(5, 7), (r(2, 5),)),
    "GRUCell": (lambda: nn.GRUCell(5, 7), (r(2, 5),)),
    "RNNCell": (lambda: nn.RNNCell(5, 7), (r(2, 5),)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2), (r(4, 2, 8), r(4, 2, 8), r(4, 2, 8))),
    "CrossEntropyLoss": (nn.CrossEntropyLoss, (r(4, 10), IDS[:, 0])),
    "CrossEntropyLoss weighted": (
        lambda: nn.CrossEntropyLoss(weight=torch.arange(1.0, 11), label_smoothing=0.1),
        (r(4, 10), IDS[:, 0]),
    ),
    "MSELoss": (nn.MSELoss, (r(4), r(4))),
    "L1Loss": (nn.L1Loss, (r(4), r(4))),
    "HuberLoss": (lambda: nn.HuberLoss(delta=0.4), (r(4), r(4))),
    "NLLLoss": (nn.NLLLoss, (r(4, 10).log_softmax(-1), IDS[:, 0])),
    "BCELoss": (nn.BCELoss, (p(4), p(4))),
    "BCEWithLogitsLoss": (lambda: nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0)), (r(4), p(4))),
    "KLDivLoss": (lambda: nn.KLDivLoss(reduction="batchmean"), (r(4, 5).log_softmax(-1), p(4, 5))),
    "GaussianNLLLoss": (nn.GaussianNLLLoss, (r(4), r(4), p(4) + 0.1)),
    "CosineEmbeddingLoss": (nn.CosineEmbeddingLoss, (r(4, 5), r(4, 5), SIGNS)),
    "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss, (r(4) - 3, SIGNS)),
    "MarginRankingLoss": (lambda: nn.MarginRankingLoss(5.0), (r(4), r(4), SIGNS)),
    "TripletMarginLoss": (nn.TripletMarginLoss, (r(4, 5), r(4, 5), r(4, 5))),
    "CTCLoss": (
        nn.CTCLoss,
        (r(9, 2, 5).log_softmax(-1), IDS[:2, :3] % 4 + 1, torch.tensor([9, 9]), torch.tensor([3, 3])),
    ),
    "CosineSimilarity": (nn.CosineSimilarity, (r(4, 5), r(4, 5))),
    "PairwiseDistance": (nn.PairwiseDistance, (r(4, 5), r(4, 5))),
}
LINE_INPUT, PLANE_INPUT = r(5, 6, 4), r(2, 4, 8, 8)
LEAVES = {
    **{name: (build, (LINE_INPUT,)) for name, build in POINTWISE.items()},
    **{name: (build, (PLANE_INPUT,)) for name, build in PLANE.items()},
    **OTHER,
}
if hasattr(nn, "RMSNorm"):
    LEAVES["RMSNorm"] = (lambda: nn.RMSNorm(4), (LINE_INPUT,))
WITHOUT_GRADIENT = {"Identity", "Dropout eval", "Dropout 0"}  # they make no autograd node


def call(inputs, backward=False):
    def run(module):
        given = [item.clone().requires_grad_(backward and item.is_floating_point()) for item in inputs[:1]]
        found = module(*given, *(item.clone() for item in inputs[1:]))
        if backward:
            parts = found if isinstance(found, tuple) else (found,)
            total = sum((part * 0.7).sum() for part in flat(parts) if part.requires_grad)
            if isinstance(total, torch.Tensor):
                total.backward()

    return run


def flat(value):
    return [value] if isinstance(value, torch.Tensor) else [leaf for item in value for leaf in flat(item)]


def select(rows, phase, *roles):
    return [row for row in rows if row.phase == phase and row.role in roles and row.site != Site.INPUTS]


pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


@pytest.mark.parametrize("name", LEAVES)
def test_replayed_and_passed(name, judge):
    build, inputs = LEAVES[name]
    found = judge(build(), call(inputs, backward=True))
    rows = select(found, Phase.FORWARD, Role.OUTPUT, Role.BUFFER)
    assert rows
    gradients = select(found, Phase.BACKWARD, Role.GRADIENT)
    assert gradients or name in WITHOUT_GRADIENT
    totals = [row for row in gradients if row.op == "gradient"]  # of a parameter, over its calls' shares
    # out_proj's weights are used by its owner: their gradient is no sum of its own calls' shares, and nothing tells
    unknown = {Status.INCONCLUSIVE} if name == "MultiheadAttention" else set()
    assert {row.status for row in totals} <= {Status.PASS, *unknown}
    rows += [row for row in gradients if row.op != "gradient"]
    assert {(row.status, row.evidence) for row in rows} == {(Status.PASS, "replay")}, [row.note for row in rows]


@pytest.mark.parametrize("name", LEAVES)
def test_one_percent_too_much_fails(name, judge, patch):
    build, inputs = LEAVES[name]

    def enlarge(found):
        return (found[0] * 1.01, *found[1:]) if isinstance(found, tuple) else found * 1.01

    rows = select(judge(patch(build(), enlarge), call(inputs)), Phase.FORWARD, Role.OUTPUT)
    assert Status.FAIL in {row.status for row in rows}, [(row.status, row.note) for row in rows]


@pytest.mark.parametrize("name", ["Linear", "LayerNorm", "Conv2d", "GRU", "BatchNorm2d", "MultiheadAttention"])
def test_a_wrapper_around_it_changes_nothing(name, judge):
    """Recorded scopes begin with "module." under DistributedDataParallel; the parameters are found all the same."""
    build, inputs = LEAVES[name]

    class DataParallel(nn.Module):  # registers its module as torch's wrappers do
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args):
            return self.module(*args)

    rows = select(judge(DataParallel(build()), call(inputs)), Phase.FORWARD, Role.OUTPUT)
    assert {(row.status, row.evidence) for row in rows} == {(Status.PASS, "replay")}, [row.note for row in rows]


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: nn.Dropout2d(0.3), (8, 8, 2, 2)),
        (lambda: nn.AlphaDropout(0.3), (8, 80)),
        (lambda: nn.RReLU(), (8, 80)),
    ],
)
def test_random_leaves_without_a_known_law_are_inconclusive(build, shape, judge):
    rows = select(judge(build(), call((r(*shape),))), Phase.FORWARD, Role.OUTPUT)
    assert [row.status for row in rows] == [Status.INCONCLUSIVE]
    assert "not tested" in rows[0].note


def test_code_that_a_leaf_was_given_is_named(judge):
    loss = nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: (a - b).abs().sum(-1))
    rows = select(judge(loss, call((r(4, 5), r(4, 5), r(4, 5)))), Phase.FORWARD, Role.OUTPUT)
    assert [row.status for row in rows] == [Status.INCONCLUSIVE]
    assert "distance_function" in rows[0].note
