"""Studies of racks: axes, tuned rules, learners for each axis, loads over time, resumed after a kill."""

import json
import math
import signal
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from test_study_sweep import DEADLINE_S, command, is_locked, runs_of, stamps, start, wait_for

from steelyard import native
from steelyard.benchmarks import cells, rack_cells, study_racks, study_runs
from steelyard.benchmarks.study import label_of, load_study
from steelyard.envs.errors import UserError
from steelyard.envs.rack_scenario import RackScenario
from steelyard.trainers import cli, rack_tune

TINY = (
    'set = ["rack.servers=[{ workers = 2, count = 3 }]", "episode.horizon_s=0.02", "episode.warmup_s=0.002"]'
)
SHORT = '"episode.horizon_s=0.02", "episode.warmup_s=0.002"'
HEAD = """
title = "T"
seeds = "0:3"
reference = "jsq"
policies = [{policies}]
metrics = ["latency_p99_us", "latency_mean_us"]
{top}
"""
CASE = f"""
[[cases]]
name = "small"
scenario = "rack-hom-8x8"
{TINY}
"""
AXIS = 'axis = "workload.load"\nvalues = [0.4, 0.7]\n'
LEARNER = """
[[learners]]
name = "learned"
algo = "malcolm"
at = 0.7
episodes = 2
seeds = "0:2"
"""
RULES = '"jsq", "po2", "mine=jbt:threshold=4,keep=true", "cfcfs"'


def write(folder, policies=RULES, top="", more=CASE + AXIS):
    (folder / "mine.toml").write_text(HEAD.format(policies=policies, top=top) + more)
    return str(folder / "mine.toml")


def test_a_study_of_racks_from_file_to_tables(tmp_path, capsys):
    """Rules with parameters, a tuned rule, an axis, a limit, a shift: all tables; nothing computed twice."""
    shift = "events=[{ kind = 'speed', t_s = 0.01, value = 0.5, targets = [0] }]"
    more = CASE.replace(SHORT, f'{SHORT}, "{shift}"') + AXIS
    more += '[[limits]]\nmetric = "latency_p99_us"\npolicy = "cfcfs"\ntimes = 9\n'
    tuned = f'{RULES}, "tuned-jbt:increments=true,steal=none"'
    write(tmp_path, tuned, "timeline_s = 1e-3", more)
    assert cli.main(command(tmp_path)) == 0
    out = tmp_path / "out"
    found = json.loads((out / "summary.json").read_text())
    assert list(found["cases"]) == ["small, load 0.4", "small, load 0.7"]
    for case in found["cases"].values():
        assert case["missing"] == []
        tails = {label: held["metrics"]["latency_p99_us"]["iqm"] for label, held in case["policies"].items()}
        assert set(tails) == {"jsq", "po2", "mine", "cfcfs", "tuned-jbt:increments=true,steal=none"}
        assert min(tails, key=lambda label: tails[label]["value"]) == "cfcfs"
        assert all(each["low"] <= each["value"] <= each["high"] for each in tails.values())
        assert set(case["policies"]["po2"]["versus"]) == {"jsq", "cfcfs"}
    table = (out / "table.md").read_text()
    for text in (
        "## Settling",
        "## What tuning found",
        "| small (at most ",
        "jbt:increments=true,steal=none,thr",
    ):
        assert text in table
    pictures = {path.name for path in out.glob("*.png")}
    assert {"latency_p99_us.png", "latency_mean_us.png", "small__load_0.4-load.png"} <= pictures
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["cases"]["small, load 0.7"]["set"][-1] == "workload.load=0.7"
    before = stamps(out / "cells")
    assert len(before) == 10
    assert cli.main(command(tmp_path)) == 0
    assert stamps(out / "cells") == before
    capsys.readouterr()


def test_a_cell_is_what_evaluate_gives(tmp_path):
    study = load_study(write(tmp_path))
    case = study.cases[1]
    (cell,) = cells.cells_of(study, [case], ["mine"], {})
    found = cells.compute(cell)
    rule = case.scenario.to_rule("jbt:threshold=4,keep=true")
    stats = native.simulate_rack(case.scenario.to_native(), rule, [0, 1, 2])
    assert found["columns"]["latency_p99_us"] == [stat["latency_p99_us"] for stat in stats]
    assert found["columns"]["digest"] == [f"{stat['digest']:016x}" for stat in stats]
    others = (replace(cell, timeline_s=1e-3), replace(cell, learning=True))
    assert len({each.digest() for each in (cell, *others)}) == 3


