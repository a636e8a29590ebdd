"""Tapes: `simulate --tape` and `replay` agree about every decision, and bad input is one line."""

import json
import re
from pathlib import Path

import pytest
from policy_specs import make, policy_spec

from steelyard import native
from steelyard.envs.scenario import Scenario
from steelyard.trainers import cli

CORPUS = Path(__file__).parent.parent / "native" / "tests" / "corpus" / "tape"
SHORT = ["--set", "episode.horizon_s=20", "--set", "episode.warmup_s=0"]
BASE = ["simulate", "--scenario", "moderate-2x7", "--seeds", "3:4", *SHORT]


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The one line on stderr of a command that must fail with status 2."""
    assert cli.main([str(arg) for arg in args]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def record(tape: Path, policy: str | Path, *more: str) -> int:
    return cli.main([*BASE, "--policy", str(policy), "--tape", str(tape), *more])


def digests(text: str) -> list[str]:
    return re.findall(r"digest ([0-9a-f]{16})", text)


RULES = (
    "ecmp wcmp awcmp lsq lsq2 sed hlb hlb2 charon_sapp charon_wsapp maglev rr least_request peak_ewma c3 "
    "prequal"
)


@pytest.mark.parametrize("rule", RULES.split())
def test_replay_makes_every_decision_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rule: str
) -> None:
    tape = tmp_path / "a.tape"
    assert record(tape, rule, "--tape-balancer", "1") == 0
    told = digests(capsys.readouterr().out)
    assert cli.main(["replay", str(tape), "--json", str(tmp_path / "found.json")]) == 0
    shown = capsys.readouterr().out
    assert digests(shown) == told
    assert "the same decisions as on the tape" in shown
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["digest"] == found["tape"]["digest"] == told[0]
    assert found["different"] == 0
    assert found["decisions"] > 300


def test_a_tape_changes_nothing_in_the_episode(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, more in (("plain", []), ("taped", ["--tape", str(tmp_path / "a.tape")])):
        assert cli.main([*BASE, "--policy", "hlb", "--json", str(tmp_path / name), *more]) == 0
    plain, taped = (json.loads((tmp_path / name).read_text())[0] for name in ("plain", "taped"))
    del plain["cpu_s"], taped["cpu_s"]
    assert plain == taped


def test_a_hosted_policy_is_asked_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    policies = []
    for seed in (1, 2):
        spec = policy_spec([make("gru", 7, "flat", "tanh", hidden=12, seed=seed, gain=3.0)])
        policies.append(tmp_path / f"{seed}.bin")
        policies[-1].write_bytes(native.encode_policy(spec))
    tape = tmp_path / "a.tape"
    assert record(tape, policies[0], "--set", "control.actuation_delay_s=0.1") == 0
    told = digests(capsys.readouterr().out)
    assert "give that policy" in refused(capsys, "replay", tape)
    assert cli.main(["replay", str(tape), "--policy", str(policies[0])]) == 0
    assert digests(capsys.readouterr().out) == told
    assert cli.main(["replay", str(tape), "--policy", str(policies[1])]) == 0  # what the other had decided
    shown = capsys.readouterr().out
    assert digests(shown) != told
    assert "differ from the tape's; the policy is not the tape's" in shown
    smaller = tmp_path / "small.bin"
    smaller.write_bytes(native.encode_policy(policy_spec([make("linear", 3, "flat", "tanh")])))
    assert "policy is for 3 servers; this pool has 7" in refused(capsys, "replay", tape, "--policy", smaller)
    assert "no policy file" in refused(capsys, "replay", tape, "--policy", tmp_path / "none")


@pytest.mark.parametrize(("scenario", "rule"), [("cluster-failure", "lsq"), ("cluster-churn", "maglev")])
def test_membership_and_restarts_are_on_the_tape(tmp_path: Path, scenario: str, rule: str) -> None:
    """Balancer 1 fails in the first; a server joins and another leaves in the second."""
    config = Scenario.load(scenario).to_native()
    path = str(tmp_path / "a.tape")
    told = native.record_tape(config, native.RuleConfig(rule), 1, 1, path)["tape"]
    found = native.replay_tape(path)
    assert found["digest"] == told["digest"]
    assert found["decisions"] == told["decisions"] > 300


def test_bad_input_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tape = tmp_path / "a.tape"
    many = ["--policy", "lsq", "--tape", tape]
    assert "one episode" in refused(capsys, *BASE[:3], "--seeds", "0:2", *many)
    assert "2 policies given" in refused(capsys, *BASE, "--policy", "sed", *many)
    rack = ["simulate", "--scenario", "rack-hom-8x8", "--seeds", "0:1", "--tape", tape]
    assert "the scenario is a rack" in refused(capsys, *rack)
    for rule in ("gsq", "oracle", "least_load_noise"):
        line = refused(capsys, *BASE, "--policy", rule, "--tape", tape)
        assert "knows the true state of the servers" in line
    assert "allowed: 0 to 1" in refused(capsys, *BASE, *many, "--tape-balancer", "2")
    assert "only with --tape" in refused(capsys, *BASE, "--policy", "lsq", "--tape-balancer", "1")
    assert "does not exist" in refused(capsys, *BASE, "--policy", "lsq", "--tape", tmp_path / "no" / "a")
    assert list(tmp_path.iterdir()) == []
    assert "cannot open" in refused(capsys, "replay", tmp_path / "none.tape")


def test_damaged_tapes_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tape, bad = tmp_path / "a.tape", tmp_path / "bad.tape"
    assert record(tape, "sed", "--quiet") == 0
    whole = tape.read_bytes()
    for content, message in (
        (b"", "not a tape"),
        (whole[:100], "truncated tape: its header is cut"),
        (whole[:-24], "truncated tape: it has no end mark"),
        (whole[:-1], "truncated tape"),
        (whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:], "damaged tape: its checksum does not match"),
        (whole[:80] + b"zzz" + whole[83:], "no rule of this build"),
        (b"SLYDTAP1" + b"\x02" + whole[9:], "tape version is 2"),
    ):
        bad.write_bytes(content)
        line = refused(capsys, "replay", bad)
        assert message in line
        assert "bad.tape" in line


def test_a_full_disk_ends_the_tape_and_not_the_episode() -> None:
    """/dev/full takes nothing: the header cannot be written."""
    config = Scenario.load("moderate-2x7", [SHORT[1], SHORT[3]]).to_native()
    with pytest.raises(ValueError, match="No space left on device"):
        native.record_tape(config, native.RuleConfig("lsq"), 1, 0, "/dev/full")


def test_the_known_answers_hold_here_too() -> None:
    """The tapes that ctest replays (native/tests/tape_test.cc), with the same digests."""
    lines = [line.split() for line in (CORPUS / "digests.txt").read_text().splitlines()]
    assert len(lines) >= 2
    for name, policy, stated in lines:
        hosted = None if policy == "-" else native.Policy(CORPUS / policy)
        found = native.replay_tape(str(CORPUS / name), hosted)
        assert f"{found['digest']:016x}" == stated
        assert found["different"] == 0
