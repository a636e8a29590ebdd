"""The plugin in a running VPP: the table of cases of steelyard-lb, commands, API, stats, tapes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lb_cases as cases
import lb_frames as lb
import pytest
from lb_frames import Case
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet
from vpp_host import needs_vpp, pass_frames, verdict_of

from steelyard.deploy.vpp_process import Vpp

pytestmark = [needs_vpp, pytest.mark.slow]

PG = "pg0"
TARGET_PORT = 8080
NOT_OURS = ("ARP", "neighbour solicitation", "another station", "VLAN", "Ethernet header", "IPv4 options")
"""Of the link, which is VPP's to serve; and options, which ip4-input sends to the punt path."""
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


FORWARDINGS = {"l3-dsr": l3_dsr, "gre": lb.gre4, "nat": nat}


@pytest.fixture(scope="module")
def vpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vpp]:
    with Vpp(tmp_path_factory.mktemp("vpp")) as running:
        running.cli(
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
            running.cli(f"set ip neighbor {PG} {lb.SERVERS4[index]} {mac}")
            running.cli(f"set ip neighbor {PG} {lb.SERVERS6[index]} {mac}")
        yield running


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
    assert expected is not None
    wanted = bytes(expected(case.packet, servers.get(case.description, 0)))
    assert frames[0].hex() == wanted.hex(), f"{case.description}\n{Ether(frames[0])!r}\n{Ether(wanted)!r}"


@pytest.mark.parametrize("forwarding", FORWARDINGS)
def test_life_of_flows(vpp: Vpp, forwarding: str) -> None:
    serve(vpp, forwarding)
    servers: dict[str, int] = {}
    for case in cases.LIFE:
        if "ICMP" not in case.description:
            check(vpp, case, forwarding, servers)


def test_odd_packets(vpp: Vpp) -> None:
    serve(vpp, "gre")
    servers: dict[str, int] = {}
    for case in cases.ODD:
        if not any(word in case.description for word in NOT_OURS):
            check(vpp, case, "gre", servers)


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


def syns(count: int) -> list[bytes]:
    """First segments of as many flows."""
    return [bytes(lb.tcp(port=port)) for port in range(1, count + 1)]


def test_rules_change_and_servers_drain_while_it_runs(vpp: Vpp) -> None:
    serve(vpp, "gre", only4=True)
    pass_frames(vpp, PG, syns(100))
    time.sleep(0.6)
    opened = {str(server.address): server.opened for server in dump_servers(vpp, "tcp4")}
    assert opened == dict.fromkeys(lb.SERVERS4, 50)
    vpp.cli("steelyard vip set tcp4 rule wcmp", f"steelyard server set tcp4 {lb.SERVERS4[1]} drain on")
    new = [bytes(lb.tcp(port=port)) for port in range(1001, 1051)]
    _, out = pass_frames(vpp, PG, new)
    assert {Ether(frame)[IP].dst for frame in out if is_ours(frame)} == {lb.SERVERS4[0]}
    old = [bytes(lb.tcp("A", port=port)) for port in range(1, 101)]
    _, out = pass_frames(vpp, PG, old)
    kept = [Ether(frame)[IP].dst for frame in out if is_ours(frame)]
    assert sorted(kept) == sorted(lb.SERVERS4 * 50)


def dump_servers(vpp: Vpp, vip: str) -> list[object]:
    """The servers of a VIP as the API tells them."""
    return [server for server in vpp.api.api.steelyard_server_dump() if server.vip == vip]


def test_binary_api(vpp: Vpp) -> None:
    serve(vpp, "gre", only4=True)
    api = vpp.api.api
    vip = {
        "name": "api",
        "address": "10.0.7.1",
        "port": 443,
        "protocol": 6,
        "rule": "sed",
        "connections": 1024,
    }
    assert api.steelyard_vip_add(**vip).retval == 0
    again = api.steelyard_vip_add(**vip)
    assert again.retval != 0
    assert again.answer == 'vip: "api" is there already'
    assert api.steelyard_server_set(vip="api", address="10.0.0.11", weight=2.5).retval == 0
    assert api.steelyard_server_set(vip="api", address="10.0.0.12").retval == 0
    assert api.steelyard_server_set(vip="api", address="10.0.0.12", weight=1, drain=True).retval == 0
    assert api.steelyard_rule_set(name="api", rule="gsq").answer.startswith('vip "api": rule: gsq needs')
    assert api.steelyard_rule_set(name="api", rule="hlb").retval == 0
    missing = api.steelyard_policy_load(name="api", policy_file="/nowhere")
    assert missing.retval != 0
    assert missing.answer.startswith("policy: /nowhere: ")
    time.sleep(0.6)
    servers = {str(server.address): (server.drain, server.flows_on) for server in dump_servers(vpp, "api")}
    assert servers == {"10.0.0.11": (False, 0), "10.0.0.12": (True, 0)}
    (found,) = [vip for vip in api.steelyard_vip_dump() if vip.name == "api"]
    assert (str(found.address), found.port, found.rule, found.servers) == ("10.0.7.1", 443, "hlb", 2)
    assert api.steelyard_server_del(vip="api", address="10.0.0.12").retval == 0
    assert api.steelyard_vip_del(name="api").retval == 0
    assert api.steelyard_command(line="vip del api").answer == 'vip: "api" is not there'


def test_fails_safe_and_says_so(vpp: Vpp) -> None:
    serve(vpp, "gre", only4=True)
    vpp.cli("steelyard vip set tcp4 policy agent interval 0.05")
    time.sleep(0.5)
    (found,) = [vip for vip in vpp.api.api.steelyard_vip_dump() if vip.name == "tcp4"]
    assert (found.policy_healthy, found.policy_why) == (False, "no policy_file and no shared_memory")
    assert "falls back to lsq" in vpp.cli("show logging")
    pass_frames(vpp, PG, syns(60))
    time.sleep(0.3)
    assert {server.opened for server in dump_servers(vpp, "tcp4")} == {30}
    assert "not followed (lsq)" in vpp.cli("show steelyard")


def test_stats_segment(vpp: Vpp) -> None:
    serve(vpp, "gre", only4=True)
    pass_frames(vpp, PG, syns(20))
    time.sleep(2.5)
    stats = vpp.stats()
    assert sum(stats[f"tcp4/{server}/flows_on"] for server in lb.SERVERS4) == 20
    assert sum(stats[f"tcp4/{server}/packets"] for server in lb.SERVERS4) == 20
    vpp.cli("steelyard vip del tcp4")
    time.sleep(2.5)
    assert not [name for name in vpp.stats() if name.startswith("tcp4/")]


def test_tape_has_the_digest_of_every_host(vpp: Vpp, tmp_path: Path) -> None:
    """`steelyard replay` makes the same decisions from what VPP has recorded."""
    serve(vpp, "gre", rule="sed", only4=True)
    tape = tmp_path / "vpp.tape"
    vpp.cli(f"steelyard tape tcp4 {tape}")
    for first in range(1, 801, 200):
        pass_frames(vpp, PG, [bytes(lb.tcp(port=port)) for port in range(first, first + 200)])
        pass_frames(vpp, PG, [bytes(lb.tcp("A", port=port)) for port in range(first, first + 200)])
        pass_frames(vpp, PG, [bytes(lb.tcp("FA", port=port)) for port in range(first, first + 200, 3)])
    told = vpp.cli("steelyard tape tcp4 off")
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "steelyard.trainers.cli", "replay", tape, "--json", found, "--quiet"]
    subprocess.run(command, check=True)
    result = json.loads(found.read_text())
    assert result["decisions"] == 800
    assert f"800 decisions, digest {result['digest']}" in told


def test_wrong_lines_change_nothing(vpp: Vpp) -> None:
    serve(vpp, "gre", only4=True)
    before = vpp.cli("show steelyard").split("\n", 1)[0]
    for line in ("vip add", "vip set tcp4 port 7", "server add tcp4 nowhere", "interface nowhere", "colour"):
        reply = vpp.api.api.cli_inband(cmd=f"steelyard {line}")
        assert reply.retval != 0, line
    assert vpp.cli("show steelyard").split("\n", 1)[0] == before
    assert [vip.name for vip in vpp.api.api.steelyard_vip_dump()] == ["tcp4", "udp4"]
