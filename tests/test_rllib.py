"""The RLlib engine at work: runs of two or three rounds, what they train, export, the example of its page."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from rllib_runs import GRU, SHORT, rows, train, trainer

from steelyard import native
from steelyard.agents.layout import DISCRETE_ACTIONS
from steelyard.trainers import cli

pytest.importorskip("ray.rllib")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]

CENTRAL_GRU = {**GRU, "policies": "central"}
CASES = {
    "ippo": ("ippo", {}),
    "ippo-shared": ("ippo", {"policies": "shared", "input": "per_server"}),
    "ippo-gru": ("ippo", GRU),
    "ippo-discrete": ("ippo", {"discrete": True}),
    "mappo": ("mappo", {"average": 0.9}),
    "mappo-gru-shared": ("mappo", {**GRU, "policies": "shared"}),
    "ippo-central": ("ippo", {"policies": "central"}),
    "ippo-central-discrete": ("ippo", {**CENTRAL_GRU, "discrete": True}),
    "sac": ("sac", {}),
    "sac-central": ("sac", {"policies": "central"}),
    "sac-gru": ("sac", GRU),
    "appo-gru": ("appo", GRU),
    "impala": ("impala", {}),
}


@pytest.mark.parametrize(("algo", "hyper"), CASES.values(), ids=CASES.keys())
def test_a_run_and_what_it_leaves(tmp_path: Path, algo: str, hyper: dict[str, object]) -> None:
    run = tmp_path / "run"
    assert train(run, algo, 12, hyper) == 0
    played = rows(run, "episodes")
    assert [int(row["episode"]) for row in played] == list(range(1, 13))
    assert [int(row["seed"]) for row in played] == [native.train_seed(0, index) for index in range(12)]
    last = rows(run, "progress")[-1]
    assert 0.3 < float(last["eval_sojourn_s"]) < 5
    assert 0.3 < float(last["sed_sojourn_s"]) < 5
    losses = [float(value) for name, value in last.items() if "loss" in name]
    assert losses
    assert np.isfinite(losses).all()
    policy = native.decode_policy((run / "policy.bin").read_bytes())
    scope = hyper.get("policies", "own")
    assert policy["scope"] == ("central" if scope == "central" else "per_agent")
    assert len(policy["actors"]) == (2 if scope == "own" else 1)
    assert len(rows(run, "timing")) == 3
    spent = json.loads((run / "budget.json").read_text())
    assert (spent["episodes"], spent["env_steps"]) == (12, 12 * 20)
    alone = algo != "mappo" and scope == "own"
    assert (spent["bytes_exchanged"] == 0) == alone
    config = json.loads((run / "config.json").read_text())
    assert (config["engine"], config["algorithm"], config["hyper"]["num_envs"]) == ("rllib", algo, 4)
    versions = json.loads((run / "manifest.json").read_text())["versions"]
    assert {"ray", "torch", "steelyard"} <= versions.keys()


PARITY = {
    "mlp": ("ippo", {}),
    "gru": ("ippo", GRU),
    "shared": ("mappo", {**GRU, "policies": "shared"}),
    "sac": ("sac", {"input": "per_server"}),
    "rows-discrete": ("ippo", {"input": "per_server", "discrete": True}),
    "central": ("ippo", {"policies": "central"}),
    "central-gru": ("sac", CENTRAL_GRU),
    "central-gru-discrete": ("ippo", {**CENTRAL_GRU, "discrete": True}),
}


@pytest.mark.parametrize(("algo", "hyper"), PARITY.values(), ids=PARITY.keys())
def test_native_actions_are_those_of_rllibs_modules(algo: str, hyper: dict[str, object]) -> None:
    """Over an episode that native inference plays: |native - torch| <= 2e-6 (1 + |torch|), choices alike."""
    from ray.rllib.core.columns import Columns

    learner = trainer(algo, **hyper)
    learner.round(4)
    policy = native.Policy(learner.policy(), num_agents=2)
    game, discrete = learner.game, bool(hyper.get("discrete"))
    batch, modules = game.batch(1), [learner.module(game.policy_of(agent)) for agent in game.agents]
    states = [{key: each[None] for key, each in module.get_initial_state().items()} for module in modules]
    seen = batch.reset(seed=5).copy()
    for _ in range(game.steps):
        joint = []
        for index, (module, view) in enumerate(zip(modules, seen.reshape(len(modules), -1), strict=True)):
            obs = torch.from_numpy(view[None].copy())
            inputs = {Columns.OBS: obs}
            if states[index]:
                inputs = {Columns.OBS: obs[:, None], Columns.STATE_IN: states[index]}
            with torch.no_grad():
                out = module.forward_inference(inputs)
            states[index] = out.get(Columns.STATE_OUT, {})
            expected = module.likeliest(out[Columns.ACTION_DIST_INPUTS].reshape(1, -1))[0]
            found = policy.infer(index, view)
            joint.append(expected if discrete else found)
            if discrete:
                expected = np.array(DISCRETE_ACTIONS, np.float32)[expected]
            np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
        seen = batch.step(np.stack(joint).reshape(1, 2, 8))[0].copy()
    assert np.abs(joint).max() > 0
    learner.stop()


@pytest.mark.parametrize("policies", ["own", "central"])
def test_evaluation_and_export_of_a_run(tmp_path: Path, policies: str) -> None:
    """The run's directory is like any other: `evaluate` plays it, as compiled C++ it does the same."""
    run, out = tmp_path / "run", tmp_path / "out"
    assert train(run, "ippo", 4, {"policies": policies}) == 0
    assert cli.main(["export", str(run), "--to", "cpp", "--out", str(out), "--quiet"]) == 0
    played = []
    for index, policy in enumerate((run, out / "policy.so")):
        table = tmp_path / f"{index}.json"
        line = ["evaluate", "--scenario", "cluster-a-cpu", "--policy", str(policy), "--seeds", "0:2", *SHORT]
        assert cli.main([*line, "--json", str(table), "--quiet"]) == 0
        played.append([record["sojourn_mean_s"] for record in json.loads(table.read_text())])
    assert len(set(played[0])) == 2
    np.testing.assert_allclose(played[0], played[1], rtol=1e-3)  # the last bit of a weight may move a flow


