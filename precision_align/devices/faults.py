"""Named faults: what is broken, in which module, at which operator, in which phase, at which call.

Text form: ``KIND@MODULE[:OP[:PHASE]][:KEY=VALUE]...``, for example ``scale@blocks.1.mlp.down:mm:forward:value=1.01``.
This module imports no torch; ``fault_kinds.py`` holds what the kinds do, ``injection.py`` applies them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from precision_align.core.errors import UsageError
from precision_align.core.terms import Phase

EVERY_CALL = -1

# What people call an operator, and the operators that ATen runs for it.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "mm": ("mm", "addmm"),
    "bmm": ("bmm", "baddbmm"),
    "matmul": ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot"),
    "linear": ("mm", "addmm", "linear"),
    "convolution": ("convolution", "convolution_overrideable"),
    "convolution_backward": ("convolution_backward", "convolution_backward_overrideable"),
    "softmax": ("_softmax", "_safe_softmax"),
    "log_softmax": ("_log_softmax",),
    "layer_norm": ("native_layer_norm",),
    "batch_norm": ("native_batch_norm", "_native_batch_norm_legit"),
    "group_norm": ("native_group_norm",),
    "rms_norm": ("_fused_rms_norm", "npu_rms_norm"),
    "attention": ("_scaled_dot_product_flash_attention_for_cpu", "npu_fusion_attention"),
}

# Operators that only move or make values; "any operator" does not mean these (recorders run them too).
MOVING = frozenset(
    [
        "clone", "copy_", "_to_copy", "detach", "alias", "lift_fresh", "lift_fresh_copy", "contiguous", "_copy_from",
        "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros",
        "zero_", "ones", "ones_like", "full", "full_like", "arange", "scalar_tensor", "_local_scalar_dense",
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of fault: its meaning, the operators it is defined for (none: any), its default phase and value.

    ``counts``: the value is a number of things (bits, elements) and must be whole and not negative.
    """

    name: str
    meaning: str
    operators: tuple[str, ...] = ()
    phase: Phase = Phase.FORWARD
    value: float = 0.0
    counts: bool = False


_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_NORMS = ("native_layer_norm", "native_batch_norm", "native_group_norm", "_fused_rms_norm", "npu_rms_norm")
_SCATTERS = (
    "index_add", "index_add_", "scatter_add", "scatter_add_", "index_put", "index_put_", "embedding_dense_backward",
)  # fmt: skip

_ATTENTION = ("_scaled_dot_product_flash_attention_for_cpu", "npu_fusion_attention")

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("scale", "result times VALUE", value=1.01),
        Kind("bias", "result plus VALUE", value=1e-2),
        Kind("bf16", "result rounded to bfloat16 and back"),
        Kind("truncate", "result cut to bfloat16's bits, towards zero"),
        Kind("saturate", "result clamped to +-VALUE (0: the dtype's largest), NaN to 0"),
        Kind("bit_flip", "bit VALUE of one element's word inverted", value=20, counts=True),
        Kind("nan", "one element NaN"),
        Kind("inf", "one element infinite"),
        Kind("lost_tile", "a corner of VALUE x VALUE elements (the last two dimensions) zero", value=16, counts=True),
        Kind("zero_tail", "the last VALUE elements of K left out of the product", _PRODUCTS, value=16, counts=True),
        Kind("eps", "the norm's epsilon replaced by VALUE", (*_NORMS, "add"), value=1e-3),
        Kind("tanh_gelu", "the other form of GELU, tanh or exact", ("gelu", "gelu_backward", "npu_gelu")),
        Kind("unbiased_variance", "variance divided by n - 1", ("native_layer_norm", "var", "var_mean")),
        Kind("low_softmax", "softmax computed in bfloat16", ("_softmax", "_safe_softmax", "_log_softmax")),
        Kind("interleaved_rope", "rotation of neighbours instead of halves", ("cat", "npu_rotary_mul")),
        Kind(
            "mask_dropped",
            "attention mask not applied",
            ("masked_fill", "masked_fill_", "where", "add", *_ATTENTION),
        ),
        Kind("swapped_halves", "gate and value exchanged", ("npu_swiglu", "glu")),
        Kind("duplicates_dropped", "of several updates of one place only the last arrives", _SCATTERS),
        Kind("gradient_scale", "a gradient times VALUE", phase=Phase.BACKWARD, value=0.5),
        Kind("update_skipped", "the optimizer leaves the module's parameters as they were", phase=Phase.STEP),
    )
}


