"""From rows of a study of racks to what they say: the tail first, with paired gaps to references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from steelyard.trainers import statistics as st
from steelyard.trainers.comparison import contenders, interval, matrix, percent, scenarios
from steelyard.trainers.results import Row

REFERENCES = ("jsq", "cfcfs")
"""Whom every contender is compared with: the rule to beat, and the floor of one ideal queue."""
TAIL = "latency_p99_us"


@dataclass(frozen=True)
class RackGap:
    """A contender against a reference on the same tasks, in p99 of latency; negative is faster."""

    difference_us: st.Estimate
    relative: st.Estimate
    """Ratio of the interquartile means, minus 1."""
    improvement: st.Estimate
    """Probability that an episode of the contender has the lower p99."""


@dataclass(frozen=True)
class RackLine:
    """A contender on a rack. Latencies are interquartile means over episodes [us]."""

    scenario: str
    contender: str
    runs: int
    seeds: int
    p99_us: st.Estimate
    mean_us: st.Estimate
    p999_us: float
    slowdown_p99: float
    imbalance_us: float
    moved: float
    """Migrations and steals per task."""
    messages: float
    """Per task."""
    gaps: dict[str, RackGap] = field(default_factory=dict)


def summarise(rows: Sequence[Row], references: Sequence[str] = REFERENCES) -> list[RackLine]:
    """One line per scenario and contender, with its gap to each reference that took part."""
    labels = contenders(rows)
    present = [label for label in references if label in labels]
    return [_line(rows, scenario, label, present) for scenario in scenarios(rows) for label in labels]


def to_dict(lines: Sequence[RackLine]) -> list[dict[str, Any]]:
    """As JSON holds them."""
    return [asdict(line) for line in lines]


def table(lines: Sequence[RackLine]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the summary: a row with the name of each scenario, then one for each contender."""
    references = list(dict.fromkeys(name for line in lines for name in line.gaps))
    header = ["policy", "p99 [us]", "mean [us]", "p99.9 [us]", "p99 slowdown", "moves/task", "imbalance [us]"]
    header += [f"p99 vs {name} [%]" for name in references]
    cells = []
    for name in dict.fromkeys(line.scenario for line in lines):
        cells.append([name] + [""] * (len(header) - 1))
        cells += [_cells(line, references) for line in lines if line.scenario == name]
    return header, cells


def _line(rows: Sequence[Row], scenario: str, label: str, references: Sequence[str]) -> RackLine:
    def metric(name: str, who: str = label) -> st.Array:
        return matrix(rows, scenario, who, name)

    own, tasks = metric(TAIL), max(float(metric("tasks").sum()), 1.0)
    return RackLine(
        scenario=scenario,
        contender=label,
        runs=own.shape[0],
        seeds=own.shape[1],
        p99_us=st.bootstrap(st.iqm, [own]),
        mean_us=st.bootstrap(st.iqm, [metric("latency_mean_us")]),
        p999_us=float(st.iqm([metric("latency_p999_us")])),
        slowdown_p99=float(st.iqm([metric("slowdown_p99")])),
        imbalance_us=float(metric("imbalance_mean_us").mean()),
        moved=float((metric("migrations") + metric("steals")).sum()) / tasks,
        messages=float(metric("messages").sum()) / tasks,
        gaps={who: _gap(own, metric(TAIL, who)) for who in references if who != label},
    )


def _gap(own: st.Array, reference: st.Array) -> RackGap:
    return RackGap(
        difference_us=st.bootstrap(st.difference, [own], [reference]),
        relative=st.bootstrap(st.relative_iqm, [own], [reference]),
        improvement=st.bootstrap(st.probability_of_improvement, [-own], [-reference], replicates=1000),
    )


def _cells(line: RackLine, references: Sequence[str]) -> list[str]:
    cells = [f"  {line.contender}", interval(line.p99_us, ".1f"), f"{line.mean_us.value:.2f}"]
    cells += [
        f"{line.p999_us:.1f}",
        f"{line.slowdown_p99:.2f}",
        f"{line.moved:.3f}",
        f"{line.imbalance_us:.1f}",
    ]
    return cells + [percent(line.gaps[name].relative) if name in line.gaps else "" for name in references]
