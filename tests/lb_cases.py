"""The tables of cases of a dataplane: packet in, verdict, packet out, as in Katran's tests.

Each case is one frame; the frames of a table go through one balancer in their order, a millisecond apart
unless `at` says when. Expected frames are scapy packets, compared byte by byte. lb_frames.py says which pool.
"""

from __future__ import annotations

from lb_frames import (
    CLIENT4,
    CLIENT6,
    CLIENT_MAC,
    FORWARDINGS,
    LB_MAC,
    MTU,
    VIP4,
    VIP6,
    Case,
    Table,
    back,
    cut,
    eth,
    icmp_error,
    l2_dsr,
    marked,
    raw,
    tcp,
    udp,
    unreachable,
)
from scapy.layers.inet import ICMP, IP, TCP, UDP
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
from scapy.packet import Raw

LIFE = [
    Case("SYN opens", tcp()),
    Case("ACK follows", tcp("A"), same_server_as="SYN opens"),
    Case("another client goes elsewhere", tcp(port=4001)),
    Case("data", tcp("PA", payload=b"GET /"), same_server_as="SYN opens"),
    Case("SYN again is the same flow", tcp(), same_server_as="SYN opens"),
    Case("half close", tcp("FA"), same_server_as="SYN opens"),
    Case("ACK after half close", tcp("A"), same_server_as="SYN opens"),
    Case("FIN of the second direction", tcp("FA"), same_server_as="SYN opens"),
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
    Case("ICMP port unreachable follows its flow", unreachable(4000), same_server_as="SYN opens"),
    Case("RST of an unknown flow", tcp("R", port=4200)),
    Case("FIN of an unknown flow", tcp("FA", port=4201)),
    Case("SYN and ACK of an unknown flow", tcp("SA", port=4202)),
    Case("ECN and DSCP of the client", marked(tcp("A", payload=b"x"), 0x2B), same_server_as="SYN opens"),
    Case("the same over IPv6", marked(tcp("A", v6=True), 0x2B), same_server_as="IPv6 SYN"),
    Case("UDP without a checksum", raw(udp(), b40=0, b41=0), same_server_as="UDP"),
    Case("SYN after silence is a new flow", tcp(), at=400.0),
]

REUSED = [
    Case("A opens", tcp(port=1)),
    Case("B opens on the other server", tcp(port=2)),
    Case("A ends", tcp("FA", port=1), same_server_as="A opens"),
    Case("its ACK still comes", tcp("A", port=1), same_server_as="A opens"),
    Case("C fills the gap", tcp(port=3), same_server_as="A opens"),
    Case("D", tcp(port=4)),
    Case("E", tcp(port=5)),
    Case("B is reset", tcp("R", port=2), same_server_as="B opens on the other server"),
    Case("A's ports again: where there is least", tcp(port=1), same_server_as="B opens on the other server"),
    Case("and it stays", tcp("A", port=1), same_server_as="B opens on the other server"),
    Case("IPv6 counts by itself", tcp(port=1, v6=True)),
    Case("and sticks", tcp("PA", port=1, v6=True), same_server_as="IPv6 counts by itself"),
]
"""A reused 5-tuple is a new flow: stickiness by the 5-tuple alone would send it back to A's first server."""

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


ROOM = {"l2-dsr": 0, "l3-dsr": 0, "gre4": 24, "gre6": 44}
"""Bytes that a forwarding adds."""

TABLES = {
    f"{name}, {how}": Table(how, cases)
    for how in FORWARDINGS
    for name, cases in (
        ("life of flows", LIFE),
        ("reused ports", REUSED),
        ("no room", too_big_cases(ROOM[how])),
    )
} | {"odd packets": Table("l2-dsr", ODD)}
"""All tables by name."""
