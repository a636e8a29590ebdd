"""Pictures of a moment: what the balancers see and how they weigh, as text or as an image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steelyard.envs.schema import SERVER_FEATURES

_BAR = 32  # characters of a full bar
_ROW, _GAP, _WIDTH = 14, 4, 480  # pixels
_COLORS = np.array(
    [[31, 119, 180], [255, 127, 14], [44, 160, 44], [214, 39, 40], [148, 103, 189], [140, 86, 75]],
    dtype=np.uint8,
)


def _flows_and_weights(observations: NDArray[np.float32], num_servers: int) -> tuple[NDArray, NDArray]:
    """Flows of each agent on each server, and weights in force; both (num_agents, num_servers)."""
    flows = observations[:, : SERVER_FEATURES * num_servers : SERVER_FEATURES]
    return flows, 2.0 ** (2.0 * observations[:, -num_servers:])


def render_text(observations: NDArray[np.float32], num_servers: int, headline: str) -> str:
    """One line per server: open flows as a bar and a number, then each agent's weight. observations:
    (num_agents, D).
    """
    flows, weights = _flows_and_weights(observations, num_servers)
    total = flows.sum(axis=0)
    scale = _BAR / max(float(total.max()), 1.0)
    lines = [headline, f"{'server':>6}  {'open flows':<{_BAR + 5}}  weight of each balancer"]
    for server in range(num_servers):
        bar = "#" * round(float(total[server]) * scale)
        shown = " ".join(f"{weight:5.2f}" for weight in weights[:, server])
        lines.append(f"{server:>6}  {bar:<{_BAR}} {total[server]:4.0f}  {shown}")
    return "\n".join(lines) + "\n"


def render_image(observations: NDArray[np.float32], num_servers: int) -> NDArray[np.uint8]:
    """Two bars per server, (height, 480, 3) uint8: flows by balancer (left), mean weight out of 4 (right).

    observations: (num_agents, D). A full left bar is 16 flows, or the longest if that is more.
    """
    flows, weights = _flows_and_weights(observations, num_servers)
    image = np.full((num_servers * (_ROW + _GAP) + _GAP, _WIDTH, 3), 250, dtype=np.uint8)
    room = _WIDTH * 2 // 3 - 2 * _GAP
    scale = room / max(float(flows.sum(axis=0).max()), 16.0)
    for server in range(num_servers):
        top = _GAP + server * (_ROW + _GAP)
        ends = _GAP + np.rint(np.cumsum(flows[:, server]) * scale).astype(int)
        left = _GAP
        for agent, end in enumerate(ends):
            image[top : top + _ROW, left:end] = _COLORS[agent % len(_COLORS)]
            left = int(end)
        start = room + 3 * _GAP
        width = round(float(weights[:, server].mean()) / 4.0 * (_WIDTH - start - _GAP))
        image[top : top + _ROW, start : start + width] = (90, 90, 90)
    return image
