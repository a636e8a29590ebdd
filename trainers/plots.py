"""Figures of a report: each function takes plain data and returns a matplotlib figure, off screen."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.trainers.comparison import Line, Overall, thresholds
from steelyard.trainers.statistics import Array, Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = tuple[Array, Array]
"""x (n,) and y (n,)."""
Band = tuple[Array, Array, Array]
"""Value, low and high: (n,) each."""
_WIDTH_IN = 8.5


@dataclass(frozen=True)
class LearningCurve:
    """Mean sojourn [s] by training episode."""

    exploring: Curve
    """Of the training episodes themselves."""
    evaluated: Curve
    """Of the policy without exploration, on episodes kept for validation; may be empty."""

    def bold(self) -> Curve:
        """What to draw in bold: the evaluated curve, else the exploring one smoothed."""
        episode, sojourn_s = self.exploring
        return self.evaluated if self.evaluated[0].size else (episode, smooth(sojourn_s))


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


def sojourn_cdf(samples: Mapping[str, Array]) -> Figure:
    """Distribution of sojourn times [s] of all flows, and its tail on logarithmic axes."""
    figure, (left, right) = _figure(1, 2, 4.0)
    for index, (label, values) in enumerate(samples.items()):
        x = np.sort(values)
        above = 1.0 - np.arange(1, x.size + 1) / x.size
        left.plot(x, 1.0 - above, label=_text(label), **_style(index))
        right.plot(x[:-1], above[:-1], label=_text(label), **_style(index))
    top = max(float(np.quantile(values, 0.995)) for values in samples.values())
    low = min(float(np.quantile(values, 0.25)) for values in samples.values())
    left.set(xlabel="sojourn [s]", ylabel="share of flows", xlim=(0, top), ylim=(0, 1))
    right.set(xlabel="sojourn [s]", ylabel="share of flows above", xscale="log", yscale="log")
    right.set_xlim(left=max(low, 1e-6))
    right.set_ylim(bottom=max(1e-5, 1.0 / max(values.size for values in samples.values())), top=1)
    _legend(left)
    return figure


def tail_against_load(loads: Array, tails: Mapping[str, Band], what: str = "p99 of sojourn [s]") -> Figure:
    """99th percentile of sojourn [s], or `what`, against offered load, with intervals."""
    figure, ((axes,),) = _figure(1, 1, 4.2, squeeze=False)
    for index, (label, (value, low, high)) in enumerate(tails.items()):
        axes.plot(loads, value, marker=".", label=_text(label), **_style(index))
        axes.fill_between(loads, low, high, alpha=0.15, color=_style(index)["color"], linewidth=0)
    axes.set(xlabel="offered load", ylabel=what, yscale="log")
    _legend(axes)
    return figure


def learning_curves(curves: Mapping[str, LearningCurve], levels: Mapping[str, float]) -> Figure:
    """Mean sojourn [s] while training, beside the level of each reference; see LearningCurve."""
    figure, ((axes,),) = _figure(1, 1, 4.2, squeeze=False)
    for index, (label, curve) in enumerate(curves.items()):
        style = _style(index)
        axes.plot(*curve.exploring, alpha=0.3, linewidth=0.8, color=style["color"])
        axes.plot(*curve.bold(), label=_text(label), **style)
    for index, (label, level) in enumerate(levels.items()):
        style = _style(len(curves) + index) | {"linestyle": ":"}
        axes.axhline(level, label=_text(label), **style)
    axes.set(xlabel="episode", ylabel="mean sojourn [s]")
    _legend(axes)
    return figure


def weights_over_time(
    timelines: Mapping[str, tuple[Array, Array]], groups: Sequence[Sequence[int]]
) -> Figure:
    """Share of weight per server of each policy. timelines: t (T,) [s] and weights (T, M, N)."""
    rows = len(timelines)
    figure, grid = _figure(rows, 1, 1.2 + 2.0 * rows, squeeze=False, sharex=True)
    for axes, (label, (time_s, weights)) in zip(grid[:, 0], timelines.items(), strict=True):
        share = (weights / weights.sum(axis=2, keepdims=True)).mean(axis=1)
        for index, group in enumerate(groups):
            own = share[:, list(group)]
            style = _style(index)
            axes.plot(time_s, own, linewidth=0.6, alpha=0.5, color=style["color"])
            axes.plot(time_s, own.mean(axis=1), label=f"servers {span(group)}", **style)
        axes.set(ylabel="share of weight", title=_text(label), ylim=(0, None))
    grid[-1, 0].set_xlabel("time [s]")
    _legend(grid[0, 0])
    return figure


def imbalance_over_time(series: Mapping[str, Curve]) -> Figure:
    """How much fuller the fullest server is than the mean: flows per unit of capacity, over time [s]."""
    figure, ((axes,),) = _figure(1, 1, 4.0, squeeze=False)
    for index, (label, (time_s, imbalance)) in enumerate(series.items()):
        axes.plot(time_s, imbalance, label=_text(label), **_style(index))
    what = "fullest server - mean\n[flows per unit of configured capacity]"
    axes.set(xlabel="time [s]", ylabel=what, ylim=(0, None))
    _legend(axes)
    return figure


def intervals(lines: Sequence[Line]) -> Figure:
    """Interquartile mean of the mean sojourn with its interval, contenders of one scenario."""
    return interval_bars({line.contender: line.sojourn_s for line in lines}, "mean sojourn [s]")


def interval_bars(estimates: Mapping[str, Estimate], what: str) -> Figure:
    """An interquartile mean with its interval for each contender."""
    figure, ((axes,),) = _figure(1, 1, 1.2 + 0.3 * len(estimates), squeeze=False)
    for index, estimate in enumerate(estimates.values()):
        axes.plot([estimate.low, estimate.high], [index, index], linewidth=6, alpha=0.35, color="tab:blue")
        axes.plot(estimate.value, index, marker="|", markersize=13, color="tab:blue")
    axes.set_yticks(range(len(estimates)), [_text(label) for label in estimates])
    axes.invert_yaxis()
    axes.set(xlabel=f"{what}, interquartile mean over episodes, 95 % interval")
    axes.grid(axis="x", alpha=0.3)
    return figure


def profiles(results: Sequence[Overall], reference: str) -> Figure:
    """Performance profiles: share of episodes whose score exceeds a threshold, with pointwise intervals."""
    figure, ((axes,),) = _figure(1, 1, 4.2, squeeze=False)
    x = thresholds()
    for index, result in enumerate(results):
        value, low, high = result.profile
        axes.plot(x, value, label=_text(result.contender), **_style(index))
        axes.fill_between(x, low, high, alpha=0.15, color=_style(index)["color"], linewidth=0)
    axes.set(
        xlabel=f"score: mean sojourn of {_text(reference)} / own",
        ylabel="share of episodes above",
        ylim=(0, 1),
    )
    _legend(axes)
    return figure


def improvement(labels: Sequence[str], matrix: Array) -> Figure:
    """Probability that the row's policy is faster than the column's. matrix: (C, C)."""
    size = 1.8 + 0.5 * len(labels)
    figure, ((axes,),) = _figure(1, 1, size, squeeze=False)
    axes.imshow(matrix, vmin=0, vmax=1, cmap="RdYlGn")
    names = [_text(label) for label in labels]
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8)
    axes.set_title("probability that the row is faster than the column", fontsize=10)
    return figure


def smooth(values: Array) -> Array:
    """Trailing mean over a twentieth of the curve. (n,) -> (n,)."""
    window = max(1, len(values) // 20)
    total = np.cumsum(np.insert(values, 0, 0.0))
    start = np.maximum(np.arange(1, len(values) + 1) - window, 0)
    end = np.arange(1, len(values) + 1)
    return (total[end] - total[start]) / (end - start)


def span(group: Sequence[int]) -> str:
    """Short name of a set of servers: 0-3, or 0,2,5."""
    first, last = group[0], group[-1]
    if len(group) == 1:
        return str(first)
    return f"{first}-{last}" if last - first + 1 == len(group) else ",".join(map(str, group))


def _figure(rows: int, columns: int, height_in: float, **options: Any) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def _text(name: str) -> str:
    """A name given by a person, not to be read as a formula."""
    return name.replace("$", r"\$")


def _style(index: int) -> dict[str, Any]:
    """Colour and dash of the index-th line; 40 differ."""
    dashes = ("-", "--", "-.", ":")
    return {"color": f"C{index % 10}", "linestyle": dashes[index // 10 % 4], "linewidth": 1.5}


def _legend(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
