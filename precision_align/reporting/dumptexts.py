"""The texts of the verbs that make dumps into something else, in English and Chinese; see ``languages``."""

from __future__ import annotations

DUMPS = {
    "verb.certify": (
        "add float64 goldens and noise floors to a reference's dump",
        "为参考转储添加 float64 基准值与噪声下限",
    ),
    "verb.pack": (
        "put dumps into volumes to carry: whole, part, or without data",
        "把转储装成便于携带的分卷：完整、部分或不含数据",
    ),
    "pack.sizes": ("in all {total}, {volumes} volumes", "共 {total}，{volumes} 个分卷"),
    "pack.done": (
        "{written} volumes written, {kept} were there already; sha256 of the whole {sha256}",
        "写入 {written} 个分卷，{kept} 个已存在；整体 sha256 为 {sha256}",
    ),
    "pack.next": (
        "bring all of it, manifest.json too; there: {command}",
        "连同 manifest.json 一并带走；到达后运行：{command}",
    ),
    "verb.unpack": (
        "put the volumes of pack together again, and verify every hash",
        "把 pack 的分卷还原，并校验每个哈希",
    ),
    "unpack.done": ("{files} files, {size}, all hashes right: {dump}", "{files} 个文件，{size}，哈希全部正确：{dump}"),
    "unpack.next": ("next: {command}", "下一步：{command}"),
    "certify.done": (
        "{records} records certified in {files} files beside the dump's steps",
        "已为 {records} 条记录写入证书，共 {files} 个文件，位于转储的步骤文件旁",
    ),
    "certify.skipped": ("not certified, {count} calls: {reason}", "未生成证书，{count} 次调用：{reason}"),
    "certify.next": (
        "next: precision-align compare {dump} CANDIDATE (best a candidate that was forced from {dump})",
        "下一步：precision-align compare {dump} 候选转储（最好是由 {dump} 强制输入的候选运行）",
    ),
}
