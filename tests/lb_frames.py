"""Frames that a client sends to a balancer, what becomes of them, and how a table of cases is judged.

Nothing here knows which dataplane it is: the balancer has link address LB_MAC and the addresses LB4 and LB6;
VIP4 and VIP6 have TCP port 80 and UDP port 53, two servers each (SERVERS4 behind both when the table forwards
by gre4, SERVERS6 when by gre6, else of the VIP's family) and rule lsq; the MTU is MTU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scapy.layers.inet import GRE, ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6PacketTooBig, IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

LB_MAC, CLIENT_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"
LB4, LB6 = "10.0.0.9", "fd00::9"
VIP4, VIP6 = "10.0.1.1", "fd00:1::1"
CLIENT4, CLIENT6 = "192.0.2.7", "2001:db8::7"
SERVER_MACS = ["02:00:00:00:01:01", "02:00:00:00:01:02"]
SERVERS4, SERVERS6 = ["10.0.0.11", "10.0.0.12"], ["fd00::11", "fd00::12"]
DSCP = 2
MTU = 1500

Expected = Callable[[Packet, int], Packet]
"""Of the packet that came and the index of the server: the packet that goes out."""


@dataclass
class Case:
    """One frame and what becomes of it."""

    description: str
    packet: Packet
    verdict: str = "forward"
    expected: Expected | None = None
    """None: nothing goes out, or, when the verdict is "forward", what the table's forwarding makes of it."""
    same_server_as: str | None = None
    """The description of an earlier case."""
    at: float | None = None
    """Seconds from the start of the table."""


@dataclass
class Table:
    """Cases that go through one balancer."""

    forwarding: str
    """A key of FORWARDINGS."""
    cases: list[Case]

    def servers(self, vip: str) -> list[str]:
        """Addresses of the servers behind VIP4 or VIP6."""
        v6 = ":" in vip if self.forwarding in ("l2-dsr", "l3-dsr") else self.forwarding == "gre6"
        return SERVERS6 if v6 else SERVERS4

    def check(self, verdicts: list[str], frames: list[bytes]) -> None:
        """AssertionError unless a dataplane did what the table says; frames: b"" where none went out."""
        servers: dict[str, int] = {}
        for case, verdict, frame in zip(self.cases, verdicts, frames, strict=True):
            assert verdict == case.verdict, f"{case.description}: {verdict}"
            if verdict == "forward":
                servers[case.description] = server = server_of(frame)
                if case.same_server_as is not None:
                    assert server == servers[case.same_server_as], case.description
            make = case.expected or (FORWARDINGS[self.forwarding] if verdict == "forward" else None)
            if make is None:
                assert frame == b"", case.description
                continue
            wanted = bytes(make(case.packet, servers.get(case.description, 0)))
            if (
                self.forwarding == "gre6" and verdict == "forward"
            ):  # which flow label is the dataplane's choice
                frame = frame[:14] + wanted[14:15] + bytes([frame[15] & 0xF0]) + b"\0\0" + frame[18:]
            assert frame.hex() == wanted.hex(), f"{case.description}\n{Ether(frame)!r}\n{Ether(wanted)!r}"


def server_of(frame: bytes) -> int:
    """Which server a frame goes to, by its link address."""
    return SERVER_MACS.index(":".join(f"{byte:02x}" for byte in frame[:6]))


def eth() -> Ether:
    """The link's header of what a client sends."""
    return Ether(src=CLIENT_MAC, dst=LB_MAC)


def tcp(
    flags: str = "S", port: int = 4000, v6: bool = False, payload: bytes = b"", dport: int = 80
) -> Packet:
    """A segment of a client."""
    ip = IPv6(src=CLIENT6, dst=VIP6) if v6 else IP(src=CLIENT4, dst=VIP4, flags="DF")
    packet = eth() / ip / TCP(sport=port, dport=dport, flags=flags, seq=7, ack=9 if "A" in flags else 0)
    return packet / Raw(payload) if payload else packet


def udp(port: int = 4000, v6: bool = False, payload: bytes = b"question") -> Packet:
    """A datagram of a client."""
    ip = IPv6(src=CLIENT6, dst=VIP6) if v6 else IP(src=CLIENT4, dst=VIP4)
    return eth() / ip / UDP(sport=port, dport=53) / Raw(payload)


def raw(packet: Packet, **changes: int) -> Packet:
    """The packet as bytes, with bytes at offsets changed: `b14=0` sets byte 14."""
    data = bytearray(bytes(packet))
    for place, value in changes.items():
        data[int(place[1:])] = value
    return Raw(bytes(data))


