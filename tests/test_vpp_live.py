"""HTTP through the plugin, between kernels: a client, VPP, and web servers in namespaces (root, VPP)."""

from __future__ import annotations

import collections
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from vpp_host import needs_vpp

from steelyard.benchmarks.lb_net import PORT, VIP4, VIP6, Net, balancer_address, run, server_address
from steelyard.deploy.vpp_process import Vpp

pytestmark = [needs_vpp, pytest.mark.slow]
SERVERS = 3
MAC = "02:fe:00:00:00:01"  # of every VPP on this link: neighbours remember it


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with Net(tmp_path_factory.mktemp("net"), SERVERS) as running:
        running.serve(lambda index: web_server(running.folder / f"srv{index}"))
        for index in range(SERVERS):
            restore_vip(running, f"srv{index}")
        yield running


def web_server(root: Path) -> list[str | Path]:
    """The command of one, with its pages."""
    root.mkdir()
    (root / "name").write_text(root.name)
    (root / "large").write_bytes(b"x" * 2_000_000)
    return [sys.executable, "-m", "http.server", str(PORT), "--bind", "::", "--directory", root]


def get(net: Net, url: str) -> str:
    """The body of a page, asked for by the client."""
    return run(*net.inside("client", "curl", "-gsS", "--max-time", "5", url))


def restore_vip(net: Net, place: str) -> None:
    """L3 DSR: what comes for the server's address with the VIP's DSCP is for the VIP."""
    rule = f"ip dscp 2 tcp dport {PORT} ip daddr set {VIP4}"
    net._in(place, "nft add table ip dsr")
    net._in(place, "nft add chain ip dsr pre { type filter hook prerouting priority raw ; }")
    net._in(place, f"nft add rule ip dsr pre {rule}")


# VPP gives every thread a processor of its own.
WORKERS = min(2, (os.cpu_count() or 1) - 1)


@pytest.fixture(scope="module", params=[0, WORKERS] if WORKERS else [0])
def vpp(request: pytest.FixtureRequest, net: Net, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vpp]:
    """VPP on the link of the namespace `lb`, with the addresses that the kernel has there otherwise."""
    net._in("lb", "ip addr flush dev eth0")
    with Vpp(
        tmp_path_factory.mktemp("vpp"), workers=request.param, enter=net.inside("lb"), sleep_us=200
    ) as run:
        run.cli(
            f"create host-interface name eth0 v2 cksum-gso-disable hw-addr {MAC}",
            "set interface state host-eth0 up",
            f"set interface ip address host-eth0 {balancer_address('lb')}/24",
            "steelyard interface host-eth0",
            f"steelyard vip add web address {VIP4} port {PORT} forwarding l3-dsr dscp 2 rule lsq",
            f"steelyard vip add nothing address {VIP6} port {PORT} forwarding l3-dsr",
        )
        for index in range(SERVERS):
            run.cli(f"steelyard server add web {server_address(index)}")
        yield run


def pages(net: Net, count: int) -> collections.Counter[str]:
    """Which server answered how often."""
    url = f"http://{VIP4}:{PORT}/name"
    return collections.Counter(get(net, url) for _ in range(count))


def test_every_server_answers(vpp: Vpp, net: Net) -> None:
    assert set(pages(net, 30)) == {f"srv{index}" for index in range(SERVERS)}


def test_large_answers_and_changes_on_the_way(vpp: Vpp, net: Net) -> None:
    url = f"http://{VIP4}:{PORT}/large"
    for change in ("vip set web rule sed", "vip set web rule hlb interval 0.05", "vip set web rule lsq"):
        vpp.cli(f"steelyard {change}")
        assert len(get(net, url)) == 2_000_000


def test_a_drained_server_gets_nothing_new(vpp: Vpp, net: Net) -> None:
    vpp.cli(f"steelyard server set web {server_address(0)} drain on")
    assert set(pages(net, 20)) == {"srv1", "srv2"}
    vpp.cli(f"steelyard server set web {server_address(0)} drain off")
    assert "srv0" in pages(net, 20)


def test_flows_are_counted_to_their_end(vpp: Vpp, net: Net) -> None:
    pages(net, 10)
    time.sleep(0.7)
    servers = [server for server in vpp.api.api.steelyard_server_dump() if server.vip == "web"]
    assert sum(server.flows_on for server in servers) == 0
    assert all(server.opened == server.completed + server.reset for server in servers)
    assert sum(server.completed for server in servers) >= 10
