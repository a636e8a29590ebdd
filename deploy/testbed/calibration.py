"""How fast this machine works through the PHP page, so that a demand in seconds becomes a page to ask for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.deploy.testbed import capacity, servers
from steelyard.deploy.testbed.machine import TestbedError, call_in
from steelyard.deploy.testbed.network import HTTP_PORT, VIP, Network
from steelyard.deploy.testbed.plan import MAX_ITERATIONS, STATIC_FILES

if TYPE_CHECKING:
    from steelyard.deploy.testbed.apache import LogLine

_ITERATIONS = 400_000
_REQUESTS = 24
_GAP_NS = 20_000_000
_PAGE_REQUESTS = 3
_PAGE_GAP_NS = 80_000_000
_LIMIT_S = 30.0
_LOG_LIMIT_S = 10.0


@dataclass(frozen=True)
class Calibration:
    """What was measured when the testbed was brought up."""

    iterations_per_s: float
    """Speed of the loop in the PHP page [iterations per second of CPU time], the median over requests."""
    overhead_s: float
    """CPU time of a request besides its loop [s], the median over requests."""
    page_s: list[float] = field(default_factory=list)
    """CPU time of a server on each page of the wiki [s], the median over requests; empty without a wiki."""

    def iterations(self, demand_s: float) -> int:
        """Work parameter of a page that takes a server this long [s of CPU time], overhead included."""
        return min(MAX_ITERATIONS, max(1, round((demand_s - self.overhead_s) * self.iterations_per_s)))

    def to_dict(self) -> dict[str, Any]:
        """As the state file holds it."""
        return asdict(self)


def calibrate(network: Network, folder: Path, groups: capacity.CpuGroups) -> Calibration:
    """Ask every server for everything (so that all of it is in memory) and server 0 for its speed.

    Runs while the servers still have no limit. TestbedError when a request fails.
    """
    warm = [f"/loop.php?n={_ITERATIONS}"] * 4 + [f"/{name}.bin" for name in STATIC_FILES]
    offset = servers.log_size(folder, 0)
    for j in range(network.servers):
        count = _REQUESTS if j == 0 else 0
        _ask(network, folder, j, warm + [f"/loop.php?n={_ITERATIONS}"] * count, _GAP_NS)
    return _from_log(_await_log(folder, 0, offset, len(warm) + _REQUESTS)[-_REQUESTS:])


def with_pages(made: Calibration, network: Network, folder: Path, paths: Sequence[str]) -> Calibration:
    """The same with what each of these pages costs server 0, after every server has served all of them.

    Runs while the servers still have no limit. TestbedError when a request fails.
    """
    import numpy as np

    for j in range(network.servers):
        _ask(network, folder, j, paths, _PAGE_GAP_NS)
    offset = servers.log_size(folder, 0)
    _ask(network, folder, 0, [*paths] * _PAGE_REQUESTS, _PAGE_GAP_NS)
    lines = _await_log(folder, 0, offset, len(paths) * _PAGE_REQUESTS)
    cpu_s: list[list[float]] = [[] for _ in paths]
    for line in lines:
        cpu_s[int(line.request_id.removeprefix("r")) % len(paths)].append(line.cpu_us * 1e-6)
    return replace(made, page_s=[float(np.median(each)) for each in cpu_s])


def _ask(network: Network, folder: Path, server: int, paths: Sequence[str], gap_ns: int) -> None:
    """One server for all of these, one after another at that distance; TestbedError when one fails."""
    from steelyard import native

    due = [index * gap_ns for index in range(len(paths))]
    client = native.OpenLoopClient(VIP, HTTP_PORT, due, list(paths), list(range(len(paths))), _LIMIT_S, 256)
    # Inside its namespace the virtual address is the server itself.
    call_in(network.server(server), lambda: client.run(time.monotonic_ns()))
    found = client.results()
    failed = (found["problem"] != 0) | (found["status"] != 200)
    if failed.any():
        first = int(failed.argmax())
        raise TestbedError(
            f"server {server} did not serve {paths[first]}: status {found['status'][first]}, "
            f"problem {found['problem'][first]}; see {servers.server_folder(folder, server)}/error.log"
        )


def _await_log(folder: Path, server: int, offset: int, count: int) -> list[LogLine]:
    """The last lines may lag behind the replies."""
    deadline = time.monotonic() + _LOG_LIMIT_S
    while len(lines := servers.log_since(folder, server, offset)) < count:
        if time.monotonic() > deadline:
            raise TestbedError(f"server {server} logged {len(lines)} of {count} requests")
        time.sleep(0.02)
    return lines


def _from_log(lines: list[LogLine]) -> Calibration:
    import numpy as np

    script_us = np.array([line.script_us or 0 for line in lines], float)
    cpu_us = np.array([line.cpu_us for line in lines], float)
    loop_us = float(np.median(script_us))
    if loop_us < 1:
        raise TestbedError("the PHP page did not report its CPU time")
    return Calibration(_ITERATIONS / loop_us * 1e6, max(0.0, float(np.median(cpu_us - script_us))) * 1e-6)
