"""`steelyard audit`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from steelyard.envs.errors import UserError
from steelyard.envs.rack_scenario import RackScenario
from steelyard.trainers import results
from steelyard.trainers.commands import common

if TYPE_CHECKING:
    from steelyard.envs.audit import Profile
    from steelyard.envs.scenario import Scenario
    from steelyard.trainers.nash import Gap

_HORIZONS = ("stage", "10")
_MAX_SAMPLES = 100_000
_LEGEND = (
    "epsilon = |delta r_i - delta phi|; relative: its mean over the mean |delta phi|; sign: share of "
    "the deviations that change r_i and phi, or phi over true loads, in the same direction"
)
_MIN_EPISODES = 20  # below, an interval over episodes says little


@dataclass(kw_only=True)
class Audit:
    """Measure how far rewards are from an exact potential game, or a profile from a Nash equilibrium.

    Branches snapshots of the simulator under a deviation of one agent, on the same flows, and reports
    epsilon = |change of the agent's payoff - change of the potential|; docs/audit.md explains it. With --nash
    it searches best responses to a trained profile instead. Examples:
    steelyard audit --scenario cluster-a-cpu --reward vbf --reward marginal_vbf --horizon stage --horizon 10
    steelyard audit --scenario rack-hom-8x8 --reward payoff --policy random --policy linear --horizon stage
    """

    scenario: Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")] = None
    """A named scenario or a TOML file; with --nash RUN by default that of the run."""
    reward: Annotated[tuple[str, ...], tyro.conf.arg(metavar="REWARD"), tyro.conf.UseAppendAction] = ()
    """A reward, on racks payoff or phi; repeat for more. By default all; with --nash that of the run."""
    measure: Annotated[str | None, tyro.conf.arg(metavar="own|durations|true")] = None
    """What the rewards are over. By default own and durations for the reward of one agent, true for team and
    marginal rewards."""
    horizon: Annotated[tuple[str, ...], tyro.conf.arg(metavar="stage|STEPS"), tyro.conf.UseAppendAction] = ()
    """The stage or a number of steps; repeat for more. By default stage and 10."""
    policy: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="random|RULE|RUN_DIR|BLOB"), tyro.conf.UseAppendAction
    ] = ()
    """The profile that the agents follow; repeat for more. By default random: constant weights, drawn anew
    for every sample. On racks random or linear, which follows the loads that servers hear of."""
    samples: Annotated[int, tyro.conf.arg(metavar="N")] = 200
    """Snapshots that are branched."""
    seeds: Annotated[str, tyro.conf.arg(metavar="A:B")] = "0:50"
    """Evaluation seeds A, A+1, ..., B-1: of the snapshots, or on which a gap is measured."""
    overrides: common.Overrides = ()
    """Change a value of the scenario, for example --set pool.balancers=4."""
    json: common.OutputFile = None
    """Write the records to this file."""
    nash: Annotated[str | None, tyro.conf.arg(metavar="RUN_DIR|BLOB")] = None
    """Instead, bound the epsilon-Nash gap of this trained profile from below by best responses."""
    nash_episodes: Annotated[int, tyro.conf.arg(metavar="N")] = 96
    """Training episodes of each best response; 0: only constant weights are searched."""
    agents: Annotated[tuple[int, ...], tyro.conf.arg(metavar="I")] = ()
    """With --nash, the agents that may deviate; by default each in its turn."""
    quiet: common.Quiet = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Audit, write the file, print the table."""
        json_file = None if self.json is None else results.check_file("--json", self.json)
        seeds = common.parse_seeds(self.seeds)
        header, records, rows, last = self._gaps(seeds) if self.nash is not None else self._errors(seeds)
        if json_file is not None:
            results.write_json("--json", json_file, records)
        if not self.quiet:
            common.print_table(header, rows, left=4)
            print(last)
        return 0

    def _errors(self, seeds: range) -> tuple[list[str], list[dict[str, Any]], list[list[str]], str]:
        from steelyard.envs import audit

        if self.scenario is None:
            raise UserError("--scenario: none given; name one of `steelyard scenarios` or a TOML file")
        if not 1 <= self.samples <= _MAX_SAMPLES:
            raise UserError(f"--samples: {self.samples}; allowed: 1 to {_MAX_SAMPLES}")
        horizons = [audit.check_horizon(text) for text in dict.fromkeys(self.horizon or _HORIZONS)]
        (scenario,) = common.load_one_world([self.scenario], self.overrides)
        if isinstance(scenario, RackScenario):
            records = self._rack_records(scenario, seeds, horizons)
            return _ERRORS, records, [_error_row(record) for record in records], _LEGEND
        pairs = audit.audited(self.reward, self.measure)
        chosen = profiles(scenario, self.policy)
        records = []
        with common.progress_bar("audit", self.quiet) as on_progress:
            for profile in chosen:
                steps = max(1, *horizons)
                found = audit.sample(scenario, profile, seeds, self.samples, steps, on_progress)
                judge = audit.Audit(found)
                on_progress(self.samples, self.samples, f"{len(pairs)} rewards")
                records += [
                    judge.record(kind, measure, steps)
                    | {"scenario": scenario.name, "profile": profile.name, "seeds": self.seeds}
                    for kind, measure in pairs
                    for steps in horizons
                ]
        return _ERRORS, records, [_error_row(record) for record in records], _LEGEND

    def _rack_records(
        self, scenario: RackScenario, seeds: range, horizons: Sequence[int]
    ) -> list[dict[str, Any]]:
        from steelyard.envs import rack_audit

        kinds = rack_audit.audited_rack(self.reward)
        if self.measure not in (None, "true"):
            raise UserError(f"--measure: {self.measure!r}; allowed on a rack: true")
        records = []
        with common.progress_bar("audit", self.quiet) as on_progress:
            for profile in dict.fromkeys(self.policy or (rack_audit.RANDOM,)):
                steps = max(1, *horizons)
                found = rack_audit.sample_rack(scenario, profile, seeds, self.samples, steps, on_progress)
                judge = rack_audit.RackAudit(found)
                records += [
                    judge.record(kind, steps)
                    | {"scenario": scenario.name, "profile": profile, "seeds": self.seeds}
                    for kind in kinds
                    for steps in horizons
                ]
        return records

    def _gaps(self, seeds: range) -> tuple[list[str], list[dict[str, Any]], list[list[str]], str]:
        from steelyard.trainers import nash

        if len(self.reward) > 1:
            raise UserError("--reward: given twice; a gap is in one reward")
        if len(seeds) < _MIN_EPISODES:
            raise UserError(f"--seeds: {len(seeds)} episodes; allowed: {_MIN_EPISODES} or more with --nash")
        if not 0 <= self.nash_episodes <= common.MAX_EPISODES:
            raise UserError(f"--nash-episodes: {self.nash_episodes}; allowed: 0 to {common.MAX_EPISODES}")
        source = str(self.nash)
        tree = _run_config(Path(source))
        game = nash.open_game(source, self._nash_scenario(tree), tree, (*self.reward, None)[0], self.measure)
        agents = self.agents or tuple(range(game.scenario.num_agents))
        for agent in agents:
            if not 0 <= agent < game.scenario.num_agents:
                raise UserError(f"--agents: {agent}; allowed: 0 to {game.scenario.num_agents - 1}")
        with common.progress_bar("nash", self.quiet) as on_progress:
            gaps = [
                nash.best_response(game, agent, seeds, self.nash_episodes, on_progress)
                for agent in dict.fromkeys(agents)
            ]
        records = [gap.to_dict() | {"run": source, "seeds": self.seeds} for gap in gaps]
        bound = max(gaps, key=lambda gap: gap.gain.value)
        return _GAPS, records, [_gap_row(gap) for gap in gaps], _bound(bound)

    def _nash_scenario(self, tree: dict[str, Any]) -> Scenario:
        from steelyard.envs.scenario import Scenario

        if self.scenario is None and "scenario" not in tree:
            raise UserError(f"--scenario: none given, and {self.nash} is no run directory that names one")
        if self.scenario is None:
            return Scenario.from_dict(tree["scenario"], self.overrides)
        (scenario,) = common.load_scenarios([self.scenario], self.overrides)
        return scenario


