"""A testbed on this machine: brought up, looked at, taken down.

What is up is written in `/run/steelyard/<name>/state.json`; everything else can be found again by the name
alone (namespaces, control groups, processes in them), so a testbed whose maker was killed can be taken down.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.deploy.testbed import capacity, machine, network, profiles, servers
from steelyard.deploy.testbed.calibration import Calibration
from steelyard.deploy.testbed.machine import TestbedError
from steelyard.deploy.testbed.network import Network
from steelyard.envs.errors import UserError, bad_value
from steelyard.envs.scenario import Scenario
from steelyard.envs.worlds import load_scenario

HOME = Path("/run/steelyard")
SHARED_MEMORY = Path("/dev/shm")
MAX_WORKERS = 256
DEFAULT_SCENARIO = "testbed-2x4"
_TRIES = 20
_PAUSE_S = 0.1

Tell = Callable[[str], None]
"""Called with a line for people."""


def silent(line: str) -> None:
    """Told nobody."""


@dataclass(frozen=True)
class Site:
    """A testbed that is up."""

    network: Network
    scenario: Scenario
    calibration: Calibration
    profile: str = profiles.PAGES
    """What the servers serve, of profiles.NAMES."""

    @property
    def folder(self) -> Path:
        """Where it keeps its files."""
        return home(self.network.prefix)

    def to_dict(self) -> dict[str, Any]:
        """As the state file holds it."""
        return {
            "name": self.network.prefix,
            "scenario": self.scenario.to_dict(),
            "calibration": self.calibration.to_dict(),
            "profile": self.profile,
            "version": 1,
        }


@dataclass(frozen=True)
class Part:
    """One part of a testbed as it was found."""

    what: str
    healthy: bool
    details: str


def home(name: str) -> Path:
    """Folder of a testbed."""
    return HOME / name


def load(source: str, overrides: tuple[str, ...] = ()) -> Scenario:
    """A scenario that a testbed can play. UserError for one it cannot."""
    scenario = load_scenario(source, list(overrides))
    if not isinstance(scenario, Scenario):
        raise UserError(f"--scenario: {scenario.name!r} is of another world; a testbed plays clusters")
    check_scenario(scenario)
    return scenario


def check_scenario(scenario: Scenario) -> None:
    """UserError unless real servers on one machine can be what the scenario says."""
    for index, group in enumerate(scenario.pool.servers):
        key = f"pool.servers.{index}"
        if group.cpu != "ps" or not 1 <= group.ps_cap <= MAX_WORKERS:
            raise bad_value(
                f"{key}.ps_cap", group.ps_cap, f'1 to {MAX_WORKERS}, with cpu = "ps", for a testbed'
            )
        if group.workers != 1 or not capacity.MIN_SHARE <= group.speed <= 1:
            shown = f"workers = {group.workers}, speed = {group.speed:g}"
            allowed = f"1 and {capacity.MIN_SHARE:g} to 1 for a testbed: a share of one processor"
            raise UserError(f"{key}: {shown}: must be {allowed}")
        if not group.present:
            raise bad_value(f"{key}.present", False, "true for a testbed")
    for index, event in enumerate(scenario.events):
        key = f"events.{index}"
        if event.kind != "speed":
            raise bad_value(f"{key}.kind", event.kind, "speed for a testbed")
        fixed = event.t_s[0] == event.t_s[1] and event.value is not None and event.value[0] == event.value[1]
        if not fixed or event.count is not None:
            raise UserError(f"{key}: time and value must be single numbers, without count, for a testbed")
    for index, stage in enumerate(scenario.workload.stages):
        if stage.kind != "cpu":
            raise bad_value(f"workload.stages.{index}.kind", stage.kind, "cpu for a testbed")
    Network(network.DEFAULT_PREFIX, scenario.num_agents, scenario.num_servers)


@contextmanager
def held(name: str) -> Iterator[None]:
    """Nobody else brings this testbed up or down, or plays on it, within the block."""
    network.check_prefix(name)
    HOME.mkdir(mode=0o755, exist_ok=True)
    with (HOME / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"testbed {name!r} is in use by another command; wait for it, or use --name"
            ) from None
        yield


def bring_up(name: str, scenario: Scenario, tell: Tell = silent, profile: str | None = None) -> Site:
    """Build the testbed of a scenario; what is up already and whole stays. Whatever fails leaves nothing.

    profile: of profiles.NAMES; None: that of the one that is up, else pages.
    """
    groups = capacity.find_groups()
    found = read_state(name)
    profile = profile or (profiles.PAGES if found is None else found.profile)
    programs = profiles.find(profile, tell)
    if found is not None and _same_pool(found.scenario, scenario) and found.profile == profile:
        if all(part.healthy for part in inspect(found)):
            site = Site(found.network, scenario, found.calibration, profile)
            _write_state(site)
            tell(f"testbed {name}: was up already")
            return site
        tell(f"testbed {name}: is damaged, building it anew")
    take_down(name)
    net = Network(name, scenario.num_agents, scenario.num_servers)
    try:
        tell(f"testbed {name}: {len(net.namespaces)} namespaces")
        machine.carry_out(network.build(net))
        machine.carry_out(network.forward_by_kernel(net, kernel_weights_of(scenario)))
        tell(f"testbed {name}: {net.servers} servers, {programs.versions()}")
        home(name).mkdir(mode=0o755)
        profiles.start(net, scenario, groups, programs, home(name))
        made = profiles.calibration(net, groups, profile, home(name))
        site = Site(net, scenario, made, profile)
        set_shares(site)
        _write_state(site)
    except BaseException:
        take_down(name)
        raise
    return site


def take_down(name: str) -> list[str]:
    """Remove every trace of a testbed, also of one that was never finished; the namespaces that were there.

    A command that brings one up may have been killed a moment ago and its own commands still run: it is
    looked at again until nothing is left.
    """
    network.check_prefix(name)
    first = machine.namespaces(name)
    for _ in range(_TRIES):
        _remove(name)
        if not traces(name):
            return first
        time.sleep(_PAUSE_S)
    raise TestbedError(f"testbed {name}: {traces(name)[0]} cannot be removed")


def traces(name: str) -> list[str]:
    """What is there of a testbed: namespaces, control groups, files, shared memory."""
    found = [f"namespace {namespace}" for namespace in machine.namespaces(name)]
    places = [home(name), *(groups.folder(name) for groups in _groups()), *_shared(name)]
    return found + [str(place) for place in places if place.exists()]


def _remove(name: str) -> None:
    found = machine.namespaces(name)
    machine.end(pid for namespace in found for pid in machine.processes_in(namespace))
    for groups in _groups():
        capacity.remove(groups, name)
    machine.carry_out(network.take_down(found))
    if home(name).exists():
        shutil.rmtree(home(name))
    for path in _shared(name):
        path.unlink(missing_ok=True)


def _shared(name: str) -> list[Path]:
    """Shared memory that balancers of a testbed have left."""
    return sorted(SHARED_MEMORY.glob(f"{name}-lb[0-9]*"))


def _groups() -> list[capacity.CpuGroups]:
    """The machine's, if it has any."""
    try:
        return [capacity.find_groups()]
    except UserError:
        return []


