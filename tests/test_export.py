"""`steelyard export`: what it writes, the model card, and that bad input overwrites nothing."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from policy_specs import make, policy_spec

from steelyard import native
from steelyard.deploy import evaluation_file, model_card, policy_file, staging
from steelyard.deploy.export import export
from steelyard.envs.errors import UserError
from steelyard.trainers import cli


def policy_blob() -> bytes:
    """A GRU policy for 8 servers and 2 load balancers."""
    return native.encode_policy(
        policy_spec([make("gru", 8, "flat", "tanh", hidden=20, seed=s) for s in (0, 1)])
    )


def write_run(directory: Path) -> Path:
    """A run directory with a policy."""
    directory.mkdir()
    (directory / "policy.bin").write_bytes(policy_blob())
    return directory


def test_blob_export_keeps_the_bytes(tmp_path):
    run = write_run(tmp_path / "run")
    done = export(run, tmp_path / "out", "blob")
    assert (tmp_path / "out" / "policy.bin").read_bytes() == (run / "policy.bin").read_bytes()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["MODEL_CARD.md", "policy.bin"]
    assert done.cost_ns > 0
    again = export(tmp_path / "out" / "policy.bin", tmp_path / "again", "blob")  # a file by itself
    assert again.files[0].read_bytes() == (run / "policy.bin").read_bytes()


def refused(capsys, *args: object) -> str:
    """The one line on stderr of a command that must fail with status 2."""
    assert cli.main([str(arg) for arg in args]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_command_line(capsys, tmp_path):
    run = write_run(tmp_path / "run")
    assert cli.main(["export", str(run), "--to", "blob", "--out", str(tmp_path / "out")]) == 0
    assert "policy.bin" in capsys.readouterr().out


@pytest.mark.parametrize("files", [[], ["config.json"], ["config.json", ".policy.bin.partial"]])
def test_half_written_run_is_refused(capsys, tmp_path, files):
    run = tmp_path / "run"
    run.mkdir()
    for name in files:
        (run / name).write_text("{}")
    assert "no policy.bin in it" in refused(capsys, "export", run, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda blob: blob[:-5], "truncated policy file"),
        (lambda blob: blob[:100] + bytes([blob[100] ^ 4]) + blob[101:], "checksum does not match"),
        (lambda blob: b"", "not a policy file"),
        (lambda blob: b"\x7fELF" + blob[4:], "not a policy file"),
    ],
)
def test_damaged_policy_is_refused(capsys, tmp_path, damage, message):
    run = write_run(tmp_path / "run")
    (run / "policy.bin").write_bytes(damage(policy_blob()))
    line = refused(capsys, "export", run, "--to", "cpp", "--out", tmp_path / "out")
    assert message in line
    assert str(run / "policy.bin") in line
    assert not (tmp_path / "out").exists()


def test_missing_source_is_refused(capsys, tmp_path):
    assert "no such run directory" in refused(capsys, "export", tmp_path / "no", "--out", tmp_path / "out")


def test_target_in_the_way_is_refused(capsys, tmp_path):
    run = write_run(tmp_path / "run")
    out = tmp_path / "out"
    out.write_text("a file")
    assert "is a file" in refused(capsys, "export", run, "--out", out)
    out.unlink()
    out.mkdir()
    export(run, out)  # empty is free
    before = (out / "MODEL_CARD.md").stat().st_ino
    assert "is not empty" in refused(capsys, "export", run, "--out", out)
    assert (out / "MODEL_CARD.md").stat().st_ino == before
    assert cli.main(["export", str(run), "--out", str(out), "--force", "--quiet"]) == 0
    (out / "thesis.tex").write_text("mine")
    assert "holds 'thesis.tex'" in refused(capsys, "export", run, "--out", out, "--force")
    assert (out / "thesis.tex").read_text() == "mine"
    assert "does not exist" in refused(capsys, "export", run, "--out", tmp_path / "no" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_missing_compiler_is_refused(capsys, tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    line = refused(capsys, "export", run, "--to", "cpp", "--out", tmp_path / "out")
    assert "no C++ compiler 'no-such-compiler' found" in line
    monkeypatch.setenv("CXX", "false")
    assert "false failed with status 1" in refused(
        capsys, "export", run, "--to", "cpp", "--out", tmp_path / "out"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_full_disk_overwrites_nothing(capsys, tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    export(run, tmp_path / "out")
    kept = (tmp_path / "out" / "MODEL_CARD.md").read_text()

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("_sync", "_swap"):
        with monkeypatch.context() as patch:
            patch.setattr(staging, name, full)
            line = refused(capsys, "export", run, "--out", tmp_path / "out", "--force")
        assert "No space left on device" in line
        assert (tmp_path / "out" / "MODEL_CARD.md").read_text() == kept
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_failed_swap_puts_the_old_export_back(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    export(run, tmp_path / "out")
    rename, calls = Path.rename, []

    def second_fails(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", second_fails)
    with pytest.raises(UserError, match="nothing was overwritten"):
        export(run, tmp_path / "out", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
    assert (tmp_path / "out" / "policy.bin").is_file()


def record(policy: str, seed: int, mean: float) -> dict:
    return {
        "scenario": "cluster-a-cpu", "policy": policy, "seed": seed, "flows": 1200, "rejected": 0,
        "sojourn_mean_s": mean, "sojourn_p99_s": 3 * mean,
    }  # fmt: skip


def test_card_tells_training_evaluation_and_failures(tmp_path):
    run = write_run(tmp_path / "first")
    (run / "config.json").write_text(
        json.dumps({"scenario": "cluster-a-cpu", "seed": 3, "sac": {"gamma": 0.99}})
    )
    (run / "manifest.json").write_text(
        json.dumps({"versions": {"torch": "2.13.0"}, "command": ["steelyard", "train"]})
    )
    rows = [record(str(run), seed, 1.2 + 0.01 * seed) for seed in range(20)]
    rows += [record("sed", seed, 1.1 + 0.01 * seed) for seed in range(20)]
    rows += [record("lsq", seed, 1.4 + 0.01 * seed) for seed in range(20)]
    (run / "evaluation.json").write_text(json.dumps(rows))
    export(run, tmp_path / "out", "blob")
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    for expected in (
        "| sac.gamma | 0.99 |",
        "| scenario | cluster-a-cpu |",
        "| versions.torch | 2.13.0 |",
        "| cluster-a-cpu | sed | 20 | 0..19 | 1.1950 [",
        "is slower than sed by 0.1000 [0.1000, 0.1000] s",
        "gru 20 -> 20",
        "us per decision of one load balancer",
        native.observation_schema_text(8),
        policy_file.read(run).sha256,
    ):
        assert expected in card
    assert "is slower than lsq" not in card
    assert "is older than the policy" not in card


def test_card_says_what_is_not_on_record(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "evaluation.json").write_text(json.dumps([record("run", 1, 1.0)]))
    os.utime(run / "evaluation.json", (1, 1))
    export(run, tmp_path / "out")
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert "neither config.json nor manifest.json" in card
    assert "evaluation.json is older than the policy" in card
    export(run / "policy.bin", tmp_path / "bare")
    card = (tmp_path / "bare" / "MODEL_CARD.md").read_text()
    assert "Not on record: the policy was exported from a file" in card
    assert "Not evaluated" in card


@pytest.mark.parametrize("name", ["config.json", "manifest.json", "evaluation.json"])
@pytest.mark.parametrize("content", ["{", "3", '[{"scenario": "x"}]', "\xff"])
def test_damaged_records_are_refused(tmp_path, name, content):
    run = write_run(tmp_path / "run")
    (run / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=name):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_interval_covers_the_mean():
    """A 95 % interval of normal samples covers the true mean in 95 % of cases, within 4 standard errors."""
    draw = np.random.default_rng(1)
    trials, size = 200, 50
    estimates = [evaluation_file.estimate(draw.normal(2.0, 1.0, size)) for _ in range(trials)]
    covered = sum(e.low <= 2.0 <= e.high for e in estimates) / trials
    assert (
        abs(covered - 0.94) < 4 * (0.94 * 0.06 / trials) ** 0.5
    )  # the percentile bootstrap falls a little short


def test_weights_in_bfloat16_and_what_they_change(tmp_path):
    """Half the bytes of the matrices, each number within half a step of 8 bits, the rest as it was."""
    run = write_run(tmp_path / "run")
    export(run, tmp_path / "out", weights="bf16")
    exact, rounded = policy_file.read(run), policy_file.read(tmp_path / "out")
    for before, after in zip(exact.matrices, rounded.matrices, strict=True):
        assert (np.abs(after - before) <= 2.0**-8 * np.abs(before)).all()
    count = sum(matrix.size for matrix in exact.matrices)
    assert len(exact.blob) - len(rounded.blob) == 2 * count
    layers = zip(exact.spec["actors"][1]["layers"], rounded.spec["actors"][1]["layers"], strict=True)
    for before, after in layers:
        for key in before:
            if "bias" in key:
                assert before[key].tobytes() == after[key].tobytes()
    again = native.encode_policy(rounded.spec)
    assert again == rounded.blob
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert "| weights | bfloat16 |" in card
    assert re.search(r"\| decisions that change \| [0-9.e-]+ % \|", card)
    assert "observations recorded on moderate-2x7" in card


def test_weights_beyond_bfloat16_are_refused(capsys, tmp_path):
    spec = native.decode_policy(policy_blob())
    spec["actors"][0]["layers"][0]["weight"][0, 0] = np.finfo(np.float32).max
    (tmp_path / "policy.bin").write_bytes(native.encode_policy(spec))
    line = refused(capsys, "export", tmp_path / "policy.bin", "--weights", "bf16", "--out", tmp_path / "out")
    assert "layers[0].weight holds 3.40282347e+38, which is beyond the range of bfloat16" in line


def test_export_needs_no_torch(tmp_path):
    run = write_run(tmp_path / "run")
    code = (
        "import sys\nfrom steelyard.trainers import cli\n"
        f"assert cli.main(['export', {str(run)!r}, '--out', {str(tmp_path / 'out')!r}, '--quiet']) == 0\n"
        "assert not {'torch', 'ray', 'matplotlib', 'pandas', 'scipy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_measure_is_a_time():
    assert 10 < model_card.measure(policy_blob()) < 1e7
