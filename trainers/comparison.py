"""From rows of a study to what they say: interquartile means, paired gaps to references, profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from steelyard.trainers import statistics as st
from steelyard.trainers.results import Row

REFERENCES = ("tuned-sed", "oracle")
"""Whom every contender is compared with."""
_THRESHOLDS = np.linspace(0.5, 1.2, 141)


@dataclass(frozen=True)
class Gap:
    """A contender against a reference on the same episodes."""

    difference_s: st.Estimate
    """Mean sojourn of the contender minus that of the reference [s]; negative is faster."""
    relative: st.Estimate
    """Ratio of the interquartile means of the mean sojourn, minus 1; negative is faster."""
    improvement: st.Estimate
    """Probability that an episode of the contender is faster than one of the reference."""


@dataclass(frozen=True)
class Line:
    """A contender on a scenario."""

    scenario: str
    contender: str
    runs: int
    seeds: int
    sojourn_s: st.Estimate
    """Interquartile mean over episodes of the mean sojourn [s]."""
    p99_s: st.Estimate
    """Interquartile mean over episodes of the 99th percentile [s]."""
    waiting_s: float
    jain: float
    rejected_share: float
    """Rejected flows per flow."""
    gaps: dict[str, Gap] = field(default_factory=dict)


@dataclass(frozen=True)
class Overall:
    """A contender over all scenarios. Score: the reference's mean sojourn on the same flows / its own."""

    contender: str
    score: st.Estimate
    profile: tuple[st.Array, st.Array, st.Array]
    """Share of episodes with a score above each threshold, and its interval: (T,) each."""


def contenders(rows: Sequence[Row]) -> list[str]:
    """Labels in order of appearance."""
    return list(dict.fromkeys(row["contender"] for row in rows))


def scenarios(rows: Sequence[Row]) -> list[str]:
    """Scenario names in order of appearance."""
    return list(dict.fromkeys(row["scenario"] for row in rows))


def matrix(rows: Sequence[Row], scenario: str, contender: str, metric: str) -> st.Array:
    """(num_runs, num_seeds) of a metric."""
    chosen = [r for r in rows if r["scenario"] == scenario and r["contender"] == contender]
    runs = max(row["run"] for row in chosen) + 1
    return np.array([row[metric] for row in chosen], float).reshape(runs, -1)


def summarise(rows: Sequence[Row], references: Sequence[str] = REFERENCES) -> list[Line]:
    """One line per scenario and contender, with its gap to each reference that took part."""
    labels = contenders(rows)
    present = [label for label in references if label in labels]
    return [_line(rows, scenario, label, present) for scenario in scenarios(rows) for label in labels]


def overall(rows: Sequence[Row], reference: str) -> list[Overall]:
    """Every contender over all scenarios at once, relative to a reference."""
    scores = {label: _scores(rows, label, reference) for label in contenders(rows)}
    return [
        Overall(label, st.bootstrap(st.iqm, score), st.profile_band(score, _THRESHOLDS))
        for label, score in scores.items()
    ]


def improvement_matrix(rows: Sequence[Row]) -> st.Array:
    """(C, C): probability that an episode of contender i is faster than one of contender j."""
    scores = [
        [-matrix(rows, scenario, label, "sojourn_mean_s") for scenario in scenarios(rows)]
        for label in contenders(rows)
    ]
    return np.array([[float(st.probability_of_improvement(x, y)) for y in scores] for x in scores])


def thresholds() -> st.Array:
    """(T,) scores at which profiles are evaluated."""
    return _THRESHOLDS.copy()


def to_dict(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """As JSON holds them."""
    return [asdict(line) for line in lines]


def table(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the summary: a row with the name of each scenario, then one for each contender."""
    references = list(dict.fromkeys(name for line in lines for name in line.gaps))
    header = ["policy", "sojourn [s]", "p99 [s]", "rejected", "Jain"]
    header += [f"vs {name} [%]" for name in references]
    cells = []
    for name in dict.fromkeys(line.scenario for line in lines):
        cells.append([name] + [""] * (len(header) - 1))
        cells += [_cells(line, references) for line in lines if line.scenario == name]
    return header, cells


def _line(rows: Sequence[Row], scenario: str, label: str, references: Sequence[str]) -> Line:
    def metric(name: str, who: str = label) -> st.Array:
        return matrix(rows, scenario, who, name)

    own = metric("sojourn_mean_s")
    gaps = {who: _gap(own, metric("sojourn_mean_s", who)) for who in references if who != label}
    return Line(
        scenario=scenario,
        contender=label,
        runs=own.shape[0],
        seeds=own.shape[1],
        sojourn_s=st.bootstrap(st.iqm, [own]),
        p99_s=st.bootstrap(st.iqm, [metric("sojourn_p99_s")]),
        waiting_s=float(metric("waiting_mean_s").mean()),
        jain=float(metric("jain_mean").mean()),
        rejected_share=float(metric("rejected").sum() / max(metric("flows").sum(), 1)),
        gaps=gaps,
    )


def _gap(own: st.Array, reference: st.Array) -> Gap:
    return Gap(
        difference_s=st.bootstrap(st.difference, [own], [reference]),
        relative=st.bootstrap(st.relative_iqm, [own], [reference]),
        improvement=st.bootstrap(st.probability_of_improvement, [-own], [-reference], replicates=1000),
    )


def _scores(rows: Sequence[Row], label: str, reference: str) -> list[st.Array]:
    """Per scenario (num_runs, num_seeds): the reference's mean sojourn on the same flows over its own."""
    strata = []
    for scenario in scenarios(rows):
        base = matrix(rows, scenario, reference, "sojourn_mean_s").mean(axis=0)
        strata.append(base / matrix(rows, scenario, label, "sojourn_mean_s"))
    return strata


def _cells(line: Line, references: Sequence[str]) -> list[str]:
    cells = [f"  {line.contender}", interval(line.sojourn_s, ".3f"), f"{line.p99_s.value:.2f}"]
    cells += [f"{100 * line.rejected_share:.2f} %", f"{line.jain:.3f}"]
    return cells + [percent(line.gaps[name].relative) if name in line.gaps else "" for name in references]


def interval(estimate: st.Estimate, form: str) -> str:
    """`value [low, high]`, each in this form."""
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"


def percent(estimate: st.Estimate) -> str:
    """A share and its interval in percent, with signs."""
    scaled = st.Estimate(100 * estimate.value, 100 * estimate.low, 100 * estimate.high)
    return interval(scaled, "+.1f")
