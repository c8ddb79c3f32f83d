"""The ranks of a job, examined together: a collective, and one table of what differs between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from precision_align.doctor.checks import ABSENT, BAD, GOOD, NOTE, Check, attempt
from precision_align.doctor.examination import Examination

# A rank that is not there after this long is missing; HCCL's own limit is twice that.
SECONDS = 60
# These differ by nature: each rank has its own cards, each host its own name and address.
_OWN = {
    ("host", "name"), ("host", "visible"), ("environment", "ASCEND_RT_VISIBLE_DEVICES"),
    ("environment", "CUDA_VISIBLE_DEVICES"), ("environment", "HCCL_IF_IP"),
}  # fmt: skip
_BACKENDS = {"npu": "hccl", "cuda": "nccl"}


@dataclass(frozen=True)
class Launched:
    """What the launcher told this process."""

    rank: int
    world: int
    local_rank: int
    local_world: int


@dataclass(frozen=True)
class RankReport:
    """What one rank found: picklable, for the others."""

    launched: Launched
    checks: tuple[Check, ...]
    facts: Mapping[str, Mapping[str, str]]


def find_launched(environment: Mapping[str, str]) -> Launched | None:
    """This process's place under torchrun and its like; None where it runs alone."""

    def number(name: str, default: int) -> int:
        text = environment.get(name, "")
        return int(text) if text.isdigit() else default

    rank, world = number("RANK", -1), number("WORLD_SIZE", 1)
    if rank < 0 or world < 2:
        return None
    return Launched(rank, world, number("LOCAL_RANK", rank), number("LOCAL_WORLD_SIZE", world))


def gather_reports(examination: Examination, launched: Launched) -> tuple[list[RankReport], list[Check]]:
    """Every rank's report, ordered by rank, and the checks of the collectives. Only this rank's where that fails."""
    own = RankReport(launched, tuple(examination.checks), examination.facts)
    gathered = [own]

    def work() -> list[Check]:
        nonlocal gathered
        gathered, checks = _gather(own)
        return checks

    advice = "start all ranks within a minute; look at MASTER_ADDR, MASTER_PORT and the network between the hosts"
    checks = attempt("collective", work, advice)
    return gathered, checks


def _gather(own: RankReport) -> tuple[list[RankReport], list[Check]]:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo", timeout=timedelta(seconds=SECONDS))
    try:
        reports: list[Any] = [None] * own.launched.world
        distributed.all_gather_object(reports, own)
        checks = [_check_sum(distributed.group.WORLD, torch.device("cpu"), own.launched, "gloo")]
        kind = _find_common_device(reports)
        if kind:
            advice = "look at HCCL_SOCKET_IFNAME, the rank table, and the network of the cards (hccn_tool)"
            name = f"collective {_BACKENDS[kind]}"
            checks += attempt(name, lambda: [_reduce_on(kind, own.launched)], advice)
        return sorted(reports, key=lambda report: report.launched.rank), checks
    finally:
        distributed.destroy_process_group()


def _find_common_device(reports: Sequence[RankReport]) -> str:
    """The accelerator that every rank has, "" where there is none."""
    for kind in _BACKENDS:
        if all(f"device {kind}" in report.facts for report in reports):
            return kind
    return ""


def _reduce_on(kind: str, launched: Launched) -> Check:
    import torch
    from torch import distributed

    runtime: Any = getattr(torch, kind)
    device = torch.device(kind, launched.local_rank % max(1, int(runtime.device_count())))
    runtime.set_device(device)
    group = distributed.new_group(backend=_BACKENDS[kind], timeout=timedelta(seconds=SECONDS))
    return _check_sum(group, device, launched, _BACKENDS[kind])


def _check_sum(group: Any, device: Any, launched: Launched, backend: str) -> Check:
    """An all-reduce of the ranks' numbers."""
    import torch
    from torch import distributed

    numbers = torch.full((1024,), float(launched.rank), device=device)
    distributed.all_reduce(numbers, group=group)
    expected = launched.world * (launched.world - 1) / 2
    right = bool((numbers.cpu() == expected).all())
    text = f"all-reduce over {launched.world} ranks gave {numbers[0].item():g}, expected {expected:g}"
    return Check(f"collective {backend}", GOOD if right else BAD, text, "" if right else "distrust this network")


