"""The texts of the command line, in English and Chinese; see :mod:`~precision_align.reporting.languages`."""

from __future__ import annotations

COMMANDS = {
    "cli.description": (
        "Find the first operator that makes a model on an Ascend NPU differ from its reference, and say why.",
        "找出使昇腾 NPU 上的模型与参考运行不一致的第一个算子，并说明原因。",
    ),
    "cli.usage": ("usage: {program} VERB [options]", "用法：{program} 命令 [选项]"),
    "cli.verbs": ("verbs", "命令"),
    "cli.options": ("options", "选项"),
    "cli.option.help": ("show this help", "显示本帮助"),
    "cli.option.version": ("show the version", "显示版本"),
    "cli.option.lang": ("language of messages (default: from LANG)", "输出语言（默认取自 LANG）"),
    "cli.option.json": ("machine-readable result on stdout", "在标准输出给出机器可读的结果"),
    "cli.verb.help": (
        "'{program} VERB --help' shows the options of one verb. Every verb takes --json.",
        "'{program} 命令 --help' 显示该命令的选项。每个命令都支持 --json。",
    ),
    "cli.first": ("New here? Start with:  {program} demo", "第一次使用？请运行： {program} demo"),
    "cli.status": (
        "exit status: 0 aligned or passed, 1 diverged or failed, 2 usage, 3 not comparable",
        "退出状态：0 对齐或通过，1 偏离或失败，2 用法错误，3 无法比较",
    ),
    "cli.unknown": ("there is no verb {verb!r}.", "没有命令 {verb!r}。"),
    "cli.meant": ("Did you mean {names}?", "是否想输入 {names}？"),
    "cli.see": ("See '{command} --help'.", "请看 '{command} --help'。"),
    "cli.error": ("error", "错误"),
    "cli.crash": (
        "unexpected {kind}: {text}. This is a bug of precision-align, or of a library it uses. "
        "Run again with PRECISION_ALIGN_TRACEBACK=1 to see where, and report it.",
        "意外的 {kind}：{text}。这是 precision-align 或其依赖库的缺陷。"
        "设置 PRECISION_ALIGN_TRACEBACK=1 后重新运行可查看位置，请反馈给我们。",
    ),
    "cli.advice": ("to do: {advice}", "建议：{advice}"),
    "cli.interrupted": ("interrupted", "已中断"),
    "cli.kept": ("kept in {path}: the same command goes on from there", "已保存到 {path}，重新执行即可继续"),
    "cli.resumed": ("going on with {count} results from {path}", "从 {path} 继续，沿用其中 {count} 个结果"),
    "cli.saved": ("saved {path}", "已保存 {path}"),
    "cli.coverage": (
        "only {share} of the records were judged, less than --min-coverage {minimum}: too little to rely on.",
        "仅判定了 {share} 的记录，低于 --min-coverage {minimum}：不足以作为结论。",
    ),
    "verb.demo": ("see it find a wrong operator in a small training run", "在一个小型训练中找出错误算子的演示"),
    "verb.capture": ("record a run of an unchanged training script", "记录一个未修改的训练脚本的运行"),
    "verb.collect": (
        "make one dump from what each node wrote on its own disk",
        "把各节点写在本地磁盘上的部分合成一个转储",
    ),
    "verb.show": ("look into a dump: run, records, one tensor", "查看转储：运行信息、记录、单个张量"),
    "verb.compare": ("find the first place where two runs really part", "找出两次运行真正分开的第一处"),
    "verb.certify": (
        "add float64 goldens and noise floors to a reference's dump",
        "为参考转储添加 float64 基准值与噪声下限",
    ),
    "verb.bisect": (
        "find the fewest modules or operators whose swap cures a run",
        "找出替换执行方式即可修复运行的最少模块或算子",
    ),
    "certify.done": (
        "{records} records certified in {files} files beside the dump's steps",
        "已为 {records} 条记录写入证书，共 {files} 个文件，位于转储的步骤文件旁",
    ),
    "certify.skipped": ("not certified, {count} calls: {reason}", "未生成证书，{count} 次调用：{reason}"),
    "certify.next": (
        "next: precision-align compare {dump} CANDIDATE (best a candidate that was forced from {dump})",
        "下一步：precision-align compare {dump} 候选转储（最好是由 {dump} 强制输入的候选运行）",
    ),
    "verb.loss": ("find the step where two loss curves part", "找出两条损失曲线分开的步骤"),
    "verb.case": ("test one operator, or all of the library, on a device", "在设备上测试单个或全部算子"),
    "verb.golden": (
        "record op results on CUDA, hold an NPU against them elsewhere",
        "在 CUDA 机器上记录算子结果，并在无 CUDA 的 NPU 机器上比对",
    ),
    "verb.map": ("look up what replaces an operator on Ascend and how it differs", "查询算子在昇腾上的替代实现及差异"),
    "verb.scan": (
        "find what a source tree needs of CUDA",
        "查找源码中的 CUDA 依赖及其在昇腾上的替代",
    ),
    "verb.doctor": ("check versions, devices and arithmetic switches here", "检查本机的版本、设备与运算开关"),
    "verb.report": (
        "turn a saved result into HTML, Markdown, JUnit or a sheet",
        "将保存的结果转换为 HTML、Markdown、JUnit 或表格",
    ),
    "title.PA100": ("The command line or the call is wrong", "命令行或调用有误"),
    "title.PA110": ("A rule file or mapping row is wrong", "规则文件或映射条目有误"),
    "title.PA200": ("The dump cannot be used", "转储无法使用"),
    "title.PA201": ("Nothing is there", "路径不存在"),
    "title.PA202": ("The file is damaged", "文件已损坏"),
    "title.PA203": ("The file is not ours", "不是本工具的文件"),
    "title.PA204": ("The file is from a newer version", "文件来自更新的版本"),
    "title.PA205": ("The dumps have nothing in common", "两个转储没有共同的记录"),
    "title.PA206": ("The log has no curve that can be read", "日志中没有可读取的曲线"),
    "title.PA207": ("Nothing was recorded", "没有录制到任何内容"),
    "title.PA210": ("The disk is full", "磁盘已满"),
    "title.PA300": ("Something optional is missing", "缺少可选组件"),
    "title.PA999": ("Unexpected error", "意外错误"),
}
