"""Arithmetic profiles of the simulated device, as data: which switches a device class sets, and who says so.

A profile is a model, "emulated, not Ascend". Every switch names the source of its value, or says "assumed".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from precision_align.core.errors import RuleError, Unavailable, UsageError


@dataclass(frozen=True)
class Profile:
    """How the simulated device computes. The defaults are the CPU's own arithmetic.

    ``matmul_inputs``, ``conv_inputs``: what float32 inputs of products are rounded to first ("float32": nothing);
    ``hf32_ties``: rounding of HF32 ties; ``k_block``: length of the pieces that a product's K dimension is summed in,
    0 = the CPU's order; ``k_order``: order of those pieces; ``accumulator``: dtype that holds the sum between pieces;
    ``overflow``: what becomes of values beyond a dtype's range; ``subnormals``: whether results below the smallest
    normal number become zero; ``reduction``: order of sums and means, ``reduction_block`` elements at a time;
    ``gelu``: form of GELU whatever was asked; ``exponential``: exp and softmax's exp; ``norm_inner``: dtype of the
    inner steps of LayerNorm and softmax; ``autocast``: whose operator lists; ``sources``: switch -> who says so.
    """

    name: str = "none"
    matmul_inputs: str = "float32"
    conv_inputs: str = "float32"
    hf32_ties: str = "even"
    k_block: int = 0
    k_order: str = "forward"
    accumulator: str = "float32"
    overflow: str = "inf_nan"
    subnormals: str = "keep"
    reduction: str = "native"
    reduction_block: int = 64
    gelu: str = "as_asked"
    exponential: str = "native"
    norm_inner: str = "float32"
    autocast: str = "cpu"
    sources: Mapping[str, str] = field(default_factory=dict)

    def switches(self) -> dict[str, object]:
        """The switches that differ from the CPU's arithmetic."""
        plain = Profile()
        named = [one.name for one in fields(self) if one.name not in ("name", "sources")]
        return {name: getattr(self, name) for name in named if getattr(self, name) != getattr(plain, name)}

    @property
    def computes_as_cpu(self) -> bool:
        """Whether no switch changes an operator's arithmetic (autocast lists are not arithmetic)."""
        return not set(self.switches()) - {"autocast"}

    def describe(self) -> str:
        """One line: name, the warning that this is a model, and every switch that is set."""
        switches = self.switches()
        listed = ", ".join(f"{name}={value} ({self.sources.get(name, 'assumed')})" for name, value in switches.items())
        return f"profile {self.name} (emulated, not Ascend): {listed or 'the CPU arithmetic, bit for bit'}"


CHOICES: Mapping[str, tuple[str, ...]] = {
    "matmul_inputs": ("float32", "hf32", "tf32", "float16", "bfloat16"),
    "conv_inputs": ("float32", "hf32", "tf32", "float16", "bfloat16"),
    "hf32_ties": ("even", "away"),
    "k_order": ("forward", "reversed"),
    "accumulator": ("float32", "output"),
    "overflow": ("inf_nan", "saturate"),
    "subnormals": ("keep", "flush"),
    "reduction": ("native", "reversed", "blocks"),
    "gelu": ("as_asked", "tanh"),
    "exponential": ("native", "polynomial"),
    "norm_inner": ("float32", "input"),
    "autocast": ("cpu", "torch_npu"),
}

_HF32_DEFAULT = "torch_npu npu_config.py: unset ALLOW_CONV_HF32 reads as on; conv passes cubeMathType 3, matmul 0"
_HF32_TIES = "hiascend SetHF32: transMode 0 rounds to nearest even"
_CUBE = "asc-devkit cube_compute.h: products accumulate in float32; the piece length is assumed"
_GELU = "op-plugin GeluOutKernelNpuOpApi.cpp: aclnnGelu drops `approximate`; that it computes the tanh form is assumed"
_LISTS = "torch_npu AutoCastOps.cpp"
_FP16_CUBE = "hiascend PT_LMTMOG_0076: ACL_PRECISION_MODE default allow_fp32_to_fp16; the cube has no float32"
_SATURATION = "hiascend Envir_004: the first generation saturates only"

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(),
        Profile(
            name="ascend910b",
            conv_inputs="hf32",
            k_block=128,
            gelu="tanh",
            autocast="torch_npu",
            sources={"conv_inputs": _HF32_DEFAULT, "hf32_ties": _HF32_TIES, "k_block": _CUBE, "gelu": _GELU,
                     "autocast": _LISTS},
        ),
        Profile(
            name="ascend910",
            matmul_inputs="float16",
            conv_inputs="float16",
            k_block=128,
            overflow="saturate",
            gelu="tanh",
            autocast="torch_npu",
            sources={"matmul_inputs": _FP16_CUBE, "conv_inputs": _FP16_CUBE, "k_block": _CUBE,
                     "overflow": _SATURATION, "gelu": _GELU, "autocast": _LISTS},
        ),
    )
}  # fmt: skip


def load_profile(name: str | Profile) -> Profile:
    """A built-in profile by name, or one from a TOML file (anything that ends in ".toml").

    Raises UsageError for an unknown name and RuleError, with all problems at once, for a file that is wrong.
    """
    if isinstance(name, Profile):
        return name
    if name in PROFILES:
        return PROFILES[name]
    if name.endswith(".toml"):
        return _read_profile(Path(name))
    raise UsageError(f'Unknown profile "{name}". Built in: {", ".join(PROFILES)}; or give the path of a .toml file.')


def parse_toml(path: Path, what: str = "Profile") -> dict[str, Any]:
    """A TOML file; ``what`` it is, for the messages. Raises RuleError, and Unavailable without a reader of TOML."""
    try:
        import tomllib  # novm - Python 3.11; the branch below is for older ones
    except ModuleNotFoundError:
        try:
            import tomli as tomllib  # type: ignore[no-redef]
        except ModuleNotFoundError as error:
            raise Unavailable(f"Reading {path} needs Python 3.11 or the package tomli.") from error
    try:
        return dict(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise RuleError(f"{what} {path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise RuleError(f"{what} {path} is not TOML: {error}") from error


def _read_profile(path: Path) -> Profile:
    """A file has top-level switches, optionally ``base`` (a built-in profile), ``name`` and a table ``sources``."""
    table = parse_toml(path)
    base = table.pop("base", "none")
    problems = (
        [] if isinstance(base, str) and base in PROFILES else [f"base: {base!r} is not one of {', '.join(PROFILES)}"]
    )
    known = {one.name for one in fields(Profile)}
    for key, value in table.items():
        problem = _check_entry(key, value) if key in known else f"{key}: unknown key; known: {', '.join(sorted(known))}"
        if problem:
            problems.append(problem)
    if problems:
        raise RuleError(f"Profile {path}:\n" + "\n".join(f"  {problem}" for problem in problems))
    sources = {**PROFILES[base].sources, **dict.fromkeys(table, f"set in {path.name}"), **table.pop("sources", {})}
    return replace(PROFILES[base], **{"name": path.stem, **table, "sources": sources})


def _check_entry(key: str, value: Any) -> str:
    if key in CHOICES:
        return "" if value in CHOICES[key] else f"{key}: {value!r} is not one of {', '.join(CHOICES[key])}"
    if key == "sources":
        fits = isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
        return "" if fits else "sources: must be a table of strings"
    if key == "name":
        return "" if isinstance(value, str) and value else "name: must be a non-empty string"
    smallest = 0 if key == "k_block" else 1
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= smallest
    return "" if fits else f"{key}: {value!r} is not a whole number of at least {smallest}"
