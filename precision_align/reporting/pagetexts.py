"""Texts of the page's error maps, error curves and keyboard help; see :mod:`~precision_align.reporting.languages`."""

from __future__ import annotations

PAGES = {
    "map.title": ("Where the error lies", "误差的位置与分布"),
    "map.golden": ("float64 replay", "float64 重放"),
    "map.reference": ("reference", "参考"),
    "map.lead.golden": (
        "{shape}: the candidate against its float64 replay. The largest error is {most}, {place}; {share} of the "
        "elements carry one.",
        "{shape}：候选与其 float64 重放之比较。最大误差 {most}，{place}；{share} 的元素存在误差。",
    ),
    "map.lead.reference": (
        "{shape}: the candidate against the reference run. The largest difference is {most}, {place}; {share} of the "
        "elements differ.",
        "{shape}：候选与参考运行之比较。最大差异 {most}，{place}；{share} 的元素不同。",
    ),
    "map.place": ("at {ranges}", "位于 {ranges}"),
    "map.everywhere": ("in its only element", "位于唯一的元素"),
    "map.nonfinite": ("{count} elements are not finite on one side.", "{count} 个元素仅在一侧为非有限值。"),
    "map.nonfinite.one": ("{count} element is not finite on one side.", "{count} 个元素仅在一侧为非有限值。"),
    "map.cells": ("Largest error in each cell", "每格中的最大误差"),
    "map.profile": ("Largest error along dimension {dimension}", "沿第 {dimension} 维的最大误差"),
    "map.values": ("Values of both sides", "两侧数值分布"),
    "map.errors": ("Errors by size", "误差大小分布"),
    "map.dimension": ("dimension {dimension}", "第 {dimension} 维"),
    "map.none": ("no error", "无误差"),
    "map.broken": ("not finite", "非有限值"),
    "map.elements": ("elements", "元素数"),
    "map.equal": ("without error: {count}", "无误差：{count}"),
    "map.span": ("from {low} to {high}", "从 {low} 到 {high}"),
    "layers.lead": (
        "Step {step}, outputs of the forward pass in execution order, on a logarithmic axis. Where the error against "
        "float64 leaves the reference arithmetic's own, the module computes something else; what only the difference "
        "between the runs shows came in from before.",
        "第 {step} 步，按执行顺序排列的前向输出，对数坐标。相对 float64 的误差明显高于参考运算自身误差之处，"
        "即该模块计算有误；只体现在两次运行之差的，来自更早的位置。",
    ),
    "layers.steps": (
        "The largest relative L2 difference of any tensor in each step, on a logarithmic axis.",
        "每一步中各张量的最大相对 L2 差，对数坐标。",
    ),
    "layers.own": ("against float64", "相对 float64"),
    "layers.native": ("reference arithmetic against float64", "参考运算相对 float64"),
    "layers.raw": ("between the runs", "两次运行之差"),
    "layers.call": ("call", "调用"),
    "keys.title": ("Keys", "键盘操作"),
    "keys.search": ("search", "搜索"),
    "keys.move": ("next, previous record", "下一条、上一条记录"),
    "keys.bad": ("next, previous record that did not pass", "下一条、上一条未通过的记录"),
    "keys.origin": ("first divergence", "首个偏离"),
    "keys.language": ("other language", "切换语言"),
    "keys.theme": ("light or dark", "浅色或深色"),
    "keys.escape": ("close the record, then clear the filters", "关闭记录，再清除筛选"),
    "keys.help": ("this list", "本列表"),
    "keys.close": ("Close", "关闭"),
}
