"""Frames that no client should send, put on a link as fast as asked: a SYN flood, malformed packets.

    python -m steelyard.benchmarks.lb_noise flood INTERFACE MAC ADDRESS PORT RATE SECONDS
    python -m steelyard.benchmarks.lb_noise malformed INTERFACE MAC ADDRESS PORT FRAMES CORPUS

`flood` sends SYNs from made-up clients; `malformed` sends frames of the fuzzer's corpus to MAC, damaged at
random places, half of them with ADDRESS and PORT as their destination.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import numpy as np

IPV4 = 0x0800
PAUSE_FRAMES = 64


def checksum(words: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    total = sum(np.frombuffer(words, ">u2").tolist())
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def link_header(mac: str) -> bytes:
    """To `mac`, from a station that is not there."""
    return bytes.fromhex(mac.replace(":", "")) + bytes.fromhex("02000000dead") + IPV4.to_bytes(2, "big")


def syn(mac: str, client: bytes, client_port: int, address: str, port: int) -> bytes:
    """A SYN over IPv4 with right checksums."""
    target = socket.inet_aton(address)
    ip = bytearray(bytes.fromhex("450000280000400040060000") + client + target)
    ip[10:12] = checksum(bytes(ip)).to_bytes(2, "big")
    tcp = bytearray(client_port.to_bytes(2, "big") + port.to_bytes(2, "big") + bytes(8))
    tcp += bytes.fromhex("5002ffff00000000")
    tcp[16:18] = checksum(client + target + bytes([0, 6, 0, 20]) + bytes(tcp)).to_bytes(2, "big")
    return link_header(mac) + bytes(ip) + bytes(tcp)


def flood(link: socket.socket, mac: str, address: str, port: int, rate: float, seconds: float) -> int:
    """Send SYNs at a steady rate; how many."""
    rng = np.random.default_rng(3)
    began, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < seconds:
        for _ in range(int(elapsed * rate) - sent):
            client = bytes([198, 18 + int(rng.integers(2)), *rng.integers(1, 255, 2).tolist()])
            link.send(syn(mac, client, int(rng.integers(1024, 65536)), address, port))
            sent += 1
        time.sleep(0.002)
    return sent


def damaged(rng: np.random.Generator, frame: bytes, mac: str, address: str, port: int) -> bytes:
    """The frame with a few bytes changed, cut or lengthened, still for the balancer's link address."""
    out = bytearray(frame)
    out[0:6] = bytes.fromhex(mac.replace(":", ""))
    if rng.random() < 0.5 and len(out) >= 38:
        out[30:34] = socket.inet_aton(address)
        out[36:38] = port.to_bytes(2, "big")
    for place in rng.integers(12, max(13, len(out)), int(rng.integers(0, 5))).tolist():
        if place < len(out):
            out[place] = int(rng.integers(256))
    if rng.random() < 0.3:
        out = out[: int(rng.integers(14, max(15, len(out))))]
    if rng.random() < 0.1:
        out += rng.bytes(int(rng.integers(1, 200)))
    if rng.random() < 0.3 and len(out) >= 34:  # else most would fail at the first checksum
        out[24:26] = b"\0\0"
        out[24:26] = checksum(bytes(out[14:34])).to_bytes(2, "big")
    return bytes(out[:1514])


def malformed(link: socket.socket, mac: str, address: str, port: int, frames: int, corpus: Path) -> int:
    """Send damaged frames of the corpus, whose first byte is no part of them; how many."""
    rng = np.random.default_rng(4)
    seeds = [path.read_bytes()[1:] for path in sorted(corpus.iterdir())]
    for sent in range(frames):
        frame = damaged(rng, seeds[int(rng.integers(len(seeds)))], mac, address, port)
        link.send(frame if len(frame) >= 14 else frame.ljust(14, b"\0"))
        if sent % PAUSE_FRAMES == 0:
            time.sleep(0.001)
    return frames


def main(words: list[str]) -> int:
    """Run the command line; its status."""
    if len(words) != 7 or words[0] not in ("flood", "malformed"):
        print(__doc__, file=sys.stderr)
        return 2
    how, interface, mac, address, port = words[:5]
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
        link.bind((interface, 0))
        if how == "flood":
            print(flood(link, mac, address, int(port), float(words[5]), float(words[6])))
        else:
            print(malformed(link, mac, address, int(port), int(words[5]), Path(words[6])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
