"""The rules that production runs: each against its definition in plain Python, what it asks, its keys."""

import json
import math
from pathlib import Path
from statistics import median_low

import numpy as np
import pytest
from reference import (
    CHOICE_SALT,
    STREAM_RESERVOIR,
    Job,
    ReferenceWorld,
    below,
    draw,
    mix64,
    stream_key,
    two_below,
    unit_open,
)
from worlds import cluster, distribution, event, exponential, rule, server, stage, standard_error

from steelyard import native
from steelyard.agents.rules import LEARNED
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers import cli

POOL = [server(2, 1.5), server(1), server(1, 0.75), server(2)]
CAPACITY = [3.0, 1.0, 0.75, 2.0]
RULES = ["least_request", "peak_ewma", "c3", "prequal"]
PROBE_SALT = 0x70726F6265


class PeakEwma(ReferenceWorld):
    """Finagle: a sample above the average replaces it, another one pulls it down by exp(-elapsed / decay); to
    look at a server is a sample of 0.
    """

    def __init__(self, config: native.ClusterConfig, by: native.RuleConfig, seed: int) -> None:
        super().__init__(config, by, seed)
        self.decay_s = by.decay_s
        self.average: dict[tuple[int, int], tuple[float, float]] = {}  # (balancer, server) -> s, at

    def sample(self, key: tuple[int, int], rtt_s: float) -> float:
        average, at = self.average.get(key, (0.0, 0.0))
        keep = math.exp((at - self.clock) / self.decay_s)
        average = rtt_s if rtt_s > average else average * keep + rtt_s * (1 - keep)
        self.average[key] = (average, self.clock)
        return average

    def completed(self, job: Job, j: int) -> None:
        self.sample((job.balancer, j), self.clock - job.opened)

    def choose(self, balancer: int, flow_hash: int, job: Job) -> int:
        def cost(j: int) -> float:
            active = self.own[balancer][j]
            if (balancer, j) not in self.average:
                return active and 1e6 + active
            return self.sample((balancer, j), 0.0) * (active + 1)

        return min(two_below(mix64(flow_hash ^ CHOICE_SALT), self.n), key=cost)


class LeastRequest(ReferenceWorld):
    """Envoy, unequal weights: the server whose turn is due first; its next is due (active + 1) / w later."""

    def __init__(self, config: native.ClusterConfig, by: native.RuleConfig, seed: int) -> None:
        super().__init__(config, by, seed)
        self.weights = by.weights
        streams = [draw(stream_key(seed, STREAM_RESERVOIR), i) for i in range(self.m)]
        self.due = [
            [unit_open(draw(draw(stream, 2), j)) / w for j, w in enumerate(by.weights)] for stream in streams
        ]

    def choose(self, balancer: int, flow_hash: int, job: Job) -> int:
        due = self.due[balancer]
        j = min(range(self.n), key=due.__getitem__)
        due[j] += (self.own[balancer][j] + 1) / self.weights[j]
        return j


class C3(ReferenceWorld):
    """Suresh et al., Sec. 3.1: R - 1/mu + qhat^3 / mu, qhat = 1 + outstanding x clients + queue."""

    def __init__(self, config: native.ClusterConfig, by: native.RuleConfig, seed: int) -> None:
        super().__init__(config, by, seed)
        self.newest = by.newest
        self.heard: dict[tuple[int, int], np.ndarray] = {}  # R, 1/mu, queue

    def completed(self, job: Job, j: int) -> None:
        service_s = sum(job.demands) / self.servers[j].speed
        new = np.array([self.clock - job.opened, service_s, self.servers[j].count()])
        old = self.heard.get((job.balancer, j), new)
        self.heard[job.balancer, j] = self.newest * new + (1 - self.newest) * old

    def choose(self, balancer: int, flow_hash: int, job: Job) -> int:
        def score(j: int) -> float:
            if (balancer, j) not in self.heard:
                active = self.own[balancer][j]
                return active and 1e6 + active
            response_s, service_s, queue = self.heard[balancer, j]
            return response_s - service_s + (1 + self.own[balancer][j] * self.m + queue) ** 3 * service_s

        return self.least(score, mix64(flow_hash ^ CHOICE_SALT))


