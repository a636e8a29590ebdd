"""What forwards on a testbed: `steelyard-lb` or VPP in every balancer's namespace, or their kernels alone."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steelyard.agents import rules
from steelyard.deploy.lb_commands import find_binary
from steelyard.deploy.testbed import lb_config, machine, network, processes, site, vpp_balancers, vpp_config
from steelyard.deploy.testbed.machine import TestbedError
from steelyard.deploy.testbed.processes import Balancers
from steelyard.envs.errors import UserError, unknown
from steelyard.envs.scenario import Scenario

LB, KERNEL, VPP, VPP_LB = "lb", "kernel", "vpp", "vpp-lb"
DATAPLANES = (LB, KERNEL, VPP, VPP_LB)
DEFAULT = LB
HASHING = {KERNEL: "the kernel", VPP_LB: "VPP's own balancer"}
"""Those that follow no rule of ours but hash over the servers, and what they are called."""
HASH_RULES = ("ecmp", "wcmp")
_START_LIMIT_S = 10.0


def check(scenario: Scenario, source: str, dataplane: str) -> None:
    """UserError unless that dataplane is here and can run the rule or policy file on the scenario."""
    if dataplane not in DATAPLANES:
        raise unknown("dataplane", dataplane, DATAPLANES)
    if not can_run(dataplane, source):
        allowed = ", ".join(HASH_RULES)
        raise UserError(f"--policy {source}: {HASHING[dataplane]} cannot run it, only {allowed}")
    if dataplane in (VPP, VPP_LB):
        vpp_balancers.check_installed(dataplane)
    if dataplane in HASHING:
        return
    _check_policy(scenario, source)
    if dataplane == LB:
        _check_config(scenario, source)


def can_run(dataplane: str, source: str) -> bool:
    """Whether a dataplane can run a rule or policy file at all."""
    return dataplane not in HASHING or source in HASH_RULES


@contextmanager
def forwarding(
    place: site.Site, scenario: Scenario, source: str, dataplane: str, seed: int, publish: bool = False
) -> Iterator[Balancers]:
    """The balancers follow a rule or policy file within the block; afterwards the kernels forward again.

    source, publish: as lb_config.text has them; where it only hashes, ecmp or wcmp.
    """
    net, weights = place.network, site.kernel_weights_of(scenario)
    if dataplane == KERNEL:
        equal = [1] * scenario.num_servers
        machine.carry_out(network.forward_by_kernel(net, equal if source == "ecmp" else weights))
        yield Balancers()
        return
    started = Balancers() if dataplane == LB else vpp_balancers.VppBalancers()
    machine.carry_out(network.forward_by_process(net))
    try:
        if isinstance(started, vpp_balancers.VppBalancers):
            _run_vpp(started, place, scenario, source, dataplane, seed, publish)
        else:
            _run_lb(started, place, scenario, source, seed, publish)
        yield started
    finally:
        processes.stop(started)
        for index in range(net.balancers):
            shared_memory(net.prefix, index).unlink(missing_ok=True)
        with contextlib.suppress(TestbedError):  # gone, if the testbed is
            machine.carry_out(network.forward_by_kernel(net, weights))


def shared_memory(prefix: str, balancer: int) -> Path:
    """Where a balancer shares what it measures with an agent."""
    return site.SHARED_MEMORY / f"{prefix}-lb{balancer}"


def _check_policy(scenario: Scenario, source: str) -> None:
    if source in rules.rule_names() or source == lb_config.AGENT:
        return
    rules.policy_config(source, scenario.num_servers, scenario.num_agents)


def _check_config(scenario: Scenario, source: str) -> None:
    """UserError unless steelyard-lb takes its configuration."""
    with tempfile.TemporaryDirectory(prefix="steelyard-lb-") as folder:
        path = Path(folder) / "lb.toml"
        path.write_text(lb_config.text(scenario, 0, source, shared_memory(network.DEFAULT_PREFIX, 0), 0))
        done = subprocess.run(
            [find_binary(), "--config", path, "--check"], capture_output=True, text=True, timeout=30
        )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
        raise UserError(f"--policy {source}: {said[-1]}")


def _run_lb(
    started: Balancers, place: site.Site, scenario: Scenario, source: str, seed: int, publish: bool
) -> None:
    net = place.network
    for index in range(net.balancers):
        path = place.folder / f"lb{index}.toml"
        shared = shared_memory(net.prefix, index)
        path.write_text(lb_config.text(scenario, index, source, shared, seed, publish))
        processes.launch(started, place, [find_binary(), "--config", path])
    for index in range(net.balancers):
        _await(started, net.balancer(index), index)


def _run_vpp(
    started: vpp_balancers.VppBalancers,
    place: site.Site,
    scenario: Scenario,
    source: str,
    dataplane: str,
    seed: int,
    publish: bool,
) -> None:
    net = place.network
    machine.carry_out(network.restore_vip(net))
    for _ in range(net.balancers):
        vpp_balancers.start(started, place)
    for index in range(net.balancers):
        lines = vpp_config.link_lines(index, net.servers)
        if dataplane == VPP_LB:
            lines += vpp_config.stock_lines(scenario, index, source)
        else:
            shared = shared_memory(net.prefix, index)
            lines += vpp_config.plugin_lines(scenario, index, source, shared, seed, publish)
        vpp_balancers.configure(started, index, lines)


def _await(started: Balancers, namespace: str, index: int) -> None:
    """Until the balancer listens to its device: the kernel lists its packet socket."""
    deadline = time.monotonic() + _START_LIMIT_S
    while len(_packet_sockets(namespace)) < 1:
        started.watch(0.0)
        if time.monotonic() > deadline:
            said = processes.last_line(started.logs[index])
            raise TestbedError(f"balancer {index} does not start: {said}")
        time.sleep(0.02)


def _packet_sockets(namespace: str) -> list[str]:
    def read() -> str:
        return Path("/proc/thread-self/net/packet").read_text()

    return machine.call_in(namespace, read).splitlines()[1:]
