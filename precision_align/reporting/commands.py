"""Commands to type next, quoted so that a shell takes them as they stand."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from precision_align.core.results import Findings
from precision_align.core.terms import Source, Tier, Verdict
from precision_align.reporting.wording import describe_mapping, quote

PROGRAM = "precision-align"
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", "'": "\\'"}


def join_command(*parts: str) -> str:
    """A command line of ours on one line, quoted for a shell."""
    return " ".join([PROGRAM, *map(quote_word, parts)])


def quote_word(word: str) -> str:
    """One word of a command line: printable, on one line, and the same word again once a shell has read it.

    Line breaks, control characters, bidi overrides and bytes that are no UTF-8 are written as POSIX 2024's $'...',
    which bash, zsh and ksh have long known.
    """
    if quote(word) == word:
        return shlex.quote(word)
    return "$'" + "".join(map(_escape, word)) + "'"


def _escape(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if quote(character) == character:
        return character
    # a byte that was no UTF-8 in a file name stands as U+DC80 to U+DCFF (PEP 383)
    errors = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    # three octal digits: unlike hexadecimal ones they end where the next character begins
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", errors))


def suggest_command(findings: Findings) -> str:
    """The next command to type, or "" where there is none: nothing left to do, or a dump that lies nowhere."""
    reference, candidate = _find_paths(findings)
    found = findings.first
    if findings.verdict == Verdict.NOT_COMPARABLE:
        return _show(candidate)
    if found is None:
        return join_command("loss", reference, candidate) if reference and candidate and findings.curves else ""
    identity = "" if found.mapping is None else describe_mapping(found.mapping).identity
    if identity:
        return join_command("case", "run", identity, *_device_options(findings))
    return _show(candidate, found.key)


def list_commands(findings: Findings) -> list[str]:
    """Commands that lead to this report again, and on from it."""
    reference, candidate = _find_paths(findings)
    commands = []
    if candidate:
        sides = [side for side in (reference, candidate) if side]
        code = str(findings.candidate.get("replay", ""))
        commands.append(join_command("compare", *sides, *(["--replay", code] if code else []), "-o", "report.html"))
        if findings.first is not None and findings.first.key:
            commands.append(_show(candidate, findings.first.key))
            if _can_extract(findings, findings.first.key):
                commands.append(join_command("case", "extract", candidate, findings.first.key, "-o", "mine"))
    following = suggest_command(findings)
    return commands + ([following] if following and following not in commands else [])


def _can_extract(findings: Findings, key: str) -> bool:
    """Whether the dump holds a call of a module or of an operator with its tensors."""
    capture = findings.candidate.get("capture")
    payload = capture.get("payload", Tier.FULL) if isinstance(capture, Mapping) else Tier.FULL
    tiers = payload.values() if isinstance(payload, Mapping) else [payload]
    return Tier.FULL in tiers and key.split("/")[3:4] in ([Source.MODULE], [Source.ATEN])


def _find_paths(findings: Findings) -> tuple[str, str]:
    """Where the two dumps lie, "" for a side that is absent or was never on disk."""
    reference, candidate = (str(side.get("path", "") or "") for side in (findings.reference, findings.candidate))
    return reference, candidate


def _show(path: str, key: str = "") -> str:
    return join_command("show", path, *([key] if key else [])) if path else ""


def _device_options(findings: Findings) -> list[str]:
    name, _, detail = str(findings.candidate.get("device", "")).partition(" ")
    kind = name.partition(":")[0]
    if detail.startswith("simulated"):
        profile = detail.split()[1:2]
        kind = ":".join(["simulated", *profile])
    return ["--device", kind] if kind else []
