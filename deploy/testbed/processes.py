"""Balancers of a testbed as processes: started each in its namespace, watched, stopped."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from steelyard.deploy.testbed import capacity, machine, site
from steelyard.deploy.testbed.machine import TestbedError

_STOP_LIMIT_S = 5.0


@dataclass
class Balancers:
    """Whoever forwards during an episode."""

    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)

    def watch(self, t_s: float) -> None:
        """TestbedError if one has ended."""
        for index, process in enumerate(self.processes):
            if process.poll() is not None:
                said = last_line(self.logs[index])
                raise TestbedError(f"balancer {index} ended with status {process.returncode}: {said}")

    def cpu_s(self) -> float:
        """CPU time that they have used so far [s]; 0 for kernels, whose work is nobody's."""
        return sum(_cpu_s(process.pid) for process in self.processes)

    def trouble(self) -> str:
        """What they say of flows that they did not serve as they should; empty: nothing."""
        return ""


def launch(
    started: Balancers,
    place: site.Site,
    command: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
) -> None:
    """Start the next balancer in its namespace, with a log of its own; it ends when this process does."""
    net, index = place.network, len(started.processes)
    log = place.folder / f"lb{index}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{net.balancer(index)}", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            env=environment,
            preexec_fn=machine.ends_with_us(),
        )
    started.processes.append(process)
    started.logs.append(log)
    capacity.join(capacity.find_groups(), net.prefix, process.pid)


def stop(started: Balancers) -> None:
    """Asks all of them to end; kills who does not."""
    for process in started.processes:
        process.terminate()
    for process in started.processes:
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def last_line(path: Path) -> str:
    """Last line of a log; a note if there is none."""
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else "it wrote no message"


def _cpu_s(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