class Prequal(ReferenceWorld):
    """Wydrowski et al., Sec. 4, in a pool so small that every answer guides one flow. An answer is
    [server, flows in it, latency, received].
    """

    def __init__(self, config: native.ClusterConfig, by: native.RuleConfig, seed: int) -> None:
        super().__init__(config, by, seed)
        self.by = by
        self.found: dict[int, int] = {}  # flow -> others in its server when it came
        self.latencies: list[list[tuple[int, float]]] = [[] for _ in range(self.n)]
        self.pool: list[list[list[float]]] = [[] for _ in range(self.m)]
        self.recent: list[list[int]] = [[] for _ in range(self.m)]
        self.removals = [0] * self.m

    def completed(self, job: Job, j: int) -> None:
        self.latencies[j].append((self.found[job.flow], self.clock - job.opened))

    def latency_of(self, j: int) -> float:
        """Median at the current count; of at least three flows, if there are as many."""
        last, rif = self.latencies[j][-64:], self.servers[j].count()
        distances = sorted(abs(found - rif) for found, _ in last)
        near = [latency for found, latency in last if abs(found - rif) <= distances[:3][-1]]
        return median_low(near) if near else 0.0

    def rank(self, balancer: int, answer: list[float]) -> tuple[float, ...]:
        """Cold before hot; the cold by latency, the hot by count."""
        recent = sorted(self.recent[balancer][-64:])
        hot = answer[1] > recent[math.ceil(self.by.rif_quantile * len(recent)) - 1]
        return (1, answer[1]) if hot else (0, answer[2], answer[1])

    def choose(self, balancer: int, flow_hash: int, job: Job) -> int:
        pool = [a for a in self.pool[balancer] if self.clock - a[3] <= self.by.probe_age_s]
        chosen = below(mix64(flow_hash ^ CHOICE_SALT), self.n)
        if len(pool) >= 2:
            best = min(pool, key=lambda answer: self.rank(balancer, answer))
            pool.remove(best)
            chosen = int(best[0])
        for answer in pool:
            answer[1] += answer[0] == chosen
        if pool:
            worst = max(pool, key=lambda answer: self.rank(balancer, answer)[:2])
            pool.remove(worst if self.removals[balancer] % 2 else pool[0])
            self.removals[balancer] += 1
        self.pool[balancer] = pool
        self.probe(balancer, mix64(flow_hash ^ PROBE_SALT))
        self.found[job.flow] = self.servers[chosen].count()
        return chosen

    def probe(self, balancer: int, word: int) -> None:
        """Different servers by Floyd's sampling; their answers come before the flow does."""
        count = int(self.by.probes)
        targets: list[int] = []
        for k in range(count):
            last = self.n - count + k
            drawn = below(draw(word, k), last + 1)
            targets.append(last if drawn in targets else drawn)
        for j in targets:
            rif = self.servers[j].count()
            self.pool[balancer] = [a for a in self.pool[balancer] if a[0] != j]
            self.pool[balancer].append([j, rif, self.latency_of(j), self.clock])
            self.recent[balancer].append(rif)


REFERENCES = {"least_request": LeastRequest, "peak_ewma": PeakEwma, "c3": C3, "prequal": Prequal}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("least_request", {}),
        ("peak_ewma", {}),
        ("peak_ewma", {"decay_s": 0.5}),
        ("c3", {}),
        ("c3", {"newest": 0.2}),
        ("prequal", {}),
        ("prequal", {"probes": 2, "probe_age_s": 0.25, "rif_quantile": 0.5}),
    ],
)
def test_decisions_are_those_of_the_python_world(name, fields, seed):
    config = cluster(POOL, 4.2, [stage("cpu", exponential())], num_load_balancers=2, horizon_s=70.0)
    by = rule(name, CAPACITY if native.RuleConfig(name).uses_weights else [], **fields)
    reference = REFERENCES[name](config, by, seed)
    reference.run()
    world = native.World(config, by, seed)
    world.run_until(config.horizon_s)
    assert world.digest == reference.digest


def episode(config: native.ClusterConfig, by: native.RuleConfig, seed: int = 1) -> dict:
    return native.simulate(config, by, [seed])[0]


def weighted(name: str, weights: list[float] = CAPACITY, **fields: float) -> native.RuleConfig:
    return rule(name, weights if native.RuleConfig(name).uses_weights else [], **fields)


@pytest.mark.parametrize(
    "name", [name for name in native.rule_names() if name not in ("awcmp", "prequal", "policy")]
)
def test_rules_that_ask_nothing_send_nothing(name):
    """What a reply carries (Charon, C3) is no message, and what an oracle knows it has from nobody."""
    config = cluster(POOL, 4.2, num_load_balancers=2, horizon_s=50.0, step_s=0.5, features=True)
    stats = episode(config, weighted(name))
    assert stats["arrived"] > 100
    assert stats["messages"] == 0
    assert stats["messages_per_flow"] == 0


