"""What the client asks of a testbed and when: the flows of (scenario, seed), as the simulator plays them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.deploy.testbed.calibration import Calibration
from steelyard.deploy.testbed.plan import PHP_CLASS, STATIC_FILES
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario

if TYPE_CHECKING:
    import numpy as np

PHP_PAGE = "/loop.php"
_UNIT = 250
"""Demands become whole multiples of so many iterations, so that distinct pages are few."""


@dataclass(frozen=True)
class Schedule:
    """Requests in the order of their times."""

    due_ns: np.ndarray
    """(n,) int64, from the start of the episode."""
    paths: list[str]
    """Distinct paths."""
    path_of: np.ndarray
    """(n,) index into paths."""
    demand_s: np.ndarray
    """(n,) what the scenario says that each asks for [s of CPU time]."""


def schedule(scenario: Scenario, seed: int, calibration: Calibration) -> Schedule:
    """The requests of a seed. UserError for a class of a trace that no page stands for."""
    import numpy as np

    from steelyard import native

    flows = native.flow_schedule(scenario.to_native(), seed)
    trace = scenario.workload.arrival.load_trace()
    classes = [PHP_CLASS] if trace is None else list(trace.class_names)
    class_of = np.zeros(len(flows["arrival_s"]), int) if trace is None else trace.class_id[flows["trace_row"]]
    files = {index: path for index, path in enumerate(map(_file, classes)) if path}
    _check_classes(classes, files)
    wanted = [
        files.get(int(kind)) or f"{PHP_PAGE}?n={_rounded(calibration.iterations(float(demand)))}"
        for kind, demand in zip(class_of, flows["demand_s"], strict=True)
    ]
    paths = sorted(set(wanted))
    index = {path: i for i, path in enumerate(paths)}
    return Schedule(
        np.rint(flows["arrival_s"] * 1e9).astype(np.int64),
        paths,
        np.array([index[path] for path in wanted], np.uint32),
        flows["demand_s"],
    )


def _file(name: str) -> str:
    """The static file of a class; empty for the PHP page."""
    return f"/{name}.bin" if name in STATIC_FILES else ""


def _check_classes(classes: list[str], files: dict[int, str]) -> None:
    for index, name in enumerate(classes):
        if name != PHP_CLASS and index not in files:
            known = ", ".join((PHP_CLASS, *STATIC_FILES))
            raise UserError(f"workload.arrival.trace: class {name!r} has no page; a testbed serves {known}")


def _rounded(iterations: int) -> int:
    return max(_UNIT, round(iterations / _UNIT) * _UNIT)
