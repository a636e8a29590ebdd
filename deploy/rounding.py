"""What rounding a policy to bfloat16 changes: its weights, and its decisions on recorded observations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import native
from steelyard.deploy.card_parts import read_json, table
from steelyard.deploy.policy_file import PolicyFile
from steelyard.deploy.rack_file import RackFile
from steelyard.envs.errors import UserError
from steelyard.envs.rack_scenario import RackScenario
from steelyard.envs.scenario import Scenario
from steelyard.envs.worlds import load_scenario, scenario_from_dict

MAX_STEPS = 240
_SEED = 0
_STAND_INS = ("moderate-2x7", "rack-hom-8x8")


@dataclass(frozen=True)
class RoundingError:
    """Differences between a policy and its rounded form."""

    greatest: float
    """Of a weight."""
    mean: float
    """Over all weights, absolute."""
    relative: float
    """The mean over the mean absolute weight."""
    scenario: str
    """What the observations were recorded on."""
    observations: int
    action: float
    """Greatest change of an action; of racks, of a probability."""
    decisions: float
    """Share of decisions that change: of the server that the rule would choose next, or of a draw."""


def measure(exact: PolicyFile | RackFile, rounded: PolicyFile | RackFile) -> RoundingError:
    """Both policies on the observations that the exact one meets in its scenario. UserError if its record is
    damaged."""
    pairs = list(zip(exact.matrices, rounded.matrices, strict=True))
    differences = np.concatenate([np.abs(a - b).ravel() for a, b in pairs]).astype(np.float64)
    weights = np.concatenate([np.abs(a).ravel() for a, _ in pairs]).astype(np.float64)
    if isinstance(exact, RackFile) and isinstance(rounded, RackFile):
        found = _on_rack(exact, rounded)
    else:
        assert isinstance(exact, PolicyFile)
        assert isinstance(rounded, PolicyFile)
        found = _on_cluster(exact, rounded)
    mean = float(differences.mean())
    return RoundingError(float(differences.max()), mean, mean / max(float(weights.mean()), 1e-30), *found)


def section(error: RoundingError) -> list[str]:
    """Of a model card."""
    rows = [
        ("greatest difference of a weight", f"{error.greatest:.3g}"),
        ("mean difference of a weight", f"{error.mean:.3g} ({100 * error.relative:.2g} % of its mean size)"),
        ("greatest change of an action or a probability", f"{error.action:.3g}"),
        ("decisions that change", f"{100 * error.decisions:.3g} %"),
    ]
    where = f"Over {error.observations} observations recorded on {error.scenario}, seed {_SEED}."
    return [
        "## Weights in bfloat16",
        "",
        "Weights are rounded to bfloat16; biases, normalisation and all arithmetic stay float32. Against the",
        "policy before rounding:",
        "",
        *table(["", ""], rows),
        where,
        "",
    ]


def scenario_of(run: Path | None, stand_in: str) -> Any:
    """The scenario that a run was trained on; a named one if that is not on record."""
    tree = read_json(run / "config.json").get("scenario") if run else None
    return load_scenario(stand_in, ()) if tree is None else scenario_from_dict(tree)


def record_observations(policy: PolicyFile) -> tuple[str, NDArray[np.float32]]:
    """The scenario's name and (steps, M, D) float32: what the agents of a policy see on it, step by step."""
    scenario = scenario_of(policy.run, _STAND_INS[0])
    servers = policy.spec["num_servers"]
    agents = int(policy.spec.get("num_agents", 0)) or len(policy.spec["actors"])
    if not isinstance(scenario, Scenario):
        raise UserError(f"{policy.path}: trained on a rack, yet a policy of load balancers")
    config = scenario.to_native()
    before = len(config.servers)
    if before != servers:  # the stand-in, cut to size
        config.servers = [config.servers[j % before] for j in range(servers)]
        config.arrival.rate *= servers / before
    if agents > 1:
        config.num_load_balancers = agents
    rule = native.RuleConfig("policy")
    rule.policy = native.Policy(policy.blob)
    world = native.World(config, rule, _SEED)
    steps = min(MAX_STEPS, max(1, int(config.horizon_s / config.step_s)))
    seen = []
    for step in range(1, steps + 1):
        world.run_until(step * config.step_s)
        seen.append(world.observe_all())
    return scenario.name, np.stack(seen)


