"""The plugin in a running VPP: commands, API, stats, tapes, two workers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lb_frames as lb
import pytest
from scapy.layers.inet import GRE, IP, TCP
from scapy.layers.l2 import Ether
from vpp_host import needs_vpp, pass_frames
from vpp_table import PG, is_ours, running, serve, settled

from steelyard.deploy.vpp_process import Vpp, plugin

pytestmark = [needs_vpp, pytest.mark.slow]


@pytest.fixture(scope="module")
def vpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vpp]:
    with running(tmp_path_factory.mktemp("vpp")) as started:
        yield started


def syns(count: int) -> list[bytes]:
    """First segments of as many flows."""
    return [bytes(lb.tcp(port=port)) for port in range(1, count + 1)]


def test_rules_change_and_servers_drain_while_it_runs(vpp: Vpp) -> None:
    serve(vpp, "gre", only4=True)
    pass_frames(vpp, PG, syns(100))
    time.sleep(0.6)
    opened = {str(server.address): server.opened for server in dump_servers(vpp, "tcp4")}
    assert opened == dict.fromkeys(lb.SERVERS4, 50)
    vpp.cli("steelyard vip set tcp4 rule wcmp", f"steelyard server set tcp4 {lb.SERVERS4[1]} drain on")
    new = [bytes(lb.tcp(port=port)) for port in range(1001, 1051)]
    _, out = pass_frames(vpp, PG, new)
    assert {Ether(frame)[IP].dst for frame in out if is_ours(frame)} == {lb.SERVERS4[0]}
    old = [bytes(lb.tcp("A", port=port)) for port in range(1, 101)]
    _, out = pass_frames(vpp, PG, old)
    kept = [Ether(frame)[IP].dst for frame in out if is_ours(frame)]
    assert sorted(kept) == sorted(lb.SERVERS4 * 50)


def dump_servers(vpp: Vpp, vip: str) -> list[Any]:
    """The servers of a VIP as the API tells them."""
    return [server for server in vpp.api.api.steelyard_server_dump() if server.vip == vip]


def test_binary_api(vpp: Vpp) -> None:
    serve(vpp, "gre", only4=True)
    api = vpp.api.api
    vip = {
        "name": "api",
        "address": "10.0.7.1",
        "port": 443,
        "protocol": 6,
        "rule": "sed",
        "connections": 1024,
    }
    assert api.steelyard_vip_add(**vip).retval == 0
    again = api.steelyard_vip_add(**vip)
    assert again.retval != 0
    assert again.answer == 'vip: "api" is there already'
    assert api.steelyard_server_set(vip="api", address="10.0.0.11", weight=2.5).retval == 0
    assert api.steelyard_server_set(vip="api", address="10.0.0.12").retval == 0
    assert api.steelyard_server_set(vip="api", address="10.0.0.12", weight=1, drain=True).retval == 0
    assert api.steelyard_rule_set(name="api", rule="gsq").answer.startswith('vip "api": rule: gsq needs')
    assert api.steelyard_rule_set(name="api", rule="hlb").retval == 0
    missing = api.steelyard_policy_load(name="api", policy_file="/nowhere")
    assert missing.retval != 0
    assert missing.answer.startswith("policy: /nowhere: ")
    time.sleep(0.6)
    servers = {str(server.address): (server.drain, server.flows_on) for server in dump_servers(vpp, "api")}
    assert servers == {"10.0.0.11": (False, 0), "10.0.0.12": (True, 0)}
    (found,) = [vip for vip in api.steelyard_vip_dump() if vip.name == "api"]
    assert (str(found.address), found.port, found.rule, found.servers) == ("10.0.7.1", 443, "hlb", 2)
    assert api.steelyard_server_del(vip="api", address="10.0.0.12").retval == 0
    assert api.steelyard_vip_del(name="api").retval == 0
    assert api.steelyard_command(line="vip del api").answer == 'vip: "api" is not there'


def test_fails_safe_and_says_so(vpp: Vpp) -> None:
    serve(vpp, "gre", only4=True)
    vpp.cli("steelyard vip set tcp4 policy agent interval 0.05")
    time.sleep(0.5)
    (found,) = [vip for vip in vpp.api.api.steelyard_vip_dump() if vip.name == "tcp4"]
    assert (found.policy_healthy, found.policy_why) == (False, "no policy_file and no shared_memory")
    assert "falls back to lsq" in vpp.cli("show logging")
    pass_frames(vpp, PG, syns(60))
    time.sleep(0.3)
    assert {server.opened for server in dump_servers(vpp, "tcp4")} == {30}
    assert "not followed (lsq)" in vpp.cli("show steelyard")


def test_stats_segment(vpp: Vpp) -> None:
    serve(vpp, "gre", only4=True)
    pass_frames(vpp, PG, syns(20))
    time.sleep(2.5)
    stats = vpp.stats()
    assert sum(stats[f"tcp4/{server}/flows_on"] for server in lb.SERVERS4) == 20
    assert sum(stats[f"tcp4/{server}/packets"] for server in lb.SERVERS4) == 20
    vpp.cli("steelyard vip del tcp4")
    time.sleep(2.5)
    assert not [name for name in vpp.stats() if name.startswith("tcp4/")]


def test_tape_has_the_digest_of_every_host(vpp: Vpp, tmp_path: Path) -> None:
    """`steelyard replay` makes the same decisions from what VPP has recorded."""
    serve(vpp, "gre", rule="sed", only4=True)
    tape = tmp_path / "vpp.tape"
    vpp.cli(f"steelyard tape tcp4 {tape}")
    for first in range(1, 801, 200):
        pass_frames(vpp, PG, [bytes(lb.tcp(port=port)) for port in range(first, first + 200)])
        pass_frames(vpp, PG, [bytes(lb.tcp("A", port=port)) for port in range(first, first + 200)])
        pass_frames(vpp, PG, [bytes(lb.tcp("FA", port=port)) for port in range(first, first + 200, 3)])
    told = vpp.cli("steelyard tape tcp4 off")
    result = replayed(tape, tmp_path / "found.json")
    assert result["decisions"] == 800
    assert f"800 decisions, digest {result['digest']}" in told


def test_wrong_lines_change_nothing(vpp: Vpp) -> None:
    serve(vpp, "gre", only4=True)
    before = vpp.cli("show steelyard").split("\n", 1)[0]
    for line in ("vip add", "vip set tcp4 port 7", "server add tcp4 nowhere", "interface nowhere", "colour"):
        reply = vpp.api.api.cli_inband(cmd=f"steelyard {line}")
        assert reply.retval != 0, line
    assert vpp.cli("show steelyard").split("\n", 1)[0] == before
    assert [vip.name for vip in vpp.api.api.steelyard_vip_dump()] == ["tcp4", "udp4"]


def test_the_package_is_loaded_from_where_it_was_unpacked(tmp_path: Path) -> None:
    found = plugin()
    assert found is not None
    build = found.parents[3]
    subprocess.run(["cpack", "-G", "DEB", "-B", tmp_path], cwd=build, check=True, stdout=subprocess.DEVNULL)
    (package,) = tmp_path.glob("steelyard-vpp_*.deb")
    root = tmp_path / "root"
    subprocess.run(["dpkg", "-x", package, root], check=True)
    with Vpp(tmp_path, installed=root) as vpp:
        assert f"{root}" in vpp.cli("show plugins")
        assert vpp.cli("show steelyard").startswith("source none")
        assert vpp.api.api.steelyard_command(line="seed 7").retval == 0


def replayed(tape: Path, found: Path) -> dict[str, Any]:
    """What `steelyard replay` decides from a tape."""
    command = [sys.executable, "-m", "steelyard.trainers.cli", "replay", tape, "--json", found, "--quiet"]
    subprocess.run(command, check=True)
    result: dict[str, Any] = json.loads(found.read_text())
    return result


def servers_of(frames: list[bytes]) -> list[str]:
    """Where packets went, in the order of their ports."""
    ours = [Ether(frame) for frame in frames if is_ours(frame)]
    return [packet[IP].dst for packet in sorted(ours, key=lambda packet: packet[GRE][TCP].sport)]


def test_two_workers(tmp_path: Path) -> None:
    """Each has its flows and its tape; the pool is their sum, and both take the same changes."""
    ports = {0: range(1, 101), 1: range(101, 301)}
    with running(tmp_path, workers=2) as vpp:
        serve(vpp, "gre", only4=True)
        vpp.cli("steelyard vip set tcp4 opening 3600")  # no flow ends by itself, however slow the machine
        tape = tmp_path / "two.tape"
        vpp.cli(f"steelyard tape tcp4 {tape}")
        went: dict[int, list[str]] = {}
        for worker, mine in ports.items():
            _, out = pass_frames(vpp, PG, [bytes(lb.tcp(port=port)) for port in mine], worker)
            went[worker] = servers_of(out)
            assert {went[worker].count(server) for server in lb.SERVERS4} == {len(mine) // 2}, "lsq in each"
        stats = settled(vpp)
        assert stats["tcp4/connections"] == 300
        for server in lb.SERVERS4:
            assert (stats[f"tcp4/{server}/flows_on"], stats[f"tcp4/{server}/packets"]) == (150, 150)
        told = vpp.cli("steelyard tape tcp4 off")
        for thread, decisions in enumerate((0, 100, 200)):
            result = replayed(tmp_path / f"two.tape.{thread}", tmp_path / "found.json")
            assert result["decisions"] == decisions
            assert f"thread {thread}: {decisions} decisions, digest {result['digest']}" in told
        vpp.cli(f"steelyard server set tcp4 {lb.SERVERS4[1]} drain on", "steelyard vip set tcp4 rule sed")
        for worker, mine in ports.items():
            _, out = pass_frames(vpp, PG, [bytes(lb.tcp("A", port=port)) for port in mine], worker)
            assert servers_of(out) == went[worker], "connections stay"
            new = [bytes(lb.tcp(port=1000 + port)) for port in mine]
            assert set(servers_of(pass_frames(vpp, PG, new, worker)[1])) == {lb.SERVERS4[0]}
            ends = [bytes(lb.tcp("R", port=port)) for port in (*mine, *(1000 + port for port in mine))]
            pass_frames(vpp, PG, ends, worker)
        stats = settled(vpp)
        for server, flows in zip(lb.SERVERS4, (450, 150), strict=True):
            assert stats[f"tcp4/{server}/opened"] == stats[f"tcp4/{server}/reset"] == flows
            assert stats[f"tcp4/{server}/flows_on"] == 0