@dataclass(frozen=True)
class Fault:
    """One fault.

    ``kind``: a name of ``KINDS``; ``module``: glob of the module whose own code runs the operator ("" = root); ``op``:
    operator or family, with or without overload, glob allowed, "" = whatever the kind is defined for; ``phase``;
    ``call``: 0-based among the executions that match, EVERY_CALL = all; ``value``: the kind's parameter, None = its
    default; ``index``: row-major position of the touched element, where one element is touched.

    A STEP fault acts on the parameters of the module after an optimizer step, ``call`` counting steps.
    Raises UsageError, with all problems at once, for what cannot be.
    """

    kind: str
    module: str = "*"
    op: str = ""
    phase: Phase | None = None
    call: int = 0
    value: float | None = None
    index: int = 0

    def __post_init__(self) -> None:
        problems = []
        if self.kind not in KINDS:
            problems.append(f'unknown kind "{self.kind}"; known: {", ".join(sorted(KINDS))}')
        if self.call < EVERY_CALL or self.index < 0:
            problems.append("call and index count from 0 (call=* for every call)")
        if self.value is not None and self.kind in KINDS and KINDS[self.kind].counts and not _is_count(self.value):
            problems.append(f"value {self.value!r} must be a whole number of at least 0")
        if self.kind == "update_skipped" and self.phase not in (None, Phase.STEP):
            problems.append("update_skipped acts in phase step only")
        if self.phase is Phase.STEP and self.kind in KINDS and KINDS[self.kind].operators:
            problems.append(f"{self.kind} changes an operator and has no meaning in phase step")
        if problems:
            raise UsageError(f"Fault {self.kind}@{self.module}: " + "; ".join(problems))

    @property
    def effective_phase(self) -> Phase:
        """The phase asked for, or the kind's own."""
        return KINDS[self.kind].phase if self.phase is None else self.phase

    @property
    def effective_value(self) -> float:
        """The value asked for, or the kind's own."""
        return KINDS[self.kind].value if self.value is None else self.value

    def fits_module(self, scope: str) -> bool:
        """Whether the module path is meant."""
        return fnmatchcase(scope, self.module)

    def fits_operator(self, name: str, overload: str) -> bool:
        """Whether an operator such as ("addmm", "default") is meant."""
        allowed = KINDS[self.kind].operators
        if allowed and name not in allowed:
            return False
        if not self.op:
            return bool(allowed) or name not in MOVING
        wanted = self.op[len("aten.") :] if self.op.startswith("aten.") else self.op
        return any(fnmatchcase(text, wanted) for text in _spellings(name, overload)) or name in FAMILIES.get(wanted, ())

    def __str__(self) -> str:
        call = "*" if self.call == EVERY_CALL else str(self.call)
        parts = [f"{self.kind}@{self.module}", self.op or "*", str(self.effective_phase), f"call={call}"]
        value = repr(float(self.effective_value))
        value = value[: -len(".0")] if value.endswith(".0") else value
        return ":".join([*parts, f"value={value}", *([f"index={self.index}"] if self.index else [])])


def _is_count(value: float) -> bool:
    return 0 <= value < float("inf") and value == int(value)


def _spellings(name: str, overload: str) -> tuple[str, ...]:
    short = name.lstrip("_")
    short = short[len("native_") :] if short.startswith("native_") else short
    return (name, f"{name}.{overload}", short)


def parse_fault(text: str) -> Fault:
    """The fault of a text ``KIND@MODULE[:OP[:PHASE]][:KEY=VALUE]...``; OP may be ``*``. Raises UsageError.

    Keys: value (number), call (whole number or ``*``), index (whole number), op, phase.
    """
    kind, separator, rest = text.strip().partition("@")
    if not separator or not kind:
        raise UsageError(f'Fault "{text}" is not of the form KIND@MODULE[:OP[:PHASE]][:KEY=VALUE]...')
    pieces = rest.split(":")
    positional = [piece for piece in pieces if "=" not in piece]
    settings = dict(zip(("module", "op", "phase"), positional))
    problems = ["more than MODULE, OP and PHASE before the settings"] if len(positional) > 3 else []
    for piece in pieces:
        key, equals, value = piece.partition("=")
        if equals and key not in ("value", "call", "index", "op", "phase"):
            problems.append(f'unknown key "{key}"; known: value, call, index, op, phase')
        elif equals:
            settings[key] = value
    if problems:
        raise UsageError(f'Fault "{text}": ' + "; ".join(problems))
    return _build(text, kind, settings)


def _build(text: str, kind: str, settings: Mapping[str, str]) -> Fault:
    try:
        phase = Phase(settings["phase"]) if settings.get("phase") else None
        call = settings.get("call", "0")
        op = settings.get("op", "")
        return Fault(
            kind=kind,
            module=settings.get("module", "*"),
            op="" if op == "*" else op,
            phase=phase,
            call=EVERY_CALL if call == "*" else int(call),
            value=float(settings["value"]) if "value" in settings else None,
            index=int(settings.get("index", "0")),
        )
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f'Fault "{text}": {error} (phases: forward, backward, step; call: a number or *)') from error


def read_faults(faults: Iterable[Fault | str] | Fault | str) -> Sequence[Fault]:
    """Faults in any of the accepted forms as Fault objects."""
    listed = [faults] if isinstance(faults, (Fault, str)) else list(faults)
    return [parse_fault(fault) if isinstance(fault, str) else fault for fault in listed]
