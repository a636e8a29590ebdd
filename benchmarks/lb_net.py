"""A balancer between real kernels: clients, `steelyard-lb` and servers in network namespaces.

All namespaces hang on one bridge. The client reaches the virtual addresses through a balancer, or through its
namespace's kernel; servers have them on their loopback and answer the client directly (L2 DSR). Needs root;
touches only namespaces that it made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.deploy.lb_commands import ask, find_binary
from steelyard.envs.errors import UserError

VIP4, VIP6 = "10.77.1.1", "fd77:1::1"
PORT = 8080
BALANCERS = ("lb", "lb2")
METRICS = "127.0.0.1:9464"


def run(*command: str | Path, check: bool = True) -> str:
    """Run a command; its output."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def server_address(index: int, v6: bool = False) -> str:
    """The address of server `index` on the bridge."""
    return f"fd77::{index + 16:x}" if v6 else f"10.77.0.{index + 16}"


def balancer_address(place: str, v6: bool = False) -> str:
    """The address of a balancer on the bridge."""
    host = 3 + BALANCERS.index(place)
    return f"fd77::{host}" if v6 else f"10.77.0.{host}"


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 30.0) -> float:
    """Wait for a condition; how long it took [s]. RuntimeError after the limit."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s:
            raise RuntimeError(f"not in {limit_s:g} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - began


class Net:
    """Namespaces, links, servers; a context manager."""

    def __init__(self, folder: Path, servers: int) -> None:
        self.folder = folder
        self.servers = servers
        self.prefix = f"slt{os.getpid() % 100000}"
        self.children: list[subprocess.Popen[bytes]] = []
        self.names: list[str] = []

    def __enter__(self) -> Net:
        """UserError (one line) without root."""
        if os.geteuid() != 0:
            raise UserError("network namespaces need root: run this as root")
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.terminate()  # so that a server ends its own children too
        for child in self.children:
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for name in self.names:
            run("ip", "netns", "del", name, check=False)

    def inside(self, place: str, *command: str | Path) -> list[str]:
        """The command line that runs `command` in the namespace of `place`."""
        return ["ip", "netns", "exec", self._name(place), *map(str, command)]

    def start(self, place: str, *command: str | Path, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command in a namespace; it ends with the net."""
        child: subprocess.Popen[bytes] = subprocess.Popen(self.inside(place, *command), **options)
        self.children.append(child)
        return child

    def python(self, place: str, module: str, *options: str | Path, **more: Any) -> subprocess.Popen[bytes]:
        """Start a module of Python in a namespace."""
        return self.start(place, sys.executable, "-m", module, *options, **more)

    def serve(self, command: Callable[[int], list[str | Path]]) -> None:
        """Start a server in each server's namespace, and wait until all answer at both addresses."""
        for index in range(self.servers):
            self.start(f"srv{index}", *command(index), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for index in range(self.servers):
            wait_until(lambda index=index: self._answers(index), f"server {index} answers")  # type: ignore[misc]

    def go_by(self, place: str) -> None:
        """Send what clients send to virtual addresses through that balancer's namespace."""
        self._in("client", f"ip route replace 10.77.1.0/24 via {balancer_address(place)}")
        self._in("client", f"ip -6 route replace fd77:1::/64 via {balancer_address(place, True)}")

    def forward_by_kernel(self, place: str, server: int) -> None:
        """That namespace's kernel forwards to one server."""
        for setting in ("ip_forward=1", "conf.all.send_redirects=0", "conf.eth0.send_redirects=0"):
            self._in(place, f"sysctl -qw net.ipv4.{setting}")
        self._in(place, f"ip route replace {VIP4}/32 via {server_address(server)} dev eth0")

    def stop_kernel_forwarding(self, place: str) -> None:
        """Undo forward_by_kernel."""
        self._in(place, f"ip route del {VIP4}/32")
        self._in(place, "sysctl -qw net.ipv4.ip_forward=0")

    def cut_off(self, server: int) -> None:
        """Take a server from the network, as if its machine had lost power."""
        self._in("switch", f"ip link set bsrv{server} nomaster")

    def reconnect(self, server: int) -> None:
        """Undo cut_off."""
        self._in("switch", f"ip link set bsrv{server} master br0")

    def _name(self, place: str) -> str:
        return f"{self.prefix}{place}"

    def _answers(self, index: int) -> bool:
        probes = [
            self.inside(f"srv{index}", sys.executable, "-c", _PROBE, address, str(PORT))
            for address in (VIP4, VIP6)
        ]
        return all(
            subprocess.run(probe, check=False, stderr=subprocess.DEVNULL).returncode == 0 for probe in probes
        )

    def _build(self) -> None:
        self._space("switch")
        self._in("switch", "ip link add br0 type bridge mcast_snooping 0")
        self._in("switch", "ip link set br0 up")
        self._host("client", ["10.77.0.2/24"], ["fd77::2/64"])
        for place in BALANCERS:
            self._host(place, [f"{balancer_address(place)}/24"], [f"{balancer_address(place, True)}/64"])
        self.go_by("lb")
        for index in range(self.servers):
            place = f"srv{index}"
            self._host(place, [f"{server_address(index)}/24"], [f"{server_address(index, True)}/64"])
            for setting in ("arp_ignore=1", "arp_announce=2", "rp_filter=0"):
                self._in(place, f"sysctl -qw net.ipv4.conf.all.{setting}")
            self._in(place, f"ip addr add {VIP4}/32 dev lo")
            self._in(place, f"ip -6 addr add {VIP6}/128 dev lo nodad")

    def _host(self, place: str, addresses4: Iterable[str], addresses6: Iterable[str]) -> None:
        self._space(place)
        far = f"b{place}"
        switch = self._name("switch")
        run(
            "ip", "-n", switch, "link", "add", far, "type", "veth", "peer", "eth0", "netns", self._name(place)
        )
        self._in("switch", f"ip link set {far} master br0 up")
        for where, link in ((place, "eth0"), ("switch", far)):
            self._in(where, f"ethtool -K {link} tx off gro off gso off tso off")
        self._in(place, "ip link set eth0 up")
        for address in addresses4:
            self._in(place, f"ip addr add {address} dev eth0")
        for address in addresses6:
            self._in(place, f"ip -6 addr add {address} dev eth0 nodad")

    def _space(self, place: str) -> None:
        run("ip", "netns", "add", self._name(place))
        self.names.append(self._name(place))
        self._in(place, "ip link set lo up")

    def _in(self, place: str, command: str) -> None:
        run(*self.inside(place, *command.split()))


_PROBE = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)"


