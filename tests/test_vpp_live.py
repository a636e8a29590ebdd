"""HTTP through the plugin, between kernels: a client, VPP, and web servers in namespaces (root, VPP)."""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from vpp_host import needs_vpp
from vpp_net import VIPS, connect, prepare, serve

from steelyard.benchmarks.lb_net import PORT, Net, run, server_address
from steelyard.benchmarks.vpp_threads import beside_each_other
from steelyard.deploy.vpp_process import Vpp

pytestmark = [needs_vpp, pytest.mark.slow]
SERVERS = 3


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with Net(tmp_path_factory.mktemp("net"), SERVERS) as running:
        running.serve(lambda index: web_server(running.folder / f"srv{index}"))
        prepare(running)
        yield running


def web_server(root: Path) -> list[str | Path]:
    """The command of one, with its pages."""
    root.mkdir()
    (root / "name").write_text(root.name)
    (root / "large").write_bytes(b"x" * 2_000_000)
    return [sys.executable, "-m", "http.server", str(PORT), "--bind", "::", "--directory", root]


def get(net: Net, forwarding: str, page: str, *options: str) -> str:
    """The body of a page, asked for by the client."""
    url = f"http://{VIPS[forwarding]}:{PORT}/{page}"
    return run(*net.inside("client", "curl", "-gsS", "--max-time", "5", *options, url))


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "2 workers"])
def vpp(request: pytest.FixtureRequest, net: Net, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vpp]:
    folder = tmp_path_factory.mktemp("vpp")
    workers: int = request.param
    enter = [*net.inside("lb"), *beside_each_other(folder, workers)]
    with Vpp(folder, workers=workers, enter=enter, sleep_us=200) as running:
        connect(net, running, max(1, workers))
        for forwarding in VIPS:
            serve(net, running, forwarding, forwarding, "rule lsq")
        yield running


def pages(net: Net, forwarding: str, count: int) -> collections.Counter[str]:
    """Which server answered how often."""
    return collections.Counter(get(net, forwarding, "name") for _ in range(count))


@pytest.mark.parametrize("forwarding", VIPS)
def test_every_server_answers(vpp: Vpp, net: Net, forwarding: str) -> None:
    assert set(pages(net, forwarding, 30)) == {f"srv{index}" for index in range(SERVERS)}


@pytest.mark.parametrize("forwarding", VIPS)
def test_large_answers_and_changes_on_the_way(vpp: Vpp, net: Net, forwarding: str) -> None:
    for change in ("rule sed", "rule hlb interval 0.05", "rule lsq interval 0.25"):
        vpp.cli(f"steelyard vip set {forwarding} {change}")
        assert len(get(net, forwarding, "large")) == 2_000_000


@pytest.mark.parametrize("forwarding", VIPS)
def test_large_questions(vpp: Vpp, net: Net, forwarding: str) -> None:
    """Full segments from the client: the tunnel has room for them by the server's advmss."""
    assert get(net, forwarding, "name", "-H", "X-Long: " + "x" * 30_000).startswith("srv")


def test_a_drained_server_gets_nothing_new(vpp: Vpp, net: Net) -> None:
    vpp.cli(f"steelyard server set l3-dsr {server_address(0)} drain on")
    assert set(pages(net, "l3-dsr", 20)) == {"srv1", "srv2"}
    vpp.cli(f"steelyard server set l3-dsr {server_address(0)} drain off")
    assert "srv0" in pages(net, "l3-dsr", 20)


@pytest.mark.parametrize("forwarding", VIPS)
def test_flows_are_counted_to_their_end(vpp: Vpp, net: Net, forwarding: str) -> None:
    pages(net, forwarding, 10)
    time.sleep(0.7)
    servers = [server for server in vpp.api.api.steelyard_server_dump() if server.vip == forwarding]
    assert sum(server.flows_on for server in servers) == 0
    assert all(server.opened == server.completed + server.reset for server in servers)
    assert sum(server.completed for server in servers) >= 10
