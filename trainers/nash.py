"""The epsilon-Nash gap of a trained profile, bounded from below by best responses of one agent.

A profile is an epsilon-Nash equilibrium if no agent gains more than epsilon by playing anything else while
the others stay as they are (Distr-LB, Def. 7). The others are frozen: they run their policy file natively.
Two kinds of response are searched on training episodes:

- constant weights, by coordinate search over groups of like servers, as `steelyard tune` does for all agents
  at once; and
- a policy trained by Distr-LB against the frozen others, from the agent's own checkpoint where the run has
  one, else from nothing.

The better of the two on training episodes is judged on held-out seeds, paired with the agent's own policy
on the same flows. What no search finds is not counted: the gain is a lower bound on the gap.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import native
from steelyard.agents import rules
from steelyard.envs.errors import UserError, unknown_key
from steelyard.envs.rewards import check_reward
from steelyard.envs.scenario import Scenario
from steelyard.trainers import statistics, tune

OnProgress = Callable[[int, int, str], None]
Respond = Callable[[native.World], NDArray[np.float32]]
"""The action (N,) of the deviating agent at a step."""

_RUN = 0x5EED_0A5B_0000  # run seed of the training episodes of this search
_JUDGED = 16  # training episodes on which a candidate is judged
_OWN_REWARD = ("log_vbf", "true")  # what Distr-LB learns by default
_REWARD_KEYS = (("reward", "kind"), ("measure", "measure"))  # of a run's hyper-parameters, of a scenario


@dataclass(frozen=True)
class Game:
    """A profile that is frozen but for one agent, and what agents are paid."""

    scenario: Scenario
    policy: native.Policy
    reward: str
    measure: str
    hyper: dict[str, Any]
    checkpoint: Path | None

    @property
    def steps(self) -> int:
        """Steps of an episode."""
        return round(self.scenario.episode.horizon_s / self.scenario.control.step_s)


@dataclass(frozen=True)
class Gap:
    """What an agent gains by its best response; gains are paired over `episodes` held-out episodes.

    gain: of the undiscounted return; sojourn_gain_s: seconds by which the mean sojourn of all flows falls.
    """

    scenario: str
    agent: int
    reward: str
    measure: str
    episodes: int
    response: str
    base_return: float
    base_sojourn_s: float
    gain: statistics.Estimate
    sojourn_gain_s: statistics.Estimate
    training_gain: dict[str, float]
    """Of every response, on the training episodes that chose among them."""
    weights: list[float]
    """Of the best constant response."""

    def to_dict(self) -> dict[str, Any]:
        """For a JSON record: `epsilon` is the lower bound on the gap."""
        return dataclasses.asdict(self) | {"epsilon": max(0.0, self.gain.value)}


def open_game(
    source: str, scenario: Scenario, config: dict[str, Any], reward: str | None, measure: str | None
) -> Game:
    """The game of a run directory (config: its config.json) or policy file. ValueError if it does not fit.

    reward, measure: None for those that the run's agents were trained on.
    """
    path = Path(source)
    file = path / rules.POLICY_FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"--nash: {source}: no policy in it; name a run directory or a policy file")
    rules.policy_config(str(file), scenario.num_servers, scenario.num_agents)
    hyper = config.get("hyper", {})
    own = dict(zip(("reward", "measure"), _OWN_REWARD, strict=True))
    own |= {key: hyper[key] or getattr(scenario.reward, name) for key, name in _REWARD_KEYS if key in hyper}
    hyper = hyper if config.get("algorithm") == "distr-lb" else {}
    kind, fallback = reward or own["reward"], "true" if reward else own["measure"]
    check_reward(kind, measure or fallback)
    checkpoint = path / "checkpoint" if hyper and (path / "checkpoint").is_dir() else None
    policy = native.Policy(str(file), num_agents=scenario.num_agents)
    return Game(scenario, policy, kind, measure or fallback, hyper, checkpoint)


def best_response(
    game: Game, agent: int, seeds: Sequence[int], episodes: int, on_progress: OnProgress
) -> Gap:
    """Search responses of one agent, judge the best on the held-out seeds."""
    training = [native.train_seed(_RUN, index) for index in range(_JUDGED)]
    own = play(game, agent, None, training)[0].mean()
    weights, constant = _best_constant(game, agent, training, on_progress)
    responses = {"constant": constant}
    if episodes > 0:
        responses["trained"] = _trained(game, agent, episodes, on_progress)
    gains = {
        name: float(play(game, agent, respond, training)[0].mean() - own)
        for name, respond in responses.items()
    }
    best = max(gains, key=gains.__getitem__)
    on_progress(0, 0, f"agent {agent}: {len(seeds)} held-out episodes")
    before, slow = play(game, agent, None, seeds)
    after, fast = play(game, agent, responses[best], seeds)
    return Gap(
        scenario=game.scenario.name,
        agent=agent,
        reward=game.reward,
        measure=game.measure,
        episodes=len(seeds),
        response=best,
        base_return=float(before.mean()),
        base_sojourn_s=float(slow.mean()),
        gain=_paired(after, before),
        sojourn_gain_s=_paired(slow, fast),
        training_gain=gains,
        weights=[float(weight) for weight in weights],
    )


def _paired(one: NDArray[np.float64], other: NDArray[np.float64]) -> statistics.Estimate:
    return statistics.bootstrap(statistics.difference, [one[None, :]], [other[None, :]])


def play(
    game: Game, agent: int, respond: Respond | None, seeds: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The agent's return and the mean sojourn [s] of each episode, (E,) both; None: its own policy."""
    scenario, rule = game.scenario, native.RuleConfig(rules.LEARNED)
    rule.policy = game.policy
    world = native.World(scenario.to_native(), rule, 0)
    returns, sojourns = np.zeros(len(seeds)), np.zeros(len(seeds))
    for index, seed in enumerate(seeds):
        world.reset(seed)
        for step in range(game.steps):
            if respond is not None:  # the world has just let the frozen policy act; this takes its place
                world.act(agent, respond(world))
            world.run_until((step + 1) * scenario.control.step_s)
            returns[index] += world.reward(game.reward, game.measure)[agent]
        world.drain()
        sojourns[index] = world.stats()["sojourn_mean_s"]
    return returns, sojourns


