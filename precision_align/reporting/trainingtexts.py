"""The texts of the training-level verbs, in English and Chinese; see :mod:`~precision_align.reporting.languages`."""

from __future__ import annotations

_LOSS = {
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

_HEALTH = {
    "verb.health": ("find what goes wrong in one training by itself", "不需要参考，检查单次训练自身的问题"),
    "health.healthy": ("HEALTHY", "健康"),
    "health.unhealthy": ("UNHEALTHY", "有问题"),
    "health.sentence.healthy": (
        "Nothing that was checked is wrong: {steps} steps, {ranks} ranks.",
        "所检查的内容没有问题：{steps} 步，{ranks} 个进程。",
    ),
    "health.sentence.unhealthy": (
        "{count} kinds of fault, first at step {step}: {first}",
        "{count} 类问题，最早在第 {step} 步：{first}",
    ),
    "health.faults": ("Faults", "问题"),
    "health.remarks": ("Remarks", "提示"),
    "health.checked": ("Checked", "已检查"),
    "health.checked.lead": ("A check with 0 had nothing to look at.", "数量为 0 的检查没有可看的内容。"),
    "health.check": ("check", "检查项"),
    "health.evidence": ("records or steps", "记录或步数"),
    "health.step": ("step", "步"),
    "health.where": ("where", "位置"),
    "health.what": ("what", "内容"),
    "health.rank": ("step {step}, rank {rank}", "第 {step} 步，进程 {rank}"),
    "health.times": ("{text} ({count} times)", "{text}（{count} 次）"),
    "health.code.not updated": (
        "bit for bit the same after an optimizer step that had a gradient for it ({dtype}): the update is lost, "
        "overwritten, or below the dtype's resolution",
        "有梯度的优化器步之后逐位不变（{dtype}）：更新丢失、被覆盖，或小于该数据类型的分辨率",
    ),
    "health.code.not owned": (
        "has a gradient and no optimizer holds it: it never learns",
        "有梯度但不属于任何优化器：永远不会更新",
    ),
    "health.code.update lost": (
        "{share:.0%} of the values with a gradient did not move: their updates are below the 16-bit format's "
        "resolution; keep float32 master weights",
        "{share:.0%} 有梯度的值没有变化：更新小于 16 位格式的分辨率；请保留 float32 主权重",
    ),
    "health.code.updated differently": (
        "the first update is {ratio:.3g} times as long as the reference's, from equal parameters",
        "从相同参数出发，首次更新的长度是参考的 {ratio:.3g} 倍",
    ),
    "health.code.no gradient": (
        "trainable, and no step made a gradient for it: not part of the loss",
        "可训练，但没有任何一步产生梯度：不参与损失计算",
    ),
    "health.code.dead gradient": (
        "its gradient is exactly zero in every recorded step",
        "在所有已录制的步中梯度恰为零",
    ),
    "health.code.underflow": (
        "{share:.0%} of its float16 gradient is zero or subnormal: raise the loss scale",
        "float16 梯度有 {share:.0%} 为零或次正规数：请提高损失缩放",
    ),
    "health.code.exploding gradient": (
        "the gradient norm is {norm:.3g}, before it was {usual:.3g}; the largest share is this parameter's",
        "梯度范数为 {norm:.3g}，此前为 {usual:.3g}；该参数占比最大",
    ),
    "health.code.norm mismatch": (
        "the logged norm {logged:.6g} is not that of the parameters' gradients, each counted once: {measured:.6g}",
        "日志中的范数 {logged:.6g} 与各参数梯度（每个只计一次）的范数 {measured:.6g} 不符",
    ),
    "health.code.inf applied": (
        "its gradient is not finite and the optimizer applied the step",
        "梯度不是有限数，但优化器仍执行了更新",
    ),
    "health.code.step skipped": (
        "{steps} of {known} steps were skipped because gradients were not finite, first this one's",
        "{known} 步中有 {steps} 步因梯度非有限数被跳过，最先出现在此参数",
    ),
    "health.code.scale collapsed": (
        "the loss scale fell from {start:g} to {scale:g}: gradients overflow at every scale",
        "损失缩放从 {start:g} 降到 {scale:g}：任何缩放下梯度都溢出",
    ),
    "health.code.loss not finite": ("the loss is NaN or infinite", "损失为 NaN 或无穷"),
    "health.code.zero loss": ("the first loss is exactly 0", "首个损失恰为 0"),
    "health.code.tiny loss": (
        "the first loss is {loss:.1e}: nothing is left to learn, or labels and predictions are the same tensor",
        "首个损失为 {loss:.1e}：已无可学，或标签与预测是同一个张量",
    ),
    "health.code.no labels": ("no label counts: all are ignored", "没有有效标签：全部被忽略"),
    "health.code.empty mask": ("the mask lets nothing through", "掩码屏蔽了全部内容"),
    "health.code.bad input": ("the batch holds NaN or infinities", "批次数据含 NaN 或无穷"),
    "health.code.nan input": ("the first NaN comes with the batch ({path})", "首个 NaN 来自批次数据（{path}）"),
    "health.code.nan parameter": ("the first NaN is a parameter at the start of the step", "首个 NaN 是步开始时的参数"),
    "health.code.nan forward": (
        "made the first NaN, in its forward pass ({operator}): its inputs have none",
        "在前向计算中产生了首个 NaN（{operator}）：其输入没有 NaN",
    ),
    "health.code.nan loss": (
        "the loss is the first NaN: the model's outputs have none",
        "损失最先为 NaN：模型输出没有 NaN",
    ),
    "health.code.nan backward": (
        "made the first NaN, in its backward pass ({operator}, {path})",
        "在反向计算中产生了首个 NaN（{operator}，{path}）",
    ),
    "health.code.nan gradient": (
        "the first NaN is its gradient as the optimizer saw it: made after the backward pass, by clipping or a "
        "reduction",
        "首个 NaN 是优化器看到的梯度：产生于反向之后的裁剪或规约",
    ),
    "health.code.nan update": ("the optimizer's update made the first NaN", "优化器更新产生了首个 NaN"),
    "health.code.inf before nan": (
        "held the first infinity of that step ({operator}, {path}): the NaN may come from it",
        "该步首个无穷出现于此（{operator}，{path}）：NaN 可能由它引起",
    ),
    "health.code.replica parameters": (
        "differs on this rank from its {ranks} replicas at the step's start; if these ranks hold shards, name the "
        "groups with --replicas",
        "步开始时该进程的值与其 {ranks} 个副本不同；若这些进程持有分片，请用 --replicas 指定分组",
    ),
    "health.code.replica gradients": (
        "its gradient, as the optimizer saw it, differs on this rank from its {ranks} replicas: the reduction left it "
        "out or failed",
        "优化器看到的梯度在该进程与其 {ranks} 个副本不同：规约遗漏了它或失败",
    ),
    "health.code.replica generators": (
        "the random generators of the replicas were equal at step {step} and are not any more",
        "各副本的随机数生成器在第 {step} 步相同，之后不再相同",
    ),
    "health.code.rate against batch": (
        "the batch is {batch:g} times the reference's and the learning rate {rate:g} times: linear scaling wants equal "
        "factors",
        "批大小是参考的 {batch:g} 倍，学习率是 {rate:g} 倍：线性缩放要求两者相同",
    ),
    "health.code.cost": (
        "{candidate:.4g} against the reference's {reference:.4g} ({ratio:.2f} times)",
        "{candidate:.4g}，参考为 {reference:.4g}（{ratio:.2f} 倍）",
    ),
    "health.notes": ("What the dump lacks", "转储缺少的内容"),
    "health.next": ("Next", "下一步"),
}

_CHECKPOINT = {
    "verb.checkpoint": (
        "compare two checkpoints, or one with the model it was saved from",
        "比较两个检查点，或检查点与其来源模型",
    ),
    "checkpoint.equal": ("EQUAL", "一致"),
    "checkpoint.different": ("DIFFERENT", "不一致"),
    "checkpoint.sentence": ("{counts} ({kinds})", "{counts}（{kinds}）"),
    "checkpoint.kinds": ("{reference} against {candidate}", "{reference} 对比 {candidate}"),
    "checkpoint.faults": ("Lost or changed", "丢失或改变"),
    "checkpoint.changes": ("Other forms of the same values", "相同数值的其他形式"),
    "checkpoint.name": ("tensor", "张量"),
    "checkpoint.fate": ("what became of it", "结果"),
    "checkpoint.detail": ("detail", "详情"),
    "checkpoint.notes": ("Notes", "说明"),
    "checkpoint.fate.equal": ("equal", "相等"),
    "checkpoint.fate.rounded": ("rounded to another dtype", "舍入为其他数据类型"),
    "checkpoint.fate.transposed": ("transposed", "已转置"),
    "checkpoint.fate.padded": ("padded", "有填充"),
    "checkpoint.fate.tied": ("left out, tied", "因共享而省略"),
    "checkpoint.fate.extra": ("only in the candidate", "仅候选有"),
    "checkpoint.fate.differs": ("differs", "不同"),
    "checkpoint.fate.shape": ("other shape", "形状不同"),
    "checkpoint.fate.missing": ("missing", "缺失"),
    "checkpoint.fate.broken": ("holds NaN or Inf", "含 NaN 或 Inf"),
    "checkpoint.fate.unreadable": ("cannot be read", "无法读取"),
}

_IMAGE = {
    "verb.image": ("compare two rendered images and say where the error sits", "比较两幅渲染图像，并指出误差位置"),
    "image.same": ("SAME", "相同"),
    "image.different": ("DIFFERENT", "不同"),
    "image.sentence": ("PSNR {psnr} dB, SSIM {ssim} ({size})", "PSNR {psnr} dB，SSIM {ssim}（{size}）"),
    "image.figures": ("Figures", "数值"),
    "image.max": ("largest absolute error", "最大绝对误差"),
    "image.mean": ("mean absolute error", "平均绝对误差"),
    "image.wrong": ("pixels off by half an 8-bit level", "偏差超过半个 8 位灰阶的像素"),
    "image.nonfinite": ("values that are NaN or Inf on one side", "仅一侧为 NaN/Inf 的值"),
    "image.places": ("Where the error sits", "误差位置"),
    "image.where": ("where", "位置"),
    "image.share": ("share of the squared error", "平方误差占比"),
    "image.detail": ("detail", "详情"),
    "image.map": ("Error map", "误差图"),
    "image.map.caption": (
        "white: the largest error; black: a ten-thousandth of it or less (logarithmic)",
        "白：最大误差；黑：其万分之一或更小（对数刻度）",
    ),
    "image.place.brightness": ("everywhere: another brightness", "整体：亮度不同"),
    "image.place.channels swapped": ("everywhere: red and blue swapped", "整体：红蓝通道互换"),
    "image.place.flipped": ("everywhere: flipped", "整体：翻转"),
    "image.place.shifted": ("everywhere: shifted", "整体：平移"),
    "image.place.a few pixels": ("a few pixels", "少数像素"),
    "image.place.whole tiles": ("whole tiles", "整块瓦片"),
    "image.place.edges of tiles": ("edges of tiles", "瓦片边缘"),
    "image.place.the border": ("the border", "图像边框"),
    "image.place.one channel": ("one channel", "单个通道"),
}

_QUANT = {
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

_BASELINE = {
    "verb.baseline": (
        "judge each change of a training against a ledger of what it reached",
        "用基线台账评判训练的每次改动",
    ),
    "baseline.passed": ("NOT WORSE", "未变差"),
    "baseline.worse": ("WORSE", "变差"),
    "baseline.sentence": ("{name} at the gate {gate}, against {base}", "{name}（关卡 {gate}），基线为 {base}"),
    "baseline.gates": ("Gates that {name} has passed", "{name} 已通过的关卡"),
    "baseline.unknown": ("not measured", "未测"),
    "baseline.quantity": ("quantity", "指标"),
    "baseline.before": ("baseline", "基线"),
    "baseline.now": ("now", "当前"),
    "baseline.limit": ("limit", "上限"),
    "baseline.result": ("result", "结果"),
    "baseline.precision": ("precision", "精度"),
    "baseline.step_time": ("step time, s", "步耗时（秒）"),
    "baseline.memory": ("peak memory", "峰值内存"),
    "baseline.communication": ("communication share", "通信占比"),
    "baseline.loss_error": ("loss error", "损失误差"),
    "baseline.created": ("date", "日期"),
    "baseline.name": ("change", "改动"),
    "baseline.gate": ("gate", "关卡"),
    "baseline.word": ("LEDGER", "台账"),
    "baseline.ledger": ("{count} entries", "{count} 条记录"),
    "baseline.ledger.one": ("{count} entry", "{count} 条记录"),
}

_REDUCE = {
    "verb.reduce": ("find the smallest model that still shows a fault", "找出仍能复现错误的最小模型"),
    "reduce.word": ("REDUCED", "已缩小"),
    "reduce.sentence": (
        "{fault} is kept with {factor} times fewer parameters ({before} to {after})",
        "{fault} 保留，参数减少到 1/{factor}（{before} 到 {after}）",
    ),
    "reduce.config": ("What was cut", "缩小的内容"),
    "reduce.field": ("field", "字段"),
    "reduce.was": ("was", "原值"),
    "reduce.is": ("is", "现值"),
    "reduce.trials": ("Trials", "尝试"),
    "reduce.dimension": ("dimension", "维度"),
    "reduce.cut": ("cut to", "缩小到"),
    "reduce.shown": ("fault", "错误"),
    "reduce.True": ("kept", "保留"),
    "reduce.False": ("gone", "消失"),
    "reduce.note": ("note", "说明"),
}

TRAINING: dict[str, tuple[str, str]] = {
    **_LOSS,
    **_HEALTH,
    **_CHECKPOINT,
    **_IMAGE,
    **_QUANT,
    **_BASELINE,
    **_REDUCE,
}

# as messages.SENTENCES: what the analyses say in English, and its Chinese form
TRAINING_SENTENCES: tuple[tuple[str, str], ...] = (
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
