"""The texts of ``loss``, in English and Chinese; see :mod:`~precision_align.reporting.languages`."""

from __future__ import annotations

LOSS: dict[str, tuple[str, str]] = {
    "loss.parted": ("PARTED", "已分开"),
    "loss.together": ("TOGETHER", "未分开"),
    "loss.sentence.parted": (
        "{name}: the curves part at {axis} {onset} ({kind}: {size}, band {limit}; {count} common steps, {first} to "
        "{last})",
        "{name}：两条曲线在 {axis} {onset} 处分开（{kind}：{size}，噪声带 {limit}；"
        "共同步 {count} 个，{first} 到 {last}）",
    ),
    "loss.sentence.together": (
        "{name}: the curves stay within their noise ({count} common steps, {first} to {last}; band {limit} at the "
        "last)",
        "{name}：两条曲线保持在噪声之内（共同步 {count} 个，{first} 到 {last}；末步噪声带 {limit}）",
    ),
    "loss.size": ("{difference} relative", "相对差 {difference}"),
    "loss.size.nan": ("not finite on one side", "一侧不是有限数"),
    "loss.kind.jump": ("jump", "跳变"),
    "loss.kind.drift": ("drift", "漂移"),
    "loss.kind.spike": ("spike", "尖峰"),
    "loss.kind.not a number": ("not a number", "出现 NaN/Inf"),
    "loss.figures": (
        "relative error: mean {mean}, largest {largest} at step {step}; trend {trend} a step",
        "相对误差：平均 {mean}，最大 {largest}（第 {step} 步）；趋势 每步 {trend}",
    ),
    "loss.band": ("band: {method}", "噪声带：{method}"),
    "loss.cause.numerical": (
        "cause: both sides see the same batches, so it is the arithmetic, the parameters or the settings",
        "原因：两侧看到相同的批次，因此问题在运算、参数或设置",
    ),
    "loss.cause.data order": (
        "cause: the data order, not the arithmetic: look at the sampler, seeds and resumed positions first",
        "原因：数据顺序而非运算：请先检查采样器、随机种子与断点续训的位置",
    ),
    "loss.cause.other data": (
        "cause: other batches or other random numbers (dropout): the changes from step to step do not follow the "
        "reference's",
        "原因：批次不同或随机数不同（dropout）：逐步变化与参考不一致",
    ),
    "loss.shift.ahead": (
        "the candidate sees the reference's batches {count} steps early",
        "候选比参考提前 {count} 步看到相同批次",
    ),
    "loss.shift.behind": (
        "the candidate sees the reference's batches {count} steps late",
        "候选比参考推迟 {count} 步看到相同批次",
    ),
    "loss.batches.same": (
        "batches: equal at all {count} steps whose fingerprints both dumps hold",
        "批次：两个转储都有指纹的 {count} 步全部相同",
    ),
    "loss.batches.shifted": (
        "batches: different from step {step} on; shifted by {shift} steps ({shared} of {count} found in the reference)",
        "批次：自第 {step} 步起不同；平移 {shift} 步（{count} 步中有 {shared} 步可在参考中找到）",
    ),
    "loss.batches.reordered": (
        "batches: different from step {step} on; the same ones in another order",
        "批次：自第 {step} 步起不同；批次相同但顺序不同",
    ),
    "loss.batches.other": (
        "batches: different from step {step} on; only {shared} of {count} are batches that the reference sees at all",
        "批次：自第 {step} 步起不同；{count} 步中只有 {shared} 步的批次在参考中出现过",
    ),
    "loss.acceptance": ("Common acceptance rules", "常用验收规则"),
    "loss.acceptance.lead": (
        "They say what a purpose tolerates. Holding is no proof of right operators, failing none of wrong ones.",
        "这些规则只说明某种用途能否接受：满足不代表算子正确，不满足也不代表算子错误。",
    ),
    "loss.holds": ("holds", "满足"),
    "loss.fails": ("fails", "不满足"),
    "loss.rule": ("rule", "规则"),
    "loss.result": ("result", "结果"),
    "loss.measured": ("measured / limit", "测得 / 上限"),
    "loss.source": ("source", "出处"),
    "loss.spikes": ("Spikes", "尖峰"),
    "loss.spike": (
        "step {step}: {rise} above the steps before, on {sides}{batch}",
        "第 {step} 步：高于此前水平 {rise}，{sides}{batch}",
    ),
    "loss.spike.both": ("both sides: look at the batch", "两侧都有：请检查该批次"),
    "loss.spike.reference": ("the reference alone", "仅参考出现"),
    "loss.spike.candidate": ("the candidate alone", "仅候选出现"),
    "loss.spike.batch": ("; batch {batch}", "；批次 {batch}"),
    "loss.spike.batches": ("; other batches on the two sides: {batch}", "；两侧批次不同：{batch}"),
    "loss.next": ("Next", "下一步"),
    "loss.next.record": (
        "Record these steps on both sides, with your own script after the two dashes, then compare:",
        "在两侧录制这些步骤（两个短横之后写你自己的脚本），然后比较：",
    ),
    "loss.next.offset": (
        "A capture counts steps from 0 and this log from 1: its step {step} is step {captured} of a capture.",
        "capture 从 0 开始计步，而此日志从 1 开始：日志的第 {step} 步是 capture 的第 {captured} 步。",
    ),
    "loss.next.recorded": (
        "Both dumps hold the step where the curves part:",
        "两个转储都包含曲线分开的步骤：",
    ),
    "loss.notes": ("Notes", "说明"),
    "loss.saved.plan": ("capture plan: {path}", "录制计划：{path}"),
    "loss.difference": ("|relative difference|", "|相对差|"),
}

