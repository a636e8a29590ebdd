"""steelyard-lb between real kernels and servers in namespaces. Needs root and `make dataplane`."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steelyard.benchmarks import lb_trouble as trouble
from steelyard.benchmarks.lb_net import METRICS, VIP4, VIP6, Net, Pool, run, wait_until
from steelyard.benchmarks.lb_trouble import Traffic, await_kept, running
from steelyard.deploy.lb_commands import find_binary
from steelyard.deploy.replay import replay
from steelyard.trainers import cli

SERVERS = 3
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with Net(tmp_path_factory.mktemp("net"), SERVERS) as built:
        trouble.echo_servers(built)
        yield built


def nothing_lost(told: dict[str, Any]) -> None:
    """Every connection was opened and stayed at its server until its end."""
    assert told["kept"] > 0 or told["short"] > 0
    assert told["never"] == told["broken"] == told["moved"] == told["short_failed"] == 0, told


@pytest.mark.parametrize("transport", ["af_packet", "af_xdp"])
@pytest.mark.parametrize("address", [VIP4, VIP6])
def test_every_server_answers_and_counters_come_back(
    net: Net, tmp_path: Path, address: str, transport: str
) -> None:
    with running(net, tmp_path, Pool("rr", transport=transport)) as balancer:
        told = Traffic(net, 6, 1.0, 20, address).told()
        nothing_lost(told)
        assert set(told["servers"]) == {f"srv{index}" for index in range(SERVERS)}
        assert max(told["short_servers"].values()) - min(told["short_servers"].values()) <= 2
        vip = balancer.vip(0 if address == VIP4 else 1)
        flows = told["kept"] + told["short"]
        assert sum(server["opened"] for server in vip["servers"]) == flows
        assert sum(server["completed"] for server in vip["servers"]) == flows
        assert all(server["flows_on"] == 0 for server in vip["servers"])


@pytest.mark.parametrize("change", ["drain", "remove", "rule"])
def test_reload_keeps_connections(net: Net, tmp_path: Path, change: str) -> None:
    wanted = {
        "drain": Pool(drained=(1,)),
        "remove": Pool(servers=(0, 2)),
        "rule": Pool("maglev"),
    }[change]
    with running(net, tmp_path, Pool()) as balancer:
        traffic = Traffic(net, 15, 4.0, 0)
        await_kept(balancer, 15)
        balancer.reload(wanted)
        after = Traffic(net, 0, 1.0, 20).told()
        nothing_lost(after)
        nothing_lost(traffic.told())
        if change != "rule":
            assert "srv1" not in after["short_servers"]


def test_sighup_reloads_and_a_bad_file_changes_nothing(net: Net, tmp_path: Path) -> None:
    with running(net, tmp_path, Pool()) as balancer:
        balancer.config.write_text("[link]\ninterfaces = 1\n")
        trouble.hang_up(balancer)
        wait_until(lambda: bool(balancer.events("reload_refused")), "it is refused")
        nothing_lost(Traffic(net, 3, 0.5, 10).told())


def asked_cpu_latency_us() -> int:
    """The least that anybody on this machine asks of its processors (PM QoS)."""
    device = os.open("/dev/cpu_dma_latency", os.O_RDONLY)
    try:
        return int(struct.unpack("i", os.read(device, 4))[0])
    finally:
        os.close(device)


def test_processors_are_to_wake_quickly_while_packets_come(net: Net, tmp_path: Path) -> None:
    before = asked_cpu_latency_us()
    with running(net, tmp_path, Pool(transport_keys="cpu_latency_us = 3\n")):
        traffic = Traffic(net, 3, 1.0, 20)
        wait_until(lambda: asked_cpu_latency_us() == 3, "it is asked for")
        nothing_lost(traffic.told())
        wait_until(lambda: asked_cpu_latency_us() == before, "it is no longer asked for")


def test_prometheus_says_what_stats_say(net: Net, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(net, tmp_path, Pool()) as balancer:
        nothing_lost(Traffic(net, 0, 1.0, 20).told())
        assert cli.main(["lb", "stats", str(balancer.config)]) == 0
        assert json.loads(capsys.readouterr().out)["vips"][0]["name"] == "web4"
        text = run(*net.inside("lb", "curl", "-sS", "--max-time", "5", f"http://{METRICS}/metrics"))
        for server in balancer.vip()["servers"]:
            line = rf'^steelyard_lb_flows_opened_total{{vip="web4",server="{server["name"]}"}} (\d+)$'
            found = re.search(line, text, re.MULTILINE)
            assert found, text
            assert int(found[1]) == server["opened"] > 0


@pytest.mark.parametrize("transport", ["af_packet", "af_xdp"])
def test_a_tape_of_real_traffic_is_decided_again(net: Net, tmp_path: Path, transport: str) -> None:
    tape, ended = trouble.taped(net, tmp_path, Pool("hlb", transport=transport), 2.0)
    assert ended["why"] == ""
    found = replay(tape, None)
    assert found.same
    assert f"{found.found['digest']:016x}" == ended["digest"]
    assert found.found["decisions"] == ended["decisions"] > 100
    subprocess.run([find_binary(), "--replay", tape], check=True, stdout=subprocess.DEVNULL)


def test_killed_and_restarted_keeps_maglevs_connections(net: Net, tmp_path: Path) -> None:
    told = trouble.killed_and_restarted(net, tmp_path, "maglev", 30, 4.0)
    assert told["broken"] == told["moved"] == told["never"] == 0, told
    assert told["adopted"] >= 30


def test_a_second_balancer_takes_over(net: Net, tmp_path: Path) -> None:
    told = trouble.taken_over(net, tmp_path, "maglev", 30, 4.0)
    nothing_lost(told)
    assert told["adopted"] >= 30


def test_a_dead_server_takes_only_its_own_connections(net: Net, tmp_path: Path) -> None:
    told = trouble.server_killed(net, tmp_path, 15, 5.0)
    assert told["broken"] == told["servers"]["srv1"] == 5
    assert told["broken_elsewhere"] == told["failed_after_drain"] == 0
    assert "srv1" not in told["servers_after_drain"]


def test_lsq_goes_on_without_the_agent(net: Net, tmp_path: Path) -> None:
    told = trouble.agent_killed(net, tmp_path, 10, 6.0)
    nothing_lost(told)
    assert told["why"] == "stale: older than the limit"


def test_a_syn_flood_is_survived(net: Net, tmp_path: Path) -> None:
    told = trouble.syn_flood(net, tmp_path, 10, 5000, 2.0)
    nothing_lost(told)
    assert told["syns"] > 5000
    assert told["half_open_refused"] > 0
    assert told["flows_on_after"] == 0


def test_malformed_packets_are_survived(net: Net, tmp_path: Path) -> None:
    told = trouble.malformed(net, tmp_path, 10, 3000, 3.0)
    nothing_lost(told)
    dropped = [word for word, count in told["packets"].items() if count > 0]
    assert {"bad_header", "truncated", "bad_flags", "no_service"} <= set(dropped)


def test_a_full_disk_ends_the_tape_alone(net: Net, tmp_path: Path) -> None:
    told = trouble.full_disk(net, tmp_path, 10, 5.0)
    nothing_lost(told)
    assert "No space left" in told["why"]


@pytest.mark.parametrize("transport", ["af_packet", "af_xdp"])
def test_a_link_that_was_down_is_used_again(net: Net, tmp_path: Path, transport: str) -> None:
    with running(net, tmp_path, Pool(transport=transport)) as balancer:
        for state in ("down", "up"):
            run(*net.inside("lb", "ip", "link", "set", "eth0", state))
            time.sleep(0.5)
        before = balancer.cpu_s()
        time.sleep(1.0)
        assert balancer.cpu_s() - before < 0.5, "it sleeps when nothing comes"
        nothing_lost(Traffic(net, 3, 0.5, 10).told())


def test_what_a_killed_balancer_leaves_is_taken_over(net: Net, tmp_path: Path) -> None:
    """Its control socket and its routes are there; a second one beside a living one is refused."""
    with running(net, tmp_path, Pool()) as balancer:
        balancer.kill()
        assert (tmp_path / "control").exists()
        balancer.start()
        refused = subprocess.run(
            net.inside("lb", find_binary(), "--config", balancer.config),
            capture_output=True, text=True, check=False, timeout=20,
        )  # fmt: skip
        assert refused.returncode == 2
        assert "another balancer answers there" in refused.stderr
        time.sleep(0.1)
        nothing_lost(Traffic(net, 3, 0.5, 10).told())