def cut(packet: Packet, size: int) -> Packet:
    """The first bytes of a packet."""
    return Raw(bytes(packet)[:size])


def l2_dsr(packet: Packet, server: int) -> Packet:
    """Only the link's header changes."""
    return Raw(bytes(Ether(src=LB_MAC, dst=SERVER_MACS[server]))[:12] + bytes(packet)[12:])


def l3_dsr(packet: Packet, server: int) -> Packet:
    """The server's address and the DSCP; checksums computed anew by scapy."""
    out = Ether(bytes(packet))
    out.src, out.dst = LB_MAC, SERVER_MACS[server]
    if IPv6 in out:
        out[IPv6].dst, out[IPv6].tc = SERVERS6[server], DSCP << 2
    else:
        out[IP].dst, out[IP].tos = SERVERS4[server], DSCP << 2
        del out[IP].chksum
    out = _with_ecn(out, packet)
    for layer in (TCP, UDP):
        if layer in out and not (layer is UDP and out[UDP].chksum == 0):
            del out[layer].chksum
    if ICMPv6PacketTooBig in out:
        del out[ICMPv6PacketTooBig].cksum
    return out


def _with_ecn(out: Packet, packet: Packet) -> Packet:
    came = Ether(bytes(packet))
    if IPv6 in came:
        out[IPv6].tc |= came[IPv6].tc & 3
    else:
        out[IP].tos |= came[IP].tos & 3
    return out


def gre4(packet: Packet, server: int) -> Packet:
    """The whole IP packet in GRE over IPv4, from the balancer's own address."""
    inner = Ether(bytes(packet))
    outer = IP(src=LB4, dst=SERVERS4[server], id=0, flags="DF", ttl=64, proto=47, tos=_class_of(inner))
    return Ether(src=LB_MAC, dst=SERVER_MACS[server]) / outer / _gre_of(inner)


def gre6(packet: Packet, server: int) -> Packet:
    """The same over IPv6; the flow label is 0 here."""
    inner = Ether(bytes(packet))
    outer = IPv6(src=LB6, dst=SERVERS6[server], hlim=64, nh=47, tc=_class_of(inner))
    return Ether(src=LB_MAC, dst=SERVER_MACS[server]) / outer / _gre_of(inner)


def _class_of(inner: Packet) -> int:
    return int(inner[IPv6].tc if IPv6 in inner else inner[IP].tos)


def _gre_of(inner: Packet) -> Packet:
    return GRE(proto=0x86DD if IPv6 in inner else 0x0800) / inner.payload


FORWARDINGS: dict[str, Expected] = {"l2-dsr": l2_dsr, "l3-dsr": l3_dsr, "gre4": gre4, "gre6": gre6}


def back(*layers: Packet) -> Expected:
    """An answer of the balancer's own."""

    def make(packet: Packet, server: int) -> Packet:
        made: Packet = Ether(src=LB_MAC, dst=CLIENT_MAC)
        for layer in layers:
            made = made / layer
        return made

    return make


def icmp_error(port: int, v6: bool = False) -> Packet:
    """A router tells the VIP that a reply to the client of `port` did not fit."""
    if v6:
        inner = IPv6(src=VIP6, dst=CLIENT6) / TCP(sport=80, dport=port, flags="A")
        return eth() / IPv6(src="2001:db8::1", dst=VIP6) / ICMPv6PacketTooBig(mtu=1400) / Raw(bytes(inner))
    inner = IP(src=VIP4, dst=CLIENT4) / TCP(sport=80, dport=port, flags="A")
    return (
        eth()
        / IP(src="198.51.100.1", dst=VIP4)
        / ICMP(type=3, code=4, nexthopmtu=1400)
        / Raw(bytes(inner)[:28])
    )


def unreachable(port: int) -> Packet:
    """The client of `port` is no longer there."""
    inner = IP(src=VIP4, dst=CLIENT4) / TCP(sport=80, dport=port, flags="A")
    return eth() / IP(src=CLIENT4, dst=VIP4) / ICMP(type=3, code=3) / Raw(bytes(inner)[:28])


def marked(packet: Packet, traffic_class: int) -> Packet:
    """The packet with another TOS or traffic class."""
    out = Ether(bytes(packet))
    if IPv6 in out:
        out[IPv6].tc = traffic_class
    else:
        out[IP].tos = traffic_class
        del out[IP].chksum
    return Ether(bytes(out))
