"""The texts of further runs and of the two regimes, in English and Chinese; see
:mod:`~precision_align.reporting.languages`.
"""

from __future__ import annotations

COMPARISONS = {
    "sentence.nondeterministic": (
        "No other fault, but the candidate differs from itself {place}, in the {phase} of step {step}.",
        "没有其他错误，但候选在{place}每次运行结果不同，位于第 {step} 步的{phase}。",
    ),
    "kind.nondeterministic": ("nondeterministic", "结果不确定"),
    "status.nondeterministic": ("nondeterministic", "结果不确定"),
    "meaning.nondeterministic": ("differs from run to run on the same inputs", "输入相同，每次运行结果不同"),
    "page.modules": ("Modules that the two programs name or cut differently", "两个程序中名称或划分不同的模块"),
    "page.way": ("paired", "配对方式"),
    "way.matched": ("matched", "同名"),
    "way.mapped": ("mapped", "按重命名文件"),
    "way.by content": ("by content", "按内容"),
    "way.fused": ("fused", "融合"),
    "way.inserted": ("inserted", "新增"),
    "way.removed": ("removed", "缺少"),
    "way.unresolved": ("unresolved", "未确定"),
    "verb.regimes": (
        "tell a wrong function from lost precision",
        "区分功能错误与精度损失",
    ),
    "regimes.aligned": (
        "The same function, and no more precision lost than arithmetic explains.",
        "功能一致，精度损失在浮点运算可解释的范围内。",
    ),
    "regimes.precision": (
        "Precision, not semantics: float32 is aligned, the native dtype diverges at {native}.",
        "是精度问题，不是功能问题：float32 一致，原生精度在 {native} 处偏离。",
    ),
    "regimes.semantics": (
        "Semantics: both regimes diverge at {float32}, which computes another function.",
        "是功能问题：两种精度都在 {float32} 处偏离，该处计算的函数不同。",
    ),
    "regimes.elsewhere": (
        "Semantics: {float32} computes another function already in float32; correct it, then look at {native}, where "
        "the native dtype diverges.",
        "是功能问题：{float32} 在 float32 下就已不同；先改正它，再看原生精度偏离的 {native}。",
    ),
    "regimes.hidden": (
        "Semantics, if small: {float32} computes another function, which the rounding of the native dtype hides here.",
        "是较小的功能问题：{float32} 的函数不同，只是此处被原生精度的舍入掩盖。",
    ),
    "regimes.mode": (
        "A setting: in float32 {float32} computes in another arithmetic mode. Switch it off, or declare it, and "
        "compare float32 again; the native dtype is {verdict}.",
        "是设置问题：float32 下 {float32} 使用了不同的运算模式。关闭或声明它后，再比较 float32；原生精度：{verdict}。",
    ),
    "regimes.random": (
        "Random numbers differ at {float32}: seed both sides alike or set p = 0, and compare float32 again; the native "
        "dtype is {verdict}.",
        "{float32} 处的随机数不同：两侧使用相同种子或令 p = 0 后重新比较 float32；原生精度的结论：{verdict}。",
    ),
    "regimes.nondeterministic": (
        "The candidate differs from itself at {float32}: make it deterministic, and compare float32 again; the native "
        "dtype is {verdict}.",
        "候选在 {float32} 处每次运行结果不同：先使其结果确定，再重新比较 float32；原生精度的结论：{verdict}。",
    ),
    "regimes.open": (
        "Open: too little can be said of {regimes}; float32 is {first}, the native dtype {verdict}.",
        "尚无结论：{regimes} 能判定的内容太少；float32：{first}，原生精度：{verdict}。",
    ),
    "regimes.float32": ("float32: does it compute the same function?", "float32：计算的函数是否相同？"),
    "regimes.native": (
        "native dtype: does it lose more than it may?",
        "原生精度：损失是否超出允许范围？",
    ),
    "regimes.name.float32": ("float32", "float32"),
    "regimes.name.native": ("the native dtype", "原生精度"),
    "regimes.note": ("note: {text}", "提示：{text}"),
}
