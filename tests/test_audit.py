"""The potential audit: exact where the mathematics says so, wrong by the formula where it says so."""

import json

import numpy as np
import pytest
from test_cli import refused, run
from worlds import cluster, deterministic, rule, server, stage

from steelyard import native
from steelyard.envs import audit
from steelyard.envs.errors import UserError
from steelyard.envs.rewards import MEASURES, REWARDS, reward
from steelyard.envs.scenario import Scenario
from steelyard.trainers import nash

# CPU alone, IO overloaded, IO stages, another pool, recorded requests, events, and more agents with a delay.
SCENARIOS = {
    "cluster-a-cpu": (),
    "cluster-a-50": (),
    "cluster-b-75": (),
    "moderate-2x7": ("episode.horizon_s=30",),
    "web-trace": (),
    "cluster-capacity-drop": (),
    "cluster-capacity-drop-train": ("pool.balancers=5", "control.actuation_delay_s=0.2"),
}
ROUNDING = 1e-12  # relative to the largest potential
SHORT = ("episode.horizon_s=20",)


def branches(name: str, samples: int = 30, steps: int = 1, profile: audit.Profile | None = None):
    scenario = Scenario.load(name, SCENARIOS.get(name, ()))
    return audit.sample(scenario, profile or audit.Profile(), range(10), samples, steps)


def covariance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Over servers, the last axis; divided by N as in the reward."""
    return ((x - x.mean(-1, keepdims=True)) * (y - y.mean(-1, keepdims=True))).mean(-1)


def split_loads(found: audit.Branches) -> tuple[np.ndarray, np.ndarray]:
    """The deviating agent's load at the stage and the others', (S, 2, N) each."""
    mine = np.stack([each[:, i] for each, i in zip(found.stage, found.agent, strict=True)])
    return mine, found.stage.sum(2) - mine


@pytest.mark.parametrize("name", SCENARIOS)
def test_at_the_stage_team_and_marginal_are_exact_and_the_own_share_is_not(name):
    found = branches(name)
    judge = audit.Audit(found)
    mine, others = split_loads(found)
    largest = (mine + others).var(-1).max()
    for kind in ("team_vbf", "marginal_vbf"):
        record = judge.record(kind, "true", 0)
        assert record["scale"] > 1e-3
        assert record["epsilon_max"] < ROUNDING * max(largest, record["scale"])
    cross = 2 * covariance(mine, others)
    payoff, phi, _ = judge.deltas("vbf", "own", 0)
    np.testing.assert_allclose(payoff - phi, cross[:, 1] - cross[:, 0], atol=1e-10 * largest)
    assert judge.record("vbf", "own", 0)["epsilon_mean"] > 0.01 * judge.record("vbf", "own", 0)["scale"]


@pytest.mark.parametrize("kind", [kind for kind in REWARDS if REWARDS[kind].team])
def test_every_team_reward_is_its_own_potential(kind):
    judge = audit.Audit(branches("cluster-a-75", 10, 3))
    for steps in (0, 3):
        for measure in ("true", "durations"):
            record = judge.record(kind, measure, steps)
            assert record["epsilon_max"] == 0
            assert record["scale"] > 0


def test_only_the_deviating_agent_moves_at_the_stage():
    found = branches("large-6x20", 12)
    moved = (found.stage[:, 0] != found.stage[:, 1]).any(-1)
    assert moved.any()
    assert not moved[found.agent[:, None] != np.arange(6)].any()
    # the same flows in both branches: their work over the capacities differs, their work does not
    capacity = [server.workers * server.speed for server in Scenario.load("large-6x20").servers]
    work = (found.stage * capacity).sum((-1, -2))
    np.testing.assert_allclose(work[:, 0], work[:, 1], rtol=1e-9)


def test_the_counter_example_to_lemma_3():
    """l_-i = (0, 1), and l_i moves from (1, 0) to (0, 1): F falls by 1, F_i stays."""
    loads = np.array([[[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]]])  # (1, 2, M, N)
    path = loads[:, :, None]
    judge = audit.Audit(audit.Branches(np.array([0]), loads, path, path))
    for steps in (0, 1):
        assert [float(x[0]) for x in judge.deltas("vbf", "own", steps)[:2]] == pytest.approx([0, -1])
        assert judge.record("vbf", "own", steps)["epsilon_max"] == pytest.approx(1)
        assert judge.record("marginal_vbf", "true", steps)["epsilon_max"] == pytest.approx(0, abs=1e-15)
        assert judge.record("team_vbf", "true", steps)["epsilon_max"] == 0


def test_over_a_horizon_marginal_misses_what_happens_to_the_others():
    """Delta r - delta phi is minus the change of the others' own imbalance, sum over steps of F(l_-i)."""
    found = branches("cluster-a-cpu", 40, 10)
    judge = audit.Audit(found)
    mine = np.stack([each[:, :, i] for each, i in zip(found.loads, found.agent, strict=True)])
    others = (-(found.loads.sum(3) - mine).var(-1)).sum(-1)
    payoff, phi, _ = judge.deltas("marginal_vbf", "true", 10)
    np.testing.assert_allclose(payoff - phi, others[:, 0] - others[:, 1], atol=1e-9)
    errors = [judge.record("marginal_vbf", "true", steps)["relative"] for steps in (0, 1, 10)]
    assert errors[0] < 1e-12 < errors[1] < errors[2]