@dataclass
class Pool:
    """What the balancers of a net are told."""

    rule: str = "lsq"
    servers: tuple[int, ...] = (0, 1, 2)
    drained: tuple[int, ...] = ()
    transport: str = "af_packet"
    vip_keys: str = ""
    """More lines of the IPv4 VIP."""
    transport_keys: str = ""
    root_keys: str = ""

    def text(self, folder: Path) -> str:
        """The configuration file: one VIP of each family over the same servers."""
        text = f'control_socket = "{folder}/control"\nmetrics_listen = "{METRICS}"\nhash_seed = 7\n'
        text += f'{self.root_keys}[link]\ninterface = "eth0"\n[transport]\nkind = "{self.transport}"\n'
        text += self.transport_keys
        for name, address, v6 in (("web4", VIP4, False), ("web6", VIP6, True)):
            text += f'[[vip]]\nname = "{name}"\naddress = "{address}"\nport = {PORT}\nrule = "{self.rule}"\n'
            text += self.vip_keys if not v6 else ""
            for index in self.servers:
                text += f'[[vip.server]]\nname = "srv{index}"\naddress = "{server_address(index, v6)}"\n'
                text += f"drain = {str(index in self.drained).lower()}\n"
        return text


class Balancer:
    """A steelyard-lb in one of the net's namespaces, and its control socket."""

    def __init__(self, net: Net, folder: Path, pool: Pool, place: str = "lb") -> None:
        self.net, self.place = net, place
        self.folder = folder
        self.config = folder / "lb.toml"
        self.log = folder / "log"
        self.config.write_text(pool.text(folder))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it knows its servers. RuntimeError with its last line if it ends."""
        with self.log.open("ab") as log:
            process = self.net.start(self.place, find_binary(), "--config", self.config, stderr=log)
        self.process = process
        wait_until(
            lambda: process.poll() is not None or self.ask("stats").get("neighbours_unknown") == 0,
            f"steelyard-lb knows its servers; {self.log}",
        )
        if process.poll() is not None:
            raise RuntimeError((self.log.read_text().splitlines() or ["it wrote no message"])[-1])

    def kill(self) -> None:
        """As a crash."""
        self._end("kill")

    def stop(self) -> None:
        """In order: tapes are ended."""
        self._end("terminate")

    def reload(self, pool: Pool) -> None:
        """Give it another pool. RuntimeError if it refuses."""
        self.config.write_text(pool.text(self.folder))
        answer = self.ask("reload")
        if "reloaded" not in answer:
            raise RuntimeError(f"reload: {answer.get('error', 'no answer')}")

    def ask(self, command: str) -> dict[str, Any]:
        """The answer of the control socket, empty while there is none."""
        try:
            return ask(self.folder / "control", command)
        except (UserError, OSError, ValueError):
            return {}

    def vip(self, index: int = 0) -> dict[str, Any]:
        """Counters of a VIP."""
        found: dict[str, Any] = self.ask("stats")["vips"][index]
        return found

    def flows_on(self) -> int:
        """Flows that the IPv4 VIP counts."""
        return sum(int(server["flows_on"]) for server in self.vip()["servers"])

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The log so far, or its events of that name."""
        events = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [event for event in events if name in (None, event["event"])]

    def cpu_s(self) -> float:
        """CPU time that the process has used [s]."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _end(self, how: str) -> None:
        if self.process is not None:
            getattr(self.process, how)()
            self.process.wait()
