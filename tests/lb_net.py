"""A balancer between real kernels, for tests: client, `steelyard-lb` and web servers in network namespaces.

All namespaces hang on one bridge. The client reaches the virtual addresses through the balancer; servers have
them on their loopback and answer the client directly (L2 DSR). Needs root; touches only namespaces that it
made.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VIP4, VIP6 = "10.77.1.1", "fd77:1::1"
LB4, LB6 = "10.77.0.3", "fd77::3"
PORT = 8080


def balancer_binary() -> Path:
    """The newest build of steelyard-lb; fails with the command that makes one."""
    found = sorted(
        ROOT.glob("build/cmake-*/native/dataplane/steelyard-lb"), key=lambda path: path.stat().st_mtime
    )
    assert found, "steelyard-lb is not built: make dataplane"
    return found[-1]


def run(*command: str | Path, check: bool = True) -> str:
    """Run a command; its output."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def server_address(index: int, v6: bool = False) -> str:
    """The address of server `index` on the bridge."""
    return f"fd77::{index + 16:x}" if v6 else f"10.77.0.{index + 16}"


class Net:
    """Namespaces, links, web servers; a context manager."""

    def __init__(self, folder: Path, servers: int) -> None:
        self.folder = folder
        self.servers = servers
        self.prefix = f"slt{os.getpid() % 100000}"
        self.children: list[subprocess.Popen[bytes]] = []
        self.names: list[str] = []

    def __enter__(self) -> Net:
        assert os.geteuid() == 0, "network namespaces need root: run these tests as root"
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.kill()
            child.wait()
        for name in self.names:
            run("ip", "netns", "del", name, check=False)

    def inside(self, place: str, *command: str | Path) -> list[str]:
        """The command line that runs `command` in the namespace of `place`."""
        return ["ip", "netns", "exec", self._name(place), *map(str, command)]

    def start(self, place: str, *command: str | Path, **options: object) -> subprocess.Popen[bytes]:
        """Start a command in a namespace; it ends with the net."""
        child: subprocess.Popen[bytes] = subprocess.Popen(self.inside(place, *command), **options)  # type: ignore[call-overload]
        self.children.append(child)
        return child

    def get(self, url: str, timeout: float = 5.0) -> str:
        """The body of a page, asked for by the client."""
        return run(*self.inside("client", "curl", "-gsS", "--max-time", str(timeout), url))

    def _name(self, place: str) -> str:
        return f"{self.prefix}{place}"

    def _build(self) -> None:
        self._space("switch")
        self._in("switch", "ip link add br0 type bridge mcast_snooping 0")
        self._in("switch", "ip link set br0 up")
        self._host("client", ["10.77.0.2/24"], ["fd77::2/64"])
        self._host("lb", [f"{LB4}/24"], [f"{LB6}/64"])
        self._in("client", f"ip route add 10.77.1.0/24 via {LB4}")
        self._in("client", f"ip -6 route add fd77:1::/64 via {LB6}")
        for index in range(self.servers):
            self._server(index)

    def _server(self, index: int) -> None:
        place = f"srv{index}"
        self._host(place, [f"{server_address(index)}/24"], [f"{server_address(index, True)}/64"])
        for setting in ("arp_ignore=1", "arp_announce=2", "rp_filter=0"):
            self._in(place, f"sysctl -qw net.ipv4.conf.all.{setting}")
        self._in(place, f"ip addr add {VIP4}/32 dev lo")
        self._in(place, f"ip -6 addr add {VIP6}/128 dev lo nodad")
        root = self.folder / place
        root.mkdir(exist_ok=True)
        (root / "name").write_text(place)
        (root / "large").write_bytes(b"x" * 2_000_000)
        for address in (VIP4, VIP6):
            self.start(
                place, sys.executable, "-m", "http.server", str(PORT), "--bind", address, "--directory", root,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self._wait_for(place)

    def _wait_for(self, place: str) -> None:
        for address in (VIP4, f"[{VIP6}]"):
            probe = self.inside(place, "curl", "-gs", "-o", "/dev/null", f"http://{address}:{PORT}/name")
            for _ in range(400):
                if subprocess.run(probe, check=False).returncode == 0:
                    break
                time.sleep(0.05)
            else:
                raise AssertionError(f"the web server of {place} does not answer at {address}")

    def _host(self, place: str, addresses4: Iterable[str], addresses6: Iterable[str]) -> None:
        self._space(place)
        near, far = f"{self.prefix}{place}"[-14:], f"b{place}"
        run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        run("ip", "link", "set", near, "netns", self._name(place))
        run("ip", "link", "set", far, "netns", self._name("switch"))
        self._in(place, f"ip link set {near} name eth0")
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
