"""Racks on the command line: simulate, evaluate, compare; what is refused, and what is never imported."""

import json
import subprocess
import sys

import pytest

from steelyard.trainers import cli

SHORT = ("--set", "episode.horizon_s=0.02", "--set", "episode.warmup_s=0.002", "--threads", "1")
RECORD = {
    *("scenario", "policy", "seed", "tasks", "latency_mean_us", "latency_p50_us", "latency_p90_us"),
    *(
        "latency_p99_us",
        "latency_p999_us",
        "slowdown_mean",
        "slowdown_p99",
        "by_type",
        "migrations",
        "steals",
    ),
    *("messages", "clones", "imbalance_mean_us", "busy_mean", "events", "cpu_s"),
}


def run(capsys, *args):
    """Exit status, stdout and stderr of one command."""
    status = cli.main(args)
    out, err = capsys.readouterr()
    return status, out, err


def refused(capsys, *args) -> str:
    """The line with which a command refuses its input."""
    status, out, err = run(capsys, *args)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    return err


def test_simulate_writes_a_record_per_policy_and_seed(capsys, tmp_path):
    file = tmp_path / "out.json"
    command = ("simulate", "--scenario", "rack-hom-8x8", "--policy", "jsq", "--policy", "po2", "--policy")
    status, out, _ = run(
        capsys, *command, "fresh=jsq:info=exact", "--seeds", "0:3", *SHORT, "--json", str(file)
    )
    assert status == 0
    assert "latency_p99_us" in out
    records = json.loads(file.read_text())
    assert [(row["policy"], row["seed"]) for row in records] == [
        (policy, seed) for policy in ("jsq", "po2", "fresh") for seed in range(3)
    ]
    for row in records:
        assert set(row) == RECORD
        assert row["scenario"] == "rack-hom-8x8"
        assert row["latency_p50_us"] < row["latency_p90_us"] < row["latency_p99_us"] < row["latency_p999_us"]
    for seed in range(3):  # one stream of tasks for all, and what is known of loads decides
        stale, drawn, fresh = (next(r for r in records[k * 3 :] if r["seed"] == seed) for k in range(3))
        assert stale["tasks"] == drawn["tasks"] == fresh["tasks"]
        assert fresh["latency_p99_us"] < drawn["latency_p99_us"] < stale["latency_p99_us"]
        assert fresh["messages"] == 0 < stale["messages"]


def test_threads_change_nothing(capsys, tmp_path):
    found = []
    for threads in ("1", "2"):
        file = tmp_path / f"{threads}.json"
        options = ("--seeds", "0:4", "--threads", threads, "--set", "episode.horizon_s=0.02", "--quiet")
        command = ("simulate", "--scenario", "rack-hom-8x8", "--set", "episode.warmup_s=0", "--json")
        assert run(capsys, *command, str(file), *options)[0] == 0
        found.append([{**row, "cpu_s": 0} for row in json.loads(file.read_text())])
    assert found[0] == found[1]
    assert found[0][0]["policy"] == "jsq"


def test_scenarios_lists_both_worlds(capsys):
    status, out, _ = run(capsys, "scenarios")
    assert status == 0
    assert "cluster-a-cpu" in out
    assert "rack-hom-8x8" in out
    status, out, _ = run(capsys, "scenarios", "--scenario", "rack-hom-8x8", "--set", "workload.load=0.7")
    assert status == 0
    assert "load = 0.7" in out
    assert 'world = "rack"' in out


