"""The texts of ``quant``, in English and Chinese; see :mod:`~precision_align.reporting.languages`."""

from __future__ import annotations

QUANT: dict[str, tuple[str, str]] = {
    "verb.quant": ("find what quantising a model cost, module by module", "逐模块查看量化的代价"),
    "quant.good": ("SOUND", "正常"),
    "quant.bad": ("UNSOUND", "有问题"),
    "quant.sentence": (
        "{count} modules with wrong scales or ranges, {exceeded} beyond their calibration; lowest SQNR: {worst}, "
        "{sqnr}",
        "{count} 个模块的缩放或范围有问题，{exceeded} 处超出校准范围；SQNR 最低：{worst}，{sqnr}",
    ),
    "quant.problems": ("Problems", "问题"),
    "quant.problem.bad scale": ("the scale {scale} is no scale", "缩放 {scale} 无效"),
    "quant.problem.bad zero point": ("the zero point {zero} is no code", "零点 {zero} 不在编码范围内"),
    "quant.problem.clipped": (
        "{clipped} of the reference's values lie beyond the codes: the scale {scale} is too small",
        "参考中 {clipped} 的值超出编码范围：缩放 {scale} 太小",
    ),
    "quant.problem.codes shifted": (
        "{clipped} of the reference's values lie beyond the codes, though the scale {scale} is wide enough for them: "
        "the zero point {zero} is off",
        "参考中 {clipped} 的值超出编码范围，但缩放 {scale} 足够宽：零点 {zero} 有误",
    ),
    "quant.problem.range unused": (
        "only {used} of the codes' range occurs: the scale {scale} is too large",
        "只用到编码范围的 {used}：缩放 {scale} 太大",
    ),
    "quant.problem.loses much": (
        "its output's SQNR is {loss} under its input's: this module loses it",
        "输出的 SQNR 比输入低 {loss}：损失发生在该模块",
    ),
    "quant.problem.not finite": ("its output is not finite", "输出不是有限数"),
    "quant.modules": ("Modules, worst first", "各模块（最差在前）"),
    "quant.module": ("module", "模块"),
    "quant.dtype": ("dtype", "类型"),
    "quant.sqnr": ("SQNR", "SQNR"),
    "quant.lost": ("lost here", "本处损失"),
    "quant.clipped": ("clipped", "截断"),
    "quant.spread": ("before -> after", "量化前 -> 量化后"),
    "quant.exceeded": ("Beyond the calibration", "超出校准范围"),
    "quant.exceeded.line": (
        "{place}: calibrated {low} to {high}, now {reallow} to {realhigh} ({share} of the values outside)",
        "{place}：校准范围 {low} 到 {high}，实际 {reallow} 到 {realhigh}（{share} 的值在外）",
    ),
    "quant.sensitivity": ("Each module switched by itself, most sensitive first", "逐个切换模块（最敏感在前）"),
    "quant.alone": ("output where it alone is quantised", "仅量化该模块时的输出"),
    "quant.gain": ("gain in high precision", "改回高精度的收益"),
    "quant.weight": ("weight", "权重"),
    "quant.keep": ("Keep in high precision", "建议保留高精度"),
    "quant.keep.line": (
        "{scope}: then {sqnr} (quantised as it is: {base})",
        "{scope}：此后 {sqnr}（当前量化模型：{base}）",
    ),
}
