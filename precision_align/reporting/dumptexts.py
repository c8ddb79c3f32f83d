"""The texts of the verbs that carry dumps, in English and Chinese; see ``languages``."""

from __future__ import annotations

DUMPS = {
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
}
