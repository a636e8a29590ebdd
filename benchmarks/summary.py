"""From the cells of a study to its numbers: interquartile means, paired gaps, scores over all cases.

Definitions are rliable's (trainers/statistics.py): the matrix of a cell is training runs x evaluation seeds,
both resampled; policies that met the same seeds are paired.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from steelyard.benchmarks.cells import Scores
from steelyard.benchmarks.study import Study
from steelyard.envs.scenario_file import RACK
from steelyard.trainers import statistics as st
from steelyard.trainers.comparison import REFERENCES, Overall, thresholds

HIGHER_IS_BETTER = ("jain_mean",)
ORACLE = "oracle"
RIVAL = "lsq"
"""What a learner must beat to be worth anything."""
REPLICATES, RACK_REPLICATES = 2000, 500
"""Of the bootstrap; a study of racks has hundreds of cells."""
FLOOR = "cfcfs"
"""Of racks: one ideal queue."""
RACK_MEANS = (
    "tasks",
    "latency_p50_us",
    "latency_p99_us",
    "latency_p999_us",
    "slowdown_p99",
    "migrations",
    "steals",
    "messages",
    "imbalance_mean_us",
    "busy_mean",
)
"""Of what a rack's summary holds the plain mean."""
Estimate = dict[str, float]
"""value, low, high: JSON of statistics.Estimate."""


@dataclass(frozen=True)
class Gap:
    """A policy against another on the same episodes, in the metric that ranks."""

    difference: Estimate
    """Mean of the policy minus mean of the other, in the metric's unit."""
    relative: Estimate
    """Ratio of the interquartile means, minus 1."""
    improvement: Estimate
    """Probability that an episode of the policy is better than one of the other."""


def summarise(study: Study, scores: Scores) -> dict[str, Any]:
    """Everything that the tables show; plain data, as summary.json holds it."""
    cases = {case.name: _case(study, scores, case.name) for case in study.cases}
    return {
        "study": study.name,
        "title": study.entry.title,
        "seeds": {"first": study.entry.seeds.start, "end": study.entry.seeds.stop},
        "convention": study.entry.convention,
        "reference": study.entry.reference,
        "metrics": list(study.entry.metrics),
        "cases": cases,
        "overall": {} if study.world == RACK else overall(study, scores),
    }


def ranked(policies: dict[str, Any], metric: str) -> list[str]:
    """Policies of one case of a summary, best first."""
    found = {name: policy["metrics"][metric]["iqm"]["value"] for name, policy in policies.items()}
    values = {name: math.nan if value is None else value for name, value in found.items()}
    return sorted(values, key=lambda name: (math.isnan(values[name]), _cost(metric, values[name])))


def complete(study: Study, scores: Scores) -> list[str]:
    """Policies that played every case that names them beside the reference; only they have overall scores."""
    reference = study.entry.reference
    return [
        label
        for label in study.policies()
        if all(
            label in scores.policies(case.name)
            for case in study.cases
            if label in case.policies and reference in case.policies
        )
        and any(label in case.policies and reference in scores.policies(case.name) for case in study.cases)
    ]


def strata(study: Study, scores: Scores, label: str, metric: str) -> dict[str, st.Array]:
    """Case -> (num_runs, num_seeds): the reference's metric on the same episodes over the policy's own.

    Above 1 is better (for metrics of which more is better: the inverse). Cases without a score are left out.
    """
    found = {}
    for case in study.cases:
        if not {label, study.entry.reference} <= set(scores.policies(case.name)):
            continue
        base = scores.matrix(case.name, study.entry.reference, metric).mean(axis=0)
        own = scores.matrix(case.name, label, metric)
        with np.errstate(divide="ignore", invalid="ignore"):
            score = own / base if metric in HIGHER_IS_BETTER else base / own
        if np.isfinite(score).all():
            found[case.name] = score
    return found


