"""From what client and servers wrote down to a row of results, with the metrics of `native.simulate`.

What differs from the simulator: times are real, `waiting_mean_s` is sojourn minus CPU time over the server's
share, `digest` is of the servers that answered, `events` counts requests, `cpu_s` is CPU time of the servers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.envs.scenario import Scenario

if TYPE_CHECKING:
    import numpy as np

    from steelyard.deploy.testbed.apache import LogLine

PROBLEMS = ("", "no connection", "timeout", "connection reset", "short reply", "not sent", "stopped")
"""By the client's number."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True)
class Episode:
    """Requests of one episode, (n,) each; times in seconds from its start."""

    due_s: np.ndarray
    sent_s: np.ndarray
    done_s: np.ndarray
    server: np.ndarray
    """Who answered; -1: nobody."""
    failed: np.ndarray
    """bool: no whole reply with status 200."""
    cpu_s: np.ndarray
    """CPU time of the server on the request; NaN where it logged none."""


def episode(due_ns: np.ndarray, results: Mapping[str, np.ndarray], lines: Sequence[LogLine]) -> Episode:
    """The client's columns joined with the log lines of all servers."""
    import numpy as np

    cpu_s = np.full(len(due_ns), np.nan)
    for line in lines:
        number = line.request_id.removeprefix("r")
        if number.isdigit() and int(number) < len(cpu_s):
            cpu_s[int(number)] = line.cpu_us * 1e-6
    return Episode(
        due_s=due_ns * 1e-9,
        sent_s=results["sent_ns"] * 1e-9,
        done_s=results["done_ns"] * 1e-9,
        server=results["server"].astype(int),
        failed=(results["problem"] != 0) | (results["status"] != 200),
        cpu_s=cpu_s,
    )


def row(scenario: Scenario, found: Episode) -> dict[str, Any]:
    """The metrics of an episode, over the flows that were due after the warm-up."""
    import numpy as np

    measured = found.due_s >= scenario.episode.warmup_s
    served = measured & ~found.failed
    penalty = scenario.pool.reject_sojourn_s
    sojourn = np.where(found.failed, penalty, found.done_s - found.due_s)[measured]
    service = found.cpu_s / np.where(
        found.server >= 0, speeds(scenario, found.due_s)[found.server, _n(found)], 1
    )
    known = served & np.isfinite(service) & (service > 0)
    nan = float("nan")
    result: dict[str, Any] = {
        "flows": int(measured.sum()),
        "rejected": int((measured & found.failed).sum()),
        "sojourn_mean_s": float(sojourn.mean()) if len(sojourn) else nan,
    }
    for name, q in QUANTILES.items():
        result[f"sojourn_{name}_s"] = float(np.quantile(sojourn, q)) if len(sojourn) else nan
    took = found.done_s - found.due_s
    result["slowdown_mean"] = float((took[known] / service[known]).mean()) if known.any() else nan
    result["waiting_mean_s"] = float((took[known] - service[known]).mean()) if known.any() else nan
    result |= balance(scenario, found)
    return result | {
        "untracked": 0,
        "arrived": len(found.due_s),
        "messages": 0,
        "messages_per_flow": 0.0,
        "events": len(found.due_s),
        "cpu_s": float(np.nansum(found.cpu_s)),
        "digest": hashlib.sha256(found.server.astype("<i4").tobytes()).hexdigest()[:16],
        "service_mean_s": float(found.cpu_s[known].mean()) if known.any() else nan,
        "lag_p99_s": float(np.quantile((found.sent_s - found.due_s)[found.sent_s >= 0], 0.99))
        if (found.sent_s >= 0).any()
        else nan,
        "server_flows": np.bincount(found.server[served], minlength=scenario.num_servers).tolist(),
    }


def balance(scenario: Scenario, found: Episode) -> dict[str, float]:
    """Means over step boundaries of what requests in the servers, over their capacity, look like."""
    import numpy as np

    times = boundaries(scenario)
    loads = in_system(found, times, scenario.num_servers) / speeds(scenario, times).T
    total, largest = loads.sum(1), loads.max(1)
    squares = (loads**2).sum(1)
    busy = total > 0
    count = scenario.num_servers
    jain = np.ones(len(times))
    jain[busy] = total[busy] ** 2 / (count * squares[busy])
    over = np.ones(len(times))
    over[busy] = largest[busy] * count / total[busy]
    return {
        "jain_mean": float(jain.mean()),
        "makespan_mean": float(largest.mean()),
        "overprovision_mean": float(over.mean()),
    }


def boundaries(scenario: Scenario) -> np.ndarray:
    """Step boundaries after the warm-up, (T,) [s]."""
    import numpy as np

    step, end = scenario.control.step_s, scenario.episode.horizon_s
    times = np.arange(0, end + step / 2, step)
    return times[times >= scenario.episode.warmup_s]


def in_system(found: Episode, times: np.ndarray, servers: int) -> np.ndarray:
    """(T, N) requests that each server had at each time, by the client's clock."""
    import numpy as np

    counts = np.zeros((len(times), servers))
    for j in range(servers):
        mine = found.server == j
        sent, done = np.sort(found.sent_s[mine]), np.sort(found.done_s[mine])
        counts[:, j] = np.searchsorted(sent, times, "right") - np.searchsorted(done, times, "right")
    return counts


def speeds(scenario: Scenario, times: np.ndarray) -> np.ndarray:
    """(N, T) share of a processor that the timetable leaves each server at each time."""
    import numpy as np

    result = np.repeat([[server.speed] for server in scenario.servers], len(times), axis=1).astype(float)
    for event in scenario.events:
        assert event.value is not None  # `site.check_scenario` lets no other event through
        begin, factor = event.t_s[0], event.value[0]
        end = begin + event.duration_s if event.duration_s else np.inf
        inside = (times >= begin) & (times < end)
        for j in event.chosen_from(scenario.num_servers, scenario.num_agents):
            result[j, inside] = scenario.servers[j].speed * factor
    return result


def _n(found: Episode) -> np.ndarray:
    """0 ... n - 1."""
    import numpy as np

    return np.arange(len(found.due_s))
