"""The table of cases of the dataplane: packet in, verdict, packet out, as in Katran's tests.

Each case is one frame; frames of a table go through one balancer in their order, a millisecond apart unless
`at` says when. Expected frames are scapy packets, compared byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scapy.layers.inet import GRE, ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    ICMPv6PacketTooBig,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
)
from scapy.layers.l2 import ARP, Dot1Q, Ether
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
    extra: dict[str, int] = field(default_factory=dict)


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
    for layer in (TCP, UDP):
        if layer in out:
            del out[layer].chksum
    return out


def gre(packet: Packet, server: int) -> Packet:
    """The whole IP packet in GRE over IPv4, from the balancer's own address."""
    inner = Ether(bytes(packet))
    proto = 0x86DD if IPv6 in inner else 0x0800
    tos = inner[IPv6].tc if IPv6 in inner else inner[IP].tos
    outer = IP(src=LB4, dst=SERVERS4[server], id=0, flags="DF", ttl=64, proto=47, tos=tos)
    return Ether(src=LB_MAC, dst=SERVER_MACS[server]) / outer / GRE(proto=proto) / inner.payload


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


LIFE = [
    Case("SYN opens", tcp()),
    Case("ACK follows", tcp("A"), same_server_as="SYN opens"),
    Case("another client goes elsewhere", tcp(port=4001)),
    Case("data", tcp("PA", payload=b"GET /"), same_server_as="SYN opens"),
    Case("SYN again is the same flow", tcp(), same_server_as="SYN opens"),
    Case("half close", tcp("FA"), same_server_as="SYN opens"),
    Case("ACK after half close", tcp("A"), same_server_as="SYN opens"),
    Case("RST closes", tcp("R", port=4001), same_server_as="another client goes elsewhere"),
    Case("SYN on closing is a new flow", tcp(port=4001)),
    Case("IPv6 SYN", tcp(v6=True)),
    Case("IPv6 data", tcp("PA", v6=True, payload=b"x" * 99), same_server_as="IPv6 SYN"),
    Case("unknown ACK is served by consistent hashing", tcp("A", port=4100)),
    Case(
        "and stays there", tcp("PA", port=4100), same_server_as="unknown ACK is served by consistent hashing"
    ),
    Case("UDP", udp()),
    Case("UDP again", udp(payload=b"more"), same_server_as="UDP"),
    Case("UDP over IPv6", udp(v6=True)),
    Case("ICMP error follows its flow", icmp_error(4000), same_server_as="SYN opens"),
    Case("ICMPv6 error follows its flow", icmp_error(4000, True), same_server_as="IPv6 SYN"),
    Case("SYN after silence is a new flow", tcp(), at=400.0),
]

