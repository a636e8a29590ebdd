"""The network of a testbed as data: names, addresses, and the steps that build it and take it away.

Nothing here touches the machine; `machine.py` carries the steps out. Every device lives in a namespace of the
testbed from its first moment on, so the machine's own network is never changed.

    client -- edge router ==(equal-cost routes)== balancers --bridge-- servers (virtual address on lo)

Forwarding is direct server return on layer 2: balancers and servers share a bridge in the edge router's
namespace, servers hold the virtual address without answering ARP for it, and replies pass the router alone.
With VPP it is so on layer 3: a server is reached under an address of its own, and a DSCP stands for the
virtual one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from steelyard.envs.errors import bad_value

DEFAULT_PREFIX = "steelyard"
MAX_BALANCERS = 32
MAX_SERVERS = 128
VIP = "10.222.2.1"
HTTP_PORT = 80
DSCP = 2
"""What stands for the virtual address in a packet on its way to a server's own (layer 3)."""
DEVICE = "eth0"
"""The one device of a client, a balancer or a server."""

GATEWAY = "10.222.0.1"
"""The edge router, as balancers and servers see it."""

_EDGE_TO_CLIENT, _CLIENT = "10.222.1.1", "10.222.1.2"
_SEED_OF_EDGE = 1
_CLIENT_PORTS = "1024 65535"
_QUEUE = "4096"


@dataclass(frozen=True)
class Run:
    """A command; it must succeed."""

    argv: tuple[str, ...]


@dataclass(frozen=True)
class Sysctl:
    """A kernel setting of one namespace, such as net.ipv4.ip_forward."""

    namespace: str
    key: str
    value: str


@dataclass(frozen=True)
class OffloadsOff:
    """Turn a device's offloads off: a packet must have its checksum and its size when a balancer sees it."""

    namespace: str
    device: str


Step = Run | Sysctl | OffloadsOff


@dataclass(frozen=True)
class Network:
    """A testbed's network: who is in it and under which names."""

    prefix: str
    balancers: int
    servers: int

    def __post_init__(self) -> None:
        check_prefix(self.prefix)
        if not 1 <= self.balancers <= MAX_BALANCERS:
            raise bad_value("pool.balancers", self.balancers, f"1 to {MAX_BALANCERS} for a testbed")
        if not 1 <= self.servers <= MAX_SERVERS:
            raise bad_value("pool.servers", f"{self.servers} in all", f"1 to {MAX_SERVERS} for a testbed")

    @property
    def client(self) -> str:
        """Namespace of the client."""
        return f"{self.prefix}-client"

    @property
    def edge(self) -> str:
        """Namespace of the edge router, which holds the bridge too."""
        return f"{self.prefix}-edge"

    def balancer(self, index: int) -> str:
        """Namespace of a balancer."""
        return f"{self.prefix}-lb{index}"

    def server(self, index: int) -> str:
        """Namespace of a server."""
        return f"{self.prefix}-s{index}"

    @property
    def namespaces(self) -> list[str]:
        """All of them."""
        balancers = [self.balancer(i) for i in range(self.balancers)]
        return [self.edge, self.client, *balancers, *(self.server(j) for j in range(self.servers))]


def check_prefix(prefix: str) -> None:
    """UserError unless it can start the name of a namespace, a cgroup and a folder."""
    if not re.fullmatch("[a-z][a-z0-9]{0,15}", prefix):
        raise bad_value("--name", prefix, "1 to 16 small letters and digits, a letter first")


def is_ours(prefix: str, namespace: str) -> bool:
    """Whether a namespace can belong to the testbed of that name."""
    return re.fullmatch(re.escape(prefix) + "-(client|edge|lb[0-9]+|s[0-9]+)", namespace) is not None


def balancer_address(index: int) -> str:
    """IPv4 address of a balancer."""
    return f"10.222.0.{10 + index}"


def server_address(index: int) -> str:
    """IPv4 address of a server, beside the virtual one."""
    return f"10.222.0.{100 + index}"


def other_address(index: int) -> str:
    """An IPv4 address beside those of balancers and servers, index below 4096."""
    return f"10.222.{16 + index // 256}.{index % 256}"


def balancer_mac(index: int) -> str:
    """Hardware address of a balancer."""
    return f"02:53:4c:00:01:{index:02x}"


def server_mac(index: int) -> str:
    """Hardware address of a server."""
    return f"02:53:4c:00:02:{index:02x}"


def build(network: Network) -> list[Step]:
    """The steps that build the network; balancers do not forward yet."""
    steps: list[Step] = []
    for namespace in network.namespaces:
        steps += _namespace(namespace)
    steps += _edge(network) + _client(network)
    for i in range(network.balancers):
        steps += _member(network, network.balancer(i), f"lb{i}", balancer_address(i), balancer_mac(i))
        # Equal hashes at router and balancer would send a balancer's flows to a part of the servers only.
        steps.append(Sysctl(network.balancer(i), "net.ipv4.fib_multipath_hash_policy", "1"))
        steps.append(
            Sysctl(network.balancer(i), "net.ipv4.fib_multipath_hash_seed", str(_SEED_OF_EDGE + 1 + i))
        )
    for j in range(network.servers):
        steps += _server(network, j)
    return steps


def take_down(namespaces: Sequence[str]) -> list[Step]:
    """The steps that remove these namespaces, with every device in them."""
    return [Run(("ip", "netns", "delete", namespace)) for namespace in namespaces]


