"""What the checks look at: the records of a dump, sorted once by what they are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from precision_align.alignment.side import read_arguments
from precision_align.core.keys import Key
from precision_align.core.records import OPTIMIZER_SCOPE, Statistics, TensorRecord
from precision_align.core.terms import Phase, Role, Source
from precision_align.storage.base import Dump

Moment = tuple[int, int]  # step, rank


@dataclass
class Facts:
    """Records by parameter name and (step, rank).

    ``before``: parameters at the step's start; ``after``: after the last optimizer step; ``gradients``: as the
    optimizer saw them, else their totals; ``shares``: each call's share of a parameter's gradient; ``inputs``: of the
    outermost module; ``series``: name -> (step, micro-batch) -> value.
    """

    dump: Dump
    before: dict[str, dict[Moment, TensorRecord]] = field(default_factory=lambda: defaultdict(dict))
    after: dict[str, dict[Moment, TensorRecord]] = field(default_factory=lambda: defaultdict(dict))
    gradients: dict[str, dict[Moment, TensorRecord]] = field(default_factory=lambda: defaultdict(dict))
    shares: dict[str, dict[Moment, list[TensorRecord]]] = field(default_factory=lambda: defaultdict(dict))
    inputs: list[TensorRecord] = field(default_factory=list)
    series: dict[str, dict[tuple[int, int], float]] = field(default_factory=lambda: defaultdict(dict))
    # with statistics that are not finite, in the order of the dump
    strange: list[TensorRecord] = field(default_factory=list)

    @property
    def moments(self) -> list[Moment]:
        """All (step, rank), ascending."""
        return [(step, rank) for step in self.dump.steps for rank in self.dump.ranks]

    @property
    def updated(self) -> list[Moment]:
        """Those in which an optimizer step was recorded."""
        return sorted({moment for records in self.after.values() for moment in records})

    def find_series(self, *names: str) -> dict[tuple[int, int], float]:
        """The first of these series that there is, whatever case and separators; {} where there is none."""
        plain = {_plain(name): values for name, values in self.series.items()}
        return next((plain[name] for name in map(_plain, names) if name in plain), {})


def _plain(name: str) -> str:
    return name.lower().rsplit("/", 1)[-1].replace(" ", "").replace("_", "").replace("-", "")


def gather_facts(dump: Dump) -> Facts:
    """One pass over the records."""
    facts = Facts(dump)
    for record in dump.records:
        _sort(facts, record)
        if is_strange(record.statistics):
            facts.strange.append(record)
    for point in dump.series:
        facts.series[point.name][point.step, point.micro] = point.value
    return facts


def is_strange(statistics: Statistics | None) -> bool:
    """Whether a tensor holds NaN or infinities."""
    return statistics is not None and bool(statistics.nan or statistics.inf)


def name_parameter(key: Key, local: str) -> str:
    """ "blocks.0.weight" of a scope and a local name."""
    return f"{key.scope}.{local}" if key.scope else local


def _sort(facts: Facts, record: TensorRecord) -> None:
    key = record.key
    moment = key.step, key.rank
    if key.source == Source.PARAMETERS and key.role == Role.PARAMETER:
        facts.before[name_parameter(key, key.path)].setdefault(moment, record)
    elif key.source == Source.OPTIMIZER and key.role == Role.PARAMETER:
        facts.after[name_parameter(key, key.path)][moment] = record
    elif key.role == Role.GRADIENT and key.source in (Source.OPTIMIZER, Source.PARAMETERS):
        facts.gradients[name_parameter(key, key.path)][moment] = record
    elif key.role == Role.GRADIENT and key.path.startswith("parameter.") and key.phase == Phase.BACKWARD:
        name = name_parameter(key, key.path.partition(".")[2])
        facts.shares[name].setdefault(moment, []).append(record)
    elif key.source == Source.MODULE and key.scope == "" and key.role == Role.INPUT:
        facts.inputs.append(record)


def list_owned(dump: Dump) -> set[str]:
    """The names of all parameters that an optimizer's groups hold on any rank, as the run began."""
    owned: set[str] = set()
    for description in (one for info in dump.infos for one in info.optimizer.values()):
        for group in description.get("groups", ()) if isinstance(description, dict) else ():
            owned.update(group.get("parameters", ()))
    return owned


def read_learning_rates(dump: Dump) -> dict[tuple[str, Moment], float]:
    """(parameter, (step, rank)) -> learning rate of the optimizer step in it, where its call says so."""
    rates: dict[tuple[str, Moment], float] = {}
    for call in dump.calls:
        if not call.scope.startswith(OPTIMIZER_SCOPE):
            continue
        for group in read_arguments(call).get("groups", ()):
            if isinstance(group.get("lr"), (int, float)):
                moment = call.step, call.rank
                rates.update({(name, moment): float(group["lr"]) for name in group.get("parameters", ())})
    return rates
