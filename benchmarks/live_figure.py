"""A figure of policies on a testbed beside what the simulator says of them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

METRICS = {"sojourn_mean_s": "mean", "sojourn_p50_s": "p50", "sojourn_p90_s": "p90", "sojourn_p99_s": "p99"}
"""Key of a row and its short name."""
_COLORS = {"live": "tab:orange", "simulated": "tab:blue"}
_BAR = 0.38


def live_beside_simulated(rows: Mapping[str, Sequence[Mapping[str, Any]]], key: str = "policy") -> bytes:
    """PNG: sojourn [ms] of each policy, live and simulated; a dot is an episode, a bar their mean.

    rows: those of each side (`live`, `simulated`), with the policy's name under `key` and METRICS in seconds.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row[key] for side in rows.values() for row in side))
    figure = Figure(figsize=(8.5, 1.2 + 0.45 * len(names)), layout="constrained")
    for axes, (metric, short) in zip(
        figure.subplots(1, len(METRICS), sharey=True), METRICS.items(), strict=True
    ):
        for index, (side, found) in enumerate(rows.items()):
            for place, name in enumerate(names):
                values = [1e3 * row[metric] for row in found if row[key] == name]
                at = place + (index - 0.5) * _BAR
                mean = sum(values) / len(values) if values else float("nan")
                axes.barh(at, mean, _BAR, color=_COLORS[side], alpha=0.6, label="" if place else side)
                axes.plot(values, [at] * len(values), ".", color="black", markersize=3)
        axes.set(xlabel=f"{short} [ms]")
        axes.grid(axis="x", alpha=0.3)
        axes.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in names])
    axes.invert_yaxis()
    axes.legend(fontsize=8, frameon=False)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()
