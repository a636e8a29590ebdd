"""The tables of cases of steelyard-lb through a running VPP, byte by byte."""

from __future__ import annotations

import time
from collections.abc import Iterator

import lb_cases as cases
import lb_frames as lb
import pytest
from lb_frames import Case
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet
from vpp_host import needs_vpp, pass_frames, verdict_of
from vpp_table import FORWARDINGS, PG, TARGET_PORT, check, hop, is_ours, running, serve, settled

from steelyard.deploy.vpp_process import Vpp

pytestmark = [needs_vpp, pytest.mark.slow]

LEFT_TO_VPP = {
    "IPv4 options": "ip4 options present",
    "another station's frame": "l3 mac mismatch",
    "a VLAN tag": "unknown vlan",
    "ARP for the VIP": "IP4 destination address not local",
    "ARP for another": "arp-reply",
    "neighbour solicitation for the VIP": "neighbor solicitations for unknown",
}
"""Cases that VPP's own nodes end before the plugin, and what its counters say of them."""


@pytest.fixture(scope="module")
def vpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vpp]:
    with running(tmp_path_factory.mktemp("vpp")) as started:
        yield started


@pytest.mark.parametrize("forwarding", FORWARDINGS)
def test_life_of_flows(vpp: Vpp, forwarding: str) -> None:
    serve(vpp, forwarding)
    servers: dict[str, int] = {}
    for case in cases.LIFE:
        if case.at is None:
            check(vpp, case, forwarding, servers)
            continue
        fall_silent(vpp, lb.tcp("A"))
        before = settled(vpp)
        check(vpp, case, forwarding, servers)
        after = settled(vpp)
        assert after["tcp4/reused"] == before["tcp4/reused"], "it was gone, not closing"
        assert opened(after) == opened(before) + 1


def opened(stats: dict[str, float]) -> float:
    """Flows that the IPv4 VIP's servers got."""
    return sum(stats[f"tcp4/{server}/opened"] for server in lb.SERVERS4)


def open_now(stats: dict[str, float]) -> float:
    """Flows that they have."""
    return sum(stats[f"tcp4/{server}/flows_on"] for server in lb.SERVERS4)


def fall_silent(vpp: Vpp, last: Packet) -> None:
    """The last packet of a flow; its time runs out at once."""
    vpp.cli("steelyard vip set tcp4 opening 0.1 established 0.1 closing 0.1")
    pass_frames(vpp, PG, [bytes(last)])
    vpp.cli("steelyard vip set tcp4 opening 10 established 300 closing 10")


def test_silence(vpp: Vpp) -> None:
    """A silent connection is not counted, but keeps its server while nobody opens it anew."""
    serve(vpp, "gre", only4=True)
    servers: dict[str, int] = {}
    check(vpp, Case("opens", lb.tcp()), "gre", servers)
    fall_silent(vpp, lb.tcp("A"))
    deadline = time.monotonic() + 20  # the process that sees to it shares the machine with others
    while open_now(stats := settled(vpp)) != 0:
        assert time.monotonic() < deadline
    assert stats["tcp4/connections"] == 1
    check(vpp, Case("speaks again", lb.tcp("PA"), same_server_as="opens"), "gre", servers)
    fall_silent(vpp, lb.tcp("A"))
    settled(vpp)
    check(vpp, Case("opens anew", lb.tcp()), "gre", servers)
    assert opened(settled(vpp)) == 2


def test_odd_packets(vpp: Vpp) -> None:
    serve(vpp, "gre")
    servers: dict[str, int] = {}
    for case in cases.ODD:
        if case.description in LEFT_TO_VPP:
            check_left(vpp, case)
        elif case.description == "cut in the Ethernet header":
            # VPP reads on in the buffer, where another packet was.
            pass_frames(vpp, PG, [bytes(lb.tcp(port=77))])
            check(vpp, case, "gre", servers)
        else:
            check(vpp, case, "gre", servers)
    assert {case.description for case in cases.ODD} > set(LEFT_TO_VPP)


