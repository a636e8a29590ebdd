"""The configuration file of one balancer of a testbed (docs/dataplane.md tells what may stand in it)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steelyard.agents import rules
from steelyard.deploy.testbed import network
from steelyard.envs.scenario import Scenario
from steelyard.envs.toml_text import write_toml

AGENT = "agent"
"""The policy whose weights come from an agent by shared memory."""
_PUBLICATIONS = 5


def text(
    scenario: Scenario, balancer: int, source: str, shared_memory: Path, seed: int, publish: bool = False
) -> str:
    """TOML of a balancer that follows a rule, a policy file, or `agent`.

    publish: share what it measures in any case, five times a step, which a rule may notice if it acts on a
    timer.
    """
    return write_toml(tree(scenario, balancer, source, shared_memory, seed, publish))


def tree(
    scenario: Scenario, balancer: int, source: str, shared_memory: Path, seed: int, publish: bool = False
) -> dict[str, Any]:
    """The same as a tree."""
    hosted = source not in rules.rule_names()
    vip: dict[str, Any] = {
        "name": "web",
        "address": network.VIP,
        "port": network.HTTP_PORT,
        "rule": rules.LEARNED if hosted else source,
        "interval_s": scenario.control.step_s,
        "reservoir_size": scenario.observation.reservoir_size,
    }
    if source == AGENT or publish:
        vip["interval_s"] = scenario.control.step_s / _PUBLICATIONS  # so fresh is what an agent reads
        vip["shared_memory"] = str(shared_memory)
    if source == AGENT:
        vip["max_age_s"] = 8 * scenario.control.step_s
    elif hosted:
        vip["policy_file"] = str(Path(source).resolve())
    if scenario.rule.decay_s is not None:
        vip["decay_s"] = scenario.rule.decay_s
    vip["server"] = [
        {
            "name": f"s{j}",
            "address": network.server_address(j),
            "mac": network.server_mac(j),
            "weight": weight,
        }
        for j, weight in enumerate(scenario.configured_weights())
    ]
    return {
        "hash_seed": seed % 2**31,
        "balancer": balancer,
        "num_balancers": scenario.num_agents,
        "link": {"interface": network.DEVICE, "gateway": network.GATEWAY},
        "vip": [vip],
    }