def compare_ranks(reports: Sequence[RankReport]) -> list[Check]:
    """One check a difference: which ranks have what, and how to make them equal; one good check where none differs."""
    checks = [*_compare_facts(reports), *_compare_checks(reports), *_check_placement(reports)]
    return checks or [Check("ranks", GOOD, f"{len(reports)} ranks found the same")]


def _compare_facts(reports: Sequence[RankReport]) -> list[Check]:
    places = {(section, name) for report in reports for section in report.facts for name in report.facts[section]}
    checks = []
    for section, name in sorted(places - _OWN):
        by_value: dict[str, list[int]] = {}
        for report in reports:
            value = report.facts.get(section, {}).get(name, "")
            by_value.setdefault(value, []).append(report.launched.rank)
        if len(by_value) > 1:
            checks.append(_phrase_difference(section, name, by_value))
    return checks


def _phrase_difference(section: str, name: str, by_value: Mapping[str, list[int]]) -> Check:
    usual = max(by_value, key=lambda value: len(by_value[value]))
    parts = [f"{list_ranks(ranks)}: {value or 'not there'}" for value, ranks in by_value.items()]
    others = list_ranks([rank for value, ranks in by_value.items() if value != usual for rank in ranks])
    verb = "export" if section == "environment" else "set"
    fix = f"{verb} {name}={usual}" if usual else f"unset {name}"
    if section == "versions":
        fix = f"install {name} {usual}" if usual else f"uninstall {name}"
    status = BAD if section == "versions" else NOTE
    return Check(f"{section}: {name}", status, "; ".join(parts), f"on {others}: {fix}")


def _compare_checks(reports: Sequence[RankReport]) -> list[Check]:
    """What is broken on some ranks and not on all."""
    broken: dict[str, list[tuple[int, Check]]] = {}
    for report in reports:
        for check in report.checks:
            if check.status == BAD:
                broken.setdefault(check.name, []).append((report.launched.rank, check))
    return [
        Check(name, BAD, f"{list_ranks([rank for rank, _ in found])}: {found[0][1].text}", found[0][1].advice)
        for name, found in broken.items()
        if len({rank for rank, _ in found}) < len(reports)
    ]


def _check_placement(reports: Sequence[RankReport]) -> list[Check]:
    """More ranks on a host than it has cards to see, or all of them on the one card that they see."""
    checks = []
    by_host: dict[str, list[RankReport]] = {}
    for report in reports:
        by_host.setdefault(report.facts.get("host", {}).get("name", ""), []).append(report)
    for host, members in by_host.items():
        cards = {_cards_of(report) for report in members}
        seen = sum(count for _, count in cards)
        if ABSENT not in dict(cards) and len(members) > seen > 0:
            ranks = list_ranks([report.launched.rank for report in members])
            text = f"{host}: {ranks} see {seen} device{'s' if seen > 1 else ''} together ({_describe(cards)})"
            advice = "let each rank see its own card, or all cards and call set_device(LOCAL_RANK)"
            checks.append(Check("placement", BAD, text, advice))
    return checks


def _cards_of(report: RankReport) -> tuple[str, int]:
    """(the variable that hides cards, how many are left), ABSENT and 0 without an accelerator."""
    for kind in _BACKENDS:
        count = report.facts.get(f"device {kind}", {}).get("count")
        if count is not None:
            variable = "ASCEND_RT_VISIBLE_DEVICES" if kind == "npu" else "CUDA_VISIBLE_DEVICES"
            value = report.facts.get("environment", {}).get(variable)
            return (f"{variable}={value}" if value is not None else "all cards"), int(count)
    return ABSENT, 0


def _describe(cards: set[tuple[str, int]]) -> str:
    return "; ".join(f"{variable}: {count}" for variable, count in sorted(cards))


def list_ranks(ranks: Sequence[int]) -> str:
    """ "ranks 0-2, 5" of [0, 1, 2, 5]."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"
