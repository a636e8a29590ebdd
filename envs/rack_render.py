"""Pictures of a moment of a rack: tasks, idle workers and loads of every server, as text or as an image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BAR = 32  # characters of a full bar
_ROW, _GAP, _WIDTH = 14, 4, 480  # pixels
_SERVED, _WAITING, _LOAD, _LINE = (44, 160, 44), (214, 39, 40), (90, 90, 90), (220, 220, 220)


def _parts(observations: NDArray[np.float32]) -> tuple[NDArray, NDArray, NDArray]:
    """Tasks, waiting and idle workers of each server, (N,) each, of observations (N, N + 9)."""
    own = observations[:, len(observations) :]
    return own[:, 0], own[:, 1], own[:, 2]


def render_text(observations: NDArray[np.float32], waits_us: NDArray[np.float32], headline: str) -> str:
    """One line per server: tasks as a bar (# served, . waiting), idle workers, and the true load [us]."""
    tasks, waiting, idle = _parts(observations)
    scale = _BAR / max(float(tasks.max()), 1.0)
    lines = [headline, f"{'server':>6}  {'tasks':<{_BAR + 5}} {'idle':>5} {'load [us]':>10}"]
    for server in range(len(tasks)):
        served = round(float(tasks[server] - waiting[server]) * scale)
        bar = "#" * served + "." * (round(float(tasks[server]) * scale) - served)
        lines.append(
            f"{server:>6}  {bar:<{_BAR}} {tasks[server]:4.0f} {idle[server]:5.0f} {waits_us[server]:10.1f}"
        )
    return "\n".join(lines) + "\n"


def render_image(observations: NDArray[np.float32], waits_us: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Two bars per server, (height, 480, 3) uint8: tasks, served and waiting (left), and true load (right).

    Lines under the bars show empty servers too. A full left bar is 16 tasks, or the most if that is more; a
    full right one is the largest load.
    """
    tasks, waiting, _ = _parts(observations)
    image = np.full((len(tasks) * (_ROW + _GAP) + _GAP, _WIDTH, 3), 250, dtype=np.uint8)
    room = _WIDTH * 2 // 3 - 2 * _GAP
    start = room + 3 * _GAP
    scale = room / max(float(tasks.max()), 16.0)
    widest = (_WIDTH - start - _GAP) / max(float(waits_us.max()), 1.0)
    for server in range(len(tasks)):
        top = _GAP + server * (_ROW + _GAP)
        image[top + _ROW - 1, _GAP : _GAP + room] = image[top + _ROW - 1, start:] = _LINE
        middle = _GAP + round(float(tasks[server] - waiting[server]) * scale)
        image[top : top + _ROW, _GAP:middle] = _SERVED
        image[top : top + _ROW, middle : _GAP + round(float(tasks[server]) * scale)] = _WAITING
        image[top : top + _ROW, start : start + round(float(waits_us[server]) * widest)] = _LOAD
    return image
