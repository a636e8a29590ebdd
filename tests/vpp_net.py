"""Servers that a balancer inside VPP reaches in every way that it forwards, in the namespaces of a Net.

L3 DSR: an nftables hook restores the VIP. GRE: the kernel needs no module, a process takes off the header
of the tunnel and gives the packet to a TUN device. NAT: what a server's own address sends to the client goes
by VPP.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from steelyard.benchmarks.lb_net import PORT, VIP4, Net, balancer_address, run, server_address, wait_until
from steelyard.deploy.vpp_process import Vpp

VIPS = {"l3-dsr": VIP4, "gre": "10.77.1.2", "nat": "10.77.1.3"}
MAC = "02:fe:00:00:00:01"  # of every VPP on this link: neighbours remember it
DSCP = 2
CLIENT = "10.77.0.2"

_DECAPSULATE = """
import fcntl, os, socket, struct
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH", b"tun0", 0x1001))  # TUNSETIFF: IFF_TUN, IFF_NO_PI
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, 47)
os.system("ip link set tun0 up")
while True:
    packet = raw.recv(65535)
    os.write(tun, packet[(packet[0] & 15) * 4 + 4 :])
"""


def prepare(net: Net) -> None:
    """Make every server ready for every forwarding."""
    for index in range(net.servers):
        place = f"srv{index}"
        inside(net, place, "nft add table ip dsr")
        inside(net, place, "nft add chain ip dsr pre { type filter hook prerouting priority raw ; }")
        inside(net, place, f"nft add rule ip dsr pre ip dscp {DSCP} tcp dport {PORT} ip daddr set {VIP4}")
        inside(net, place, f"ip addr add {VIPS['gre']}/32 dev lo")
        inside(net, place, "sysctl -qw net.ipv4.conf.default.rp_filter=0")
        net.start(place, sys.executable, "-c", _DECAPSULATE)
        inside(net, place, f"ip rule add from {server_address(index)} to {CLIENT} lookup 77")
        inside(net, place, f"ip route add default via {balancer_address('lb')} table 77")
        inside(net, place, "ip route change 10.77.0.0/24 dev eth0 advmss 1400")  # room for the tunnel
    for index in range(net.servers):
        words = net.inside(f"srv{index}", "ip", "link", "show", "tun0", "up")
        wait_until(lambda words=words: "tun0" in run(*words, check=False), "it decapsulates")  # type: ignore[misc]


def inside(net: Net, place: str, command: str) -> None:
    """Run a command in a namespace."""
    run(*net.inside(place, *command.split()))


def connect(net: Net, vpp: Vpp, queues: int = 1) -> None:
    """Put VPP on the link of the namespace `lb`, with the addresses that the kernel has there otherwise."""
    inside(net, "lb", "ip addr flush dev eth0")
    vpp.cli(
        f"create host-interface name eth0 v2 cksum-gso-disable hw-addr {MAC} num-rx-queues {queues}",
        "set interface state host-eth0 up",
        f"set interface ip address host-eth0 {balancer_address('lb')}/24",
        "steelyard interface host-eth0",
        f"steelyard source {balancer_address('lb')}",
    )


def serve(net: Net, vpp: Vpp, name: str, forwarding: str, settings: str, drained: Iterable[int] = ()) -> None:
    """Add a VIP and all servers."""
    vpp.cli(
        f"steelyard vip add {name} address {VIPS[forwarding]} port {PORT} forwarding {forwarding}"
        f" dscp {DSCP} {settings}"
    )
    for index in range(net.servers):
        drain = "on" if index in drained else "off"
        vpp.cli(f"steelyard server add {name} {server_address(index)} drain {drain}")