@pytest.mark.parametrize(("probes", "pool"), [(3, 4), (1, 4), (16, 4), (16, 20), (3, 1), (0, 4)])
def test_prequal_pays_for_probes_and_answers(probes, pool):
    """r_probe questions a flow, no more than there are servers, and an answer to each."""
    config = cluster([server()] * pool, 0.6 * pool, horizon_s=100.0)
    stats = episode(config, rule("prequal", probes=probes))
    asked = min(probes, pool)
    assert abs(stats["messages"] - 2 * asked * stats["arrived"]) <= asked  # answers to the last flow's
    assert stats["messages_per_flow"] == stats["messages"] / stats["arrived"]


def test_a_fraction_of_a_probe_is_paid_on_average():
    config = cluster([server()] * 8, 5.0, horizon_s=2000.0)
    stats = episode(config, rule("prequal", probes=1.25))
    error = 2 * math.sqrt(0.25 * 0.75 / stats["arrived"])
    assert abs(stats["messages_per_flow"] - 2.5) < 4 * error + 2 / stats["arrived"]


def test_awcmp_pays_for_every_look_at_every_server():
    """2 balancers ask 4 servers every second from 0 on."""
    config = cluster(POOL, 4.2, num_load_balancers=2, horizon_s=10.25, step_s=0.5)
    world = native.World(config, weighted("awcmp", interval_s=1.0), 1)
    world.run_until(10.25)
    assert world.stats()["messages"] == 2 * 2 * 4 * 11


def test_a_failed_balancer_asks_nothing():
    """One of two is down all the time: three questions by the other for each of all flows."""
    fails = event("balancer_fail", 0.0, targets=[1])
    config = cluster(POOL, 4.2, num_load_balancers=2, horizon_s=50.0, events=[fails], hop_high_s=0.1)
    stats = episode(config, rule("prequal"))
    assert stats["arrived"] > 100
    assert abs(stats["messages"] - 6 * stats["arrived"]) <= 9  # the answers on their way at the end


def production_world(**fields) -> native.ClusterConfig:
    """Two balancers, slow network, a server that joins late and one that leaves."""
    events = [event("leave", 15.0, targets=[0]), event("join", 25.0, targets=[0])]
    defaults = {
        "num_load_balancers": 2, "horizon_s": 60.0, "step_s": 0.5, "hop_low_s": 1e-3, "hop_high_s": 0.2,
        "events": events,
    }  # fmt: skip
    return cluster(POOL, 3.5, [stage("cpu", exponential())], **{**defaults, **fields})


@pytest.mark.parametrize("name", RULES)
def test_a_seed_is_one_episode_whoever_runs_it(name):
    """Threads, order, measurements for agents, and a copy half-way with probes on the network."""
    config, by, seeds = production_world(), weighted(name), list(range(6))
    digests = [e["digest"] for e in native.simulate(config, by, seeds, threads=1)]
    assert len(set(digests)) == len(seeds)
    backwards = native.simulate(config, by, seeds[::-1], threads=2)
    assert [e["digest"] for e in reversed(backwards)] == digests
    measured = native.simulate(production_world(features=True), by, seeds, threads=1)
    assert [e["digest"] for e in measured] == digests
    world, whole = native.World(config, by, 3), native.World(config, by, 3)
    whole.run_until(60.0)
    world.run_until(20.03)
    twin = world.clone()
    for one in (world, twin):
        one.run_until(60.0)
        assert one.digest == whole.digest
        assert one.stats() == whole.stats()


@pytest.mark.parametrize("name", RULES)
def test_equal_servers_get_equal_shares(name):
    """Mean share of the flows under way of each of five servers over seeds, against 1 / 5."""
    config = cluster([server(2)] * 5, 7.0, num_load_balancers=2, horizon_s=100.0)
    by = rule(name, [2.0] * 5 if native.RuleConfig(name).uses_weights else [])
    shares = []
    for seed in range(40):
        world = native.World(config, by, seed)
        taken = np.zeros(5)
        for at_s in np.arange(0.2, 100.0, 0.2):
            world.run_until(at_s)
            taken += world.state()["in_system"]
        shares.append(taken / taken.sum())
    for j in range(5):
        share = np.array([row[j] for row in shares])
        assert abs(share.mean() - 0.2) < 4 * standard_error(share)
        assert standard_error(share) < 0.01


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("unit", [2.0, 64.0])
def test_time_has_no_unit(name, unit):
    """All times of the world and of the rule multiplied by one number: the same decisions."""
    one = cluster(POOL, 4.2, [stage("cpu", exponential())], num_load_balancers=2, horizon_s=100.0)
    other = cluster(
        POOL, 4.2 / unit, [stage("cpu", exponential(unit))], num_load_balancers=2, horizon_s=100.0 * unit
    )
    scaled = {"peak_ewma": {"decay_s": 10 * unit}, "prequal": {"probe_age_s": unit}}.get(name, {})
    first, second = episode(one, weighted(name)), episode(other, weighted(name, **scaled))
    assert second["digest"] == first["digest"]
    assert second["sojourn_mean_s"] == pytest.approx(unit * first["sojourn_mean_s"], rel=1e-4)


