"""What the plugin costs per packet, beside VPP's own load balancer in the same run; needs VPP (docs/vpp.md).

Both put the same packets into GRE over IPv4; the packet generator sends them, `show runtime` counts clocks.
Rounds take turns, so that a noisy machine disturbs both; of each the least is told, and all are kept. Both
have room for 262144 connections: 65536 lines of four there, 32768 buckets of eight here.
"""

from __future__ import annotations

import json
import re
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

from steelyard.benchmarks.vpp_threads import beside_each_other, pin_workers
from steelyard.deploy.vpp_process import Vpp, why_not

SERVERS = 64
FEW, FLOWS = 1024, 8192
ROUNDS = 15
PACKETS = 60_000
ENDLESS = 1 << 60
RATES, RATE_S = 9, 0.5
LB_MAC, PEER_MAC = "020000000001", "020000000002"
OURS, STOCK = "10.0.1.1", "10.0.2.1"
BALANCERS = {"steelyard": (OURS, "steelyard4"), "stock": (STOCK, "lb4-gre4-port")}


def segment(client: int, port: int, vip: str, flags: int) -> bytes:
    """A TCP segment without payload, in Ethernet."""
    address = bytes(map(int, vip.split(".")))
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40, 0, 0x4000, 64, 6, 0, struct.pack(">I", client), address)
    total = sum(struct.unpack(">10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack(">H", ~(total + (total >> 16)) & 0xFFFF) + ip[12:]
    tcp = struct.pack(">HHIIBBHHH", port, 80, 1, 1, 0x50, flags, 8192, 0, 0)
    return bytes.fromhex(LB_MAC + PEER_MAC) + b"\x08\x00" + ip + tcp + bytes(6)


def write_pcap(path: Path, frames: list[bytes]) -> None:
    """Frames in the classic format of libpcap."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for frame in frames:
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)


def prepare(vpp: Vpp) -> None:
    """An interface, 64 servers behind each balancer."""
    servers = [f"10.0.3.{index + 1}" for index in range(SERVERS)]
    vpp.cli(
        "create packet-generator interface pg0",
        f"set interface mac address pg0 {':'.join(re.findall('..', LB_MAC))}",
        "set interface state pg0 up",
        "set interface ip address pg0 10.0.0.9/24",
        f"set ip neighbor pg0 10.0.0.2 {':'.join(re.findall('..', PEER_MAC))}",
        "ip route add 10.0.3.0/24 via 10.0.0.2 pg0",
        "steelyard interface pg0",
        "steelyard source 10.0.0.9",
        f"steelyard vip add ours address {OURS} port 80 rule sed connections 262144",
        *(f"steelyard server add ours {server}" for server in servers),
        "lb conf ip4-src-address 10.0.0.9 buckets 65536",
        f"lb vip {STOCK}/32 protocol tcp port 80 encap gre4 new_len 4096",
        f"lb as {STOCK}/32 protocol tcp port 80 {' '.join(servers)}",
    )
    time.sleep(0.5)


def clocks(vpp: Vpp, frames: list[bytes], packets: int, node: str) -> float:
    """Clocks per packet that a node took to forward as many packets."""
    path = vpp.run / "speed.pcap"
    write_pcap(path, frames)
    vpp.cli(
        f"packet-generator new pcap {path} source pg0 name speed limit {packets}",
        "clear runtime",
        "packet-generator enable-stream speed",
    )
    while not re.search(r"speed\s+No", vpp.cli("show packet-generator")):
        time.sleep(0.05)
    time.sleep(0.05)
    vpp.cli("packet-generator delete speed")
    found = re.search(rf"^{node}\s+\S+\s+\d+\s+(\d+)\s+\d+\s+(\S+)\s", vpp.cli("show runtime"), re.MULTILINE)
    assert found is not None, f"{node} saw no packet"
    assert int(found[1]) >= packets, f"{node} saw {found[1]} of {packets} packets"
    return float(found[2])


def measure(vpp: Vpp) -> dict[str, list[float]]:
    """Rounds of new flows and of packets of established ones, both balancers in turn. Clocks per packet.

    Established packets are of the first FEW flows of a round, of all of a round, and of all of all rounds.
    """
    times: dict[str, list[float]] = {}

    def note(what: str, frames: list[bytes], packets: int, node: str) -> None:
        times.setdefault(what, []).append(clocks(vpp, frames, packets, node))

    def data(vip: str, turns: range, flows: int = FLOWS) -> list[bytes]:
        return [segment(0xC0000200 + turn, 1024 + port, vip, 0x10) for turn in turns for port in range(flows)]

    for turn in range(ROUNDS):
        for name, (vip, node) in BALANCERS.items():
            opening = [segment(0xC0000200 + turn, 1024 + port, vip, 0x02) for port in range(FLOWS)]
            note(f"{name}_new", opening, FLOWS, node)
            clocks(vpp, data(vip, range(turn, turn + 1)), FLOWS, node)  # the first ACKs
            for flows in (FEW, FLOWS):
                note(f"{name}_{flows}", data(vip, range(turn, turn + 1), flows), PACKETS, node)
    everything = {name: data(vip, range(ROUNDS)) for name, (vip, _) in BALANCERS.items()}
    for turn in range(1 + ROUNDS):
        for name, (_, node) in BALANCERS.items():
            what = f"{name}_{ROUNDS * FLOWS}" if turn > 0 else "warm"  # the stock one forgets after 40 s
            note(what, everything[name], ROUNDS * FLOWS, node)
    del times["warm"]
    return times


def throughput(vpp: Vpp, workers: int, vip: str) -> float:
    """Packets of established flows per second that all workers send out together, each its own flows."""
    for worker in range(workers):
        for flags, limit in ((0x02, FEW), (0x10, ENDLESS)):
            name = f"w{worker}f{flags}"
            path = vpp.run / f"{name}.pcap"
            flows = range(1024, 1024 + FEW)
            write_pcap(path, [segment(0xC0000100 + worker, port, vip, flags) for port in flows])
            vpp.cli(f"packet-generator new pcap {path} source pg0 name {name} limit {limit} worker {worker}")
            if flags == 0x02:
                vpp.cli(f"packet-generator enable-stream {name}")
    while re.search(r"\sYes\s", vpp.cli("show packet-generator")):
        time.sleep(0.01)
    vpp.cli(*(f"packet-generator enable-stream w{worker}f16" for worker in range(workers)))
    time.sleep(0.2)
    vpp.cli("clear runtime")
    time.sleep(RATE_S)
    rates = re.findall(r"vector rates in \S+, out (\S+), drop (\S+),", vpp.cli("show runtime"))
    vpp.cli(*(f"packet-generator disable-stream w{worker}f16" for worker in range(workers)))
    vpp.cli(*(f"packet-generator delete w{worker}f{flags}" for worker in range(workers) for flags in (2, 16)))
    assert not any(float(dropped) for _, dropped in rates), f"packets were dropped: {rates}"
    return sum(float(sent) for sent, _ in rates)


def by_workers(folder: Path) -> dict[str, list[float]]:
    """Packets per second with one and with two workers of two, rounds of both balancers in turn."""
    rates: dict[str, list[float]] = {}
    with Vpp(folder, 2, beside_each_other(folder, 2)) as vpp:
        pin_workers(vpp.process.pid)
        prepare(vpp)
        for _ in range(RATES):
            for name, (vip, _) in BALANCERS.items():
                for workers in (1, 2):
                    rates.setdefault(f"{name}_{workers}", []).append(throughput(vpp, workers, vip))
    return rates


def main() -> None:
    """Print the tables; `python -m steelyard.benchmarks.vpp_speed [FILE]` also writes all rounds."""
    if why_not():
        sys.exit(why_not())
    with tempfile.TemporaryDirectory() as folder:
        with Vpp(Path(folder)) as vpp:
            prepare(vpp)
            times = measure(vpp)
            cpu = vpp.cli("show cpu")
        (place := Path(folder) / "workers").mkdir()
        rates = by_workers(place)
    ghz = float(found[1]) if (found := re.search(r"Base frequency: +([\d.]+)", cpu)) else 0.0
    least = {name: min(rounds) for name, rounds in times.items()}
    for kind in ("new", FEW, FLOWS, ROUNDS * FLOWS):
        ours, stock = least[f"steelyard_{kind}"], least[f"stock_{kind}"]
        print(f"{kind!s:8} steelyard {ours:8.1f} clocks, stock lb {stock:8.1f}, ratio {ours / stock:.2f}")
    for name in BALANCERS:
        one, two = (statistics.median(rates[f"{name}_{workers}"]) for workers in (1, 2))
        rate = f"one worker {one / 1e6:6.2f} million packets/s, two {two / 1e6:6.2f}"
        print(f"{name:9} {rate}: {two / one:.2f} times")
    if len(sys.argv) > 1:
        result = {"servers": SERVERS, "ghz": ghz, "least": least, "rounds": times, "packets_per_s": rates}
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