def forward_by_kernel(network: Network, weights: Sequence[int]) -> list[Step]:
    """Every balancer's kernel spreads flows over the servers by hash, by these weights (1 to 256)."""
    hops: list[str] = []
    for j, weight in enumerate(weights):
        hops += ["nexthop", "via", server_address(j), "weight", str(weight)]
    steps: list[Step] = []
    for i in range(network.balancers):
        namespace = network.balancer(i)
        steps.append(Run(("ip", "-n", namespace, "route", "replace", f"{VIP}/32", *hops)))
        steps.append(Sysctl(namespace, "net.ipv4.ip_forward", "1"))
    return steps


def forward_by_process(network: Network) -> list[Step]:
    """No balancer's kernel forwards: a process of its own does."""
    return [Sysctl(network.balancer(i), "net.ipv4.ip_forward", "0") for i in range(network.balancers)]


def restore_vip(network: Network) -> list[Step]:
    """Every server's kernel takes packets with the DSCP, whatever their address, as for the virtual one."""
    table = "table ip steelyard"
    rules = (
        f"add {table}; delete {table}; add {table}; "
        "add chain ip steelyard pre { type filter hook prerouting priority raw ; }; "
        f"add rule ip steelyard pre ip dscp {DSCP} tcp dport {HTTP_PORT} ip daddr set {VIP}"
    )
    steps: list[Step] = []
    for j in range(network.servers):
        steps.append(Run(("nsenter", f"--net=/run/netns/{network.server(j)}", "nft", rules)))
    return steps


def kernel_weights(capacities: Sequence[float]) -> list[int]:
    """Capacities as whole weights of equal-cost routes, 1 to 256, the largest 32."""
    largest = max(capacities)
    return [max(1, round(32 * capacity / largest)) for capacity in capacities]


def _namespace(namespace: str) -> list[Step]:
    settings = {
        "net.ipv4.conf.all.rp_filter": "0",
        "net.ipv4.conf.default.rp_filter": "0",
        "net.ipv4.conf.all.send_redirects": "0",
        "net.ipv4.conf.default.send_redirects": "0",
        "net.ipv4.conf.all.accept_redirects": "0",
        "net.ipv6.conf.all.disable_ipv6": "1",
        "net.ipv6.conf.default.disable_ipv6": "1",
        "net.ipv4.tcp_congestion_control": "reno",
    }
    steps: list[Step] = [Run(("ip", "netns", "add", namespace))]
    steps.append(Run(("ip", "-n", namespace, "link", "set", "lo", "up")))
    return steps + [Sysctl(namespace, key, value) for key, value in settings.items()]


def _edge(network: Network) -> list[Step]:
    edge = network.edge
    bridge = ("type", "bridge", "stp_state", "0", "mcast_snooping", "0", "forward_delay", "0")
    hops: list[str] = []
    for i in range(network.balancers):
        hops += ["nexthop", "via", balancer_address(i)]
    return [
        _ip(edge, "link", "add", "br0", "address", "02:53:4c:00:00:01", *bridge),
        _ip(edge, "address", "add", f"{GATEWAY}/24", "dev", "br0"),
        _ip(edge, "link", "set", "br0", "up"),
        Sysctl(edge, "net.ipv4.ip_forward", "1"),
        Sysctl(edge, "net.ipv4.fib_multipath_hash_policy", "1"),
        Sysctl(edge, "net.ipv4.fib_multipath_hash_seed", str(_SEED_OF_EDGE)),
        _ip(edge, "route", "add", f"{VIP}/32", *hops),
    ]


def _client(network: Network) -> list[Step]:
    edge, client = network.edge, network.client
    return [
        *_cable(edge, "client", client, "02:53:4c:00:00:02"),
        _ip(edge, "address", "add", f"{_EDGE_TO_CLIENT}/24", "dev", "client"),
        _ip(client, "address", "add", f"{_CLIENT}/24", "dev", DEVICE),
        _ip(client, "route", "add", "default", "via", _EDGE_TO_CLIENT),
        Sysctl(client, "net.ipv4.ip_local_port_range", _CLIENT_PORTS),
    ]


def _member(network: Network, namespace: str, port: str, address: str, mac: str) -> list[Step]:
    """A namespace on the bridge."""
    return [
        *_cable(network.edge, port, namespace, mac),
        _ip(network.edge, "link", "set", port, "master", "br0"),
        _ip(namespace, "address", "add", f"{address}/24", "dev", DEVICE),
        _ip(namespace, "route", "add", "default", "via", GATEWAY),
    ]


def _server(network: Network, index: int) -> list[Step]:
    namespace = network.server(index)
    settings = {
        "net.ipv4.conf.all.arp_ignore": "1",
        "net.ipv4.conf.all.arp_announce": "2",
        "net.core.somaxconn": _QUEUE,
        "net.ipv4.tcp_max_syn_backlog": _QUEUE,
        "net.ipv4.tcp_no_metrics_save": "1",
    }
    return [
        *(Sysctl(namespace, key, value) for key, value in settings.items()),
        *_member(network, namespace, f"s{index}", server_address(index), server_mac(index)),
        _ip(namespace, "address", "add", f"{VIP}/32", "dev", "lo"),
    ]


def _cable(edge: str, port: str, namespace: str, mac: str) -> list[Step]:
    """A pair of devices, one end at the edge router, both up, offloads off at both."""
    far_end = ("address", mac, "netns", namespace)
    return [
        _ip(edge, "link", "add", port, "type", "veth", "peer", "name", DEVICE, *far_end),
        OffloadsOff(edge, port),
        OffloadsOff(namespace, DEVICE),
        _ip(edge, "link", "set", port, "up"),
        _ip(namespace, "link", "set", DEVICE, "up"),
    ]


def _ip(namespace: str, *words: str) -> Run:
    return Run(("ip", "-n", namespace, *words))