def overall(study: Study, scores: Scores) -> dict[str, Any]:
    """Every complete policy over all its cases: score by each metric, and gaps of scores to references."""
    first, *others = study.entry.metrics
    labels = complete(study, scores)
    table = {label: strata(study, scores, label, first) for label in labels}
    found: dict[str, Any] = {}
    for label in labels:
        if not table[label]:
            continue
        found[label] = {
            "cases": list(table[label]),
            "score": asdict(st.bootstrap(st.iqm, list(table[label].values()))),
            "other_scores": {},
            "versus": {},
        }
        for metric in others:
            score = strata(study, scores, label, metric)
            if set(score) == set(table[label]):
                found[label]["other_scores"][metric] = asdict(st.bootstrap(st.iqm, list(score.values())))
        for rival in dict.fromkeys((study.entry.reference, ORACLE, RIVAL)):
            if rival != label and rival in table and set(table[label]) <= set(table[rival]):
                pair = [list(table[label].values()), [table[rival][case] for case in table[label]]]
                found[label]["versus"][rival] = asdict(st.bootstrap(_iqm_gap, *pair))
    return found


def profiles(study: Study, scores: Scores) -> list[Overall]:
    """Performance profile of every complete policy."""
    found = []
    for label in complete(study, scores):
        score = list(strata(study, scores, label, study.entry.metrics[0]).values())
        if score:
            band = st.profile_band(score, thresholds())
            found.append(Overall(label, st.bootstrap(st.iqm, score, replicates=500), band))
    return found


def improvement_matrix(study: Study, scores: Scores) -> tuple[list[str], st.Array]:
    """Policies that played every case, and (C, C): probability that i is better than j in an episode."""
    names = [case.name for case in study.cases]
    labels = [p for p in study.policies() if all(p in scores.policies(name) for name in names)]
    metric = study.entry.metrics[0]
    table = [[-_cost(metric, scores.matrix(name, label, metric)) for name in names] for label in labels]
    return labels, np.array([[float(st.probability_of_improvement(x, y)) for y in table] for x in table])


def _case(study: Study, scores: Scores, case: str) -> dict[str, Any]:
    present = scores.policies(case)
    others = (FLOOR,) if study.world == RACK else REFERENCES
    rivals = [name for name in dict.fromkeys((study.entry.reference, *others)) if name in present]
    return {
        "group": study.case(case).group,
        "missing": [label for label in study.case(case).policies if label not in present],
        "policies": {label: _policy(study, scores, case, label, rivals) for label in present},
    }


def _policy(study: Study, scores: Scores, case: str, label: str, rivals: Sequence[str]) -> dict[str, Any]:
    first = study.entry.metrics[0]
    draws = RACK_REPLICATES if study.world == RACK else REPLICATES
    own = scores.matrix(case, label, first)
    wanted = {quoted.metric for quoted in study.entry.quoted if (quoted.case, quoted.policy) == (case, label)}
    wanted |= {limit.metric for limit in study.entry.limits}
    metrics = dict.fromkeys([*study.entry.metrics, *sorted(wanted)])
    kept = scores.metrics(case, label)
    if study.world == RACK:
        kept = [name for name in kept if name in RACK_MEANS]
    means = {name: float(np.mean(scores.matrix(case, label, name))) for name in kept}
    return {
        "runs": own.shape[0],
        "seeds": own.shape[1],
        "metrics": {name: _metric(scores.matrix(case, label, name), draws) for name in metrics},
        "means": {name: value for name, value in means.items() if name not in ("seed", "cpu_s")},
        "versus": {
            name: asdict(_gap(first, own, scores.matrix(case, name, first), draws))
            for name in rivals
            if name != label
        },
    }


def _metric(values: st.Array, draws: int) -> dict[str, Any]:
    """Interquartile mean and mean with their intervals, and the deviation between episodes."""
    return {
        "iqm": asdict(st.bootstrap(st.iqm, [values], replicates=draws)),
        "mean": asdict(st.bootstrap(st.mean, [values], replicates=draws // 2)),
        "std": float(values.std(ddof=1)) if values.size > 1 else 0.0,
    }


def _gap(metric: str, own: st.Array, other: st.Array, draws: int) -> Gap:
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = st.bootstrap(st.relative_iqm, [own], [other], replicates=draws)
    better, than = [-_cost(metric, own)], [-_cost(metric, other)]
    return Gap(
        difference=asdict(st.bootstrap(st.difference, [own], [other], replicates=draws)),
        relative=asdict(relative),
        improvement=asdict(st.bootstrap(st.probability_of_improvement, better, than, replicates=draws // 2)),
    )


def _iqm_gap(x: st.Scores, y: st.Scores) -> st.Array:
    return st.iqm(x) - st.iqm(y)


def _cost(metric: str, values: Any) -> Any:
    """Lower is better."""
    return -values if metric in HIGHER_IS_BETTER else values
