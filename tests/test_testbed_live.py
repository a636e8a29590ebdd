"""The testbed on this machine: real Apache servers in namespaces. Needs root; fails without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from testbeds import NAME, agents_see_and_steer, cleaned, require_root
from zero_policy import policy_blob

from steelyard import native
from steelyard.benchmarks import dataset
from steelyard.deploy.testbed import balancers, capacity, live, machine, play, servers, site
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers.cli import main

pytestmark = pytest.mark.slow

SCENARIO = Scenario.load("testbed-2x4", ["episode.horizon_s=3", "episode.warmup_s=0"])


@pytest.fixture(scope="module")
def place() -> Iterator[site.Site]:
    """A testbed that is up."""
    with cleaned() as name, site.borrowed(name, SCENARIO, keep=True) as found:
        yield found


def network_of_the_machine() -> str:
    """Devices, addresses and routes outside the testbed."""
    return "".join(machine.command(("ip", "-o", *words)) for words in (["link"], ["addr"], ["route"]))


def test_up_and_down_leave_the_machine_as_it_was() -> None:
    require_root()
    before = network_of_the_machine()
    name = f"{NAME}b"
    try:
        assert main(["testbed", "up", "--name", name, "--quiet"]) == 0
        assert network_of_the_machine() == before
        assert main(["testbed", "status", "--name", name]) == 0
        assert main(["testbed", "down", "--name", name, "--quiet"]) == 0
    finally:
        site.take_down(name)
    assert network_of_the_machine() == before
    assert site.traces(name) == []
    assert main(["testbed", "down", "--name", name]) == 0
    assert main(["testbed", "status", "--name", name]) == 3


def test_up_twice_changes_nothing_and_a_damaged_one_is_built_anew(place: site.Site) -> None:
    name, pids = place.network.prefix, [servers.main_process(place.folder, j) for j in range(4)]
    assert site.bring_up(name, SCENARIO).calibration == place.calibration
    assert [servers.main_process(place.folder, j) for j in range(4)] == pids
    assert all(part.healthy for part in site.inspect(place))
    machine.end([pid for pid in pids[:1] if pid is not None])
    assert [part.what for part in site.inspect(place) if not part.healthy] == ["server 0"]
    with pytest.raises(UserError, match=r"damaged \(server 0: Apache does not run\)"):
        site.require_site(name)
    site.bring_up(name, SCENARIO)
    assert all(part.healthy for part in site.inspect(place))


def test_every_request_is_answered_and_every_server_has_its_part(place: site.Site) -> None:
    with balancers.forwarding(place, SCENARIO, "ecmp", "kernel", 1):
        played = play.play(place, SCENARIO, 1)
    assert played.problems == {}
    assert not played.episode.failed.any()
    assert np.isfinite(played.episode.cpu_s).all()
    assert set(played.episode.server.tolist()) == {0, 1, 2, 3}
    # The loop was asked for as many seconds as the scenario says; CPU time on a busy machine is noisy.
    ratio = played.episode.cpu_s.sum() / played.requests.demand_s.sum()
    assert 0.5 < ratio < 2


def test_rows_of_a_run(place: site.Site, capfd: pytest.CaptureFixture[str]) -> None:
    options = live.Options(place.network.prefix, ("kernel",))
    # The fixture holds the lock of its testbed, as any other command would.
    with pytest.raises(UserError, match="in use by another command"):
        live.run_live([SCENARIO], live.parse(["wcmp"]), range(1), options)
    row = live.run_episode(place, SCENARIO, "wcmp", 5, "kernel")
    flows = native.flow_schedule(SCENARIO.to_native(), 5)["arrival_s"]
    assert row["flows"] == row["arrived"] == len(flows)
    assert row["rejected"] == 0
    assert sum(row["server_flows"]) == len(flows)
    assert 0 < row["sojourn_p50_s"] <= row["sojourn_p99_s"]
    assert row["dataplane"] == "kernel"


def test_a_server_gets_no_more_than_its_share(place: site.Site) -> None:
    groups, name = capacity.find_groups(), place.network.prefix
    capacity.set_share(groups, name, 2, 0.2)
    path = f"/loop.php?n={place.calibration.iterations(0.1)}"
    made = native.OpenLoopClient("10.222.2.1", 80, [0] * 24, [path], [0] * 24, 60.0, 64)
    offset, began = servers.log_size(place.folder, 2), time.monotonic()
    machine.call_in(place.network.server(2), lambda: made.run(time.monotonic_ns()))
    took_s = time.monotonic() - began
    assert (made.results()["status"] == 200).all()
    used_s = sum(line.cpu_us for line in servers.log_since(place.folder, 2, offset)) * 1e-6
    assert used_s > 1
    assert used_s / took_s < 0.2 * 1.2


def test_capacity_drops_in_mid_run_and_comes_back(place: site.Site) -> None:
    event = 'events=[{kind="speed",t_s=1,value=0.25,targets=[0,2],duration_s=1}]'
    scenario = SCENARIO.with_overrides([event])
    groups, seen = capacity.find_groups(), []

    def look(t_s: float) -> None:
        shares = [capacity.share_of(groups, place.network.prefix, j) for j in range(4)]
        seen.append((t_s, *(round(share or 0, 3) for share in shares)))

    with balancers.forwarding(place, scenario, "wcmp", "kernel", 2):
        play.play(place, scenario, 2, look)
    assert {tuple(rest) for _, *rest in seen} == {(0.4, 0.4, 0.2, 0.2), (0.1, 0.4, 0.05, 0.2)}
    assert all(rest[0] == 0.1 for t_s, *rest in seen if 1.2 < t_s < 1.8)


def test_an_interrupted_episode_leaves_the_testbed_whole(place: site.Site) -> None:
    def interrupt(t_s: float) -> None:
        if t_s > 0.5:
            raise KeyboardInterrupt

    drop = SCENARIO.with_overrides(['events=[{kind="speed",t_s=0.1,value=0.25,targets=[0]}]'])
    with pytest.raises(KeyboardInterrupt), balancers.forwarding(place, drop, "ecmp", "kernel", 3):
        play.play(place, drop, 3, interrupt)
    assert capacity.share_of(capacity.find_groups(), place.network.prefix, 0) == pytest.approx(0.4)
    assert "client" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("after_s", [0.3, 1.5, 3.0])
def test_a_killed_up_leaves_nothing_that_down_does_not_find(after_s: float) -> None:
    require_root()
    name = f"{NAME}k"
    code = f"from steelyard.trainers.cli import main; main(['testbed', 'up', '--name', '{name}'])"
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", code], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        time.sleep(after_s)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert main(["testbed", "down", "--name", name, "--quiet"]) == 0
        assert site.traces(name) == []
    finally:
        site.take_down(name)
        (site.HOME / f"{name}.lock").unlink(missing_ok=True)


def test_status_as_json(place: site.Site, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["testbed", "status", "--name", place.network.prefix, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["up"] is True
    assert [part["what"] for part in told["parts"]] == ["namespaces", *(f"server {j}" for j in range(4))]


# --- through steelyard-lb ---


@pytest.mark.parametrize("policy", ["lsq", "hosted"])
def test_balancers_forward_every_request(place: site.Site, policy: str, tmp_path: Path) -> None:
    if policy == "hosted":
        (tmp_path / "policy.bin").write_bytes(policy_blob(4))
    source = str(tmp_path / "policy.bin") if policy == "hosted" else policy
    balancers.check(SCENARIO, source, "lb")
    row = live.run_episode(place, SCENARIO, source, 4, "lb")
    assert row["problems"] == ""
    assert row["rejected"] == 0
    assert all(count > 0 for count in row["server_flows"])
    assert row["lb_cpu_share"] > 0


def test_a_balancer_that_dies_ends_the_episode(place: site.Site) -> None:
    with balancers.forwarding(place, SCENARIO, "lsq", "lb", 1) as active:

        def moved(t_s: float) -> None:
            if t_s > 0.3:
                active.processes[1].kill()
                active.processes[1].wait()
            active.watch(t_s)

        with pytest.raises(machine.TestbedError, match="balancer 1 ended with status -9"):
            play.play(place, SCENARIO, 1, moved)
    assert balancers.Balancers().cpu_s() == 0


def test_agents_see_and_steer_real_balancers() -> None:
    agents_see_and_steer(f"{NAME}g", SCENARIO, "lb")


def test_training_goes_on_live(tmp_path: Path) -> None:
    require_root()
    name, short = f"{NAME}t", "--set episode.horizon_s=2 --set episode.warmup_s=0 --threads 1 --quiet"
    small = "--set algo.batch_size=4 --set algo.chunk=6 --set algo.burn_in=2"
    try:
        first = f"train --scenario testbed-2x4 --run {tmp_path / 'sim'} --episodes 2 {short} {small}"
        assert main([*first.split(), "--set", "algo.num_envs=2"]) == 0
        second = f"train --live --testbed {name} --scenario testbed-2x4 --from {tmp_path / 'sim'}"
        assert main(f"{second} --run {tmp_path / 'live'} --episodes 2 {short}".split()) == 0
    finally:
        site.take_down(name)
        (site.HOME / f"{name}.lock").unlink(missing_ok=True)
    config = json.loads((tmp_path / "live" / "config.json").read_text())
    assert (config["engine"], config["hyper"]["measure"], config["hyper"]["chunk"]) == (
        "live",
        "durations",
        6,
    )
    before, after = ((tmp_path / run / "policy.bin").read_bytes() for run in ("sim", "live"))
    assert native.Policy(after).num_actors == native.Policy(before).num_actors
    assert before != after


def test_evaluation_of_live_episodes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require_root()
    name = f"{NAME}e"
    words = f"evaluate --live --testbed {name} --scenario testbed-2x4 --policy wcmp --policy sed --seeds 0:2"
    files = f"--json {tmp_path / 'live.json'} --table {tmp_path / 'live.csv'}"
    try:
        assert main(f"{words} --set episode.horizon_s=2 --set episode.warmup_s=0 {files}".split()) == 0
    finally:
        site.take_down(name)
        (site.HOME / f"{name}.lock").unlink(missing_ok=True)
    assert "sed" in capfd.readouterr().out
    records = json.loads((tmp_path / "live.json").read_text())
    assert [(record["policy"], record["seed"]) for record in records] == [
        ("wcmp", 0),
        ("wcmp", 1),
        ("sed", 0),
        ("sed", 1),
    ]
    assert "lb_cpu_share" in (tmp_path / "live.csv").read_text().splitlines()[0]


def test_a_dataset_holds_what_balancers_saw_and_servers_did(tmp_path: Path) -> None:
    name, out = f"{NAME}d", tmp_path / "live.parquet"
    require_root()
    words = f"dataset record --live --name {name} --traffic loop --seeds 3:4 --out {out} --quiet"
    try:
        assert main([*words.split(), "--set", "episode.horizon_s=3", "--set", "episode.warmup_s=0"]) == 0
    finally:
        site.take_down(name)
        (site.HOME / f"{name}.lock").unlink(missing_ok=True)
    data, facts = dataset.read(out)
    assert facts["where"] == "live"
    assert len(data["step"]) == 12 * 2 * 4
    late = data["step"] == 11
    assert data["fct_mean"][late].max() > 0
    # A balancer's own open flows are a part of what its server has, but for those that end at this moment.
    both = data["n_flow_on"].reshape(2, 12, 4).sum(0)
    truth = data["in_server"].reshape(2, 12, 4).mean(0)
    assert np.abs(both - truth).mean() < 0.25 * max(truth.mean(), 4)
    assert data["packets"].sum() > 4 * 12
    busy = data["cpu_busy"]
    assert 0 < busy.mean() < 1.2
    assert np.isnan(data["remaining_s"]).all()