def test_what_a_recurrent_step_remembers_a_sequence_does_too() -> None:
    """The logits noted step by step while playing are those of one pass over the sequence."""
    from ray.rllib.core.columns import Columns

    for algo in ("ippo", "sac"):
        learner = trainer(algo, **GRU)
        runner = learner.algorithm.env_runner
        episode = runner.sample()[0]
        for agent, one in episode.agent_episodes.items():
            module = learner.module(learner.game.policy_of(agent))
            obs = torch.from_numpy(one.observations.data[None])
            start = {key: value[None] for key, value in module.get_initial_state().items()}
            with torch.no_grad():
                out = module._forward({Columns.OBS: obs, Columns.STATE_IN: start})
            noted = one.extra_model_outputs[Columns.ACTION_DIST_INPUTS].data
            np.testing.assert_allclose(out[Columns.ACTION_DIST_INPUTS][0, :-1], noted, atol=1e-5)
        learner.stop()


def test_every_parameter_is_trained() -> None:
    central = ({"policies": "central"}, CENTRAL_GRU)
    cases = (("ippo", GRU), ("mappo", {}), ("sac", GRU), ("ippo", central[0]), ("sac", central[1]))
    for algo, hyper in cases:
        learner = trainer(algo, **hyper)
        policy = learner.game.policies[0]
        module = learner.algorithm.learner_group._learner.module[policy]
        before = {name: each.detach().clone() for name, each in module.named_parameters()}
        for _ in range(2):
            learner.round(4)
        for name, each in module.named_parameters():
            assert not torch.equal(before[name], each), (algo, name)
        learner.stop()


def test_agents_start_and_explore_differently() -> None:
    learner = trainer("ippo")
    one, two = learner.actors()
    assert not torch.equal(one.head.weight, two.head.weight)
    episode = learner.algorithm.env_runner.sample()[0]
    acted = [each.actions.data for each in episode.agent_episodes.values()]
    assert np.abs(acted[0] - acted[1]).max() > 0.01
    learner.stop()


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parent.parent / "docs" / "rllib.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(example.splitlines()) < 30
    exec(example, {})
    printed = capsys.readouterr().out.split()
    assert printed[0::2] == ["0", "1"]
    assert all(np.isfinite(float(number)) for number in printed[1::2])
