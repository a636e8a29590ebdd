"""The command line: what it prints, what it refuses, what it leaves alone, what it never imports."""

import errno
import json
import os
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
from zero_policy import policy_blob

from steelyard import native
from steelyard.envs.records import RECORD_KEYS
from steelyard.trainers import cli
from steelyard.trainers.commands.common import parse_seeds

HEAVY = ("torch", "torchrl", "tensordict", "ray", "wandb", "matplotlib", "pandas", "pyarrow")
SIMULATE = ["simulate", "--scenario", "cluster-a-cpu", "--quiet"]


def run(capsys: pytest.CaptureFixture, *args: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `steelyard ARGS`."""
    capsys.readouterr()
    try:
        status = cli.main(list(args))
    except SystemExit as error:
        status = error.code
    out, err = capsys.readouterr()
    return status, out, err


def refused(capsys: pytest.CaptureFixture, *args: str) -> str:
    """The one line of a refusal."""
    status, out, err = run(capsys, *args)
    assert status == 2
    assert out == ""
    assert err.startswith("steelyard: error: ")
    assert err.count("\n") == 1
    return err


def test_overview_names_every_command_by_its_docstring(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    for entry in metadata.entry_points(group=cli.GROUP):
        first_line = entry.load().__doc__.partition("\n")[0]
        assert any(line.split()[:1] == [entry.name] and first_line in line for line in out.splitlines())


def test_no_command_is_a_usage_error_and_version_is_not(capsys):
    assert run(capsys)[0] == 2
    assert run(capsys, "--version")[:2] == (0, f"steelyard {metadata.version('steelyard')}\n")


@pytest.mark.parametrize("name", [entry.name for entry in metadata.entry_points(group=cli.GROUP)])
def test_every_command_has_help(capsys, name):
    status, out, _ = run(capsys, name, "--help")
    assert status == 0
    assert f"steelyard {name}" in out


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["simulate", "--help"],
        ["export", "--help"],
        ["evaluate", "--help"],
        ["scenarios"],
        ["simulate", "--scenario", "cluster-a-cpu", "--policy", "sed", "--seeds", "0:2"],
    ],
)
def test_light_commands_import_nothing_heavy(args):
    code = (
        "import sys\n"
        "from steelyard.trainers.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', [name for name in {HEAVY} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("heavy: []\n")


def test_the_example_of_the_readme(capsys, tmp_path):
    out = tmp_path / "out.json"
    args = [
        "simulate",
        "--scenario",
        "cluster-a-cpu",
        "--policy",
        "sed",
        "--seeds",
        "0:50",
        "--json",
        str(out),
    ]
    assert run(capsys, *args)[0] == 0
    records = json.loads(out.read_text())
    assert [tuple(record) for record in records] == [RECORD_KEYS] * 50
    assert [record["seed"] for record in records] == list(range(50))
    assert {(record["scenario"], record["policy"]) for record in records} == {("cluster-a-cpu", "sed")}


def test_set_repeats_and_reaches_the_simulator(capsys, tmp_path):
    out = tmp_path / "out.json"
    changes = ["--set", "workload.arrival.rate=5", "--set", "episode.horizon_s=20"]
    assert run(capsys, *SIMULATE, "--seeds", "0:20", *changes, "--json", str(out))[0] == 0
    flows = [record["flows"] for record in json.loads(out.read_text())]
    assert abs(np.mean(flows) - 100) < 4 * np.sqrt(100 / 20)  # Poisson counts of mean rate x horizon


def test_weights_of_a_rule_can_be_set(capsys, tmp_path):
    """sed with equal weights is lsq, flow by flow."""
    records = {}
    for policy, change in [("sed", ["--set", "rule.weights=[1,1,1,1,1,1,1,1]"]), ("lsq", [])]:
        out = tmp_path / f"{policy}.json"
        assert (
            run(capsys, *SIMULATE, "--policy", policy, *change, "--seeds", "0:5", "--json", str(out))[0] == 0
        )
        records[policy] = [record["sojourn_mean_s"] for record in json.loads(out.read_text())]
    assert records["sed"] == records["lsq"]


def test_quiet_prints_nothing_and_a_table_is_printed_otherwise(capsys):
    assert run(capsys, *SIMULATE, "--seeds", "0:2")[:2] == (0, "")
    status, out, _ = run(capsys, *SIMULATE[:-1], "--seeds", "0:2")
    assert status == 0
    assert "sojourn_mean_s" in out
    assert "2 episodes" in out


def test_scenarios_lists_and_shows(capsys):
    status, out, _ = run(capsys, "scenarios")
    assert status == 0
    assert "cluster-a-cpu" in out
    status, out, _ = run(capsys, "scenarios", "--scenario", "cluster-a-cpu", "--set", "pool.balancers=3")
    assert status == 0
    assert "balancers = 3" in out


def test_shown_scenario_is_a_scenario(capsys, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(run(capsys, "scenarios", "--scenario", "cluster-a-cpu")[1])
    assert run(capsys, "simulate", "--scenario", str(file), "--seeds", "0:1", "--quiet")[0] == 0


def test_seeds():
    assert parse_seeds("3:5") == range(3, 5)
    assert parse_seeds(f"{2**63 - 1}:{2**63}")[0] == 2**63 - 1
    assert len(parse_seeds("0:1000000")) == 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "5:5",
        "5:4",
        "-1:4",
        ":4",
        "4:",
        "a:b",
        "1:2:3",
        "1.0:2",
        f"0:{2**63 + 1}",
        f"0:{2**63}",
        "0:1000001",
        "1:" + "9" * 5000,
        " 1:2",
        "1_0:20",
        "²:3",
    ],
)
def test_bad_seeds_are_refused(capsys, text):
    line = refused(capsys, *SIMULATE, f"--seeds={text}")
    assert "--seeds" in line
    assert "allowed: A:B" in line


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["simulat"], ["simulate"]),
        (["simulate"], ["--scenario"]),
        (["simulate", "--scenario", "cluster-a-cpi"], ["cluster-a-cpi", "cluster-a-cpu"]),
        (["simulate", "--scenario", "missing/file.toml"], ["missing/file.toml"]),
        ([*SIMULATE, "--scenario", "cluster-a-cpu"], ["cluster-a-cpu", "twice"]),
        ([*SIMULATE, "--policy", "sad"], ["sad", "sed"]),
        ([*SIMULATE, "--policy", "sed", "--policy", "sed"], ["sed", "twice"]),
        ([*SIMULATE, "--set", "workload.arrival.rat=3"], ["rat", "rate"]),
        ([*SIMULATE, "--set", "workload.arrival.rate=-3"], ["workload.arrival.rate", "-3"]),
        ([*SIMULATE, "--set", "pool.servers.0.count=0"], ["count", "0"]),
        ([*SIMULATE, "--set", "pool.balancers=many"], ["pool.balancers", "many"]),
        ([*SIMULATE, "--set", "rule.weights=[1,2]"], ["rule.weights", "8"]),
        ([*SIMULATE, "--set", "rule.weights=[1,1,1,1,1,1,1,0]"], ["rule.weights"]),
        ([*SIMULATE, "--set", "nonsense"], ["nonsense"]),
        ([*SIMULATE, "--threads", "0"], ["--threads", "0"]),
        ([*SIMULATE, "--threads", "100000"], ["--threads", "100000"]),
        (["evaluate"], ["--scenario"]),
        (["tune", "--scenario", "cluster-a-cpu", "--rule", "lsq"], ["--rule", "lsq", "sed"]),
        (["tune", "--scenario", "cluster-a-cpu", "--episodes", "1"], ["--episodes", "1"]),
        (["tune", "--scenario", "cluster-a-cpu", "--seed", "-1"], ["--seed", "-1"]),
        (["compare", "--scenario", "cluster-a-cpu", "--load", "0"], ["--load", "0"]),
        (["bench", "--repeats", "0"], ["--repeats", "0"]),
    ],
)
def test_bad_input_is_one_line_that_names_it(capsys, tmp_path, monkeypatch, args, expected):
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, *args)
    for word in expected:
        assert word in line
    assert list(tmp_path.iterdir()) == []


def test_unknown_option_is_a_usage_error(capsys):
    status, _, err = run(capsys, *SIMULATE, "--seds", "0:2")
    assert status == 2
    assert "--seds" in err


def test_policy_for_another_pool_is_refused(capsys, tmp_path):
    blob = tmp_path / "four.bin"
    blob.write_bytes(policy_blob(4))
    line = refused(capsys, *SIMULATE, "--policy", str(blob))
    assert "4 servers" in line
    assert "8" in line


def test_policy_for_other_balancers_is_refused(capsys, tmp_path):
    blob = tmp_path / "three.bin"
    blob.write_bytes(policy_blob(8, actors=3))
    line = refused(capsys, *SIMULATE, "--policy", str(blob))
    assert "3 actors" in line


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text"])
def test_damaged_policy_is_refused(capsys, tmp_path, damage):
    blob = policy_blob(8)
    flipped = bytearray(blob)
    flipped[len(blob) // 2] ^= 1
    content = {"truncated": blob[:-9], "flipped": bytes(flipped), "empty": b"", "text": b"hello"}[damage]
    path = tmp_path / "policy.bin"
    path.write_bytes(content)
    assert str(path) in refused(capsys, *SIMULATE, "--policy", str(path))


@pytest.mark.parametrize(
    "files", [[], ["config.json"], ["config.json", "progress.csv", ".policy.bin.partial"]]
)
def test_half_written_run_directory_is_refused(capsys, tmp_path, files):
    directory = tmp_path / "run"
    directory.mkdir()
    for name in files:
        (directory / name).write_text("{}")
    line = refused(capsys, *SIMULATE, "--policy", str(directory))
    assert "policy.bin" in line
    assert sorted(path.name for path in directory.iterdir()) == sorted(files)


def test_learner_with_an_unfinished_training_run_is_refused(capsys, tmp_path):
    """A missing training seed must not silently drop out of a mean."""
    for name in ("seed0", "seed1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "seed0" / "policy.bin").write_bytes(policy_blob(8))
    assert "seed1" in refused(capsys, *SIMULATE, "--policy", str(tmp_path))


@pytest.mark.parametrize("command", ["simulate", "evaluate", "compare"])
def test_output_file_is_checked_before_anything_runs(capsys, tmp_path, monkeypatch, command):
    monkeypatch.setattr(native, "simulate", lambda *args, **kwargs: pytest.fail("simulated before checking"))
    base = [command, "--scenario", "cluster-a-cpu", "--quiet"]
    assert "does not exist" in refused(capsys, *base, "--json", str(tmp_path / "no" / "out.json"))
    assert "is a directory" in refused(capsys, *base, "--json", str(tmp_path))


def test_output_directory_is_checked(capsys, tmp_path):
    file = tmp_path / "file"
    file.write_text("kept")
    for command in ("compare", "tune"):
        base = [command, "--scenario", "cluster-a-cpu", "--quiet", "--out"]
        assert "is a file" in refused(capsys, *base, str(file))
        assert "does not exist" in refused(capsys, *base, str(tmp_path / "no" / "report"))
    assert file.read_text() == "kept"


def test_table_suffix_is_checked(capsys, tmp_path):
    base = ["evaluate", "--scenario", "cluster-a-cpu", "--quiet"]
    assert ".parquet" in refused(capsys, *base, "--table", str(tmp_path / "rows.xlsx"))


def test_full_disk_overwrites_nothing(capsys, tmp_path, monkeypatch):
    out = tmp_path / "out.json"
    out.write_text("precious")

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    line = refused(capsys, *SIMULATE, "--seeds", "0:1", "--json", str(out))
    assert "No space left on device" in line
    assert out.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [out]


def test_kernel_that_refuses_to_write_leaves_the_old_file(tmp_path):
    """The same without a patch: a process that may write files of 100 bytes at most."""
    out = tmp_path / "out.json"
    out.write_text("precious")
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "from steelyard.trainers.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    args = [*SIMULATE, "--seeds", "0:3", "--json", str(out)]
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "File too large" in done.stderr
    assert done.stderr.count("\n") == 1
    assert out.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [out]


def test_interrupt_ends_quietly(capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(native, "simulate", interrupted)
    status, _, err = run(capsys, *SIMULATE)
    assert status == cli.STATUS_INTERRUPTED
    assert err == "steelyard: error: interrupted\n"


def test_missing_package_is_named(capsys, monkeypatch):
    def absent(*args, **kwargs):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(native, "simulate", absent)
    status, _, err = run(capsys, *SIMULATE)
    assert status == cli.STATUS_ERROR
    assert "needs the package torch" in err