def require_site(name: str) -> Site:
    """The testbed of that name; UserError unless it is up and whole."""
    network.check_prefix(name)
    site = read_state(name)
    if site is None:
        raise UserError(f"testbed {name!r} is not up; bring it up: steelyard testbed up --name {name}")
    for part in inspect(site):
        if not part.healthy:
            raise UserError(
                f"testbed {name!r} is damaged ({part.what}: {part.details}); steelyard testbed up"
            )
    return site


def read_state(name: str) -> Site | None:
    """What the state file says; None without one, or with one that another version wrote."""
    try:
        tree = json.loads((home(name) / "state.json").read_text())
        scenario = Scenario.from_dict(tree["scenario"])
        net = Network(name, scenario.num_agents, scenario.num_servers)
        return Site(net, scenario, Calibration(**tree["calibration"]), tree.get("profile", profiles.PAGES))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def inspect(site: Site) -> list[Part]:
    """Every part of a testbed and whether it is as it should be."""
    net, groups = site.network, capacity.find_groups()
    there = set(machine.namespaces(net.prefix))
    missing = [name for name in net.namespaces if name not in there]
    parts = [Part("namespaces", not missing, f"{missing[0]} is missing" if missing else f"{len(there)} up")]
    for j in range(net.servers):
        pid = servers.main_process(site.folder, j)
        runs = pid is not None and machine.alive(pid)
        try:
            share = capacity.share_of(groups, net.prefix, j)
        except OSError:
            share = None
        shown = "no limit" if share is None else f"{share:.3g} of a processor"
        details = f"Apache, process {pid}, {shown}" if runs else "Apache does not run"
        parts.append(Part(f"server {j}", runs and share is not None, details))
    database = profiles.database(site.profile, site.folder)
    return parts if database is None else [*parts, Part("database", *database)]


def set_shares(site: Site) -> None:
    """Every server has the capacity that the scenario gives it at the start."""
    groups = capacity.find_groups()
    for j, server in enumerate(site.scenario.servers):
        capacity.set_share(groups, site.network.prefix, j, server.speed)


def kernel_weights_of(scenario: Scenario) -> list[int]:
    """Weights of the kernel's routes that follow the configured weights."""
    return network.kernel_weights(scenario.configured_weights())


def _same_pool(one: Scenario, other: Scenario) -> bool:
    """Whether both need the same namespaces and servers; workload and horizon may differ."""
    return (one.pool.balancers, one.servers) == (other.pool.balancers, other.servers)


def _write_state(site: Site) -> None:
    path = site.folder / "state.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(site.to_dict() | {"written": time.time(), "pid": os.getpid()}, indent=1))
    partial.replace(path)


@contextmanager
def borrowed(
    name: str, scenario: Scenario, keep: bool, tell: Tell = silent, profile: str | None = None
) -> Iterator[Site]:
    """The testbed of a scenario for this process alone, brought up if need be.

    keep: leave it up; otherwise it is taken down again if it was brought up here.
    profile: as bring_up has it.
    """
    machine.require_root()
    with held(name):
        was_up = read_state(name) is not None
        place = bring_up(name, scenario, tell, profile)
        try:
            yield place
        finally:
            if not was_up and not keep:
                take_down(name)
