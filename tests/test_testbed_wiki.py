"""The wiki of a testbed: pages, what is asked for, settings, what is said when it is missing; and live."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from testbeds import cleaned

from steelyard.deploy.testbed import balancers, live, machine, play, profiles, site, wiki, wiki_database
from steelyard.deploy.testbed.calibration import Calibration
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.native import flow_schedule
from steelyard.trainers.cli import main

SCENARIO = Scenario.load(
    "testbed-2x4", ["episode.horizon_s=4", "episode.warmup_s=0", "workload.arrival.rate=4"]
)
COSTS = [0.01 * (1 + page) for page in range(wiki.PAGES)]
MADE = Calibration(1e8, 0.001, COSTS)


def fake_php(folder: Path, extensions: str) -> Path:
    """A folder with programs by the names that a wiki needs; its PHP says that it has these extensions."""
    folder.mkdir()
    for name in ("php", "mariadbd", "mariadb-install-db", "my_print_defaults"):
        (folder / name).write_text(f"#!/bin/sh\necho {extensions}\n")
        (folder / name).chmod(0o755)
    return folder


def fake_code(folder: Path) -> Path:
    """As MediaWiki lies on the disk."""
    (folder / "includes").mkdir(parents=True)
    (folder / "includes" / "Defines.php").write_text("<?php define( 'MW_VERSION', '1.39.17' );")
    (folder / "index.php").write_text("<?php")
    return folder


# --- pages and requests ---


def test_pages_are_always_the_same_and_of_different_lengths() -> None:
    texts = wiki.page_texts()
    assert texts == wiki.page_texts()
    assert len(texts) == len(set(texts)) == wiki.PAGES
    lengths = [len(text) for text in texts]
    assert max(lengths) > 5 * min(lengths)
    assert all("[[Page_" in text and '{| class="wikitable"' in text for text in texts)


def test_links_lead_to_pages_that_exist() -> None:
    titles = {wiki.page_title(page) for page in range(wiki.PAGES)}
    linked = {part.partition("|")[0] for text in wiki.page_texts() for part in text.split("[[")[1:]}
    assert linked <= titles


def test_popularity_is_zipf() -> None:
    share = wiki.popularity()
    assert share.sum() == pytest.approx(1)
    assert share[0] / share[9] == pytest.approx(10)


def test_schedule_has_the_scenarios_arrivals_and_pages_of_the_seed() -> None:
    busy = SCENARIO.with_overrides(["workload.arrival.rate=200", "episode.horizon_s=50"])
    plan, again, other = (wiki.wiki_schedule(busy, seed, MADE) for seed in (3, 3, 4))
    assert (plan.path_of == again.path_of).all()
    assert len(other.path_of) != len(plan.path_of) or (other.path_of != plan.path_of).any()
    arrivals = flow_schedule(busy.to_native(), 3)["arrival_s"]
    assert plan.due_ns * 1e-9 == pytest.approx(arrivals, abs=1e-9)
    assert plan.demand_s == pytest.approx(np.array(COSTS)[plan.path_of])
    assert plan.paths[0] == "/wiki/index.php?title=Page_01"
    counts = np.bincount(plan.path_of, minlength=wiki.PAGES)
    assert counts / counts.sum() == pytest.approx(wiki.popularity(), abs=0.02)


def test_cost_as_pages_are_drawn() -> None:
    assert wiki.mean_cost_s(MADE) == pytest.approx(sum(np.array(COSTS) * wiki.popularity()))
    told = profiles.describe(profiles.WIKI, SCENARIO, Calibration(1e8, 0.001, [0.06] * wiki.PAGES))
    assert told == "a page of the wiki alone takes 60.0 ms of CPU time; load 0.6 is at most 12.0/s"


# --- configuration ---


def test_settings_name_the_own_database_and_keep_nothing() -> None:
    text = wiki.settings(Path("/run/x/wiki/socket"), Path("/run/x/wiki/cache"))
    assert "$wgDBserver = 'localhost:/run/x/wiki/socket';" in text
    assert "$wgCacheDirectory = '/run/x/wiki/cache';" in text
    for name in ("Main", "Parser", "Message"):
        assert f"$wg{name}CacheType = CACHE_NONE;" in text
    assert "{" not in text


def test_servers_read_the_own_settings(tmp_path: Path) -> None:
    found = wiki.find_wiki(
        str(fake_php(tmp_path / "bin", "mysqli intl mbstring xml dom")), fake_code(tmp_path / "w")
    )
    assert found.version == "1.39.17"
    text = wiki.server_configuration(found, Path("/run/x/wiki/LocalSettings.php"))
    assert f'Alias /wiki "{tmp_path / "w"}"' in text
    assert 'SetEnv MW_CONFIG_FILE "/run/x/wiki/LocalSettings.php"' in text


def test_database_is_reached_by_its_socket_alone() -> None:
    words = wiki_database.options(Path("/run/x/wiki"), 96)
    assert words[0] == "--no-defaults"  # the system's configuration counts for nothing, and must come first
    assert {"--skip-networking", "--socket=/run/x/wiki/socket", "--datadir=/run/x/wiki/data"} <= set(words)
    assert "--max-connections=146" in words


def test_a_testbed_remembers_its_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "HOME", tmp_path)
    place = site.Site(site.Network("tb", 2, 4), SCENARIO, MADE, profiles.WIKI)
    place.folder.mkdir()
    site._write_state(place)
    assert site.read_state("tb") == place


# --- what is missing ---


def test_a_machine_without_mediawiki_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"--profile wiki: MediaWiki .* is missing; install it: make system-wiki"
    ):
        wiki.find_wiki(code=tmp_path)
    code = fake_code(tmp_path / "w")
    with pytest.raises(UserError, match=r"the program php is missing.* mariadb-server-core"):
        wiki.find_wiki(str(tmp_path / "empty"), code)
    with pytest.raises(UserError, match=r"PHP's extension intl is missing.* php-intl"):
        wiki.find_wiki(str(fake_php(tmp_path / "bin", "mysqli mbstring xml dom")), code)


def test_unknown_profiles_and_profiles_of_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="wikipedia"):
        profiles.find("wikipedia", site.silent)
    assert main(["evaluate", "--scenario", "testbed-2x4", "--profile", "wiki", "--quiet"]) == 2
    assert "--profile wiki: only with --live" in capsys.readouterr().err


# --- on this machine ---


@pytest.fixture
def place() -> Iterator[site.Site]:
    """A testbed that serves a wiki; skips where MediaWiki is not installed, which is optional."""
    try:
        wiki.find_wiki()
    except UserError as error:
        pytest.skip(str(error))
    with cleaned() as name, site.borrowed(name, SCENARIO, keep=True, profile=profiles.WIKI) as found:
        yield found


@pytest.mark.slow
def test_a_wiki_is_served_through_the_balancers_and_leaves_nothing(place: site.Site) -> None:
    with balancers.forwarding(place, SCENARIO, "lsq", balancers.LB, 1) as active:
        played = play.play(place, SCENARIO, 1, active.watch)
    assert played.problems == {}
    assert np.isfinite(played.episode.cpu_s).all()
    assert played.episode.cpu_s.min() > 0.002  # MediaWiki was at work, not a page of errors
    row = live.run_episode(place, SCENARIO, "sed", 2, balancers.LB)
    assert row["rejected"] == 0
    assert row["service_mean_s"] > 0.002

    assert site.inspect(place)[-1].what == "database"
    database = wiki_database.main_process(place.folder / "wiki")
    assert database is not None
    assert machine.alive(database)
    site.take_down(place.network.prefix)
    assert not machine.alive(database)
    assert site.traces(place.network.prefix) == []


@pytest.mark.slow
def test_a_testbed_whose_database_has_ended_is_damaged(place: site.Site) -> None:
    database = wiki_database.main_process(place.folder / "wiki")
    machine.end([database] if database is not None else [])
    with pytest.raises(UserError, match=r"damaged \(database: MariaDB does not run\)"):
        site.require_site(place.network.prefix)