def test_payoffs_are_those_of_the_game():
    scenario = Scenario.load("cluster-a-75")
    worlds = [native.World(scenario.to_native(), native.RuleConfig("policy"), 3) for _ in range(2)]
    worlds[1].act(1, np.linspace(-1, 1, 8, dtype=np.float32))
    shape = (1, 2, 1, 2, 8)
    loads, durations = np.zeros(shape), np.zeros(shape)
    for b, world in enumerate(worlds):
        world.run_until(15.0)
        loads[0, b, 0] = [world.remaining_time(i) for i in range(2)]
        durations[0, b, 0] = world.observe_all()[:, 5 : 11 * 8 : 11]
    judge = audit.Audit(audit.Branches(np.array([1]), loads[:, :, 0], loads, durations))
    for kind in REWARDS:
        for measure in MEASURES if not REWARDS[kind].team else ("durations", "true"):
            if kind == "marginal_vbf" and measure != "true":
                continue
            paid = [world.reward(kind, measure)[1] for world in worlds]
            payoff, _, _ = judge.deltas(kind, measure, 1)
            assert payoff[0] == pytest.approx(float(paid[1] - paid[0]), rel=1e-3, abs=1e-5), (kind, measure)


def test_place_until_is_run_until_and_counts_the_work():
    """All flows stay: what agent i placed on j is its flows there, 1000 s each over the capacity."""
    config = cluster(
        [server(4), server(2, speed=0.5)],
        rate=5.0,
        stages=[stage("cpu", deterministic(1000.0))],
        horizon_s=20,
        num_load_balancers=3,
    )
    one, two = (native.World(config, rule("lsq"), 7) for _ in range(2))
    one.run_until(4.0)
    before = np.array(one.state()["flows_on"])
    placed = one.place_until(11.5)
    two.run_until(11.5)
    assert one.digest == two.digest
    assert one.now_s == two.now_s
    np.testing.assert_array_equal(one.remaining_time(), two.remaining_time())
    expected = (np.array(one.state()["flows_on"]) - before) * 1000.0 / [4.0, 1.0]
    assert expected.sum() > 0
    np.testing.assert_allclose(placed, expected, rtol=1e-12)


def test_samples_are_a_function_of_seed_and_index():
    few, many = branches("cluster-b-cpu", 5, 2), branches("cluster-b-cpu", 9, 2)
    for name in ("agent", "stage", "loads", "durations"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:5])
    assert len({tuple(each.ravel()) for each in many.stage[:, 0]}) == 9


def constant_policy(actions: np.ndarray) -> bytes:
    """A policy file: agent i always takes actions[i], (M, N)."""
    servers = actions.shape[1]
    dim = native.observation_size(servers)

    def actor(action: np.ndarray) -> dict:
        layer = {"kind": "dense", "weight": np.zeros((servers, dim), np.float32), "activation": "none"}
        layer["bias"] = np.arctanh(action).astype(np.float32)
        return {"mean": np.zeros(dim, np.float32), "inv_std": np.ones(dim, np.float32), "layers": [layer]}

    spec = {"num_servers": servers, "input": "flat", "output": "tanh", "clip": 5.0}
    return native.encode_policy(spec | {"actors": [actor(action) for action in actions]})


@pytest.mark.parametrize("name", ["sed", "hlb", "wcmp", "policy"])
def test_profiles_that_follow_weights(name):
    scenario = Scenario.load("cluster-a-cpu")
    chosen = scenario.to_rule(name)
    if name == "policy":
        chosen.policy = native.Policy(constant_policy(np.full((2, 8), 0.3)))
    found = branches("cluster-a-cpu", 12, 2, audit.Profile(name, chosen))
    assert (found.stage[:, 0] != found.stage[:, 1]).any()
    assert audit.Audit(found).record("marginal_vbf", "true", 0)["epsilon_max"] < 1e-12


