"""The texts of the training-level verbs, in English and Chinese; see :mod:`~precision_align.reporting.languages`."""

from __future__ import annotations

from precision_align.reporting.losstexts import LOSS, LOSS_SENTENCES
from precision_align.reporting.quanttexts import QUANT

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
    "health.consequences": ("What follows from these", "由上述问题引起"),
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
    "health.code.update undone": (
        "at the next step's start bit for bit what it was before the optimizer changed it: something writes the old "
        "value back (a master copy, a reload, a broadcast)",
        "下一步开始时与优化器修改之前逐位相同：有代码把旧值写回（主权重副本、重新加载、广播）",
    ),
    "health.code.never stepped": (
        "no optimizer step was recorded in {steps} steps with a backward pass, and no parameter changed between them: "
        "right only while gradients are accumulated over all of them",
        "{steps} 个有反向传播的步中没有记录到优化器步，参数也没有变化：只有在所有这些步都在累积梯度时才正确",
    ),
    "health.code.not owned": (
        "has a gradient and no optimizer holds it: it never learns",
        "有梯度但不属于任何优化器：永远不会更新",
    ),
    "health.code.update lost": (
        "{share:.0%} of the values with a gradient did not move: their updates are below their format's "
        "resolution; with 16 bits keep float32 master weights, "
        "a bias before a normalisation needs nothing",
        "{share:.0%} 有梯度的值没有变化：更新小于其格式的分辨率；"
        "16 位格式请保留 float32 主权重，归一化之前的偏置无需处理",
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
        "differs on this rank from its replicas (ranks {group}) at the step's start; if these ranks hold shards, name "
        "the groups with --replicas",
        "步开始时该进程的值与其副本（进程 {group}）不同；若这些进程持有分片，请用 --replicas 指定分组",
    ),
    "health.code.replica gradients": (
        "its gradient, as the optimizer saw it, differs on this rank from its replicas (ranks {group}): the reduction "
        "left it out or failed",
        "优化器看到的梯度在该进程与其副本（进程 {group}）不同：规约遗漏了它或失败",
    ),
    "health.code.replica generators": (
        "the random generators of the replicas were equal at step {step} and are not any more",
        "各副本的随机数生成器在第 {step} 步相同，之后不再相同",
    ),
    "health.code.rank scaled": (
        "all gradients of this rank are {factor:.4g} times those of the others (ranks {group}): clipped or scaled on "
        "this rank only",
        "该进程的所有梯度是其他进程（{group}）的 {factor:.4g} 倍：仅在该进程上裁剪或缩放",
    ),
    "health.code.not reduced": (
        "its gradient was not reduced over ranks {group}: each rank's optimizer saw its own alone",
        "其梯度未在进程 {group} 间规约：各进程的优化器只看到自己的梯度",
    ),
    "health.code.rank left out": (
        "this rank was left out when its gradient was reduced over ranks {group}",
        "在进程 {group} 间规约其梯度时遗漏了该进程",
    ),
    "health.code.rank weighted": (
        "this rank counts {factor:.4g} times as much as it should in the gradient reduced over ranks {group}",
        "在进程 {group} 间规约的梯度中，该进程的权重是应有的 {factor:.4g} 倍",
    ),
    "health.code.summed not averaged": (
        "gradients over ranks {group} were summed, not averaged: {factor:.4g} times too large, the group's size",
        "进程 {group} 间的梯度被求和而非平均：大了 {factor:.4g} 倍，即组的大小",
    ),
    "health.code.averaged not summed": (
        "gradients over ranks {group} were averaged, not summed: {factor:.4g} of what they should be, one over the "
        "group's size",
        "进程 {group} 间的梯度被平均而非求和：只有应有值的 {factor:.4g}，即组大小的倒数",
    ),
    "health.code.reduced twice": (
        "gradients were reduced twice over ranks {group}: {factor:.4g} times each rank's own, in a group of {size}",
        "梯度在进程 {group} 间规约了两次：组大小为 {size}，为各进程梯度的 {factor:.4g} 倍",
    ),
    "health.code.averaged twice": (
        "gradients were divided by the size of their group twice (ranks {group}): {factor:.4g} times each rank's own",
        "梯度被组大小除了两次（进程 {group}）：为各进程梯度的 {factor:.4g} 倍",
    ),
    "health.code.scaled otherwise": (
        "reduced over ranks {group} with {factor:.4g} times the factor of the other parameters",
        "在进程 {group} 间规约时的系数是其他参数的 {factor:.4g} 倍",
    ),
    "health.code.mean of means": (
        "the loss is a mean of the means of ranks {group}: a token of this rank counts {factor:.4g} times one of "
        "another, because it has fewer; divide the sum by the number of tokens of all ranks",
        "损失是进程 {group} 各自均值的均值：该进程的一个词元权重是其他进程的 {factor:.4g} 倍；应除以所有进程的词元总数",
    ),
    "health.code.collective": (
        "{kind} over ranks {group}: {note}",
        "进程 {group} 间的 {kind}：{note}",
    ),
    "health.code.replica buffers": (
        "its buffers differ between ranks {group}: they are not synchronised",
        "其缓冲区在进程 {group} 间不同：未同步",
    ),
    "health.code.rank rate": (
        "the learning rate of this rank is {own:g}, that of the others (ranks {group}) {others:g}",
        "该进程的学习率为 {own:g}，其他进程（{group}）为 {others:g}",
    ),
    "health.code.rank batch": (
        "the batch of this rank has {own} samples, that of the others (ranks {group}) {others}",
        "该进程的批次有 {own} 个样本，其他进程（{group}）有 {others} 个",
    ),
    "health.code.generators unequal": (
        "draws other random numbers on this rank than on the others of ranks {group}, from equal inputs",
        "输入相同，该进程抽取的随机数却与进程 {group} 中的其他进程不同",
    ),
    "health.code.generators equal": (
        "draws the same random numbers on ranks {group}, which have different data: seed each replica by its rank",
        "进程 {group} 的数据不同，却抽取相同的随机数：应按进程号设置种子",
    ),
    "health.code.replica outputs": (
        "its result on this rank differs from the others' (ranks {group}), which have the same batch",
        "该进程的结果与批次相同的其他进程（{group}）不同",
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
    "health.costs": ("Cost of a step", "每步开销"),
    "health.cost.step_time": ("step time (median)", "单步时间（中位数）"),
    "health.cost.tokens_per_second": ("tokens per second", "每秒 token 数"),
    "health.cost.peak_memory": ("peak memory", "峰值内存"),
    "health.cost.root": ("the model itself", "模型本身"),
    "health.cost.module": ("keeps {kept}, peak {peak}", "保留 {kept}，峰值 {peak}"),
    "health.cost.recording": (
        "tensors were recorded in all of these steps, which slows them and holds memory: for the training's own cost "
        "leave steps unrecorded (--steps)",
        "这些步骤都在记录张量，会变慢并占用内存：要得到训练本身的开销，请留出不记录的步骤（--steps）",
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
    "image.nonfinite": ("values that are NaN, or Inf on one side", "为 NaN 或仅一侧为 Inf 的值"),
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

_BASELINE = {
    "verb.baseline": (
        "judge each change of a training against what it reached before",
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
    **LOSS,
    **_HEALTH,
    **_CHECKPOINT,
    **_IMAGE,
    **QUANT,
    **_BASELINE,
    **_REDUCE,
}

# as messages.SENTENCES: what the analyses say in English, and its Chinese form
TRAINING_SENTENCES = LOSS_SENTENCES