def _on_cluster(exact: PolicyFile, rounded: PolicyFile) -> tuple[str, int, float, float]:
    name, seen = record_observations(exact)
    n, agents = exact.spec["num_servers"], seen.shape[1]
    central = int(exact.spec.get("num_agents", 0))
    policies = [native.Policy(one.blob, num_agents=central or agents) for one in (exact, rounded)]
    action, changed, choices = 0.0, 0, 0
    for row in seen:
        observed = row.reshape(1, -1) if central else row
        for agent, obs in enumerate(observed):
            both = [policy.infer(agent, obs).reshape(-1, n) for policy in policies]
            action = max(action, float(np.abs(both[0] - both[1]).max()))
            flows = (row if central else obs[None])[:, : 11 * n : 11]
            chosen = [((flows + 1) / np.exp2(2 * one)).argmin(axis=1) for one in both]
            changed += int((chosen[0] != chosen[1]).sum())
            choices += len(flows)
    return name, seen.shape[0] * agents, action, changed / max(choices, 1)


def _on_rack(exact: RackFile, rounded: RackFile) -> tuple[str, int, float, float]:
    """A draw changes with half the sum of the changes of probabilities."""
    scenario = scenario_of(exact.run, _STAND_INS[1])
    if not isinstance(scenario, RackScenario):
        raise UserError(f"{exact.path}: trained on a cluster, yet a policy of racks")
    config = scenario.to_native()
    n, before = exact.spec["num_servers"], len(config.servers)
    if before != n:
        config.servers = [config.servers[j % before] for j in range(n)]
        config.arrival.rate *= n / before
    seen = _rack_loads(exact, config)
    action, changed, draws = 0.0, 0.0, 0
    for server in range(n):
        pair = [_server(one, server, config) for one in (exact, rounded)]
        for told in seen[:, server]:
            for player in pair:
                _tell(player, server, config.servers[server].workers, told)
            for actor in ("migration", "stealing"):
                difference = np.abs(pair[0].probabilities(actor) - pair[1].probabilities(actor))
                action = max(action, float(difference.max()))
                changed += float(difference.sum()) / 2
                draws += 1
    return scenario.name, len(seen) * n, action, changed / max(draws, 1)


def _rack_loads(policy: RackFile, config: Any) -> NDArray[np.float32]:
    """(windows, N, N) loads of all servers [s] as each knows them, at the ends of windows."""
    world = native.RackWorld(config, native.RackPolicy(policy.blob).rule(), _SEED)
    seen = []
    for window in range(1, MAX_STEPS + 1):
        world.run_until(window * config.broadcast_period_s)
        seen.append(world.views())
    return np.stack(seen)


def _tell(player: Any, server: int, workers: int, told: NDArray[np.float32]) -> None:
    """The loads of a window; its own as one task that takes so long."""
    player.restart()
    player.on_accept()
    player.on_accept()
    player.on_completion(0, max(float(told[server]), 1e-9) * workers)
    player.broadcast()
    for other, load_s in enumerate(told):
        player.on_load_message(other, float(load_s))
    player.on_window()


def _server(policy: RackFile, server: int, config: Any) -> Any:
    spec = policy.spec
    made = native.MalcolmServer(spec["config"], spec["num_servers"], server, config.servers[server].workers)
    parameters = made.parameters
    parameters[: spec["actors"].shape[1]] = spec["actors"][server]
    made.parameters, made.frozen = parameters, True
    return made
