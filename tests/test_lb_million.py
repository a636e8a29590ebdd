"""Many flows through steelyard-lb: no frame is lost, changed or misrouted, and the check would notice."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from steelyard.benchmarks import lb_million


def test_no_frame_is_misrouted(tmp_path: Path) -> None:
    found = lb_million.million_flows(tmp_path, flows=30_000)
    assert found["frames"] == 120_000
    assert found["missing"] == found["changed"] == found["misrouted"] == 0
    assert found["fewest_flows"] > 0.9 * 30_000 / lb_million.SERVERS


def test_the_check_notices(tmp_path: Path) -> None:
    sent, flow = lb_million.write_pcap(tmp_path / "in.pcap", 100)
    came = sent.copy()
    came[:, 0:6] = np.frombuffer(bytes.fromhex("020000000103"), np.uint8)
    came[:, 6:12] = np.frombuffer(lb_million.LB_MAC, np.uint8)
    clean = lb_million.misrouted(sent, flow, came)
    assert clean["missing"] == clean["changed"] == clean["misrouted"] == 0
    came[200, 5] = 4
    came[300, 30] ^= 1
    found = lb_million.misrouted(sent, flow, came)
    assert found["changed"] == 1
    assert found["misrouted"] >= 1
    assert lb_million.misrouted(sent, flow, came[:-1])["missing"] == 1
