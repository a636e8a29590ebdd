"""A VPP with an interface of the packet generator, and the tables of cases on it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lb_frames as lb
from lb_frames import Case
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, in6_chksum
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw
from scapy.utils import checksum
from vpp_host import pass_frames, verdict_of

from steelyard.benchmarks.vpp_threads import beside_each_other
from steelyard.deploy.vpp_process import Vpp

PG = "pg0"
TARGET_PORT = 8080
VPPS_OWN = {"bad_checksum", "bad_header", "truncated", "pass"}
"""Verdicts on packets of which VPP's own nodes may have thought the same before."""


def hop(packet: Packet) -> Packet:
    """A router has taken one from the hop limit; checksums anew."""
    out = Ether(bytes(packet))
    if IPv6 in out:
        out[IPv6].hlim -= 1
    else:
        out[IP].ttl -= 1
        del out[IP].chksum
    return Ether(bytes(out))


def l3_dsr(packet: Packet, server: int) -> Packet:
    return hop(lb.l3_dsr(packet, server))


def nat(packet: Packet, server: int) -> Packet:
    """The server's address and port."""
    out = Ether(bytes(packet))
    out.src, out.dst = lb.LB_MAC, lb.SERVER_MACS[server]
    if IPv6 in out:
        out[IPv6].dst = lb.SERVERS6[server]
    else:
        out[IP].dst = lb.SERVERS4[server]
    for layer in (TCP, UDP):
        if layer in out:
            out[layer].dport = TARGET_PORT
            if out[layer].chksum != 0:  # a UDP packet without one stays so
                del out[layer].chksum
    return hop(out)


def nat_error(packet: Packet, server: int) -> Packet:
    """An ICMP error for the server, about a packet that the server has sent."""
    v6 = IPv6 in Ether(bytes(packet))
    size = 40 if v6 else 20
    out = bytearray(bytes(packet))
    out[0:12] = bytes.fromhex((lb.SERVER_MACS[server] + lb.LB_MAC).replace(":", ""))
    address = socket.inet_pton(*((socket.AF_INET6, lb.SERVERS6[server]) if v6 else (2, lb.SERVERS4[server])))
    error, inner = 14 + size, 14 + size + 8
    out[error - len(address) : error] = address  # to the server
    source = inner + (8 if v6 else 12)
    out[source : source + len(address)] = address
    out[inner + size : inner + size + 2] = TARGET_PORT.to_bytes(2, "big")
    if not v6:
        out[inner + 10 : inner + 12] = bytes(2)
        out[inner + 10 : inner + 12] = checksum(bytes(out[inner : inner + 20])).to_bytes(2, "big")
    out[error + 2 : error + 4] = bytes(2)
    covered = bytes(out[error:])
    found = in6_chksum(58, IPv6(bytes(out[14:error])), covered) if v6 else checksum(covered)
    out[error + 2 : error + 4] = found.to_bytes(2, "big")
    out[14 + (7 if v6 else 8)] -= 1
    if not v6:
        out[24:26] = bytes(2)
        out[24:26] = checksum(bytes(out[14:34])).to_bytes(2, "big")
    return Raw(bytes(out))


FORWARDINGS = {"l3-dsr": l3_dsr, "gre": lb.gre4, "nat": nat}


@contextmanager
def running(folder: Path, workers: int = 0) -> Iterator[Vpp]:
    """VPP with the addresses and neighbours of the tables."""
    with Vpp(folder, workers, beside_each_other(folder, workers), sleep_us=200 if workers else 0) as vpp:
        vpp.cli(
            f"create packet-generator interface {PG}",
            f"set interface mac address {PG} {lb.LB_MAC}",
            f"set interface state {PG} up",
            f"set interface ip address {PG} {lb.LB4}/24",
            f"set interface ip address {PG} {lb.LB6}/64",
            f"set ip neighbor {PG} 10.0.0.2 {lb.CLIENT_MAC}",
            f"set ip neighbor {PG} fd00::2 {lb.CLIENT_MAC}",
            f"ip route add 192.0.2.0/24 via 10.0.0.2 {PG}",
            f"ip route add 198.51.100.0/24 via 10.0.0.2 {PG}",
            f"ip route add 2001:db8::/32 via fd00::2 {PG}",
            f"steelyard interface {PG}",
            f"steelyard source {lb.LB4}",
            f"steelyard source {lb.LB6}",
        )
        for index, mac in enumerate(lb.SERVER_MACS):
            vpp.cli(f"set ip neighbor {PG} {lb.SERVERS4[index]} {mac}")
            vpp.cli(f"set ip neighbor {PG} {lb.SERVERS6[index]} {mac}")
        yield vpp


def serve(vpp: Vpp, forwarding: str, rule: str = "lsq", only4: bool = False) -> None:
    """Two servers behind each address, TCP and UDP; whatever was there before is gone."""
    for vip in vpp.api.api.steelyard_vip_dump():
        vpp.cli(f"steelyard vip del {vip.name}")
    for protocol, port in (("tcp", 80), ("udp", 53)):
        for family, address in (("4", lb.VIP4), ("6", lb.VIP6)):
            if only4 and family == "6":
                continue
            name = f"{protocol}{family}"
            target = f" target-port {TARGET_PORT}" if forwarding == "nat" else ""
            vpp.cli(
                f"steelyard vip add {name} address {address} port {port} protocol {protocol}"
                f" forwarding {forwarding} dscp {lb.DSCP} rule {rule}{target}"
            )
            servers = lb.SERVERS6 if family == "6" and forwarding != "gre" else lb.SERVERS4
            for server in servers:
                vpp.cli(f"steelyard server add {name} {server}")


def is_ours(frame: bytes) -> bool:
    """Whether VPP sends the frame on somebody's behalf, not of its own (ARP, ND, MLD)."""
    packet = Ether(frame)
    own = IPv6 in packet and (packet[IPv6].dst.startswith("ff") or packet[IPv6].hlim == 255)
    return ARP not in packet and not own


def check(vpp: Vpp, case: Case, forwarding: str, servers: dict[str, int]) -> None:
    """Send one case and compare verdict, frame and server."""
    trace, out = pass_frames(vpp, PG, [bytes(case.packet)])
    frames = [frame for frame in out if is_ours(frame)]
    verdict = verdict_of(trace)
    told = verdict == case.verdict or (verdict in ("", *VPPS_OWN) and case.verdict in VPPS_OWN)
    assert told, f"{case.description}: {verdict}\n{trace}"
    if case.verdict not in ("forward", "reply"):
        assert not frames, case.description
        return
    assert len(frames) == 1, f"{case.description}: {len(frames)} frames\n{trace}"
    if case.verdict == "forward":
        mac = ":".join(f"{byte:02x}" for byte in frames[0][:6])
        servers[case.description] = server = lb.SERVER_MACS.index(mac)
        if case.same_server_as is not None:
            assert server == servers[case.same_server_as], case.description
    expected = case.expected if case.verdict == "reply" else FORWARDINGS[forwarding]
    if expected is nat and "ICMP" in case.description:
        expected = nat_error
    assert expected is not None
    wanted = bytes(expected(case.packet, servers.get(case.description, 0)))
    assert frames[0].hex() == wanted.hex(), f"{case.description}\n{Ether(frames[0])!r}\n{Ether(wanted)!r}"


def settled(vpp: Vpp) -> dict[str, float]:
    """The numbers of the stats segment when nothing has happened for a while."""
    time.sleep(2.0)
    return vpp.stats()
