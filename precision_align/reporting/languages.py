"""The fixed texts of reports and of the command line, in English and Chinese.

Names, evidence and notes that come out of a comparison are shown as they are; only the frame around them is translated.
Standard library only, and Python 3.9: the live verbs use it too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from precision_align.reporting.commandtexts import COMMANDS
from precision_align.reporting.comparisontexts import COMPARISONS
from precision_align.reporting.dumptexts import DUMPS
from precision_align.reporting.pagetexts import PAGES
from precision_align.reporting.trainingtexts import TRAINING
from precision_align.reporting.visibilitytexts import VISIBILITY

LANGUAGES = ("en", "zh")


def detect_language(environment: Mapping[str, str] | None = None) -> str:
    """The language of the user's locale: LC_ALL, LC_MESSAGES, LANG, in POSIX's order; English where none says zh."""
    variables = os.environ if environment is None else environment
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        value = variables.get(name, "")
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


def say(language: str, key: str, **values: object) -> str:
    """The text of ``key`` in a language, filled in; with ``count`` 1 that of "key.one" where there is one.

    Raises KeyError for an unknown key: that is our own mistake.
    """
    one = f"{key}.one" if values.get("count") == 1 else ""
    english, chinese = TEXTS[one if one in TEXTS else key]
    return (chinese if language == "zh" else english).format(**values)


def translate(language: str, key: str, fallback: str) -> str:
    """As :func:`say` without values, or ``fallback`` where the key is not ours (a foreign metric, a new role)."""
    return say(language, key) if key in TEXTS else fallback


_VERDICTS = {
    "verdict.aligned": ("Aligned", "已对齐"),
    "verdict.diverged": ("Diverged", "已偏离"),
    "verdict.not comparable": ("Not comparable", "无法比较"),
    "sentence.aligned": (
        "Nothing that was judged differs by more than arithmetic explains: {judged} of {recorded} records judged.",
        "已判定的内容中，没有任何差异超出浮点运算所能解释的范围：共 {recorded} 条记录，判定了 {judged} 条。",
    ),
    "sentence.aligned.warn": (
        "Nothing that was judged fails: {judged} of {recorded} records judged, {warn} of them noisier than usual.",
        "已判定的内容中没有失败（共 {recorded} 条记录，判定了 {judged} 条）；有 {warn} 条噪声偏大。",
    ),
    "sentence.origin": (
        "The candidate first computes something else {place}, in the {phase} of step {step}.",
        "候选运行最早在{place}算出了不同的结果，位于第 {step} 步的{phase}。",
    ),
    "sentence.mode": (
        "No fault, but another arithmetic mode {place}, in the {phase} of step {step}.",
        "没有发现错误，但{place}使用了不同的运算模式，位于第 {step} 步的{phase}。",
    ),
    "sentence.random": (
        "No fault, but other random numbers {place}, in the {phase} of step {step}.",
        "没有发现错误，但{place}使用了不同的随机数，位于第 {step} 步的{phase}。",
    ),
    "sentence.not comparable": (
        "No verdict: {reason}. {judged} of {recorded} records judged.",
        "没有结论：{reason}。共 {recorded} 条记录，判定了 {judged} 条。",
    ),
    "reason.unknown": ("too little could be judged", "能判定的内容太少"),
    "place.module": ("in {module}", "{module} 内"),
    "place.inline": ("in the inline code of {module}", "{module} 自身的代码中"),
    "place.inputs": ("at the inputs of {module}", "{module} 的输入处"),
    "place.parameters": ("at the parameters of {module}", "{module} 的参数处"),
    "place.optimizer": ("in the optimizer's update of {module}", "优化器对 {module} 的更新中"),
    "module": ("module {name}", "模块 {name}"),
    "root": ("the model itself", "模型整体"),
}

_TERMS = {
    "phase.forward": ("forward pass", "前向计算"),
    "phase.backward": ("backward pass", "反向计算"),
    "phase.step": ("optimizer step", "优化器更新"),
    "phase.short.forward": ("forward", "前向"),
    "phase.short.backward": ("backward", "反向"),
    "phase.short.step": ("step", "更新"),
    "site.module": ("the module's own computation", "模块自身的计算"),
    "site.inline": ("code in the module's own forward", "模块 forward 中的代码"),
    "site.inputs": ("what the run was given", "运行的输入"),
    "site.parameters": ("parameters or buffers", "参数或缓冲区"),
    "site.optimizer": ("the optimizer's update", "优化器的更新"),
    "kind.origin": ("fault", "错误"),
    "kind.mode": ("arithmetic mode", "运算模式"),
    "kind.random": ("random numbers", "随机数"),
    "status.pass": ("pass", "通过"),
    "status.warn": ("warn", "警告"),
    "status.fail": ("fail", "失败"),
    "status.random": ("random", "随机"),
    "status.mode": ("mode", "模式"),
    "status.propagated": ("propagated", "传播"),
    "status.inconclusive": ("inconclusive", "无法判定"),
    "status.missing": ("missing", "缺失"),
    "meaning.pass": ("within what arithmetic explains", "在浮点运算可解释的范围内"),
    "meaning.warn": ("noisier than usual, but not wrong", "噪声偏大，但不算错误"),
    "meaning.fail": ("computed wrongly here", "在此处算错"),
    "meaning.random": ("other random numbers on the two sides", "两侧随机数不同"),
    "meaning.mode": ("another arithmetic mode, such as HF32", "运算模式不同，例如 HF32"),
    "meaning.propagated": ("differs only because its inputs do", "仅因输入不同而不同"),
    "meaning.inconclusive": ("could not be judged", "无法判定"),
    "meaning.missing": ("recorded on one side only", "只有一侧有记录"),
}

_METRICS = {
    "metric.z": ("largest error, in rounding bounds", "最大误差（以舍入界为单位）"),
    "metric.rho": ("RMS error over the reference's own", "均方根误差与参考自身误差之比"),
    "metric.bias": ("systematic shift, in rounding bounds", "系统性偏移（以舍入界为单位）"),
    "metric.gain": ("shift away from zero, in rounding bounds", "远离零的偏移（以舍入界为单位）"),
    "metric.group_bias": ("shift of rows or columns, in rounding bounds", "行或列的偏移（以舍入界为单位）"),
    "metric.max_abs": ("largest absolute error", "最大绝对误差"),
    "metric.rel_l2": ("relative L2 error", "相对 L2 误差"),
    "metric.native_rel_l2": ("relative L2 error of the reference's arithmetic", "参考运算自身的相对 L2 误差"),
    "metric.exceeding": ("share of values beyond the bound", "超出界限的数值占比"),
    "metric.mismatched": ("share of values that differ", "不相等的数值占比"),
    "metric.nonfinite_mismatch": ("share of values with NaN or Inf on one side", "仅一侧为 NaN/Inf 的数值占比"),
    "metric.worst_index": ("flat index of the worst value", "误差最大处的一维下标"),
    "metric.nan": ("NaN values", "NaN 个数"),
    "metric.inf": ("infinite values", "Inf 个数"),
    "metric.raw_max_abs": ("largest difference between the runs", "两次运行的最大差值"),
    "metric.raw_rel_l2": ("relative L2 difference between the runs", "两次运行的相对 L2 差"),
    "metric.amplification": ("difference out over difference in", "输出差异与输入差异之比"),
    "metric.raw_rel_l2_in": ("relative L2 difference of its inputs", "其输入的相对 L2 差"),
    "metric.raw_mean_abs": ("mean difference between the runs", "两次运行的平均差值"),
    "metric.raw_rmse": ("RMS difference between the runs", "两次运行的均方根差"),
    "metric.raw_max_rel": ("largest relative difference between the runs", "两次运行的最大相对差"),
    "metric.raw_bias": ("mean signed difference between the runs", "两次运行的平均带符号差"),
    "metric.raw_mismatched": ("share of values that differ between the runs", "两次运行不相等的数值占比"),
    "metric.raw_nonfinite": ("values with NaN or Inf on one side", "仅一侧为 NaN/Inf 的数值个数"),
    "metric.raw_worst_index": ("flat index of the largest difference", "差值最大处的一维下标"),
    "metric.raw_sampled": ("elements sampled", "抽样的元素数"),
    "metric.raw_sketch_rel_l2": ("relative L2 difference, from sketches", "相对 L2 差（由草图估计）"),
    "metric.raw_statistics_moved": ("largest relative move of a statistic", "统计量的最大相对变化"),
    "metric.raw_over_max": ("largest difference over the largest value", "最大差值与最大值之比"),
    "metric.raw_low": ("lowest value of the reference", "参考的最小值"),
    "metric.raw_high": ("highest value of the reference", "参考的最大值"),
    "metric.raw_psnr": ("range of the reference over the RMS difference, in dB", "参考值域与均方根差之比（dB）"),
    "metric.raw_nan_actual": ("NaN values of the candidate", "候选的 NaN 个数"),
    "metric.raw_nan_expected": ("NaN values of the reference", "参考的 NaN 个数"),
    "metric.raw_inf_actual": ("infinite values of the candidate", "候选的 Inf 个数"),
    "metric.raw_inf_expected": ("infinite values of the reference", "参考的 Inf 个数"),
    "metric.raw_p50": ("difference that half of the values stay below", "半数数值不超过的差值"),
    "metric.raw_p90": ("difference that 90 % stay below", "90 % 的数值不超过的差值"),
    "metric.raw_p99": ("difference that 99 % stay below", "99 % 的数值不超过的差值"),
    "metric.raw_p999": ("difference that 99.9 % stay below", "99.9 % 的数值不超过的差值"),
    "metric.raw_ulp_p50": ("units in the last place that half stay within", "半数数值不超过的 ULP 距离"),
    "metric.raw_ulp_p90": ("units in the last place that 90 % stay within", "90 % 的数值不超过的 ULP 距离"),
    "metric.raw_ulp_p99": ("units in the last place that 99 % stay within", "99 % 的数值不超过的 ULP 距离"),
    "metric.raw_ulp_p999": ("units in the last place that 99.9 % stay within", "99.9 % 的数值不超过的 ULP 距离"),
    "metric.raw_ulp_max": ("units in the last place that all stay within", "全部数值不超过的 ULP 距离"),
    "metric.raw_one_minus_cosine": ("1 - cosine between the runs", "两次运行的 1 - 余弦相似度"),
}

_HEADINGS = {
    "where": ("where", "位置"),
    "operator": ("operator", "算子"),
    "source": ("source", "源码"),
    "measured": ("measured", "测得"),
    "limit": ("limit", "上限"),
    "evidence": ("evidence", "依据"),
    "explanations": ("why", "原因"),
    "mapping": ("mapping", "映射"),
    "pitfalls": ("pitfalls", "注意"),
    "cases": ("cases", "用例"),
    "coverage": ("coverage", "覆盖率"),
    "notes": ("notes", "说明"),
    "others": ("also", "其他"),
    "loss": ("curves", "曲线"),
    "next": ("Next:", "下一步："),
    "at.step": ("step {number}", "第 {number} 步"),
    "at.call": ("call {number}", "调用 {number}"),
    "at.rank": ("rank {number}", "进程 {number}"),
    "times": ("{ratio}x the limit", "上限的 {ratio} 倍"),
    "boundless": ("beyond any limit", "超出任何上限"),
    "no_limit": ("none may", "不允许有"),
    "leaves": ("[leaves {share}]", "[剩余 {share}]"),
    "leaves.long": ("leaves {share} of the error", "解释后剩余误差 {share}"),
    "others.text": ("{count} more independent places: {places}", "另有 {count} 处独立的偏离：{places}"),
    "others.text.one": ("{count} more independent place: {places}", "另有 {count} 处独立的偏离：{places}"),
    "parts": ("{name} parts at step {step}", "{name} 在第 {step} 步分开"),
    "together": ("{name} stays together", "{name} 保持一致"),
    "nothing_recorded": ("nothing was recorded", "没有任何记录"),
    "case.unrun": ("not run here", "未在此运行"),
    "no_row": ("no mapping row for this operator yet", "该算子尚无映射条目"),
}

_PAGE = {
    "page.title": ("Precision report", "精度对齐报告"),
    "page.first": ("First divergence", "首个偏离"),
    "page.frontier": ("Other independent places", "其他独立的偏离"),
    "page.frontier.lead": (
        "Each failed on its own, not because an earlier one fed it. Fix the first one first.",
        "以下各处均独立失败，并非由更早的偏离引起。请先修复第一处。",
    ),
    "page.frontier.rest": ("{count} more are in the table.", "另有 {count} 处，见下表。"),
    "page.frontier.rest.one": ("{count} more is in the table.", "另有 {count} 处，见下表。"),
    "page.curves": ("Curves", "曲线"),
    "page.curve.parts": (
        "{name}: the two runs part at step {step}, beyond a band of {band}.",
        "{name}：两次运行在第 {step} 步分开，超出噪声带 {band}。",
    ),
    "page.curve.together": ("{name}: the two runs stay within their noise.", "{name}：两次运行保持在噪声范围内。"),
    "page.walk": ("Error along the run", "沿执行顺序的误差"),
    "page.walk.lead": (
        "Every judged tensor in execution order: what was measured over what is allowed. "
        "Above the line is more than arithmetic explains; grey points only carry on an earlier difference.",
        "按执行顺序列出每个已判定的张量：测得值与允许值之比。线以上超出浮点运算所能解释的范围；灰点只是延续更早的差异。",
    ),
    "page.records": ("Records", "记录"),
    "page.tree": ("Modules", "模块"),
    "page.coverage": ("What was seen", "覆盖范围"),
    "page.coverage.lead": ("A verdict holds only for what was judged.", "结论仅对已判定的内容成立。"),
    "page.notes": ("What was not seen, and other notes", "未覆盖内容与说明"),
    "page.runs": ("The two runs", "两次运行"),
    "page.runs.differ": ("{count} differ", "{count} 项不同"),
    "page.runs.differ.one": ("{count} differs", "{count} 项不同"),
    "page.runs.same": ("nothing differs", "没有不同"),
    "page.runs.all": ("Show what is equal too", "同时显示相同项"),
    "page.reproduce": ("How to reproduce", "如何复现"),
    "page.reproduce.lead": ("From the folder that holds the dumps:", "在存放转储的目录中执行："),
    "page.reference": ("Reference", "参考"),
    "page.candidate": ("Candidate", "候选"),
    "page.absent": ("no reference run: judged by replay alone", "没有参考运行：仅由重放判定"),
    "page.phase": ("Phase", "阶段"),
    "page.recorded": ("Recorded", "已记录"),
    "page.judged": ("Judged", "已判定"),
    "page.share": ("Share", "占比"),
    "page.bytes": ("Bytes", "字节"),
    "page.field": ("Field", "字段"),
    "page.jump": ("Show in the table", "在表中查看"),
    "page.next": ("Next", "下一步"),
    "page.measured": ("Measured against its limit", "测得值与上限"),
    "page.measured.value": ("value", "数值"),
    "page.row": ("The row", "条目"),
    "page.more": ("{count} more figures", "另有 {count} 项数值"),
    "page.more.one": ("{count} more figure", "另有 {count} 项数值"),
    "page.evidence": ("Evidence", "依据"),
    "page.explanations": ("Explanations, best first", "可能的原因（按可信度排序）"),
    "page.explanations.lead": (
        "The bar is the share of the error that is left if the explanation is true: shorter is better.",
        "条形为该解释成立时剩余误差的占比：越短越好。",
    ),
    "page.mapping": ("Operator mapping", "算子映射"),
    "page.pitfalls": ("Known pitfalls", "已知陷阱"),
    "page.cases": ("Its cases", "相关用例"),
    "page.nothing": ("No divergence was found.", "没有发现偏离。"),
    "page.skip": ("Skip to the records", "跳到记录"),
    "page.noscript": (
        "The table, the module tree and the curves need JavaScript; everything else is on this page.",
        "表格、模块树和曲线需要 JavaScript；其余内容均在本页。",
    ),
    "page.keys": (
        "/ search · j k move · n p next and previous that did not pass · o origin · ? all keys",
        "/ 搜索 · j k 移动 · n p 下一条、上一条未通过 · o 首个偏离 · ? 全部按键",
    ),
    "page.made": ("Made by precision-align {version}", "由 precision-align {version} 生成"),
    "page.worst": ("Rows that did not pass (first {count})", "未通过的记录（前 {count} 条）"),
    "page.search": ("Search module, operator, path, note", "搜索模块、算子、路径、说明"),
    "page.theme": ("Theme", "主题"),
    "page.language": ("中文", "English"),
    "page.copy": ("Copy", "复制"),
    "page.copied": ("Copied", "已复制"),
    "page.total": ("All", "合计"),
    "page.field.op": ("Operator", "算子"),
    "page.field.source": ("Source line", "源码位置"),
    "page.field.site": ("Blames", "归因"),
    "page.field.kind": ("Nature", "性质"),
    "page.field.limit": ("Limit", "上限"),
    "page.everything": ("Everything that was recorded was judged.", "所有记录都已判定。"),
    "page.legend": ("What the words mean", "各状态的含义"),
}

_TABLE = {
    "role.input": ("input", "输入"),
    "role.output": ("output", "输出"),
    "role.parameter": ("parameter", "参数"),
    "role.buffer": ("buffer", "缓冲区"),
    "role.gradient": ("gradient", "梯度"),
    "role.state": ("state", "状态"),
    "role.loss": ("loss", "损失"),
    "table.order": ("#", "序"),
    "table.status": ("Status", "状态"),
    "table.scope": ("Module", "模块"),
    "table.op": ("Operator", "算子"),
    "table.phase": ("Phase", "阶段"),
    "table.tensor": ("Tensor", "张量"),
    "table.step": ("Step", "步"),
    "table.excess": ("Of limit", "与上限比"),
    "table.note": ("Note", "说明"),
    "table.showing": ("{shown} of {count}", "{count} 条中的 {shown} 条"),
    "table.all": ("{count} records", "{count} 条记录"),
    "table.all.one": ("{count} record", "{count} 条记录"),
    "table.none": ("No record fits these filters.", "没有符合条件的记录。"),
    "table.empty": ("Nothing was recorded.", "没有任何记录。"),
    "table.clear": ("Clear filters", "清除筛选"),
    "table.modules": ("All modules", "全部模块"),
    "table.phases": ("Every phase", "全部阶段"),
    "table.steps": ("Every step", "全部步骤"),
    "table.origin": ("first divergence", "首个偏离"),
    "table.close": ("Close", "关闭"),
    "table.key": ("Key", "键"),
    "table.limit": ("Limit", "上限"),
    "table.evidence": ("Evidence", "依据"),
    "table.site": ("Blames", "归因"),
    "table.place": ("Place", "位置"),
    "table.at": (
        "step {step} · micro-batch {micro} · rank {rank} · call {call}",
        "第 {step} 步 · 微批 {micro} · 进程 {rank} · 调用 {call}",
    ),
    "table.size": ("Size", "大小"),
    "table.unjudged": ("not judged by a limit", "未按上限判定"),
    "table.reference": ("reference", "参考"),
    "table.candidate": ("candidate", "候选"),
    "table.onset": ("parts here", "在此分开"),
}

TEXTS: dict[str, tuple[str, str]] = {**_VERDICTS, **_TERMS, **_METRICS, **_HEADINGS, **_PAGE, **_TABLE, **COMMANDS}
TEXTS.update({**COMPARISONS, **TRAINING, **VISIBILITY, **DUMPS, **PAGES})
