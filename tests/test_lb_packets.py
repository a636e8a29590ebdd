"""steelyard-lb between two pcap files: cases, two balancers, bad configuration. Needs `make dataplane`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import lb_frames as frames
import pytest
from lb_cases import TABLES
from lb_frames import Case, Table, server_of
from scapy.packet import Raw
from scapy.utils import rdpcap, wrpcap

from steelyard.deploy.lb_commands import find_binary

START = 1_700_000_000


def config_text(
    forwarding: str, drained: int | None = None, removed: int | None = None, rule: str = "lsq"
) -> str:
    """Two servers behind each address, TCP and UDP."""
    text = f'[link]\nmac = "{frames.LB_MAC}"\naddress = "{frames.LB4}"\naddress6 = "{frames.LB6}"\n'
    for protocol, port in (("tcp", 80), ("udp", 53)):
        for vip in (frames.VIP4, frames.VIP6):
            servers = frames.Table(forwarding, []).servers(vip)
            text += f'[[vip]]\nname = "{protocol} {vip}"\naddress = "{vip}"\n'
            text += f'port = {port}\nprotocol = "{protocol}"\n'
            text += f'forwarding = "{forwarding.rstrip("46")}"\n'
            text += f'dscp = {frames.DSCP}\nanswer_arp = true\nrule = "{rule}"\n'
            for index, server in enumerate(servers):
                if index == removed:
                    continue
                text += f'[[vip.server]]\naddress = "{server}"\nmac = "{frames.SERVER_MACS[index]}"\n'
                text += f"drain = {str(index == drained).lower()}\n"
    return text


def play(folder: Path, config: str, packets: list[Case]) -> tuple[list[str], list[bytes]]:
    """Send the packets through a balancer: its verdicts, and the frames that went out, b"" where none did."""
    (folder / "lb.toml").write_text(config)
    sent_frames = []
    for index, case in enumerate(packets):
        frame = Raw(bytes(case.packet))
        frame.time = START + (case.at if case.at is not None else 0.001 * index)
        sent_frames.append(frame)
    wrpcap(str(folder / "in.pcap"), sent_frames, linktype=1)
    command = [find_binary(), "--config", folder / "lb.toml", "--pcap-in", folder / "in.pcap"]
    command += ["--pcap-out", folder / "out.pcap", "--verdicts", folder / "verdicts"]
    subprocess.run(command, check=True)
    verdicts = (folder / "verdicts").read_text().split()
    sent = iter(
        [bytes(frame) for frame in rdpcap(str(folder / "out.pcap")) if not is_announcement(bytes(frame))]
    )
    out = [next(sent) if verdict in ("forward", "reply") else b"" for verdict in verdicts]
    assert next(sent, None) is None
    return verdicts, out


def is_announcement(frame: bytes) -> bool:
    """Whether the frame tells the link where the virtual addresses are."""
    return frame[:6] in (b"\xff" * 6, bytes.fromhex("333300000001"))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_every_case_of_the_tables(table: Table, tmp_path: Path) -> None:
    table.check(*play(tmp_path, config_text(table.forwarding), table.cases))


def test_lsq_spreads_flows(tmp_path: Path) -> None:
    syns = [Case(str(port), frames.tcp(port=port)) for port in range(1, 101)]
    got = play(tmp_path, config_text("l2-dsr"), syns)[1]
    assert sum(server_of(frame) for frame in got) == 50


def test_drained_and_removed_servers_get_no_new_flow(tmp_path: Path) -> None:
    syns = [Case(str(port), frames.tcp(port=port)) for port in range(1, 51)]
    for change in ({"drained": 1}, {"removed": 1}):
        got = play(tmp_path, config_text("l2-dsr", **change), syns)[1]
        assert {server_of(frame) for frame in got} == {0}


def test_two_balancers_agree_on_what_neither_knows(tmp_path: Path) -> None:
    """A flow that one placed by Maglev is found by another that has seen nothing of it."""
    syns = [Case(str(port), frames.tcp(port=port)) for port in range(1, 201)]
    data = [Case(str(port), frames.tcp("PA", port=port)) for port in range(1, 201)]
    one = play(tmp_path, config_text("l2-dsr", rule="maglev"), syns)[1]
    other = play(tmp_path, config_text("l2-dsr", rule="lsq"), data)[1]
    assert [server_of(frame) for frame in one] == [server_of(frame) for frame in other]


BAD = {
    "unknown key": ('vip = []\n[link]\ninterfaces = "a"\n', "3: link.interfaces is not known"),
    "wrong type": ("vip = []\n[link]\nmtu = true\n", "3: link.mtu: true is not allowed; use a whole number"),
    "out of range": ("vip = []\n[link]\nmtu = 7\n", "3: link.mtu: 7 is not allowed"),
    "no VIP": ('[link]\ninterface = "a"\n', "vip is missing"),
    "syntax": ("[link\n", ":1: "),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_bad_files_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    refused(tmp_path, text, message)


CHANGES = {
    "rule": ('rule = "lsq"', 'rule = "lsqq"', '"lsqq" is not a rule'),
    "hidden rule": ('rule = "lsq"', 'rule = "gsq"', "needs what only servers know"),
    "port": ("port = 80", "port = 0", "vip.port: 0 is not allowed"),
    "address": (frames.SERVERS4[0], "10.0.0", "vip.server.address: '10.0.0' is not allowed"),
    "twice": (frames.SERVERS4[1], frames.SERVERS4[0], "is there twice"),
    "forwarding": ('forwarding = "l2-dsr"', 'forwarding = "nat"', "vip.forwarding"),
    "unknown of server": ("drain = false", "drains = false", "vip.server.drains is not known"),
}


@pytest.mark.parametrize(("old", "new", "message"), CHANGES.values(), ids=CHANGES.keys())
def test_bad_values_are_one_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    refused(tmp_path, config_text("l2-dsr").replace(old, new), message)


def refused(folder: Path, text: str, message: str) -> None:
    """--check ends with status 2 and one line that holds the message."""
    path = folder / "lb.toml"
    path.write_text(text)
    done = subprocess.run(
        [find_binary(), "--config", path, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert str(path) in done.stderr


def test_check_says_sound(tmp_path: Path) -> None:
    (tmp_path / "lb.toml").write_text(config_text("gre4"))
    done = subprocess.run(
        [find_binary(), "--config", tmp_path / "lb.toml", "--check"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "4 VIPs, sound" in done.stdout
