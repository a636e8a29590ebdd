"""A tape of steelyard-lb gives the same decisions in Python and in the program; so does its pcap file."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path

import lb_frames as frames
import numpy as np
import pytest
from policy_specs import make, policy_spec
from scapy.layers.inet import TCP
from test_lb_packets import config_text

from steelyard import native
from steelyard.deploy import compiler, policy_file
from steelyard.deploy.lb_commands import find_binary
from steelyard.deploy.replay import replay

CORPUS = Path(__file__).parent.parent / "native" / "tests" / "corpus" / "tape"
START_NS = 1_700_000_000_000_000_000
FLOWS, PACKETS = 400, 6000
RULES = ("ecmp", "lsq", "sed", "hlb", "maglev", "rr", "least_request", "peak_ewma")


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pcap file: clients open, send, end and reset connections in random order over half a minute."""
    rng = np.random.default_rng(5)
    shapes = {flags: bytes(frames.tcp(flags)) for flags in ("S", "A", "PA", "FA", "R")}
    at = len(shapes["S"]) - len(TCP())
    path = tmp_path_factory.mktemp("traffic") / "in.pcap"
    times = START_NS + np.sort(rng.integers(0, 30 * 10**9, PACKETS))
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))  # of nanoseconds
        for now, client in zip(times.tolist(), rng.integers(0, FLOWS, PACKETS).tolist(), strict=True):
            flags = str(rng.choice(["S", "S", "A", "PA", "FA", "R"]))
            frame = bytearray(shapes[flags])
            frame[at : at + 2] = (1024 + client).to_bytes(2, "big")
            file.write(struct.pack("<IIII", now // 10**9, now % 10**9, len(frame), len(frame)))
            file.write(frame)
    return path


def record(traffic: Path, folder: Path, rule: str, keys: str = "") -> Path:
    """The tape of the traffic's first VIP under a rule."""
    folder.mkdir()
    text = config_text("l2-dsr", rule=rule).replace("port = 80\n", f'port = 80\ntape = "a.tape"\n{keys}', 1)
    (folder / "lb.toml").write_text(text)
    command = [find_binary(), "--config", folder / "lb.toml", "--pcap-in", traffic]
    subprocess.run([*command, "--pcap-out", folder / "out.pcap"], check=True)
    return folder / "a.tape"


def by_the_program(tape: Path, *options: str | Path) -> dict:
    """What `steelyard-lb --replay` says; its status says whether the decisions are the same."""
    done = subprocess.run(
        [find_binary(), "--replay", tape, *options], capture_output=True, text=True, check=False
    )
    told: dict = json.loads(done.stdout)
    assert done.returncode == (0 if told["same"] else 1)
    return told


@pytest.mark.parametrize("rule", RULES)
def test_every_host_decides_the_same(rule: str, traffic: Path, tmp_path: Path) -> None:
    tape = record(traffic, tmp_path / "one", rule)
    again = record(traffic, tmp_path / "two", rule)
    assert tape.read_bytes() == again.read_bytes(), "the same packets at the same times"
    found = replay(tape, None)
    assert found.same
    assert found.found["decisions"] > 500
    told = by_the_program(tape)
    assert told["same"]
    assert int(told["digest"], 16) == found.found["digest"]
    assert told["decisions"] == found.found["decisions"]


def test_a_hosted_policy_is_asked_again(traffic: Path, tmp_path: Path) -> None:
    policies = []
    for seed in (1, 2):
        policies.append(tmp_path / f"{seed}.bin")
        spec = policy_spec([make("gru", 2, "flat", "tanh", hidden=12, seed=seed, gain=3.0)])
        policies[-1].write_bytes(native.encode_policy(spec))
    tape = record(traffic, tmp_path / "one", "policy", f'policy_file = "{policies[0]}"\n')
    found = replay(tape, policies[0])
    assert found.same
    assert not found.other_policy
    assert by_the_program(tape, "--policy", policies[0])["same"]
    assert not by_the_program(tape, "--policy", policies[1])["same"]


@pytest.mark.slow
def test_a_compiled_policy_decides_as_its_blob(traffic: Path, tmp_path: Path) -> None:
    spec = policy_spec([make("gru", 2, "flat", "tanh", hidden=12, seed=1, gain=3.0)])
    blob = tmp_path / "policy.bin"
    blob.write_bytes(native.encode_policy(spec))
    folder = tmp_path / "compiled"
    folder.mkdir()
    compiler.write_source(policy_file.read(blob), folder)
    compiler.build(folder, compiler.find_compiler())
    library = folder / "policy.so"
    tapes = [
        record(traffic, tmp_path / f"by{file.suffix}", "policy", f'policy_file = "{file}"\n')
        for file in (blob, library)
    ]
    found = [replay(tapes[0], library), replay(tapes[1], blob)]
    assert all(each.same for each in found)
    assert found[0].found["digest"] == found[1].found["digest"]
    assert by_the_program(tapes[0], "--policy", library)["same"]


def test_tapes_of_the_simulator_are_replayed_by_the_program() -> None:
    for line in (CORPUS / "digests.txt").read_text().splitlines():
        tape, *policy, digest = (word for word in line.split() if word != "-")
        told = by_the_program(CORPUS / tape, *(["--policy", CORPUS / policy[0]] if policy else []))
        assert told["digest"] == digest
        assert told["same"]


def test_bad_tapes_are_one_line(tmp_path: Path) -> None:
    cut = tmp_path / "cut.tape"
    cut.write_bytes((CORPUS / "hlb.tape").read_bytes()[:-1])
    for tape in (cut, tmp_path / "none"):
        done = subprocess.run([find_binary(), "--replay", tape], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert str(tape) in done.stderr
        assert done.stderr.count("\n") == 1