# as messages.SENTENCES: what the analyses say in English, and its Chinese form
LOSS_SENTENCES: tuple[tuple[str, str], ...] = (
    ("estimated from the differences of the steps before each", "由每一步之前各步的差异估计"),
    ("float32 round-off; the first {count} common steps agree to it", "float32 舍入；前 {count} 个共同步与之相符"),
    ("{precision} round-off, as given", "{precision} 舍入（按指定）"),
    ("{precision} round-off; the dumps say so", "{precision} 舍入（由转储得知）"),
    ("given: {width} relative", "指定：相对 {width}"),
    ("{factor} times the spread of {count} repeated reference run", "{count} 次重复参考运行离散度的 {factor} 倍"),
    ("{factor} times the spread of {count} repeated reference runs", "{count} 次重复参考运行离散度的 {factor} 倍"),
    ("{count} steps; the source asks for {least} or more", "{count} 步；出处要求至少 {least} 步"),
    ("not finite at {bad} of {count} steps", "{count} 步中有 {bad} 步不是有限数"),
    (
        "back within the band after {count} steps: a spike; look at that step's batch first",
        "{count} 步后回到噪声带内：这是尖峰，请先检查该步的批次",
    ),
    (
        "the difference grew slowly, so the cause may act from the first step on: steps 0-1 can show it too",
        "差异缓慢增大，原因可能从第一步就存在：第 0-1 步也可能显示",
    ),
    (
        "the last steps lie outside the band, too few to be sure: train some steps more",
        "最后几步超出噪声带，但步数太少无法确定：请再训练若干步",
    ),
    (
        "only {count} common steps: little but a jump over {factor} times the band would have been seen",
        "只有 {count} 个共同步：除超过噪声带 {factor} 倍的跳变外几乎看不出",
    ),
    (
        "the printed digits hide differences under {hidden}; log more digits to see smaller ones",
        "打印的位数掩盖了小于 {hidden} 的差异；请打印更多位数",
    ),
    (
        "both sides are not finite at {count} steps, first {step}: nothing to compare there",
        "两侧在 {count} 步都不是有限数，首个为第 {step} 步：无法比较",
    ),
    (
        "{origin}: {missing} of {count} steps have no partner and are not compared",
        "{origin}：{count} 步中有 {missing} 步没有对应步，未比较",
    ),
    (
        "{origin}: {count} values are not finite, first {value} at step {step}",
        "{origin}：{count} 个值不是有限数，首个为第 {step} 步的 {value}",
    ),
    (
        "{origin}: values are numbered from 0 in order of appearance ({reason})",
        "{origin}：各值按出现顺序从 0 编号（{reason}）",
    ),
    (
        "from the first common step on the curves differ by about {size}: more than float32 round-off, possible in "
        "bfloat16. If both runs compute in float32, say so with the band 'float32'; repeated runs of the reference "
        "measure the noise",
        "从第一个共同步起两条曲线相差约 {size}：超过 float32 舍入，bfloat16 下可能出现。若两侧都以 float32 计算，"
        "请用 --band float32 说明；重复运行参考可以测出噪声",
    ),
)