def check_left(vpp: Vpp, case: Case) -> None:
    """The packet does not come to the plugin, nothing goes out, and VPP counts why."""
    vpp.cli("clear errors")
    trace, out = pass_frames(vpp, PG, [bytes(case.packet)])
    assert "steelyard" not in trace, case.description
    assert not out, case.description
    assert LEFT_TO_VPP[case.description] in vpp.cli("show errors"), case.description


def test_a_vlan_is_a_sub_interface(vpp: Vpp) -> None:
    serve(vpp, "gre", only4=True)
    vpp.cli(f"create sub-interfaces {PG} 3", f"set interface state {PG}.3 up")
    vpp.cli(f"set interface ip address {PG}.3 10.0.9.9/24", f"steelyard interface {PG}.3")
    tagged = lb.eth() / Dot1Q(vlan=3) / lb.tcp().payload
    try:
        trace, out = pass_frames(vpp, PG, [bytes(tagged)])
        assert verdict_of(trace) == "forward"
        (frame,) = filter(is_ours, out)
        server = lb.SERVERS4.index(Ether(frame)[IP].dst)
        assert frame == bytes(lb.gre4(lb.tcp(), server))
    finally:
        vpp.cli(f"delete sub-interface {PG}.3")


def test_vpp_answers_for_vips_by_its_proxies(vpp: Vpp) -> None:
    vpp.cli(f"set arp proxy start {lb.VIP4} end {lb.VIP4}", f"set interface proxy-arp {PG} enable")
    vpp.cli(f"set ip6 nd proxy {PG} {lb.VIP6}")
    try:
        for case in cases.ODD:
            if case.description in ("ARP for the VIP", "neighbour solicitation for the VIP"):
                _, out = pass_frames(vpp, PG, [bytes(case.packet)])
                assert case.expected is not None
                assert bytes(case.expected(case.packet, 0)) in out, case.description
    finally:
        vpp.cli(f"set interface proxy-arp {PG} disable", f"set ip6 nd proxy {PG} del {lb.VIP6}")


def test_what_a_tunnel_has_no_room_for(vpp: Vpp) -> None:
    serve(vpp, "gre")
    for case in cases.too_big_cases(overhead=24):
        check(vpp, case, "gre", {})


def test_tunnels_over_ipv6(vpp: Vpp) -> None:
    serve(vpp, "gre")
    for name in ("tcp4", "tcp6"):
        for server in lb.SERVERS4:
            vpp.cli(f"steelyard server del {name} {server}")
        for server in lb.SERVERS6:
            vpp.cli(f"steelyard server add {name} {server}")
    for v6 in (False, True):
        packet = lb.tcp(v6=v6)
        _, out = pass_frames(vpp, PG, [bytes(packet)])
        frames = [Ether(frame) for frame in out if is_ours(frame)]
        assert len(frames) == 1
        outer = frames[0][IPv6]
        assert (outer.src, outer.nh, outer.hlim) == (lb.LB6, 47, 64)
        assert outer.dst in lb.SERVERS6
        assert bytes(outer.payload)[4:] == bytes(packet)[14:]


def test_answers_through_nat(vpp: Vpp) -> None:
    serve(vpp, "nat")
    pass_frames(vpp, PG, [bytes(lb.tcp())])
    answer = IP(src=lb.SERVERS4[0], dst=lb.CLIENT4) / TCP(sport=TARGET_PORT, dport=4000, flags="SA")
    frame = Ether(src=lb.SERVER_MACS[0], dst=lb.LB_MAC) / answer
    _, out = pass_frames(vpp, PG, [bytes(frame)])
    wanted = Ether(src=lb.LB_MAC, dst=lb.CLIENT_MAC) / IP(bytes(answer))
    wanted[IP].src, wanted[TCP].sport = lb.VIP4, 80
    del wanted[TCP].chksum
    assert [bytes(hop(wanted)).hex()] == [found.hex() for found in out if is_ours(found)]