def test_prequal_without_probes_is_a_uniform_choice():
    config = production_world()
    assert episode(config, rule("prequal", probes=0))["digest"] == episode(config, rule("ecmp"))["digest"]
    assert episode(config, rule("prequal"))["digest"] != episode(config, rule("ecmp"))["digest"]


def test_latency_finds_the_slow_server_that_counts_do_not_show():
    """One of four servers has a quarter of the speed and should not get as many flows at a time: with equal
    demands each rule that measures latency beats its like that only counts.
    """
    pool = [server(4)] * 3 + [server(4, 0.25)]
    config = cluster(pool, 9.0, [stage("cpu", distribution("deterministic", [1.0]))], horizon_s=100.0)
    seeds = list(range(20))

    def mean_s(name: str) -> float:
        return np.mean([e["sojourn_mean_s"] for e in native.simulate(config, rule(name), seeds, threads=1)])

    assert mean_s("peak_ewma") < 0.9 * mean_s("lsq2")
    assert mean_s("prequal") < 0.9 * mean_s("gsq2")
    assert mean_s("c3") < 0.97 * mean_s("lsq")


SIMULATE = ["simulate", "--scenario", "cluster-a-cpu", "--policy"]
PARAMETERS = {
    "interval_s": ("awcmp", 0.5, 0, 1e6),
    "noise": ("least_load_noise", 2.0, 0, 999_999),
    "decay_s": ("peak_ewma", 10.0, 1e-6, 1e6),
    "newest": ("c3", 0.9, 1e-6, 1),
    "probes": ("prequal", 3.0, 0, 16),
    "probe_age_s": ("prequal", 1.0, 0, 1e6),
    "rif_quantile": ("prequal", 0.84, 0, 1),
}


@pytest.mark.parametrize("key", PARAMETERS)
def test_parameters_in_scenarios(key):
    """The published value if left out; the ends of the range are allowed, what is beyond is one line."""
    name, default, low, high = PARAMETERS[key]
    scenario = Scenario.load("cluster-a-cpu")
    assert getattr(scenario.to_rule(name), key) == default
    assert "[rule]" not in scenario.to_toml() or key not in scenario.to_toml()
    for value in (low, high):
        changed = scenario.with_overrides([f"rule.{key}={value}"])
        by = changed.to_rule(name)
        assert getattr(by, key) == value
        by.check(8, 2)
        assert Scenario.from_toml(changed.to_toml()) == changed
    for bad in (-1, high * 1.001, "nan", "inf", "much", "[1]", "true"):
        with pytest.raises(UserError, match=rf"^rule\.{key} = .*must be a number"):
            scenario.with_overrides([f"rule.{key}={bad}"])


@pytest.mark.parametrize("key", ["decay_s", "newest", "probes", "probe_age_s", "rif_quantile"])
def test_the_core_refuses_what_scenarios_refuse(key):
    name, _, _, high = PARAMETERS[key]
    config = cluster(POOL, 4.2, horizon_s=1.0)
    for bad in (-1.0, high * 1.001, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=rf"^rule\.{key}: .* is not allowed; use a number in \["):
            native.simulate(config, rule(name, **{key: bad}), [1])


def test_parameters_reach_the_simulator_by_the_command_line(tmp_path, capsys):
    def sojourns(*changes: str) -> list[float]:
        out = tmp_path / "out.json"
        args = [*SIMULATE, "peak_ewma", "--seeds", "0:3"]
        sets = [word for change in changes for word in ("--set", change)]
        assert cli.main([*args, "--quiet", "--json", str(out), *sets]) == 0
        return [record["sojourn_mean_s"] for record in json.loads(out.read_text())]

    usual = sojourns()
    assert sojourns("rule.decay_s=10") == usual
    assert sojourns("rule.probes=2") == usual  # another rule's
    assert sojourns("rule.decay_s=0.1") != usual
    assert cli.main([*SIMULATE, "prequal", "--set", "rule.probes=17"]) == 2
    err = capsys.readouterr().err
    assert err == "steelyard: error: rule.probes = 17: must be a number >= 0 and <= 16\n"


def test_the_readme_counts_the_rules():
    static = [name for name in native.rule_names() if name != LEARNED]
    assert len(static) == 23
    assert "twenty-three rules" in (Path(__file__).parent.parent / "README.md").read_text()
