"""What reports of studies of racks have besides: reach of low tails, what tuning found, loads over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steelyard.agents.rules import file_stem
from steelyard.benchmarks import rack_figures
from steelyard.benchmarks.cells import Scores, Timeline
from steelyard.benchmarks.page import Block, Heading, Inline, Picture, Table, text
from steelyard.benchmarks.study import Case, Study
from steelyard.benchmarks.study_entry import LimitEntry
from steelyard.benchmarks.study_tables import number
from steelyard.envs.rack_scenario import RackScenario
from steelyard.trainers import plots
from steelyard.trainers.statistics import Array

IN_A_ROW = 5
"""Bins within the band that make a settled rack."""
_BAND = 3.0  # standard deviations of the settled bins


def reach(x: Sequence[float], values: Sequence[float | None], most: float) -> float:
    """The first x at which values pass `most`, between points of a straight line; inf if none does.

    NaN if the first value does already.
    """
    before: tuple[float, float] | None = None
    for place, value in zip(x, values, strict=True):
        if value is None or not value <= most:
            if before is None:
                return math.nan
            if value is None or not math.isfinite(value):
                return before[0]
            return before[0] + (place - before[0]) * (most - before[1]) / (value - before[1])
        before = (place, value)
    return math.inf


def settling(t_s: Array, series: Array, start_s: float, end_s: float) -> tuple[float, float, float]:
    """Of a shift at start_s, with nothing else until end_s: peak, settled level, settling time [s].

    The level is the mean over the last half of the interval. The rack is settled from the first of IN_A_ROW
    bins that lie within three standard deviations (of bins of that half) of the level; inf if there is none.
    """
    inside = (t_s >= start_s - 1e-9) & (t_s < end_s - 1e-9)
    own, t = series[inside], t_s[inside]
    half = own[len(own) // 2 :]
    level, band = float(half.mean()), _BAND * float(half.std())
    good = np.abs(own - level) <= band
    for first in range(len(own) - IN_A_ROW + 1):
        if good[first : first + IN_A_ROW].all():
            return float(own[: max(first, IN_A_ROW)].max()), level, float(t[first] - start_s)
    return float(own.max()), level, math.inf


def blocks(study: Study, found: Mapping[str, Any], scores: Scores) -> list[Block]:
    """Tables that only studies of racks have; limits for all."""
    parts: list[Block] = []
    for limit in study.entry.limits:
        table = limit_table(study, found, limit)
        if table.rows:
            parts += [Heading(f"How far {_words(limit)}"), text(_LIMIT), table]
    rows = [row for case in study.cases for row in settling_rows(case, scores.timelines.get(case.name))]
    if rows:
        header = ["case", "policy", "shift at [s]", "level before [us]", "peak [us]", "level after [us]"]
        parts += [Heading("Settling"), text(_SETTLING), Table([*header, "settled after [ms]"], rows)]
    tuned: list[list[Inline]] = [
        [case, label, policy] for case, held in scores.tuned.items() for label, policy in held.items()
    ]
    if tuned:
        parts += [Heading("What tuning found"), Table(["case", "policy", "found"], tuned, words=True)]
    return parts


_LIMIT = (
    "Interpolated between the values of the axis; `>` where the largest value is still within, empty where "
    "the smallest is not."
)
_SETTLING = (
    "Imbalance I = 1 / (N - 1) sum |x_j - x_k| of the loads x, mean over evaluation seeds, in bins. Level: "
    "mean over the last half of the time to the next shift. Settled: from the first of "
    f"{IN_A_ROW} bins in a row within three standard deviations of the level, the deviation being that of "
    "the bins of that half. Of a learner: means over its training runs, of the settling time the median."
)


def limit_table(study: Study, found: Mapping[str, Any], limit: LimitEntry) -> Table:
    """Policies x axes: the largest value up to which the metric stays within the limit."""
    axes = study.axes()
    labels = dict.fromkeys(label for cases in axes.values() for case in cases for label in case.policies)
    rows: list[list[Inline]] = []
    limits = [_limit(found, cases, limit) for cases in axes.values()]
    names = [
        group if math.isnan(most) else f"{group} (at most {number(most)})"
        for group, most in zip(axes, limits, strict=True)
    ]
    for label in labels:
        row: list[Inline] = [label]
        for cases, most in zip(axes.values(), limits, strict=True):
            values = [_value(found, case, label, limit.metric) for case in cases]
            known = [(case.x, v) for case, v in zip(cases, values, strict=True) if v is not None]
            if not known:
                row.append("")
                continue
            x, y = zip(*known, strict=True)
            far = reach(x, y, most)
            largest = f"> {x[-1]:g}"
            row.append(largest if math.isinf(far) else "" if math.isnan(far) else f"{far:.3g}")
        if any(row[1:]):
            rows.append(row)
    return Table(["policy", *names], rows)


def shifts_s(case: Case) -> list[float]:
    """Times of the timetable of a case of a rack [s]."""
    assert isinstance(case.scenario, RackScenario)
    return sorted({event.t_s for event in case.scenario.events})


def settling_rows(case: Case, timelines: Mapping[str, Sequence[Timeline]] | None) -> list[list[Inline]]:
    """A row for each shift of the timetable and policy."""
    if not timelines:
        return []
    events, horizon_s = shifts_s(case), case.scenario.episode.horizon_s
    rows: list[list[Inline]] = []
    for start_s, end_s in zip(events, [*events[1:], horizon_s], strict=False):
        if end_s > horizon_s:
            continue
        for label, runs in timelines.items():
            before, own = [], []
            for run in runs:
                t, series = np.array(run["t_s"]), np.array(run["imbalance_us"])
                past = [each for each in (*events, float(t[0])) if each < start_s]
                if past and past[-1] >= t[0]:
                    before.append(settling(t, series, max(past), start_s)[1])
                own.append(settling(t, series, start_s, end_s))
            peak, level, _ = np.mean(np.array(own), axis=0)
            after = float(np.median([each[2] for each in own]))
            rows.append(
                [
                    *(case.name, label, f"{start_s:g}", number(float(np.mean(before))) if before else ""),
                    *(number(float(peak)), number(float(level))),
                    "never" if math.isinf(after) else f"{1e3 * after:.0f}",
                ]
            )
    return rows


def pictures(study: Study, found: Mapping[str, Any], scores: Scores) -> list[Picture]:
    """Each metric of the tables against the axes; loads over time."""
    parts = []
    axes = study.axes()
    for metric in study.entry.metrics if axes else ():
        panels = {group: _curves(found, cases, metric) for group, cases in axes.items()}
        key = next(each.axis for each in study.entry.cases if each.axis)
        figure = rack_figures.panels({name: held for name, held in panels.items() if held}, key, metric)
        caption = f"{metric} against {key}, interquartile means with 95 % intervals."
        parts.append(Picture(file_stem(metric), caption, plots.png(figure)))
    for case in study.cases:
        held = scores.timelines.get(case.name, {})
        if held:
            events = shifts_s(case)
            stem, what = file_stem(case.name), "mean over evaluation seeds; first training run of a learner"
            figure = rack_figures.loads_over_time({label: runs[0] for label, runs in held.items()}, events)
            caption = f"{case.name}: load (tasks / service rate) of servers of each kind over time, {what}."
            parts.append(Picture(f"{stem}-load", caption, plots.png(figure)))
            figure = rack_figures.imbalance_over_time(held, events)
            caption = f"{case.name}: imbalance over time, mean over evaluation seeds and training runs."
            parts.append(Picture(f"{stem}-imbalance", caption, plots.png(figure)))
    return parts


def _curves(found: Mapping[str, Any], cases: Sequence[Case], metric: str) -> dict[str, Any]:
    """Label -> x, value, low, high: (n,) each."""
    curves: dict[str, Any] = {}
    for label in dict.fromkeys(label for case in cases for label in case.policies):
        points = []
        for case in cases:
            policy = found["cases"][case.name]["policies"].get(label)
            if policy is not None:
                held = policy["metrics"][metric]["iqm"]
                points.append((case.x, held["value"], held["low"], held["high"]))
        if points:
            curves[label] = np.array(points, dtype=float).T
    return curves


def _limit(found: Mapping[str, Any], cases: Sequence[Case], limit: LimitEntry) -> float:
    if limit.most is not None:
        return limit.most
    value = _value(found, cases[0], limit.policy, limit.metric)
    return math.nan if value is None else limit.times * value


def _value(found: Mapping[str, Any], case: Case, label: str, metric: str) -> float | None:
    policy = found["cases"][case.name]["policies"].get(label)
    if policy is None or metric not in policy["metrics"]:
        return None
    value: float | None = policy["metrics"][metric]["iqm"]["value"]
    return value


def _words(limit: LimitEntry) -> str:
    if limit.most is not None:
        return f"{limit.metric} stays within {number(limit.most)}"
    return f"{limit.metric} stays within {limit.times:g} times that of {limit.policy} on the first case"
