"""A million flows through `steelyard-lb`, from one pcap file to another, and a check of every frame.

Each flow is a SYN, an ACK, data and a FIN or RST of one client's port to one of two virtual addresses; flows
overlap in time. No frame may be missing, changed beyond its link addresses, or go to another server than its
flow's first.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.deploy.lb_commands import find_binary

SERVERS = 16
VIPS = ("10.77.1.1", "10.77.1.2")
LB_MAC = bytes.fromhex("020000000001")
FLOWS_PER_S = 20_000
MEAN_LIFE_S = 0.5
FRAME, RECORD = 54, 70
START_S = 1_700_000_000
FLAGS = (0x02, 0x10, 0x18, 0x11)
RST_SHARE = 0.1

Bytes = NDArray[np.uint8]


def config_text(tape: str = "") -> str:
    """Two VIPs of the same servers; a server's link address holds its number."""
    text = '[link]\nmac = "02:00:00:00:00:01"\naddress = "10.77.0.3"\n'
    for vip in VIPS:
        text += f'[[vip]]\nname = "{vip}"\naddress = "{vip}"\nport = 80\nrule = "lsq"\nconnections = 262144\n'
        text += tape if vip == VIPS[0] else ""
        text += "[vip.timeouts]\nclosing_s = 2\n"
        for server in range(SERVERS):
            mac = f"02:00:00:00:01:{server:02x}"
            text += f'[[vip.server]]\naddress = "10.77.0.{server + 16}"\nmac = "{mac}"\n'
    return text


def write_pcap(path: Path, flows: int, seed: int = 1) -> tuple[Bytes, NDArray[np.int64]]:
    """The frames in their order, (4 flows, 54), and the flow of each."""
    rng = np.random.default_rng(seed)
    born = np.sort(rng.uniform(0, flows / FLOWS_PER_S, flows))
    life = 0.01 + rng.exponential(MEAN_LIFE_S, flows)
    times = (born[:, None] + np.array([0.0, 0.002, 0.004, 0.0])).astype(np.float64)
    times[:, 3] = born + life
    frames = np.zeros((flows, 4, FRAME), np.uint8)
    frames[..., 0:6] = np.frombuffer(LB_MAC, np.uint8)
    frames[..., 6:14] = np.frombuffer(bytes.fromhex("0200000000020800"), np.uint8)
    frames[..., 14:26] = np.frombuffer(bytes.fromhex("450000280000400040060000"), np.uint8)
    client = np.arange(flows, dtype=np.uint32) // 50_000  # as many ports of an address, each once
    port = (1024 + np.arange(flows) % 50_000).astype(np.uint32)
    source = (0xC6120000 + client * 7).astype(">u4").view(np.uint8).reshape(flows, 1, 4)
    frames[..., 26:30] = source
    frames[..., 30:34] = np.array([[10, 77, 1, 1]], np.uint8)
    frames[..., 33] = 1 + rng.integers(0, len(VIPS), flows)[:, None]
    frames[..., 34:36] = port.astype(">u2").view(np.uint8).reshape(flows, 1, 2)
    frames[..., 37] = 80
    frames[..., 46] = 0x50
    frames[..., 47] = np.array(FLAGS, np.uint8)
    frames[:, 3, 47] = np.where(rng.random(flows) < RST_SHARE, 0x04, FLAGS[3])
    _write_header_checksums(frames)
    order = np.argsort(times, axis=None, kind="stable")
    _write(path, frames.reshape(-1, FRAME)[order], times.reshape(-1)[order])
    return frames.reshape(-1, FRAME)[order], order // 4


def _write_header_checksums(frames: Bytes) -> None:
    words = frames[..., 14:34].astype(np.uint32)
    total = (words[..., 0::2] * 256 + words[..., 1::2]).sum(-1)
    for _ in range(2):
        total = (total & 0xFFFF) + (total >> 16)
    frames[..., 24] = (~total >> 8) & 0xFF
    frames[..., 25] = ~total & 0xFF


def _write(path: Path, frames: Bytes, times: NDArray[np.float64]) -> None:
    records = np.zeros((len(frames), RECORD), np.uint8)
    nanos = (times * 1e9).astype(np.int64)
    head = np.stack([START_S + nanos // 10**9, nanos % 10**9, *np.full((2, len(frames)), FRAME)], 1)
    records[:, :16] = head.astype("<u4").view(np.uint8)
    records[:, 16:] = frames
    with path.open("wb") as file:
        file.write(np.array([0xA1B23C4D, 4 << 16 | 2, 0, 0, 65535, 1], "<u4").tobytes())
        records.tofile(file)


def read_pcap(path: Path) -> Bytes:
    """Frames of one size, (n, 54)."""
    records = np.fromfile(path, np.uint8)[24:].reshape(-1, RECORD)
    return records[:, 16:]


def misrouted(sent: Bytes, flow: NDArray[np.int64], came: Bytes) -> dict[str, Any]:
    """Counts of what must not be: frames missing, changed, at a wrong server; and how flows are spread."""
    if len(sent) != len(came):
        return {"missing": len(sent) - len(came), "changed": 0, "misrouted": 0}
    to_server = (came[:, 0:5] == np.frombuffer(bytes.fromhex("0200000001"), np.uint8)).all(1)
    known = to_server & (came[:, 5] < SERVERS) & (came[:, 6:12] == np.frombuffer(LB_MAC, np.uint8)).all(1)
    first = np.zeros(int(flow.max()) + 1, np.uint8)
    is_first = sent[:, 47] == FLAGS[0]
    first[flow[is_first]] = came[is_first, 5]
    counts = np.bincount(first, minlength=SERVERS)
    return {
        "missing": 0,
        "changed": int((sent[:, 12:] != came[:, 12:]).any(1).sum()),
        "misrouted": int((~known | (came[:, 5] != first[flow])).sum()),
        "fewest_flows": int(counts.min()),
        "most_flows": int(counts.max()),
    }


def million_flows(folder: Path, flows: int = 1_000_000) -> dict[str, Any]:
    """Send the flows through the balancer and check every frame."""
    folder.mkdir(parents=True, exist_ok=True)
    sent, flow = write_pcap(folder / "in.pcap", flows)
    (folder / "lb.toml").write_text(config_text())
    began = time.monotonic()
    command: list[str | Path] = [find_binary(), "--config", folder / "lb.toml"]
    command += ["--pcap-in", folder / "in.pcap"]
    subprocess.run([*command, "--pcap-out", folder / "out.pcap"], check=True)
    seconds = time.monotonic() - began
    found = misrouted(sent, flow, read_pcap(folder / "out.pcap"))
    for name in ("in.pcap", "out.pcap"):
        (folder / name).unlink()
    return {"flows": flows, "frames": len(sent), "seconds": round(seconds, 2)} | found
