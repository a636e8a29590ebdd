"""Policies in a running VPP: trained, exported, replaced under load; agents and servers that come and go."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policy_specs import make, policy_spec
from pools import free_path
from vpp_host import needs_vpp
from vpp_net import connect, prepare, serve

from steelyard import native
from steelyard.benchmarks import lb_trouble as trouble
from steelyard.benchmarks.lb_net import Net, server_address, wait_until
from steelyard.benchmarks.lb_trouble import Traffic
from steelyard.benchmarks.vpp_threads import beside_each_other
from steelyard.deploy.replay import replay
from steelyard.deploy.vpp_process import Vpp
from steelyard.trainers.cli import main

pytestmark = [needs_vpp, pytest.mark.slow]
SERVERS = 4
SCENARIO = "testbed-2x4"


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with Net(tmp_path_factory.mktemp("net"), SERVERS) as built:
        trouble.echo_servers(built)
        prepare(built)
        yield built


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that was trained for a moment, and exported."""
    folder = tmp_path_factory.mktemp("trained")
    short = "--set episode.horizon_s=2 --set episode.warmup_s=0 --threads 1 --quiet --set algo.num_envs=2"
    small = "--set algo.batch_size=4 --set algo.chunk=6 --set algo.burn_in=2"
    run = f"train --scenario {SCENARIO} --run {folder / 'run'} --episodes 2 {short} {small}"
    assert main(run.split()) == 0
    assert main(f"export {folder / 'run'} --out {folder / 'out'}".split()) == 0
    return folder / "out" / "policy.bin"


def other_policy(seed: int) -> bytes:
    """Random weights for the two balancers of the scenario."""
    actors = [make("gru", SERVERS, "flat", "tanh", hidden=12, seed=seed + k, gain=3.0) for k in (0, 7)]
    return native.encode_policy(policy_spec(actors))


@contextmanager
def balancing(net: Net, folder: Path, settings: str, workers: int = 0) -> Iterator[Vpp]:
    """VPP before the servers, the first of two balancers as in the scenario."""
    enter = [*net.inside("lb"), *beside_each_other(folder, workers)]
    with Vpp(folder, workers=workers, enter=enter, sleep_us=200) as vpp:
        connect(net, vpp, max(1, workers))
        vpp.cli("steelyard balancer 0 of 2")
        serve(net, vpp, "web", "l3-dsr", settings)
        yield vpp


def state(vpp: Vpp) -> Any:
    """The VIP as the API tells it."""
    (found,) = vpp.api.api.steelyard_vip_dump()
    return found


def follows(vpp: Vpp) -> None:
    """Wait until the policy is followed, and has decided."""
    wait_until(lambda: state(vpp).policy_healthy and state(vpp).policy_decisions > 3, "it decides")


def await_kept(vpp: Vpp, kept: int) -> None:
    """Wait until that many connections are counted."""
    wait_until(
        lambda: sum(s.flows_on for s in vpp.api.api.steelyard_server_dump()) >= kept, "they are established"
    )


def nothing_lost(told: dict[str, Any]) -> None:
    assert told["kept"] > 0 or told["short"] > 0
    assert told["never"] == told["broken"] == told["moved"] == told["short_failed"] == 0, told


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trained_policy_is_replaced_under_load(
    net: Net, tmp_path: Path, trained: Path, workers: int
) -> None:
    file = tmp_path / "policy.bin"
    file.write_bytes(trained.read_bytes())
    with balancing(net, tmp_path, f"policy {file} interval 0.05 connections 4096", workers) as vpp:
        follows(vpp)
        fallbacks = state(vpp).policy_fallbacks  # while there were too few servers
        tape = tmp_path / "web.tape"
        vpp.cli(f"steelyard tape web {tape}")
        traffic = Traffic(net, 15, 5.0, 40)
        await_kept(vpp, 15)
        for seed in (1, 2):
            file.write_bytes(other_policy(seed))
            vpp.cli(f"steelyard vip set web policy {file}")
            follows(vpp)
        file.write_bytes(b"no policy")
        refused = vpp.api.api.steelyard_policy_load(name="web", policy_file=str(file))
        assert refused.retval != 0
        assert "policy" in refused.answer
        follows(vpp)
        nothing_lost(traffic.told())
        told = vpp.cli("steelyard tape web off")
        assert state(vpp).policy_fallbacks == fallbacks
    decisions = 0
    for thread in range(1 + workers):
        found = replay(Path(f"{tape}.{thread}") if workers else tape, None).found
        assert f"{found['decisions']} decisions, digest {found['digest']:016x}" in told
        decisions += found["decisions"]
    assert decisions > 100


def test_a_policy_for_another_pool_is_not_followed(net: Net, tmp_path: Path) -> None:
    spec = policy_spec([make("linear", SERVERS + 1, "flat", "tanh", seed=1)])
    (tmp_path / "policy.bin").write_bytes(native.encode_policy(spec))
    with balancing(net, tmp_path, f"policy {tmp_path / 'policy.bin'} interval 0.05") as vpp:
        nothing_lost(Traffic(net, 5, 1.0, 20).told())
        assert not state(vpp).policy_healthy
        assert "servers" in state(vpp).policy_why
        assert "falls back to lsq" in vpp.cli("show logging")


def test_lsq_goes_on_without_the_agent(net: Net, tmp_path: Path) -> None:
    policy = trouble.some_policy(tmp_path, SERVERS)
    command = [sys.executable, "-m", "steelyard.trainers.cli", "agent", "--policy", str(policy)]
    with free_path() as memory:
        command += ["--pool", memory, "--period", "0.1"]
        settings = f"policy agent shared-memory {memory} interval 0.1 max-age 0.5"
        with balancing(net, tmp_path, settings) as vpp:
            for turn in range(2):
                agent = subprocess.Popen(command, stdout=subprocess.DEVNULL)
                try:
                    wait_until(lambda: bool(state(vpp).policy_healthy), "weights come from the agent")
                    traffic = Traffic(net, 10, 2.5, 20)
                    await_kept(vpp, 10)
                    weights = [server.weight for server in vpp.api.api.steelyard_server_dump()]
                    assert np.std(weights) > 0, "they are the agent's"
                finally:
                    agent.kill()
                    agent.wait()
                wait_until(lambda: not state(vpp).policy_healthy, "lsq goes on")
                assert state(vpp).policy_why == "stale: older than the limit"
                nothing_lost(traffic.told())
                assert state(vpp).policy_fallbacks >= turn + 1


def test_drained_and_removed_servers_keep_their_connections(net: Net, tmp_path: Path) -> None:
    with balancing(net, tmp_path, "rule lsq") as vpp:
        traffic = Traffic(net, 16, 5.0, 0)
        await_kept(vpp, 16)
        vpp.cli(f"steelyard server set web {server_address(1)} drain on")
        vpp.cli(f"steelyard server del web {server_address(2)}")
        after = Traffic(net, 0, 1.5, 30).told()
        nothing_lost(after)
        assert set(after["short_servers"]) == {"srv0", "srv3"}
        told = traffic.told()
        nothing_lost(told)
        assert {name for name, count in told["servers"].items() if count == 4} == {
            f"srv{index}" for index in range(SERVERS)
        }
