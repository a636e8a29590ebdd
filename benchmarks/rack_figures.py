"""Figures of studies of racks: plain data in, a matplotlib figure out, off screen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.trainers.plots import _style, _text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 4
_SHOWN = 5.0  # a panel ends at so many times its least value: beyond, a policy has lost
_SHOWN_OVER_TIME = 12.0  # the same of the least peak
_LEARNED = ("black", "dimgray", "silver")


def panels(groups: Mapping[str, Mapping[str, Any]], key: str, what: str) -> Figure:
    """A panel for each group: what each policy has against the axis.

    groups: name -> label -> (4, n): x, value, low, high.
    """
    figure, grid = _grid(len(groups), 3.4, 2.9)
    styles = styles_of(label for curves in groups.values() for label in curves)
    for axes, (name, curves) in zip(grid, groups.items(), strict=False):
        for label, (x, value, low, high) in curves.items():
            style = styles[label]
            axes.plot(x, value, marker=".", **style)
            axes.fill_between(x, low, high, alpha=0.15, color=style["color"], linewidth=0)
        values = np.concatenate([value for _, value, _, _ in curves.values()])
        x = np.concatenate([x for x, *_ in curves.values()])
        least = float(np.nanmin(values))
        if least > 0:
            axes.set(yscale="log", ylim=(least * 0.9, min(_SHOWN * least, 1.1 * float(np.nanmax(values)))))
        if x.min() > 0 and x.max() / x.min() > 20:
            axes.set_xscale("log")
        axes.set_title(_text(name), fontsize=10)
        axes.grid(alpha=0.3)
        axes.set_xlabel(key)
    grid[0].set_ylabel(what)
    _legend_below(figure, styles)
    return figure


def styles_of(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A style for each policy, in order of appearance: learners are dark and bold."""
    names = list(dict.fromkeys(labels))
    learned = [name for name in names if name.startswith(("learned", "malcolm"))]
    rules = [name for name in names if name not in learned]
    styles = {name: _style(index) for index, name in enumerate(rules)}
    for index, name in enumerate(learned):
        styles[name] = _style(10 * (index // 3)) | {"color": _LEARNED[index % 3], "linewidth": 2.2}
    return {name: styles[name] for name in names}


def loads_over_time(timelines: Mapping[str, Mapping[str, Any]], events: Sequence[float]) -> Figure:
    """A panel for each policy: load [us] of the servers of each kind over time [s], shifts as lines."""
    figure, grid = _grid(len(timelines), 3.4, 2.4)
    kinds: list[str] = []
    tops = []
    for axes, (label, timeline) in zip(grid, timelines.items(), strict=False):
        kinds = list(timeline["load_us"])
        for index, loads in enumerate(timeline["load_us"].values()):
            axes.plot(timeline["t_s"], loads, **(_style(index) | {"linewidth": 0.9}))
        tops.append(max(max(loads) for loads in timeline["load_us"].values()))
        _decorate(axes, label, events)
    for axes in grid[: len(tops)]:
        axes.set_ylim(0, min(1.05 * max(tops), _SHOWN_OVER_TIME * min(tops)))
    grid[0].set_ylabel("load [us]")
    _legend_below(figure, {name: _style(index) for index, name in enumerate(kinds)})
    return figure


def imbalance_over_time(
    timelines: Mapping[str, Sequence[Mapping[str, Any]]], events: Sequence[float]
) -> Figure:
    """Imbalance [us] over time [s], each policy a line: mean over its training runs."""
    figure, grid = _grid(1, 9.0, 4.0)
    tops = []
    styles = styles_of(timelines)
    for label, runs in timelines.items():
        series = np.mean([run["imbalance_us"] for run in runs], axis=0)
        grid[0].plot(runs[0]["t_s"], series, **(styles[label] | {"linewidth": 0.9}))
        tops.append(float(series.max()))
    _decorate(grid[0], "", events)
    grid[0].set_ylim(0, min(1.05 * max(tops), _SHOWN_OVER_TIME * min(tops)))
    grid[0].set_ylabel("imbalance [us]")
    _legend_below(figure, styles)
    return figure


def _grid(count: int, width_in: float, height_in: float) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    columns = min(count, _COLUMNS)
    rows = math.ceil(count / columns)
    size = (max(width_in * columns, 6.0), height_in * rows + 0.9)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid[count:]:
        axes.set_visible(False)
    return figure, list(grid)


def _decorate(axes: Any, title: str, events: Sequence[float]) -> None:
    for event in events:
        axes.axvline(event, color="black", linewidth=0.6, linestyle=":")
    axes.set_title(_text(title), fontsize=10)
    axes.grid(alpha=0.3)
    axes.set_xlabel("time [s]")


def _legend_below(figure: Figure, styles: Mapping[str, Mapping[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=_text(name), **style) for name, style in styles.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