ODD = [
    Case("IPv4 options", eth() / IP(src=CLIENT4, dst=VIP4, options=[b"\x01" * 8]) / TCP(sport=4, dport=80)),
    Case("padding of the link", raw(tcp("S", 41) / Raw(b"")), expected=l2_dsr),
    Case(
        "hop-by-hop and destination options",
        eth()
        / IPv6(src=CLIENT6, dst=VIP6)
        / IPv6ExtHdrHopByHop()
        / IPv6ExtHdrDestOpt()
        / TCP(sport=5, dport=80),
    ),
    Case(
        "a fragment header around a whole packet",
        eth() / IPv6(src=CLIENT6, dst=VIP6) / IPv6ExtHdrFragment() / TCP(sport=6, dport=80),
    ),
    Case("a wrong TCP checksum is the server's to refuse", raw(tcp(port=7), b50=0xAA)),
    Case("IPv4 first fragment", eth() / IP(src=CLIENT4, dst=VIP4, flags="MF") / TCP(dport=80), "fragment"),
    Case("IPv4 later fragment", eth() / IP(src=CLIENT4, dst=VIP4, frag=100) / Raw(b"x" * 40), "fragment"),
    Case(
        "IPv6 fragment",
        eth() / IPv6(src=CLIENT6, dst=VIP6) / IPv6ExtHdrFragment(m=1) / TCP(dport=80),
        "fragment",
    ),
    Case("wrong header checksum", raw(tcp(), b24=0xAA), "bad_checksum"),
    Case("wrong version", raw(tcp(), b14=0x55), "bad_header"),
    Case("header too short", raw(tcp(), b14=0x44), "bad_header"),
    Case("cut in the Ethernet header", cut(tcp(), 13), "truncated"),
    Case("cut in the IP header", cut(tcp(), 30), "truncated"),
    Case("cut in the TCP header", cut(tcp(), 53), "truncated"),
    Case("cut in the IPv6 header", cut(tcp(v6=True), 50), "truncated"),
    Case("SYN and FIN", tcp("SF"), "bad_flags"),
    Case("SYN and RST", tcp("SR"), "bad_flags"),
    Case("no flags", tcp(""), "bad_flags"),
    Case(
        "UDP longer than its packet", eth() / IP(src=CLIENT4, dst=VIP4) / UDP(dport=53, len=99), "truncated"
    ),
    Case("another port", tcp(dport=81), "no_service"),
    Case("another protocol", eth() / IP(src=CLIENT4, dst=VIP4, proto=132) / Raw(b"x" * 20), "no_service"),
    Case("another address", eth() / IP(src=CLIENT4, dst="10.0.1.2") / TCP(dport=80), "pass"),
    Case("another station's frame", Ether(src=CLIENT_MAC, dst="02:00:00:00:00:77") / tcp().payload, "pass"),
    Case("a VLAN tag", eth() / Dot1Q(vlan=3) / tcp().payload, "pass"),
    Case("from a group", eth() / IP(src="224.0.0.5", dst=VIP4) / TCP(dport=80), "bad_header"),
    Case(
        "from an IPv4 address in IPv6",
        eth() / IPv6(src="::ffff:192.0.2.7", dst=VIP6) / TCP(dport=80),
        "bad_header",
    ),
    Case(
        "ICMP error of a foreign flow",
        eth()
        / IP(src="198.51.100.1", dst=VIP4)
        / ICMP(type=3, code=4)
        / Raw(bytes(IP(src="10.9.9.9", dst=CLIENT4) / TCP())[:28]),
        "no_service",
    ),
    Case(
        "ICMP error cut short",
        eth() / IP(src="198.51.100.1", dst=VIP4) / ICMP(type=3) / Raw(b"\x45"),
        "no_service",
    ),
    Case(
        "echo",
        eth() / IP(src=CLIENT4, dst=VIP4, id=5) / ICMP(type=8, id=3, seq=4) / Raw(b"abcdefgh"),
        "reply",
        back(IP(src=VIP4, dst=CLIENT4, id=5, ttl=64), ICMP(type=0, id=3, seq=4), Raw(b"abcdefgh")),
    ),
    Case(
        "IPv6 echo",
        eth() / IPv6(src=CLIENT6, dst=VIP6) / ICMPv6EchoRequest(id=3, seq=4, data=b"abc"),
        "reply",
        back(IPv6(src=VIP6, dst=CLIENT6, hlim=64), ICMPv6EchoReply(id=3, seq=4, data=b"abc")),
    ),
    Case(
        "ARP for the VIP",
        Ether(src=CLIENT_MAC, dst="ff:ff:ff:ff:ff:ff")
        / ARP(op=1, hwsrc=CLIENT_MAC, psrc="10.0.0.2", pdst=VIP4),
        "reply",
        back(ARP(op=2, hwsrc=LB_MAC, psrc=VIP4, hwdst=CLIENT_MAC, pdst="10.0.0.2")),
    ),
    Case(
        "ARP for another",
        Ether(src=CLIENT_MAC, dst="ff:ff:ff:ff:ff:ff")
        / ARP(op=1, hwsrc=CLIENT_MAC, psrc="10.0.0.2", pdst="10.0.0.3"),
        "pass",
    ),
    Case(
        "neighbour solicitation for the VIP",
        Ether(src=CLIENT_MAC, dst="33:33:ff:00:00:01")
        / IPv6(src="fd00::2", dst="ff02::1:ff00:1", hlim=255)
        / ICMPv6ND_NS(tgt=VIP6)
        / ICMPv6NDOptSrcLLAddr(lladdr=CLIENT_MAC),
        "reply",
        back(
            IPv6(src=VIP6, dst="fd00::2", hlim=255),
            ICMPv6ND_NA(tgt=VIP6, R=0, S=1, O=1),
            ICMPv6NDOptDstLLAddr(lladdr=LB_MAC),
        ),
    ),
]


def too_big_cases(overhead: int) -> list[Case]:
    """What a tunnel has no room for: the sender is told how much there is."""
    most = MTU - overhead
    fits, v6 = tcp("A", payload=b"x" * (most - 40)), tcp("A", v6=True, payload=b"x" * (most - 59))
    large = tcp("A", payload=b"x" * (most - 39))
    quoted4, quoted6 = bytes(large[IP])[: 576 - 28], bytes(v6[IPv6])[: 1280 - 48]
    small = eth() / IP(src=CLIENT4, dst=VIP4) / TCP(sport=9, dport=80, flags="A") / Raw(b"x" * (most - 39))
    return [
        Case("just fits", fits),
        Case(
            "a byte too many",
            large,
            "reply",
            back(
                IP(src=VIP4, dst=CLIENT4, id=0, flags="DF", ttl=64),
                ICMP(type=3, code=4, nexthopmtu=most),
                Raw(quoted4),
            ),
        ),
        Case(
            "a byte too many over IPv6",
            v6,
            "reply",
            back(IPv6(src=VIP6, dst=CLIENT6, hlim=64), ICMPv6PacketTooBig(mtu=most), Raw(quoted6)),
        ),
        Case("too many, and may be fragmented", small, "too_big"),
    ]