def test_a_learner_without_a_scenario_is_one_for_each_axis(tmp_path):
    more = CASE + AXIS + CASE.replace('"small"', '"other"') + AXIS
    study = load_study(write(tmp_path, f'{RULES}, "learned"', 'train_set = ["algo.batch=8"]', LEARNER + more))
    assert [learner.name for learner in study.learners] == ["learned (small)", "learned (other)"]
    for case in study.cases:
        assert case.learners == {"learned": f"learned ({case.group})"}
    first = study.learners[0]
    assert first.scenario.workload.load == 0.7
    assert first.overrides[-2:] == ("workload.load=0.7", "algo.batch=8")
    assert first.hyper == {"batch": 8}
    runs = study_runs.runs_of(first, tmp_path)
    assert runs[0].policy.name == "policy.npz"
    # Both are trained on the same rack: the same runs.
    assert runs[0].directory == study_runs.runs_of(study.learners[1], tmp_path)[0].directory
    each = load_study(write(tmp_path, f'{RULES}, "learned"', "", LEARNER.replace("at = 0.7\n", "") + more))
    assert len(each.learners) == 4


@pytest.mark.parametrize(
    ("text", "label"),
    [("jsq", "jsq"), ("a=jsq", "a"), ("jsq:keep=true", "jsq:keep=true"), ("a b=jsq:keep=true", "a b")],
)
def test_labels(text, label):
    assert label_of(text) == label


