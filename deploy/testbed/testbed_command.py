"""`steelyard testbed`: a cluster of real servers on this machine."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from steelyard.envs.errors import UserError, shown
from steelyard.envs.records import RECORD_KEYS

if TYPE_CHECKING:
    from steelyard.envs.scenario import Scenario

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
ScenarioName = Annotated[str, tyro.conf.arg(metavar="NAME|FILE")]
Overrides = Annotated[
    tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE"), tyro.conf.UseAppendAction
]
Name = Annotated[str, tyro.conf.arg(metavar="NAME")]
Profile = Literal["pages", "wiki"] | None
OptionalFile = Annotated[str | None, tyro.conf.arg(metavar="FILE")]

_SCENARIO = "testbed-2x4"
_NAME = "steelyard"
_STATUS_DOWN = 3
_MAX_EPISODES = 10_000


@dataclass(kw_only=True)
class Up:
    """Bring the testbed up: namespaces, routes, Apache servers with their share of a processor."""

    scenario: ScenarioName = _SCENARIO
    """What it is to be: testbed-2x4, testbed-2x7 or a file of one's own."""
    overrides: Overrides = ()
    """Change a value of the scenario (--set pool.balancers=3)."""
    profile: Profile = None
    """What servers serve: pages, a PHP loop and files (default); wiki, MediaWiki over MariaDB."""
    name: Name = _NAME
    """Prefix of everything that the testbed makes; testbeds of different names do not meet."""
    quiet: Flag = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Build what is missing."""
        from steelyard.deploy.testbed import machine, profiles, site

        scenario = site.load(self.scenario, self.overrides)
        machine.require_root()
        with site.held(self.name):
            tell = site.silent if self.quiet else _say
            place = site.bring_up(self.name, scenario, tell, self.profile or profiles.PAGES)
        if not self.quiet:
            print(f"up: {scenario.name}; {profiles.describe(place.profile, scenario, place.calibration)}")
            path = profiles.example(place.profile)
            print(f"try: ip netns exec {place.network.client} curl 'http://{_address()}{path}'")
        return 0


@dataclass(kw_only=True)
class Down:
    """Take the testbed down, whole or in pieces: everything that carries its name."""

    name: Name = _NAME
    """Which one."""
    quiet: Flag = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Remove it; no testbed is no error."""
        from steelyard.deploy.testbed import machine, site

        machine.require_root()
        with site.held(self.name):
            found = site.take_down(self.name)
        if not self.quiet:
            print(f"testbed {self.name}: {f'{len(found)} namespaces removed' if found else 'was not up'}")
        return 0


@dataclass(kw_only=True)
class Status:
    """Tell whether the testbed is up and whole; exit status 3 if it is not."""

    name: Name = _NAME
    """Which one."""
    as_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False
    """Print JSON."""

    def run(self) -> int:
        """Look at every part."""
        from steelyard.deploy.testbed import machine, network, site

        network.check_prefix(self.name)
        machine.require_root()
        place = site.read_state(self.name)
        parts = site.inspect(place) if place is not None else []
        left = [] if place is not None else machine.namespaces(self.name)
        healthy = place is not None and all(part.healthy for part in parts)
        if self.as_json:
            told = [{"what": part.what, "healthy": part.healthy, "details": part.details} for part in parts]
            scenario = None if place is None else place.scenario.name
            print(json.dumps({"name": self.name, "up": healthy, "scenario": scenario, "parts": told}))
        elif place is None:
            print(
                f"testbed {self.name}: not up" + (f"; {len(left)} namespaces are left of it" if left else "")
            )
        else:
            print(f"testbed {self.name}: {place.scenario.name}")
            for part in parts:
                print(f"  {part.what:<12} {'' if part.healthy else 'DAMAGED: '}{part.details}")
        return 0 if healthy else _STATUS_DOWN