def test_a_scenario_shown_is_a_scenario(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(run(capsys, "scenarios", "--scenario", "rack-het-2x14-9x4")[1])
    assert (
        run(capsys, "simulate", "--scenario", str(path), "--policy", "sed", "--seeds", "0:1", *SHORT)[0] == 0
    )


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("--policy", "hlb"), ("'hlb'", "rule of clusters", "jsq")),
        (("--policy", "jsqq"), ("'jsqq'", "did you mean 'jsq'")),
        (("--policy", "po2:dd=3"), ("dd", "did you mean 'd'")),
        (("--policy", "jsq", "--policy", "jsq"), ("'jsq' is given twice",)),
        (("--policy", "tuned-sed"), ("tuned-sed",)),
        (("--scenario", "cluster-a-cpu"), ("'rack-hom-8x8'", "'cluster-a-cpu'", "one world")),
        (("--set", "workload.laod=1"), ("workload.laod", "did you mean 'load'")),
        (("--policy", "sparrow", "--set", "rack.discipline=ps"), ("sparrow", "fcfs")),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "evaluate"])
def test_bad_input(capsys, tmp_path, command, args, parts):
    file = tmp_path / "out.json"
    err = refused(capsys, command, "--scenario", "rack-hom-8x8", *args, "--json", str(file))
    for part in parts:
        assert part in err
    assert not file.exists()


def test_a_rule_of_racks_is_refused_on_a_cluster(capsys):
    assert "rule of racks" in refused(capsys, "simulate", "--scenario", "cluster-a-cpu", "--policy", "po2")


@pytest.mark.parametrize(
    "args",
    [
        ("train", "--scenario", "rack-hom-8x8", "--run", "RUN"),
        ("tune", "--scenario", "rack-hom-8x8", "--out", "RUN"),
    ],
)
def test_commands_for_clusters_say_so(capsys, tmp_path, args):
    out = tmp_path / "made"
    err = refused(capsys, *(str(out) if arg == "RUN" else arg for arg in args))
    assert "rack-hom-8x8" in err
    assert "rack'" in err or "is a rack" in err
    assert not out.exists()


def test_evaluate_puts_the_tail_first(capsys, tmp_path):
    table = tmp_path / "rows.csv"
    status, out, _ = run(
        capsys, "evaluate", "--scenario", "rack-hom-8x8", "--seeds", "0:4", *SHORT, "--table", str(table)
    )
    assert status == 0
    for text in ("p99 [us]", "po2", "cfcfs", "p99 vs jsq [%]", "p99 vs cfcfs [%]"):
        assert text in out
    assert out.index("p99 [us]") < out.index("mean [us]")
    header = table.read_text().splitlines()[0]
    assert "latency_p99_us" in header
    manifest = json.loads(table.with_suffix(".manifest.json").read_text())
    assert manifest["scenarios"]["rack-hom-8x8"]["scenario"]["world"] == "rack"


@pytest.mark.slow
def test_compare_writes_a_report(capsys, tmp_path):
    report = tmp_path / "report"
    status, out, _ = run(
        capsys,
        *("compare", "--scenario", "rack-hom-8x8", "--policy", "po2", "--seeds", "0:3", *SHORT),
        *("--load", "0.5", "--load", "0.8", "--out", str(report)),
    )
    assert status == 0
    assert str(report / "report.html") in out
    page = (report / "report.html").read_text()
    assert "rack-hom-8x8-load" in page
    assert page.count("data:image/png") == 2
    lines = json.loads((report / "summary.json").read_text())
    assert [line["contender"] for line in lines] == ["po2", "jsq", "cfcfs"]
    assert set(lines[0]["gaps"]) == {"jsq", "cfcfs"}
    floor = lines[2]["p99_us"]["value"]
    assert floor < lines[0]["p99_us"]["value"] < lines[1]["p99_us"]["value"]
    assert {"records.json", "rows.csv", "marl_eval.json", "manifest.json"} <= {
        file.name for file in report.iterdir()
    }


def test_simulate_imports_no_learner():
    heavy = ("torch", "torchrl", "ray", "benchmarl", "matplotlib", "pettingzoo", "gymnasium")
    code = (
        "import sys; from steelyard.trainers import cli; "
        "assert cli.main(['simulate', '--scenario', 'rack-hom-8x8', '--seeds', '0:1', '--quiet', "
        "'--set', 'episode.horizon_s=0.01', '--set', 'episode.warmup_s=0']) == 0; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