BAD = {
    "unknown rule": ({"policies": '"jsq", "jqs"'}, "unknown policy of small"),
    "unknown key": ({"policies": '"jsq", "jbt:treshold=3"'}, "did you mean 'threshold'"),
    "not tunable": ({"policies": '"jsq", "tuned-cfcfs"'}, "unknown policy 'tuned-cfcfs'"),
    "cluster rule": ({"policies": '"jsq", "lsq"'}, "unknown policy of small"),
    "cluster metric": (
        {"top": 'limits = [{ metric = "sojourn_mean_s", most = 1 }]'},
        "unknown metric 'sojourn",
    ),
    "two worlds": ({"more": CASE + '[[cases]]\nscenario = "cluster-a-cpu"\n'}, "a study is of one world"),
    "rule's name": (
        {"more": LEARNER.replace("learned", "malcolm") + CASE},
        "'malcolm' is the name of a rule",
    ),
    "axis alone": ({"more": CASE + 'axis = "workload.load"\n'}, "axis and values go together"),
    "no such value": (
        {"policies": '"jsq", "learned"', "more": LEARNER.replace("0.7", "0.6") + CASE + AXIS},
        "learners.0.at: 0.6 is no value of the axis of 'small'",
    ),
    "bad axis": ({"more": CASE + AXIS.replace(".load", ".laod")}, "did you mean 'load'"),
    "algorithm of clusters": (
        {"policies": '"jsq", "learned"', "more": LEARNER.replace('"malcolm"', '"ippo"') + CASE + AXIS},
        "'ippo' does not play the world 'rack'",
    ),
    "limit": ({"top": 'limits = [{ metric = "latency_p99_us" }]'}, "give most, or policy and times"),
    "limit's policy": (
        {"top": 'limits = [{ metric = "latency_p99_us", policy = "jbt" }]'},
        "unknown limits.0.policy 'jbt'",
    ),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_that_names_the_key(tmp_path, changes, message):
    with pytest.raises(UserError) as error:
        load_study(write(tmp_path, **changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def rack(*more: str) -> RackScenario:
    short = ["rack.servers=[{ workers = 6 }, { workers = 2, count = 3 }]", "episode.horizon_s=0.03"]
    return RackScenario.load("rack-hom-8x8", [*short, "episode.warmup_s=0.005", *more])


def test_tuning_finds_what_no_candidate_beats_on_its_own_episodes():
    scenario = rack("workload.load=0.8")
    found = rack_tune.tune(scenario, "tuned-sed:steal=none,keep=true")
    seeds = [native.train_seed(rack_tune._RUN_SEED, episode) for episode in range(rack_tune.EPISODES)]
    assert min(seeds) >= 2**63  # evaluation seeds are below
    config = scenario.to_native()

    def tail(policy: str) -> float:
        stats = native.simulate_rack(config, scenario.to_rule(policy), seeds)
        return float(np.mean([stat["latency_p99_us"] for stat in stats]))

    assert found.policy.startswith("sed:steal=none,keep=true,")
    assert tail(found.policy) == found.p99_us
    assert found.p99_us <= tail("sed:steal=none,keep=true,increments=true")
    assert found.p99_us <= tail("sed:steal=none,keep=true,increments=false")
    assert found.candidates >= len(rack_tune.GRIDS["sed"]["weights"]) + 1


def test_on_equal_servers_there_are_no_weights_to_tune():
    scenario = rack("rack.servers=[{ workers = 4, count = 3 }]")
    assert "weights" not in rack_tune.tune(scenario, "tuned-sed").policy


def test_imbalance_is_the_sum_over_pairs():
    x = np.random.default_rng(0).random((3, 5))
    by_hand = [sum(abs(a - b) for a, b in permutations(row, 2)) / 4 for row in x]
    np.testing.assert_allclose(rack_cells.imbalance(x), by_hand, rtol=1e-12)


def test_bins_hold_the_imbalance_that_the_simulator_measures():
    scenario = rack("workload.load=0.7")
    config = scenario.to_native()
    (stats,) = native.simulate_rack(config, scenario.to_rule("jsq"), [3], timeline=True)
    _, imbalance, _ = rack_cells._bins(stats["timeline"], 1.0)
    assert imbalance[0] == pytest.approx(stats["imbalance_mean_us"], rel=0.01)


def test_reach_is_where_the_line_crosses():
    assert study_racks.reach([0.5, 0.7, 0.9], [1.0, 2.0, 4.0], 3.0) == pytest.approx(0.8)
    assert study_racks.reach([0.5, 0.9], [1.0, 2.0], 3.0) == math.inf
    assert math.isnan(study_racks.reach([0.5, 0.9], [4.0, 5.0], 3.0))
    assert study_racks.reach([0.5, 0.9], [1.0, math.nan], 3.0) == 0.5


def test_settling_of_a_known_series():
    t = np.arange(100) * 1e-3
    wobble = np.where(np.arange(100) % 2, 1.0, -1.0)
    series = 20 + wobble + np.where((t >= 0.02) & (t < 0.035), 50.0, 0.0)
    peak, level, after = study_racks.settling(t, series, 0.02, 0.1)
    assert (peak, level) == (71.0, 20.0)
    assert after == pytest.approx(0.015)
    assert study_racks.settling(t, series, 0.05, 0.1)[2] == 0
    jumps = np.where(np.arange(100) % 4 == 0, 40.0, series)  # no five bins in a row
    jumps[t >= 0.06] = 20.0
    assert study_racks.settling(t, jumps, 0.04, 0.1)[2] == pytest.approx(0.02)


def slow_learner(episodes: int) -> str:
    return LEARNER.replace("episodes = 2", f"episodes = {episodes}").replace("at = 0.7\n", "")


@pytest.mark.slow
def test_a_killed_study_of_racks_goes_on(tmp_path):
    """The first run is under way and the study is killed (SIGKILL): the next one resumes it and ends."""
    long = CASE.replace("horizon_s=0.02", "horizon_s=0.2")
    online = LEARNER.replace('"learned"', '"online"').replace("at = 0.7", 'play = "learning"')
    online = online.replace("episodes = 2", "episodes = 60")
    write(tmp_path, f'{RULES}, "learned", "online"', "", slow_learner(60) + online + long)
    first, second, *_ = runs_of(tmp_path)
    studying = start(tmp_path)
    wait_for(lambda: study_runs.episodes_played(first) >= 4, studying)
    studying.send_signal(signal.SIGKILL)
    studying.communicate(timeout=DEADLINE_S)
    while is_locked(first.log):
        pass
    saved = study_runs.episodes_saved(first)
    assert saved >= 4
    assert not second.directory.exists()
    assert cli.main(command(tmp_path)) == 0
    started = [line for line in first.log.read_text().splitlines() if line.startswith("$ ")]
    assert [line.endswith("--resume") for line in started] == [False, True][: len(started)]
    case = json.loads((tmp_path / "out" / "summary.json").read_text())["cases"]["small"]
    assert case["missing"] == []
    assert case["policies"]["learned"]["runs"] == case["policies"]["online"]["runs"] == 2
    tails = [
        case["policies"][who]["metrics"]["latency_p99_us"]["mean"]["value"] for who in ("learned", "online")
    ]
    assert tails[0] != tails[1]  # the same runs, one of which goes on learning
    assert len(list((tmp_path / "runs").iterdir())) == 1
    before = stamps(tmp_path / "runs") | stamps(tmp_path / "out" / "cells")
    assert cli.main(command(tmp_path)) == 0
    assert stamps(tmp_path / "runs") | stamps(tmp_path / "out" / "cells") == before
