"""What the servers of a testbed serve: `pages`, a PHP loop and static files, or `wiki`, MediaWiki."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from steelyard.deploy.testbed import capacity, servers, wiki, wiki_database
from steelyard.deploy.testbed.apache import Installation, find_apache
from steelyard.deploy.testbed.calibration import Calibration, calibrate, with_pages
from steelyard.deploy.testbed.machine import alive
from steelyard.deploy.testbed.network import Network
from steelyard.deploy.testbed.wiki import WikiPrograms
from steelyard.envs.errors import unknown
from steelyard.envs.scenario import Scenario

PAGES, WIKI = "pages", "wiki"
NAMES = (PAGES, WIKI)


@dataclass(frozen=True)
class Programs:
    """What a profile's servers run."""

    apache: Installation
    wiki: WikiPrograms | None
    """Of the profile `wiki`."""
    template: Path | None
    """Its prepared database."""

    def versions(self) -> str:
        """For people."""
        shown = f"{self.apache.version()}, {self.apache.php_version()}"
        return shown if self.wiki is None else f"{shown}, MediaWiki {self.wiki.version}"


def find(profile: str, tell: Callable[[str], None]) -> Programs:
    """The profile's programs, and the wiki prepared; UserError for what is missing."""
    if profile not in NAMES:
        raise unknown("profile", profile, NAMES)
    if profile == PAGES:
        return Programs(find_apache(more=servers.EXTRA_MODULES), None, None)
    found = wiki.find_wiki()
    apache = find_apache(more=(*servers.EXTRA_MODULES, *wiki.MODULES))
    return Programs(apache, found, wiki_database.prepared(found, tell))


def start(net: Network, scenario: Scenario, groups: capacity.CpuGroups, programs: Programs, at: Path) -> None:
    """Start every server, and before them the database; returns once all take connections."""
    servers.write_pages(at / "htdocs")
    capacity.make(groups, net.prefix, net.servers)
    more = ""
    if programs.wiki is not None and programs.template is not None:
        folder = at / WIKI
        workers = sum(server.ps_cap for server in scenario.servers)
        others = groups.others(net.prefix)
        wiki_database.start(programs.wiki, programs.template, folder, workers, others)
        more = wiki.server_configuration(programs.wiki, wiki_database.settings_file(folder))
    for j, server in enumerate(scenario.servers):
        group = groups.server(net.prefix, j)
        servers.start(net, j, at, programs.apache, server.ps_cap, group, more)
    for j in range(net.servers):
        servers.await_answer(net, j, at)


def calibration(net: Network, groups: capacity.CpuGroups, profile: str, at: Path) -> Calibration:
    """How fast the servers are with what they serve, measured while they have no limit."""
    made = calibrate(net, at, groups)
    if profile == PAGES:
        return made
    return with_pages(made, net, at, [wiki.page_path(page) for page in range(wiki.PAGES)])


def database(profile: str, at: Path) -> tuple[bool, str] | None:
    """Whether the profile's database runs, and words about it; None if it has none."""
    if profile == PAGES:
        return None
    pid = wiki_database.main_process(at / WIKI)
    runs = pid is not None and alive(pid)
    return runs, f"MariaDB, process {pid}" if runs else "MariaDB does not run"


def describe(profile: str, scenario: Scenario, made: Calibration) -> str:
    """What the servers serve and how fast, in a line."""
    if profile == PAGES:
        return f"{made.iterations_per_s / 1e6:.1f} million iterations/s of the PHP page"
    cost_s = wiki.mean_cost_s(made)
    speed = sum(server.speed for server in scenario.servers)
    rate = 0.6 * speed / cost_s
    took = f"a page of the wiki alone takes {1e3 * cost_s:.1f} ms of CPU time"
    return f"{took}; load 0.6 is at most {rate:.1f}/s"


def example(profile: str) -> str:
    """A path to try."""
    return "/loop.php?n=1000" if profile == PAGES else wiki.page_path(0)
