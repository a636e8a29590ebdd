"""Real requests through VPP on a testbed: the plugin, and VPP's own balancer (root, VPP)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbeds import NAME, agents_see_and_steer, cleaned
from zero_policy import policy_blob

from steelyard.deploy.testbed import balancers, live, machine, play, site, vpp_balancers
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario


def why_not() -> str:
    """Why VPP cannot be on a testbed here; empty: it can."""
    try:
        vpp_balancers.check_installed("vpp")
    except UserError as error:
        return str(error)
    return ""


lacks = why_not()
pytestmark = [pytest.mark.skipif(bool(lacks), reason=lacks or "VPP is here"), pytest.mark.slow]
SCENARIO = Scenario.load("testbed-2x4", ["episode.horizon_s=2", "episode.warmup_s=0"])


@pytest.fixture(scope="module")
def place() -> Iterator[site.Site]:
    with cleaned() as name:
        yield site.bring_up(name, SCENARIO)


@pytest.mark.parametrize(
    ("dataplane", "policy"), [("vpp", "sed"), ("vpp", "hosted"), ("vpp-lb", "wcmp"), ("vpp-lb", "ecmp")]
)
def test_balancers_forward_every_request(
    place: site.Site, dataplane: str, policy: str, tmp_path: Path
) -> None:
    if policy == "hosted":
        (tmp_path / "policy.bin").write_bytes(policy_blob(4))
    source = str(tmp_path / "policy.bin") if policy == "hosted" else policy
    balancers.check(SCENARIO, source, dataplane)
    row = live.run_episode(place, SCENARIO, source, 4, dataplane)
    assert row["problems"] == ""
    assert row["rejected"] == 0
    assert all(count > 0 for count in row["server_flows"])
    assert row["lb_cpu_share"] > 0
    assert row["dataplane"] == dataplane


def test_a_hosted_policy_decides(place: site.Site, tmp_path: Path) -> None:
    path = tmp_path / "policy.bin"
    path.write_bytes(policy_blob(4))
    with balancers.forwarding(place, SCENARIO, str(path), "vpp", 1) as active:
        assert isinstance(active, vpp_balancers.VppBalancers)
        time.sleep(1)
        shown = vpp_balancers.ask(active.folders[0], "show steelyard")
    assert f"policy {path}: followed" in shown
    assert balancers.shared_memory(NAME, 0).exists() is False


def test_a_line_that_vpp_refuses_ends_the_start(place: site.Site) -> None:
    with (
        pytest.raises(machine.TestbedError, match=r"balancer 0: steelyard vip add web .* rule nonsense"),
        balancers.forwarding(place, SCENARIO, "lsq", "vpp", 1) as active,
    ):
        vpp_balancers.configure(
            active,
            0,
            [vpp_balancers.Line("steelyard vip add web address 10.0.0.1 port 80 rule nonsense")],
        )


def test_a_vpp_that_dies_ends_the_episode(place: site.Site) -> None:
    with balancers.forwarding(place, SCENARIO, "lsq", "vpp", 1) as active:
        active.processes[1].kill()
        active.processes[1].wait()
        with pytest.raises(machine.TestbedError, match="balancer 1 ended with status -9"):
            play.play(place, SCENARIO, 1, active.watch)


def test_agents_see_and_steer_vpp() -> None:
    agents_see_and_steer(f"{NAME}v", SCENARIO, "vpp")


def test_nothing_is_left_of_a_command_that_was_killed() -> None:
    name = f"{NAME}k"
    words = f"testbed run --name {name} --scenario testbed-2x4 --dataplane vpp --policy lsq --quiet"
    program = "import sys; from steelyard.trainers.cli import main; main(sys.argv[1:])"
    command = subprocess.Popen([sys.executable, "-c", program, *words.split()])
    try:
        deadline = time.monotonic() + 60
        while not list((site.home(name)).glob("vpp1/cli.sock")) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (site.home(name) / "vpp1/cli.sock").exists()
        os.kill(command.pid, signal.SIGKILL)
        command.wait()
    finally:
        command.kill()
        site.take_down(name)
        (site.HOME / f"{name}.lock").unlink(missing_ok=True)
    assert site.traces(name) == []
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if name.encode() in _command_line(pid)]


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
