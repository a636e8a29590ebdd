"""From a rack scenario to the native simulator's configuration and rules."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from steelyard.envs.errors import UserError, unknown
from steelyard.envs.rack_scenario import RackRuleKeys, RackScenario
from steelyard.envs.rack_workload import Delay
from steelyard.envs.scenario_parse import read_table
from steelyard.envs.toml_text import parse_value
from steelyard.envs.workload import Arrival

ALIASES = {"po2": "power_of_d:d=2"}
"""Names in use for a rule with parameters."""
_HOSTS = ("decider", "categorical")
"""Rules that something else drives: a learned policy, an environment."""


def rack_rule_names() -> list[str]:
    """Rules that decide by themselves."""
    from steelyard import native

    return [name for name, _ in native.rack_rules() if name not in _HOSTS] + list(ALIASES)


def _delay(delay: Delay) -> Any:
    from steelyard import native

    return native.RackDelay(delay.constant_s, delay.jitter.to_native() if delay.jitter else None)


def rack_config(scenario: RackScenario) -> Any:
    """native.RackConfig of a scenario. Raises UserError for a bad trace, or what the simulator refuses."""
    from steelyard import native

    rack, loads, network = scenario.rack, scenario.loads, scenario.network
    config = native.RackConfig()
    config.servers = [native.RackServer(server.workers, server.speed) for server in scenario.servers]
    listed = scenario.workload.listed()
    config.types = [native.RackType(service.to_native(), ratio) for ratio, service in listed]
    arrival = scenario.workload.arrival
    if arrival is None:
        config.arrival = Arrival(kind="poisson", rate=scenario.configured_rate()).to_native()
    else:
        config.arrival = arrival.to_native()
        config.trace = arrival.load_trace()
    config.split = list(scenario.workload.split or ())
    for name in ("dispatchers", "discipline", "quantum_s", "switch_s", "darc_within", "darc_shift"):
        setattr(config, name, getattr(rack, name))
    for name in ("darc_window", "steal_threshold", "steal_least", "steal_from"):
        setattr(config, name, getattr(rack, name))
    for name in ("task_delay", "message_delay", "reply_delay", "steal_delay"):
        setattr(config, name, _delay(getattr(network, name)))
    for name in ("migration_work_s", "steal_work_s", "latency_with_reply"):
        setattr(config, name, getattr(network, name))
    config.load_info, config.load_measure, config.own_load_exact = loads.info, loads.measure, loads.own_exact
    for name in ("broadcast_period_s", "broadcast_phase", "count_in_flight", "rate_ewma", "rate_of_inverses"):
        setattr(config, name, getattr(loads, name))
    config.horizon_s, config.warmup_s = scenario.episode.horizon_s, scenario.episode.warmup_s
    config.events = [event.to_native(scenario.num_servers) for event in scenario.events]
    try:
        config.prepare()
    except ValueError as error:
        raise UserError(str(error)) from None
    return config


def rack_rule(scenario: RackScenario, text: str) -> Any:
    """native.RackRule of `RULE` or `RULE:KEY=VALUE,...` with the scenario's parameters. Raises UserError."""
    from steelyard import native

    name, keys = parse_rule(text)
    rule = native.RackRule(name)
    for key, value in {**_given(scenario.rule), **_given(keys)}.items():
        setattr(rule, key, list(value) if isinstance(value, tuple) else value)
    return rule


def parse_rule(text: str) -> tuple[str, RackRuleKeys]:
    """The native rule and the parameters that `RULE:KEY=VALUE,...` names. Raises UserError."""
    name, _, given = text.partition(":")
    tree: dict[str, Any] = {}
    if name in ALIASES:
        name, _, own = ALIASES[name].partition(":")
        tree = _tree(own, text)
    tree |= _tree(given, text)
    if name not in [*rack_rule_names(), *_HOSTS]:
        raise unknown("rule of a rack", name, rack_rule_names())
    return name, read_table(RackRuleKeys, tree, f"policy {text}")


def _tree(given: str, text: str) -> dict[str, Any]:
    tree = {}
    for part in re.split(r",(?![^\[]*\])", given) if given else ():  # not within a list
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise UserError(f"policy {text}: must be RULE or RULE:KEY=VALUE,KEY=VALUE")
        tree[key.strip()] = parse_value(value.strip())
    return tree


def _given(keys: RackRuleKeys) -> dict[str, Any]:
    values = {field.name: getattr(keys, field.name) for field in dataclasses.fields(keys)}
    return {name: value for name, value in values.items() if value is not None}
