"""Convolutional nets and vision transformers."""

from __future__ import annotations

import torch
from localization_cases import Pair, case
from torch import nn
from torch.nn import functional


class Norm2d(nn.BatchNorm2d):
    """Batch norm by hand. ``fault``: what it gets wrong."""

    fault = ""

    def forward(self, x):
        if not self.training:
            mean, variance = self.running_mean, self.running_var
        else:
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=self.fault == "normalises_unbiased")
            stored = variance if self.fault == "stores_biased" else x.var((0, 2, 3), unbiased=True)
            rate = 1 - self.momentum if self.fault == "momentum" else self.momentum
            with torch.no_grad():
                self.running_mean.lerp_(mean.detach(), rate)
                self.running_var.lerp_(stored.detach(), rate)
        eps = 1e-3 if self.fault == "eps" else self.eps
        y = (x - mean[:, None, None]) * torch.rsqrt(variance + eps)[:, None, None]
        return y * self.weight[:, None, None] + self.bias[:, None, None]


class ConvNet(nn.Module):
    def __init__(self, norm_fault: str = "", conv_fault: str = "", pool_fault: str = "") -> None:
        super().__init__()
        self.stem, self.norm1, self.norm2 = nn.Conv2d(3, 8, 3, padding=1), Norm2d(8), Norm2d(8)
        self.conv, self.pool, self.head = Conv(8, conv_fault), Pool(pool_fault), nn.Linear(8 * 16, 5)
        self.norm2.fault = norm_fault

    def forward(self, x):
        x = functional.relu(self.norm1(self.stem(x)))
        x = functional.relu(self.norm2(self.conv(x)))
        return self.head(self.pool(x).flatten(1))


class Conv(nn.Conv2d):
    def __init__(self, d: int, fault: str) -> None:
        super().__init__(d, d, 3, padding=1)
        self.fault = fault

    def forward(self, x):
        if self.fault == "asymmetric_padding":
            return functional.conv2d(functional.pad(x, (0, 2, 0, 2)), self.weight, self.bias)
        if self.fault == "flipped":
            return functional.conv2d(x, self.weight.flip(2, 3), self.bias, padding=1)
        if self.fault == "channels":
            return functional.conv2d(x, self.weight.transpose(0, 1), self.bias, padding=1)
        y = functional.conv2d(x, self.weight, self.bias, padding=1)
        if self.fault == "corner":
            y = y.clone()
            y[..., -1, -1] = self.bias
        return y


class Pool(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x):
        return functional.avg_pool2d(x, 3, 2, 1, count_include_pad=self.fault != "excludes_padding")


def make(**faults: str) -> Pair:
    torch.manual_seed(30)
    return ConvNet(**faults).train(), (torch.randn(4, 3, 8, 8),)


def _register(part: str, fault: str, first: str, source: str, phase: str = "forward", dtype=torch.float32) -> None:
    def build(faulty: bool) -> Pair:
        model, (x,) = make(**({part: fault} if faulty else {}))
        return model.to(dtype), (x.to(dtype),)

    build.__name__ = f"{part.split('_')[0]}_{fault}_{str(dtype)[6:]}"
    case(first, source, site="module", phase=phase)(build)


for _dtype in (torch.float32, torch.bfloat16):
    _register("norm_fault", "normalises_unbiased", "norm2", "X22", dtype=_dtype)
    _register("norm_fault", "momentum", "norm2", "running statistics only", dtype=_dtype)
    _register("conv_fault", "asymmetric_padding", "conv", "padding of a ported convolution", dtype=_dtype)
    _register("conv_fault", "flipped", "conv", "correlation against convolution", dtype=_dtype)
    _register("conv_fault", "channels", "conv", "weight layout OIHW against IOHW", dtype=_dtype)
    _register("conv_fault", "corner", "conv", "tail of a tile", dtype=_dtype)
    _register("pool_fault", "excludes_padding", "pool", "count_include_pad", dtype=_dtype)
_register("norm_fault", "eps", "norm2", "eps of another framework")
_register("norm_fault", "stores_biased", "norm2", "running statistics only")


@case("norm2", "a module left in training mode", site="module")
def batch_norm_uses_batch_statistics(faulty: bool) -> Pair:
    """Only the training flag differs."""
    model, inputs = make()
    model.eval()
    if faulty:
        model.norm2.train()
    return model, inputs


class Resize(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x):
        if self.fault == "corners":
            return functional.interpolate(x, size=(7, 7), mode="bilinear", align_corners=True)
        if self.fault == "antialias":
            return functional.interpolate(x, size=(7, 7), mode="bilinear", antialias=True)
        if self.fault == "nearest":
            return functional.interpolate(x, size=(7, 7), mode="nearest-exact")
        return functional.interpolate(x, size=(7, 7), mode="bilinear")


class Patches(nn.Module):
    """Patch embedding. ``fault``: "order" flattens column by column, "cls" puts the class token last."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.proj, self.fault = nn.Conv2d(3, 16, 4, 4), fault
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 10, 16))

    def forward(self, x):
        y = self.proj(x)
        y = (y.transpose(2, 3) if self.fault == "order" else y).flatten(2).transpose(1, 2)
        cls = self.cls.expand(len(x), -1, -1)
        y = torch.cat((y, cls) if self.fault == "cls" else (cls, y), 1)
        return y + self.pos


class ViT(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        part, _, what = fault.partition(":")
        self.resize, self.patches = Resize(what if part == "resize" else ""), Patches(what if part == "patches" else "")
        self.encoder = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, activation="gelu")
        self.shuffle, self.norm, self.head = Shuffle(what == "shuffle"), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x):
        x = functional.pad(self.resize(x), (2, 3, 2, 3))
        x = self.shuffle(self.encoder(self.patches(x)))
        return self.head(self.norm(x[:, 0]))


class Shuffle(nn.Module):
    """Channel shuffle: the same numbers in other places, so that no statistic moves."""

    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.groups = 8 if fault else 2

    def forward(self, x):
        b, t, d = x.shape
        return x.view(b, t, self.groups, d // self.groups).transpose(2, 3).reshape(b, t, d)


def _register_vit(name: str, fault: str, first: str, site: str, training: bool = True) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(31)
        return ViT(fault if faulty else "").train(training), (torch.randn(2, 3, 9, 9),)

    build.__name__ = f"vit_{name}"
    case(first, "ported vision transformers", site=site)(build)


_register_vit("resize_corners", "resize:corners", "resize", "module")
_register_vit("resize_nearest", "resize:nearest", "resize", "module")
_register_vit("patch_order", "patches:order", "patches", "inline")
_register_vit("class_token_last", "patches:cls", "patches", "inline")
_register_vit("shuffle", "x:shuffle", "shuffle", "module")
_register_vit("shuffle_in_eval", "x:shuffle", "shuffle", "module", training=False)
