"""`steelyard train`."""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from steelyard.envs.errors import UserError, shown
from steelyard.envs.scenario import Scenario
from steelyard.envs.toml_text import parse_toml
from steelyard.envs.worlds import AnyScenario
from steelyard.trainers import algorithms, results, run_logger
from steelyard.trainers.algorithms import HYPER
from steelyard.trainers.commands import common
from steelyard.trainers.rllib import settings as rllib

if TYPE_CHECKING:
    from steelyard.trainers.session import Plan, Session

ALGO_HELP = "; ".join(f"{name}: {each.summary}" for name, each in algorithms.ALGORITHMS.items())
ALGO_HELP += "; with --engine rllib: "
ALGO_HELP += "; ".join(f"{name}: {each.summary}" for name, each in rllib.ALGORITHMS.items())
_REWARD = "reward."
_SEED_END = 2**63


@dataclass(kw_only=True)
class Train:
    """Train one agent per load balancer and leave the policy in RUN/policy.bin.

    Ctrl-C saves a checkpoint; --resume goes on from it as if nothing had happened. Example:
    steelyard train --scenario cluster-a-cpu --algo distr-lb --run runs/a --episodes 500 --seed 0
    """

    scenario: Annotated[str, tyro.conf.arg(metavar="NAME|FILE")]
    """A named scenario (see `steelyard scenarios`) or a TOML file."""
    algo: Annotated[str, tyro.conf.arg(metavar="NAME", help=ALGO_HELP)] = "distr-lb"
    engine: Literal["local", "rllib"] = "local"
    """local: this project's own learners; rllib: Ray RLlib, on several processes or a cluster."""
    directory: Annotated[str, tyro.conf.arg(name="run", metavar="DIR")]
    """Run directory: config, logs, checkpoint, policy.bin."""
    episodes: Annotated[int, tyro.conf.arg(metavar="N")] = 320
    """Training episodes in all."""
    seed: Annotated[int, tyro.conf.arg(metavar="K")] = 0
    """Seed of the run: episodes, networks, exploration."""
    resume: common.Quiet = False
    """Go on from the run's checkpoint; all options but --episodes must be as they were."""
    wandb: Literal["disabled", "offline", "online"] = "disabled"
    """Log to Weights & Biases as well; offline needs no account."""
    overrides: common.Overrides = ()
    """Change a value of the scenario (--set pool.balancers=4) or of the algorithm (--set algo.gamma=.9)."""
    hyper: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Hyper-parameters from the best.toml of a sweep; --set algo.NAME=VALUE goes before them."""
    threads: common.Threads = field(default_factory=common.usable_cores)
    """Threads that learn and evaluate; the result does not depend on them."""
    env_runners: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """rllib: processes that play episodes; 0: the process that learns plays them."""
    ray_address: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """rllib: head node of a Ray cluster to run on; without it Ray is started on this machine."""
    live: common.Quiet = False
    """Learn on a testbed on this machine, in real time (docs/testbed.md); needs root."""
    begin: Annotated[str | None, tyro.conf.arg(name="from", metavar="RUN_DIR")] = None
    """With --live: begin with what this run has learnt in the simulator."""
    testbed: Annotated[str, tyro.conf.arg(metavar="NAME")] = "steelyard"
    """With --live: name of the testbed; if it is not up, it is brought up, and taken down at the end."""
    dataplane: Literal["lb", "vpp"] = "lb"
    """With --live: lb, steelyard-lb in every balancer; vpp, VPP with the plugin (docs/vpp.md)."""
    quiet: common.Quiet = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Train to the end or to Ctrl-C."""
        if not 1 <= self.episodes <= common.MAX_EPISODES:
            raise UserError(f"--episodes: {self.episodes}; allowed: 1 to {common.MAX_EPISODES}")
        if not 0 <= self.seed < _SEED_END:
            raise UserError(f"--seed: {self.seed}; allowed: 0 to 2^63 - 1")
        common.check_threads(self.threads)
        run_logger.check_wandb(self.wandb)
        status, episodes = self._train_rllib() if self.engine == "rllib" else self._train_local()
        if status:
            print(f"stopped after {episodes} episodes; to go on: {self._again()}", file=sys.stderr)
        elif not self.quiet:
            print(f"policy: {Path(self.directory) / self._session().POLICY}")
        return status

    def _train_local(self) -> tuple[int, int]:
        """Exit status and episodes."""
        for name in ("env_runners", "ray_address"):
            if getattr(self, name):
                raise UserError(f"--{name.replace('_', '-')}: only with --engine rllib")
        algorithms.find_algorithm(self.algo)
        scenario, hyper = self._split()
        results.check_directory("--run", self.directory)
        if self.live:
            return self._train_live(scenario, hyper)
        if self.dataplane != "lb":
            raise UserError(f"--dataplane {self.dataplane}: only with --live")
        if self.begin is not None:
            raise UserError("--from: only with --live; --resume goes on with a run")
        config, trainer = algorithms.make_trainer(self.algo, scenario, hyper, self.seed, self.threads)
        from steelyard.trainers import session

        plan = self._plan(scenario, config)
        saved = session.open_run(plan, self.resume)
        return self._session()(plan, trainer, saved).run(), trainer.episodes

    def _train_live(self, scenario: AnyScenario, hyper: dict[str, Any]) -> tuple[int, int]:
        """Exit status and episodes."""
        from steelyard.trainers import live, session

        if not isinstance(scenario, Scenario):
            raise UserError(f"--live: {scenario.name!r} is a rack; only clusters can be played live")
        before = {} if self.begin is None else live.hyper_of(Path(self.begin), self.algo)
        hyper = {**before, **live.DEFAULTS, **hyper}
        live.check_learner(self.algo, hyper)
        config, trainer = algorithms.make_trainer(self.algo, scenario, hyper, self.seed, self.threads)
        if self.begin is not None:
            live.begin_from(trainer, Path(self.begin))
        plan = dataclasses.replace(self._plan(scenario, config), engine="live")
        session.check_run(plan, self.resume)
        with live.learning(trainer, scenario, config, self.testbed, self.dataplane):
            saved = session.open_run(plan, self.resume)
            return session.Session(plan, trainer, saved).run(), trainer.episodes

    def _session(self) -> type[Session]:
        from steelyard.trainers import rack_session, session

        racks = self.engine == "local" and algorithms.find_algorithm(self.algo).world == "rack"
        return rack_session.RackSession if racks else session.Session

    def _train_rllib(self) -> tuple[int, int]:
        """Exit status and episodes."""
        scenario, hyper = self._split()
        if not isinstance(scenario, Scenario):
            raise UserError(f"--engine rllib: {scenario.name!r} is a rack; use --engine local --algo malcolm")
        settings = algorithms.make_config(rllib.find_entry(self.algo).settings, hyper)
        settings.check(scenario)
        results.check_directory("--run", self.directory)
        from steelyard.trainers.rllib import engine

        engine.check(self.env_runners, self.ray_address)
        plan = self._plan(scenario, settings)
        return engine.train(plan, settings, self.resume, self.env_runners, self.ray_address)

    def _plan(self, scenario: AnyScenario, config: Any) -> Plan:
        from steelyard.trainers.session import Plan

        return Plan(
            scenario=scenario,
            algorithm=self.algo,
            directory=Path(self.directory),
            episodes=self.episodes,
            seed=self.seed,
            num_envs=config.num_envs,
            hyper=dataclasses.asdict(config),
            command=results.command_line("train", self),
            wandb=self.wandb,
            threads=self.threads,
            quiet=self.quiet,
            engine=self.engine,
        )

    def _split(self) -> tuple[AnyScenario, dict[str, Any]]:
        """The scenario with its overrides, and the hyper-parameters among --set."""
        mine = [text for text in self.overrides if text.startswith(HYPER)]
        rest = [text for text in self.overrides if not text.startswith(HYPER)]
        for text in rest:
            if text.startswith(_REWARD):
                key = text.removeprefix(_REWARD).partition("=")[0]
                name = "reward" if key == "kind" else key
                raise UserError(f"--set {text}: a learner's reward is its own; use --set algo.{name}=VALUE")
        (scenario,) = common.load_one_world([self.scenario], rest)
        return scenario, self._stored_hyper() | parse_hyper(mine)

    def _stored_hyper(self) -> dict[str, Any]:
        """Hyper-parameters of --hyper FILE, which must be for this engine and algorithm."""
        if self.hyper is None:
            return {}
        try:
            tree = parse_toml(Path(self.hyper).read_text("utf-8"), f"--hyper {self.hyper}")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(f"--hyper {self.hyper}: cannot be read ({reason})") from None
        for key, mine in (("engine", self.engine), ("algo", self.algo)):
            if tree.get(key, mine) != mine:
                raise UserError(f"--hyper {self.hyper}: is for {key} {shown(tree[key])}, not {mine!r}")
        if not isinstance(tree.get("hyper"), dict):
            raise UserError(f"--hyper {self.hyper}: has no table [hyper]")
        return tree["hyper"]

    def _again(self) -> str:
        line = results.command_line("train", self)
        return line if self.resume else f"{line} --resume"


def parse_hyper(texts: Sequence[str]) -> dict[str, Any]:
    """`algo.NAME=VALUE` with VALUE as in TOML; what is no TOML is a number or a string."""
    found = {}
    for text in texts:
        name, equals, value = text.removeprefix(HYPER).partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--set {shown(text)}: must be algo.NAME=VALUE")
        try:
            found[name] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            found[name] = _number_or_text(value)
    return found


def _number_or_text(value: str) -> float | str:
    """.9 is a number to everybody but TOML."""
    try:
        return float(value)
    except ValueError:
        return value