def _best_constant(
    game: Game, agent: int, seeds: Sequence[int], on_progress: OnProgress
) -> tuple[NDArray[np.float64], Respond]:
    """The best constant weights, of those that an action can express, and the response."""
    scenario, judged = game.scenario, 0
    capacity = np.array([server.workers * server.speed for server in scenario.servers])
    groups = tune.weight_groups(scenario)

    def action(ratios: Sequence[float]) -> NDArray[np.float32]:
        octaves = np.log2(capacity)
        for group, ratio in zip(groups[1:], ratios, strict=True):
            octaves[group] += ratio
        octaves -= (octaves.max() + octaves.min()) / 2
        return np.clip(octaves / 2, -1, 1).astype(np.float32)  # a weight is 2^(2a)

    def objective(ratios: tuple[float, ...]) -> float:
        nonlocal judged
        judged += 1
        on_progress(judged, 0, f"agent {agent}: constant weights")
        chosen = action(ratios)
        return -float(play(game, agent, lambda world: chosen, seeds)[0].mean())

    best = action(tune.coordinate_search(objective, len(groups) - 1))
    return np.exp2(2.0 * best), lambda world: best


def _trained(game: Game, agent: int, episodes: int, on_progress: OnProgress) -> Respond:
    """A policy trained against the frozen others."""
    from steelyard.agents import export

    learner = _learner(game, agent)
    batch = learner.config.num_envs
    for done in range(0, episodes, batch):
        on_progress(done, episodes, f"agent {agent}: learning a response")
        seeds = [native.train_seed(_RUN + 1, index) for index in range(done, min(done + batch, episodes))]
        _learn_from(game, agent, learner, seeds)
        learner.slow_down(done + len(seeds))
        for _ in range(max(1, round(learner.config.updates_per_episode * len(seeds)))):
            learner.update()
    blob = export.policy_bytes([learner.averaged], [learner.normaliser], learner.config.clip)
    policy = native.Policy(blob, num_agents=1)

    def respond(world: native.World) -> NDArray[np.float32]:
        if world.now_s == 0:
            policy.reset()
        return policy.infer(0, world.observe(agent))

    return respond


def _learner(game: Game, agent: int) -> Any:
    """A Distr-LB agent; from the run's checkpoint it starts as what the run deploys, its rates anew."""
    import torch

    from steelyard.trainers import checkpoint, distr_lb

    torch.set_num_threads(1)
    known = {field.name for field in dataclasses.fields(distr_lb.DistrLb)}
    for name in game.hyper.keys() - known:
        raise unknown_key("hyper.", name, known)
    changes = {"reward": game.reward, "measure": game.measure, "discrete": False}
    config = distr_lb.DistrLb(**{**game.hyper, **changes})
    config.check(game.steps)
    learner = distr_lb.Agent(
        config, game.scenario.num_servers, game.steps, native.train_seed(_RUN, agent) >> 1
    )
    if game.checkpoint is None or game.hyper.get("discrete"):
        return learner
    saved = checkpoint.load(game.checkpoint)["trainer"]["agents"]
    if agent < len(saved):
        learner.load(saved[agent])
        learner.actor.load_state_dict(learner.averaged.state_dict())
        learner.steps_done = 0
    return learner


def _learn_from(game: Game, agent: int, learner: Any, seeds: Sequence[int]) -> None:
    """Play an episode per seed, the learner exploring among the frozen others, and remember it."""
    import torch

    from steelyard.trainers import rounds

    others = [copy.copy(game.policy) for _ in seeds]
    for policy in others:
        policy.reset()
    state = learner.actor.initial_state(len(seeds))
    before: list[torch.Tensor] = []

    def act(obs: torch.Tensor) -> torch.Tensor:
        nonlocal state
        before.append(state)
        seen = obs.numpy()
        action, state = learner.act(obs[:, agent], state)
        joint = [
            [policy.infer(i, row[i]) if i != agent else mine for i in range(row.shape[0])]
            for policy, row, mine in zip(others, seen, action.numpy(), strict=True)
        ]
        return torch.from_numpy(np.array(joint, dtype=np.float32))

    _, tape = rounds.play(game.scenario, seeds, act, learner.config)
    mine = (tape[name][:, :, agent].contiguous() for name in ("obs", "action", "reward"))
    learner.remember(*mine, torch.stack(before, 1))
