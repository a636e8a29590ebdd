"""Frames through a running VPP, for tests; they are skipped where there is none, and say so."""

from __future__ import annotations

import re
import time

import pytest
from scapy.packet import Raw
from scapy.utils import rdpcap, wrpcap

from steelyard.deploy.vpp_process import Vpp, why_not

needs_vpp = pytest.mark.skipif(bool(why_not()), reason=why_not() or "VPP is here")


def pass_frames(vpp: Vpp, interface: str, frames: list[bytes], worker: int = 0) -> tuple[str, list[bytes]]:
    """Send frames through an interface of the packet generator: what the trace says, and what came out."""
    sent, got = vpp.run / "in.pcap", vpp.run / "out.pcap"
    wrpcap(str(sent), [Raw(frame) for frame in frames], linktype=1)
    got.unlink(missing_ok=True)
    vpp.cli(
        "clear trace",
        f"trace add pg-input {len(frames)}",
        f"packet-generator capture {interface} pcap {got} count {max(2, 2 * len(frames))}",
        f"packet-generator new pcap {sent} source {interface} name frames limit {len(frames)}"
        f" worker {worker}",
        "packet-generator enable-stream frames",
    )
    for _ in range(200):
        if "Packet 1" in (trace := vpp.cli(f"show trace max {len(frames)}")):
            break
        time.sleep(0.01)
    vpp.cli(f"packet-generator capture {interface} disable", "packet-generator delete frames")
    out = [bytes(frame) for frame in rdpcap(str(got))] if got.exists() and got.stat().st_size > 24 else []
    return trace, out


def verdict_of(trace: str) -> str:
    """Our node's word about the one packet of a trace; "" when it never came there."""
    found = re.search(r"steelyard: (\w+), next", trace)
    return found[1] if found else ""
