"""steelyard-lb between real kernels and web servers in namespaces. Needs root and `make dataplane`."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lb_net import PORT, VIP4, VIP6, Net, balancer_binary, server_address

SERVERS = 3
pytestmark = pytest.mark.slow


def config_text(folder: Path, drained: int | None = None, servers: int = SERVERS, rule: str = "lsq") -> str:
    """The balancer's configuration: one VIP of each family over the same servers."""
    text = f'control_socket = "{folder}/control"\n[link]\ninterface = "eth0"\n'
    for name, address, v6 in (("web4", VIP4, False), ("web6", VIP6, True)):
        text += f'[[vip]]\nname = "{name}"\naddress = "{address}"\nport = {PORT}\nrule = "{rule}"\n'
        for index in range(servers):
            text += f'[[vip.server]]\nname = "srv{index}"\naddress = "{server_address(index, v6)}"\n'
            text += f"drain = {str(index == drained).lower()}\n"
    return text


class Balancer:
    """A running steelyard-lb and its control socket."""

    def __init__(self, net: Net, folder: Path) -> None:
        self.net = net
        self.config = folder / "lb.toml"
        self.log = folder / "log"
        self.config.write_text(config_text(folder))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it knows its servers."""
        with self.log.open("ab") as log:
            self.process = self.net.start("lb", balancer_binary(), "--config", self.config, stderr=log)
        wait_until(lambda: self.ask("stats").get("neighbours_unknown") == 0, self.log)

    def kill(self) -> None:
        """As a crash."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def ask(self, command: str) -> dict:
        """The answer of the control socket, empty while there is none."""
        from steelyard.deploy.lb_commands import ask

        try:
            return ask(self.config.parent / "control", command)
        except (OSError, ValueError):
            return {}

    def events(self) -> list[dict]:
        """The log so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def wait_until(condition: Callable[[], bool], log: Path) -> None:
    """Wait for up to half a minute."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"not in half a minute; log:\n{log.read_text()}")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with Net(tmp_path_factory.mktemp("net"), SERVERS) as built:
        yield built


@pytest.fixture
def balancer(net: Net, tmp_path: Path) -> Iterator[Balancer]:
    running = Balancer(net, tmp_path)
    running.start()
    yield running
    running.kill()


def answers(net: Net, address: str, requests: int) -> Counter[str]:
    """Which servers answered so many requests."""
    return Counter(net.get(f"http://{address}:{PORT}/name") for _ in range(requests))


@pytest.mark.parametrize("address", [VIP4, f"[{VIP6}]"])
def test_every_server_answers(net: Net, balancer: Balancer, address: str) -> None:
    balancer.config.write_text(config_text(balancer.config.parent, rule="rr"))
    assert "error" not in balancer.ask("reload")
    assert answers(net, address, 12) == {f"srv{index}": 4 for index in range(SERVERS)}


def test_counters_come_back_to_zero(net: Net, balancer: Balancer) -> None:
    answers(net, VIP4, 10)
    vip = balancer.ask("stats")["vips"][0]
    assert sum(server["opened"] for server in vip["servers"]) == 10
    assert sum(server["completed"] for server in vip["servers"]) == 10
    assert all(server["flows_on"] == 0 for server in vip["servers"])


def slow_download(net: Net) -> subprocess.Popen[bytes]:
    """A download that lasts a few seconds."""
    url = f"http://{VIP4}:{PORT}/large"
    command = net.inside(
        "client", "curl", "-sS", "--limit-rate", "800k", "-o", "/dev/null", "-w", "%{size_download}", url
    )
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def busy_server(balancer: Balancer) -> int:
    """The server of the one open flow."""
    servers = balancer.ask("stats")["vips"][0]["servers"]
    return next((index for index, server in enumerate(servers) if server["flows_on"] == 1), -1)


@pytest.mark.parametrize("change", ["drain", "remove", "rule"])
def test_reload_keeps_flows(net: Net, balancer: Balancer, change: str) -> None:
    download = slow_download(net)
    wait_until(lambda: busy_server(balancer) >= 0, balancer.log)
    busy = busy_server(balancer)
    folder = balancer.config.parent
    kept = [index for index in range(SERVERS) if index != busy]
    text = config_text(folder, drained=busy)
    if change == "remove":
        text = config_text(folder)
        for v6 in (False, True):
            block = (
                f'[[vip.server]]\nname = "srv{busy}"\naddress = "{server_address(busy, v6)}"\ndrain = false\n'
            )
            text = text.replace(block, "")
    elif change == "rule":
        text = config_text(folder, rule="maglev")
    balancer.config.write_text(text)
    assert balancer.ask("reload") == {"reloaded": str(balancer.config)}
    if change != "rule":
        assert set(answers(net, VIP4, 8)) <= {f"srv{index}" for index in kept}
    assert download.communicate(timeout=30)[0] == b"2000000"


def test_sighup_reloads_and_a_bad_file_changes_nothing(net: Net, balancer: Balancer) -> None:
    assert balancer.process is not None
    balancer.config.write_text("[link]\ninterfaces = 1\n")
    balancer.process.send_signal(signal.SIGHUP)
    wait_until(lambda: any(event["event"] == "reload_refused" for event in balancer.events()), balancer.log)
    assert sum(answers(net, VIP4, 3).values()) == 3


def test_balancer_killed_and_restarted_keeps_maglev_flows(net: Net, balancer: Balancer) -> None:
    balancer.config.write_text(config_text(balancer.config.parent, rule="maglev"))
    assert "error" not in balancer.ask("reload")
    downloads = [slow_download(net) for _ in range(6)]
    wait_until(lambda: balancer.ask("stats")["vips"][0]["connections"]["established"] == 6, balancer.log)
    balancer.kill()
    balancer.start()
    assert [download.communicate(timeout=60)[0] for download in downloads] == [b"2000000"] * 6