@dataclass(kw_only=True)
class Play:
    """Play policies on the testbed, one episode for each seed, and print every episode.

    The flows are those that `steelyard simulate` plays under the same seeds. The testbed is brought up if it
    is not, and then taken down again. Example:
    steelyard testbed run --policy lsq --policy sed --seeds 0:3 --json live.json
    """

    scenario: ScenarioName | None = None
    """Without it that of the testbed that is up, or testbed-2x4."""
    policy: Annotated[tuple[str, ...], tyro.conf.arg(metavar="POLICY"), tyro.conf.UseAppendAction] = ()
    """A rule, run directory or policy file; repeat for more. Without any: lsq and sed."""
    seeds: Annotated[str, tyro.conf.arg(metavar="A:B")] = "0:1"
    """Episodes with seeds A, A+1, ..., B-1."""
    overrides: Overrides = ()
    """Change a value of the scenario (--set episode.horizon_s=10)."""
    dataplane: Literal["lb", "kernel", "vpp", "vpp-lb"] = "lb"
    """lb: steelyard-lb in every balancer; vpp: VPP with the plugin (docs/vpp.md); and two that only hash
    (ecmp, wcmp), kernel: the kernels' routes; vpp-lb: VPP's own balancer."""
    profile: Profile = None
    """As up has it; without it that of the testbed that is up, or pages."""
    json: OptionalFile = None
    """Write one JSON record per episode to this file, as `steelyard simulate` does."""
    name: Name = _NAME
    """Of the testbed."""
    quiet: Flag = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Play and report."""
        from steelyard.deploy.testbed import balancers, live

        seeds = parse_seeds(self.seeds)
        target = None if self.json is None else _check_target(self.json)
        scenario = self._scenario()
        hashing = self.dataplane in balancers.HASHING
        contenders = live.parse(self.policy or (("ecmp",) if hashing else ("lsq", "sed")))
        options = live.Options(self.name, (self.dataplane,), keep=False, profile=self.profile)
        tell = live.silent if self.quiet else _progress
        rows = live.run_live([scenario], contenders, seeds, options, tell)
        if target is not None:
            write_records(target, rows)
        if not self.quiet:
            _print_rows(rows)
        return 0

    def _scenario(self) -> Scenario:
        from steelyard.deploy.testbed import site

        if self.scenario is not None:
            return site.load(self.scenario, self.overrides)
        place = site.read_state(self.name)
        if place is None:
            return site.load(_SCENARIO, self.overrides)
        scenario = place.scenario.with_overrides(self.overrides)
        site.check_scenario(scenario)
        return scenario


Action = (
    Annotated[Up, tyro.conf.subcommand("up")]
    | Annotated[Play, tyro.conf.subcommand("run")]
    | Annotated[Status, tyro.conf.subcommand("status")]
    | Annotated[Down, tyro.conf.subcommand("down")]
)


@dataclass
class Testbed:
    """Real Apache servers behind balancers on this machine: bring up, play policies, look, take down.

    Needs root, Linux, and Debian's iproute2, apache2-bin and libapache2-mod-php. Touches nothing but
    namespaces, control groups and files that carry its name. docs/testbed.md tells how it is made.
    """

    action: tyro.conf.OmitSubcommandPrefixes[Action] = field(default_factory=Status)

    def run(self) -> int:
        """Do it; the exit status."""
        return self.action.run()


def parse_seeds(text: str) -> range:
    """Seeds A, A+1, ..., B-1 of "A:B"."""
    match = re.fullmatch("([0-9]{1,18}):([0-9]{1,18})", text)
    first, end = (int(match[1]), int(match[2])) if match else (0, 0)
    if not first < end or end - first > _MAX_EPISODES:
        raise UserError(
            f"--seeds: {shown(text)}; allowed: A:B with 0 <= A < B, at most {_MAX_EPISODES:,} seeds"
        )
    return range(first, end)


def write_records(path: Path, rows: list[dict[str, Any]]) -> None:
    """The rows as records of `steelyard simulate --json`."""
    from steelyard.envs.trace_file import replace_file

    records = [{key: row[key] for key in RECORD_KEYS} for row in rows]
    replace_file(path, json.dumps(records, indent=2) + "\n")


def _check_target(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise UserError(f"--json: {path}: must be a file in a directory that exists")
    return path


def _print_rows(rows: list[dict[str, Any]]) -> None:
    shown_as: dict[str, Callable[[dict[str, Any]], str]] = {
        "policy": lambda row: str(row["policy"]),
        "seed": lambda row: str(row["seed"]),
        "requests": lambda row: str(row["flows"]),
        "failed": lambda row: str(row["rejected"]),
        "mean ms": lambda row: f"{1e3 * row['sojourn_mean_s']:.1f}",
        "p50 ms": lambda row: f"{1e3 * row['sojourn_p50_s']:.1f}",
        "p90 ms": lambda row: f"{1e3 * row['sojourn_p90_s']:.1f}",
        "p99 ms": lambda row: f"{1e3 * row['sojourn_p99_s']:.1f}",
        "Jain": lambda row: f"{row['jain_mean']:.3f}",
        "CPU ms": lambda row: f"{1e3 * row['service_mean_s']:.2f}",
        "late ms": lambda row: f"{1e3 * row['lag_p99_s']:.1f}",
        "by server": lambda row: " ".join(map(str, row["server_flows"])),
        "problems": lambda row: row["problems"],
    }
    cells = [list(shown_as)] + [[form(row) for form in shown_as.values()] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(shown_as))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _progress(done: int, total: int, what: str) -> None:
    if what:
        print(f"{done} of {total}: {what}", file=sys.stderr)


def _address() -> str:
    from steelyard.deploy.testbed.network import VIP

    return VIP