def profiles(scenario: Scenario, policies: tuple[str, ...]) -> list[Profile]:
    """The profiles that --policy names, one for each training run of a learner. ValueError if one does not
    fit the scenario."""
    from steelyard.agents import rules
    from steelyard.envs.audit import RANDOM, Profile
    from steelyard.trainers.evaluation import member_rule

    found = []
    for name in dict.fromkeys(policies or (RANDOM,)):
        if name == RANDOM:
            found.append(Profile())
            continue
        contender = rules.parse_policy(name)
        for member in contender.members:
            rule = member_rule(scenario, contender, member, "uncensored", 1)
            found.append(Profile(member.name, rule))
    return found


def _run_config(run: Path) -> dict[str, Any]:
    """What config.json of a run directory says; empty for a policy file."""
    if not (run / "config.json").is_file():
        return {}
    try:
        tree = json.loads((run / "config.json").read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{run / 'config.json'}: damaged ({error})") from error
    return tree if isinstance(tree, dict) else {}


_ERRORS = ["profile", "reward", "measure", "horizon", "samples", "epsilon mean", "p90", "max"]
_ERRORS += ["mean |delta phi|", "relative", "sign as phi", "as true load"]


def _error_row(record: dict[str, Any]) -> list[str]:
    words = [str(record[key]) for key in ("profile", "reward", "measure", "horizon", "samples")]
    keys = ("epsilon_mean", "epsilon_p90", "epsilon_max", "scale", "relative")
    numbers = ["" if record[key] is None else f"{record[key]:.3g}" for key in keys]
    shares = [record["agreement"], record["load_agreement"]]
    return [*words, *numbers, *("" if share is None else f"{100 * share:.0f} %" for share in shares)]


_GAPS = ["agent", "reward", "measure", "best response", "episodes", "return", "gain", "mean sojourn gain"]


def _gap_row(gap: Gap) -> list[str]:
    words = [str(gap.agent), gap.reward, gap.measure, gap.response, str(gap.episodes)]
    return [*words, f"{gap.base_return:.4g}", str(gap.gain), f"{gap.sojourn_gain_s} s"]


def _bound(gap: Gap) -> str:
    clear = "clear of 0" if gap.gain.low > 0 else "not clear of 0"
    return (
        f"epsilon-Nash gap: at least {max(0.0, gap.gain.value):.4g} in the return of agent {gap.agent} "
        f"({clear}, 95 % paired bootstrap); a lower bound, since a better response may exist"
    )