def test_deviation_of_a_rule_ends_after_its_step():
    """wcmp places by hash and weight alone, so from the second step on both branches place alike."""
    scenario = Scenario.load("cluster-a-cpu", SHORT)
    sampler = audit._Sampler(scenario, audit.Profile("wcmp", scenario.to_rule("wcmp")), 1)
    world = sampler.world
    world.reset(4)
    world.run_until(5.0)
    other = world.clone()
    undo = sampler._deviate(other, 0, np.linspace(-1, 1, 8, dtype=np.float32), np.zeros(8, np.float32))
    assert (world.clone().place_until(5.5) != other.place_until(5.5)).any()
    world.run_until(5.5)
    undo()
    np.testing.assert_array_equal(world.place_until(10.0), other.place_until(10.0))


def test_a_rule_without_weights_cannot_be_audited():
    scenario = Scenario.load("cluster-a-cpu", SHORT)
    with pytest.raises(UserError, match="'ecmp': no deviation"):
        audit.sample(scenario, audit.Profile("ecmp", scenario.to_rule("ecmp")), range(3), 3)


def test_what_is_audited_by_default():
    pairs = audit.audited()
    assert len(pairs) == 8 * 2 + 8 + 1
    assert {measure for kind, measure in pairs if REWARDS[kind].team} == {"true"}
    assert {kind for kind, _ in audit.audited((), "own")} == {k for k, _ in audit.audited((), "durations")}
    assert audit.audited(("vbf", "vbf"), "true") == [("vbf", "true")]


KEYS = {
    "reward",
    "measure",
    "horizon",
    "samples",
    "epsilon_mean",
    "epsilon_max",
    "scale",
    "relative",
    "profile",
}
AUDIT = ["audit", "--scenario", "cluster-a-cpu", "--samples", "20"]


def test_records_of_the_command(capsys, tmp_path):
    file = tmp_path / "a.json"
    args = ["--reward", "vbf", "--reward", "team_jain", "--horizon", "stage", "--horizon", "4"]
    status, out, _ = run(capsys, *AUDIT, *args, "--policy", "random", "--policy", "sed", "--json", str(file))
    assert status == 0
    records = json.loads(file.read_text())
    assert len(records) == 2 * 2 * 3
    assert all(record.keys() >= KEYS for record in records)
    assert [record["horizon"] for record in records[:2]] == ["stage", 4]
    assert {record["profile"] for record in records} == {"random", "sed"}
    exact = [record["epsilon_max"] == 0 for record in records if record["reward"] == "team_jain"]
    assert exact == [True] * 4
    assert "team_jain" in out
    assert run(capsys, *AUDIT, *args, "--quiet", "--json", str(file))[1:] == ("", "")
    again = json.loads(file.read_text())
    assert again == records[: len(again)]


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--reward", "vbff"], "did you mean 'vbf'"),
        (["--measure", "guess"], "durations"),
        (["--reward", "team_vbf", "--measure", "own"], "reward.measure"),
        (["--reward", "marginal_vbf", "--measure", "durations"], "reward.measure"),
        (["--horizon", "0"], "'stage' or a number of steps"),
        (["--horizon", "soon"], "'stage' or a number of steps"),
        (["--horizon", "120"], "horizon = 120"),
        (["--samples", "0"], "--samples"),
        (["--samples", "90000", "--horizon", "60"], "samples = 90000"),
        (["--seeds", "5:5"], "--seeds"),
        (["--policy", "maglev"], "no deviation"),
        (["--policy", "sad"], "did you mean"),
        (["--set", "pool.balncers=3"], "balancers"),
        (["--nash", "nowhere"], "--nash"),
    ],
)
def test_refusals_write_nothing(capsys, tmp_path, args, word):
    file = tmp_path / "a.json"
    assert word in refused(capsys, *AUDIT, *args, "--json", str(file))
    assert not file.exists()


def test_no_scenario(capsys):
    assert "--scenario" in refused(capsys, "audit")


