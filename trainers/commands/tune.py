"""`steelyard tune`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.trainers.commands import common

if TYPE_CHECKING:
    from steelyard.trainers.tune import Tuning


@dataclass(kw_only=True)
class Tune:
    """Search the static weights of a rule on training seeds.

    The result is what `--policy tuned-sed` means. It is stored as DIR/SCENARIO.RULE.json; files in ./tuned
    and those that come with the project are found again, for exactly the same scenario.
    """

    scenario: common.ScenarioName
    """A named scenario or a TOML file."""
    rule: str = "sed"
    """The rule whose weights are searched: wcmp, sed or sed2."""
    overrides: common.Overrides = ()
    """Change a value of the scenario."""
    episodes: int | None = None
    """Training episodes on which every candidate is judged; by default 300,000 flows, 16 to 200 episodes."""
    seed: int = 0
    """Training seed: which episodes those are."""
    out: common.OutputDirectory = None
    """Directory of the result; by default it is stored in ./tuned."""
    convention: common.Convention = "uncensored"
    """Mean sojourn to minimise: of all flows, or of those completed by the horizon."""
    threads: common.Threads = field(default_factory=common.usable_cores)
    """Episodes simulated at the same time."""
    quiet: common.Quiet = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Search, store, print."""
        from steelyard.agents import rules
        from steelyard.trainers import results, tune

        directory = results.check_directory("--out", self.out or "tuned")
        (scenario,) = common.load_scenarios([self.scenario], self.overrides)
        with common.progress_bar("tune", self.quiet) as on_progress:
            found = tune.tune(
                scenario,
                self.rule,
                convention=self.convention,
                episodes=self.episodes,
                run_seed=self.seed,
                threads=common.check_threads(self.threads),
                on_evaluation=lambda count, what: on_progress(count, 0, what),
            )
        results.make_directory("--out", directory)
        path = rules.tuned_file(directory, scenario.name, self.rule)
        results.write_json(
            "--out", path, found.to_dict() | results.provenance(results.command_line("tune", self))
        )
        if not self.quiet:
            _print(found, path)
        return 0


def _print(found: Tuning, path: Path) -> None:
    from steelyard.trainers.plots import span

    rows = [
        [span(group), f"{found.configured[group[0]]:g}", f"{found.weights[group[0]]:.4g}"]
        for group in found.groups
    ]
    common.print_table(["servers", "configured", "tuned"], rows, f"{found.scenario}, {found.rule}")
    gap = "{value:+.4f} s [{low:+.4f}, {high:+.4f}]".format(**found.difference_s)
    print(
        f"mean sojourn on {found.episodes} training episodes: {found.configured_sojourn_s:.4f} s configured, "
        f"{found.tuned_sojourn_s:.4f} s tuned; difference {gap}"
    )
    print(f"stored: {path}")
