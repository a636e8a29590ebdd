"""What forwards on a testbed: `steelyard-lb` in every balancer's namespace, or their kernels alone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from steelyard.agents import rules
from steelyard.deploy.lb_commands import find_binary
from steelyard.deploy.testbed import capacity, lb_config, machine, network, site
from steelyard.deploy.testbed.machine import TestbedError
from steelyard.envs.errors import UserError, unknown
from steelyard.envs.scenario import Scenario

LB, KERNEL = "lb", "kernel"
DATAPLANES = (LB, KERNEL)
DEFAULT = LB
KERNEL_RULES = ("ecmp", "wcmp")
_START_LIMIT_S = 10.0
_STOP_LIMIT_S = 5.0
_PR_SET_PDEATHSIG = 1


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


def check(scenario: Scenario, source: str, dataplane: str) -> None:
    """UserError unless that dataplane can run the rule or policy file on the scenario."""
    if dataplane not in DATAPLANES:
        raise unknown("dataplane", dataplane, DATAPLANES)
    if dataplane == KERNEL:
        if source not in KERNEL_RULES:
            allowed = ", ".join(KERNEL_RULES)
            raise UserError(f"--policy {source}: the kernel cannot run it, only {allowed}")
        return
    _check_policy(scenario, source)
    with tempfile.TemporaryDirectory(prefix="steelyard-lb-") as folder:
        path = Path(folder) / "lb.toml"
        path.write_text(lb_config.text(scenario, 0, source, shared_memory(network.DEFAULT_PREFIX, 0), 0))
        done = subprocess.run(
            [find_binary(), "--config", path, "--check"], capture_output=True, text=True, timeout=30
        )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
        raise UserError(f"--policy {source}: {said[-1]}")


@contextmanager
def forwarding(
    place: site.Site, scenario: Scenario, source: str, dataplane: str, seed: int, publish: bool = False
) -> Iterator[Balancers]:
    """The balancers follow a rule or policy file within the block; afterwards the kernels forward again.

    source, publish: as lb_config.text has them; for the dataplane `kernel` ecmp or wcmp.
    """
    net, weights = place.network, site.kernel_weights_of(scenario)
    if dataplane == KERNEL:
        equal = [1] * scenario.num_servers
        machine.carry_out(network.forward_by_kernel(net, equal if source == "ecmp" else weights))
        yield Balancers()
        return
    started = Balancers()
    machine.carry_out(network.forward_by_process(net))
    try:
        for index in range(net.balancers):
            config = lb_config.text(scenario, index, source, shared_memory(net.prefix, index), seed, publish)
            _start(started, place, config, index)
        for index in range(net.balancers):
            _await(started, net.balancer(index), index)
        yield started
    finally:
        _stop(started)
        for index in range(net.balancers):
            shared_memory(net.prefix, index).unlink(missing_ok=True)
        with contextlib.suppress(TestbedError):  # gone, if the testbed is
            machine.carry_out(network.forward_by_kernel(net, weights))


def shared_memory(prefix: str, balancer: int) -> Path:
    """Where a balancer shares what it measures with an agent."""
    return Path("/dev/shm") / f"{prefix}-lb{balancer}"


def last_line(path: Path) -> str:
    """Last line of a log; a note if there is none."""
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else "it wrote no message"


def _check_policy(scenario: Scenario, source: str) -> None:
    if source in rules.rule_names() or source == lb_config.AGENT:
        return
    rules.policy_config(source, scenario.num_servers, scenario.num_agents)


def _start(started: Balancers, place: site.Site, config: str, index: int) -> None:
    net, folder = place.network, place.folder
    path, log = folder / f"lb{index}.toml", folder / f"lb{index}.log"
    path.write_text(config)
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:  # also when this process is killed and no clean-up runs
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    with log.open("wb") as output:
        process = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{net.balancer(index)}", find_binary(), "--config", path],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            preexec_fn=die_with_parent,
        )
    started.processes.append(process)
    started.logs.append(log)
    capacity.join(capacity.find_groups(), net.prefix, process.pid)


def _await(started: Balancers, namespace: str, index: int) -> None:
    """Until the balancer listens to its device: the kernel lists its packet socket."""
    deadline = time.monotonic() + _START_LIMIT_S
    while len(_packet_sockets(namespace)) < 1:
        started.watch(0.0)
        if time.monotonic() > deadline:
            raise TestbedError(f"balancer {index} does not start: {last_line(started.logs[index])}")
        time.sleep(0.02)


def _packet_sockets(namespace: str) -> list[str]:
    def read() -> str:
        return Path("/proc/thread-self/net/packet").read_text()

    return machine.call_in(namespace, read).splitlines()[1:]


def _stop(started: Balancers) -> None:
    for process in started.processes:
        process.terminate()
    for process in started.processes:
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cpu_s(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
