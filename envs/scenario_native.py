"""From a scenario to the native simulator's configuration."""

from __future__ import annotations

from typing import Any

from steelyard.envs.errors import UserError, unknown
from steelyard.envs.scenario import Scenario, ServerGroup


def _server(group: ServerGroup) -> Any:
    from steelyard import native

    made = native.ServerConfig()
    made.workers = group.workers
    made.speed = group.speed
    made.cpu = group.cpu
    made.ps_cap = group.ps_cap
    made.present = group.present
    return made


def _stage(stage: Any) -> Any:
    from steelyard import native

    made = native.StageConfig()
    made.kind = stage.kind
    made.demand = stage.demand.to_native()
    return made


def cluster_config(scenario: Scenario) -> Any:
    """native.ClusterConfig of a scenario. Raises UserError for a bad trace, or what the simulator itself
    refuses.
    """
    from steelyard import native

    config = native.ClusterConfig()
    config.num_load_balancers = scenario.num_agents
    config.servers = [_server(group) for group in scenario.servers]
    config.stages = [_stage(stage) for stage in scenario.workload.stages]
    config.arrival = scenario.workload.arrival.to_native()
    config.trace = scenario.workload.arrival.load_trace()
    config.admission_limit = scenario.pool.admission_limit
    config.reject_sojourn_s = scenario.pool.reject_sojourn_s
    config.hop_low_s, config.hop_high_s = scenario.latency.hop_low_s, scenario.latency.hop_high_s
    config.node_low_s, config.node_high_s = scenario.latency.node_low_s, scenario.latency.node_high_s
    config.flow_table_buckets, config.flow_table_ways = scenario.flow_table.buckets, scenario.flow_table.ways
    config.features = scenario.observation.features
    config.reservoir_size = scenario.observation.reservoir_size
    config.hidden_features = list(scenario.observation.hide)
    config.observation_delay_s = scenario.observation.delay_s
    config.step_s = scenario.control.step_s
    config.actuation_delay_s = scenario.control.actuation_delay_s
    config.horizon_s, config.warmup_s = scenario.episode.horizon_s, scenario.episode.warmup_s
    config.events = [event.to_native(scenario.num_servers, scenario.num_agents) for event in scenario.events]
    try:
        config.prepare()
    except ValueError as error:
        raise UserError(str(error)) from None
    return config


def rule_config(scenario: Scenario, name: str) -> Any:
    """native.RuleConfig `name` with the scenario's weights and parameters. Raises UserError for an unknown
    name.
    """
    from steelyard import native

    if name not in native.rule_names():
        raise unknown("rule", name, native.rule_names())
    rule = native.RuleConfig(name)
    rule.weights = scenario.configured_weights()
    if scenario.rule.interval_s is not None:
        rule.interval_s = scenario.rule.interval_s
    if scenario.rule.noise is not None:
        rule.noise = scenario.rule.noise
    return rule