def test_an_interrupt_leaves_the_file_as_it_was(capsys, tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    file.write_text("before")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(audit.Audit, "record", interrupted)
    assert run(capsys, *AUDIT, "--json", str(file))[0] == 130
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.slow
def test_gap_of_a_bad_profile_and_of_a_good_one(capsys, tmp_path):
    """Weights the wrong way round leave much to gain, alone; the right ones nothing worth the name."""
    gains = {}
    for name, action in (("bad", [-0.4] * 4 + [0.4] * 4), ("good", [0.2] * 4 + [-0.3] * 4)):
        blob, file = tmp_path / f"{name}.bin", tmp_path / f"{name}.json"
        blob.write_bytes(constant_policy(np.array([action, action])))
        args = ["--nash", str(blob), "--nash-episodes", "0", "--agents", "1", "--seeds", "0:20"]
        status, out, _ = run(capsys, *AUDIT, *args, "--set", SHORT[0], "--json", str(file))
        assert status == 0
        assert "epsilon-Nash gap: at least" in out
        (record,) = json.loads(file.read_text())
        assert (record["agent"], record["response"], record["reward"]) == (1, "constant", "log_vbf")
        gains[name] = record
    bad, good = gains["bad"], gains["good"]
    assert bad["gain"]["low"] > 0
    assert bad["sojourn_gain_s"]["low"] > 0
    assert bad["epsilon"] == bad["gain"]["value"]
    assert bad["weights"][0] > 1.3 * bad["weights"][7]
    assert good["gain"]["value"] < bad["gain"]["value"] / 3
    assert good["sojourn_gain_s"]["value"] < bad["sojourn_gain_s"]["value"] / 3


@pytest.mark.slow
def test_gap_of_a_run_by_a_trained_response(capsys, tmp_path):
    run_dir, file = tmp_path / "run", tmp_path / "n.json"
    train = ["train", "--scenario", "cluster-a-cpu", "--set", SHORT[0], "--run", str(run_dir)]
    assert run(capsys, *train, "--episodes", "8", "--threads", "1", "--quiet")[0] == 0
    args = ["audit", "--nash", str(run_dir), "--nash-episodes", "12", "--agents", "0", "--seeds", "0:20"]
    assert run(capsys, *args, "--quiet", "--json", str(file))[0] == 0
    (record,) = json.loads(file.read_text())
    assert record["scenario"] == "cluster-a-cpu"
    assert record["training_gain"].keys() == {"constant", "trained"}
    assert record["training_gain"][record["response"]] == max(record["training_gain"].values())
    assert np.isfinite([record["gain"]["value"], record["sojourn_gain_s"]["low"]]).all()
    assert (record["reward"], record["measure"], record["episodes"]) == ("log_vbf", "true", 20)


def test_own_policy_as_a_response_gains_nothing(tmp_path):
    """The response takes the frozen policy's place, so the same action leaves everything as it was."""
    blob = tmp_path / "p.bin"
    blob.write_bytes(constant_policy(np.full((2, 8), 0.25)))
    game = nash.open_game(str(blob), Scenario.load("cluster-a-cpu", SHORT), {}, "makespan", None)
    action = np.full(8, np.tanh(np.arctanh(np.float32(0.25))), np.float32)
    alone, same = nash.play(game, 0, None, [1, 2]), nash.play(game, 0, lambda world: action, [1, 2])
    np.testing.assert_allclose(same[0], alone[0], rtol=1e-6)
    np.testing.assert_allclose(same[1], alone[1], rtol=1e-6)
    assert (game.reward, game.measure) == ("makespan", "true")


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--agents", "2"], "--agents: 2"),
        (["--seeds", "0:5"], "20 or more"),
        (["--nash-episodes", "-1"], "--nash-episodes"),
        (["--reward", "vbf", "--reward", "jain"], "--reward: given twice"),
        (["--reward", "team_vbf", "--measure", "own"], "reward.measure"),
        (["--scenario", "charon-64"], "servers"),
    ],
)
def test_refusals_of_nash(capsys, tmp_path, args, word):
    blob = tmp_path / "p.bin"
    blob.write_bytes(constant_policy(np.zeros((2, 8))))
    line = refused(capsys, "audit", "--nash", str(blob), "--scenario", "cluster-a-cpu", *args)
    assert word in line


def test_nash_of_a_file_needs_a_scenario(capsys, tmp_path):
    blob = tmp_path / "p.bin"
    blob.write_bytes(constant_policy(np.zeros((2, 8))))
    assert "--scenario" in refused(capsys, "audit", "--nash", str(blob))


def test_potential_of_durations_is_over_their_mean():
    judge = audit.Audit(found := branches("cluster-b-cpu", 6, 2))
    mean = found.durations.mean(3)
    expected = [[sum(reward("jain", v) for v in branch) for branch in each] for each in mean]
    _, phi, _ = judge.deltas("jain", "durations", 2)
    np.testing.assert_allclose(phi, np.diff(np.array(expected), axis=1)[:, 0], atol=1e-12)
