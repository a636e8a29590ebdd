"""The testbed on paper: names, steps, capacities, schedules, and rows from what was written down."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from steelyard.deploy.testbed import capacity, machine, measure, network, play, servers, site
from steelyard.deploy.testbed import testbed_command as command
from steelyard.deploy.testbed.apache import Installation, LogLine
from steelyard.deploy.testbed.calibration import Calibration
from steelyard.deploy.testbed.network import Network, OffloadsOff, Run, Sysctl
from steelyard.deploy.testbed.schedule import schedule
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers import comparison, results
from steelyard.trainers.cli import main

NETWORK = Network("tb", 2, 4)
SCENARIO = Scenario.load("testbed-2x4")
DROP = [
    'events=[{kind="speed",t_s=5,value=0.5,targets=[0],duration_s=2},{kind="speed",t_s=6,value=0.25,targets=[3]}]'
]


def runs(steps: list[network.Step]) -> list[str]:
    """The commands among steps, as lines."""
    return [" ".join(step.argv) for step in steps if isinstance(step, Run)]


# --- network ---


def test_every_step_stays_inside_the_namespaces_of_its_name() -> None:
    steps = network.build(NETWORK) + network.forward_by_kernel(NETWORK, [2, 2, 1, 1])
    for step in steps:
        if isinstance(step, Run):
            assert step.argv[:3] == ("ip", "netns", "add") or step.argv[:2] == ("ip", "-n")
            namespace = step.argv[3] if step.argv[1] == "netns" else step.argv[2]
        else:
            namespace = step.namespace
        assert network.is_ours("tb", namespace)
        assert namespace in NETWORK.namespaces


def test_nothing_is_used_before_it_is_made() -> None:
    made: set[str] = set()
    for step in network.build(NETWORK):
        if isinstance(step, Run) and step.argv[1] == "netns":
            made.add(step.argv[3])
        else:
            assert (step.argv[2] if isinstance(step, Run) else step.namespace) in made
    assert made == set(NETWORK.namespaces)


def test_servers_hold_the_virtual_address_in_silence() -> None:
    steps = network.build(NETWORK)
    for j in range(4):
        namespace = NETWORK.server(j)
        assert Sysctl(namespace, "net.ipv4.conf.all.arp_ignore", "1") in steps
        assert Sysctl(namespace, "net.ipv4.conf.all.arp_announce", "2") in steps
        assert Sysctl(namespace, "net.ipv4.conf.all.rp_filter", "0") in steps
        assert f"ip -n {namespace} address add {network.VIP}/32 dev lo" in runs(steps)


def test_offloads_are_off_at_both_ends_of_every_cable() -> None:
    steps = network.build(NETWORK)
    cables = [line for line in runs(steps) if " type veth " in line]
    assert len(cables) == 1 + 2 + 4
    ends = {(step.namespace, step.device) for step in steps if isinstance(step, OffloadsOff)}
    ports = {(NETWORK.edge, name) for name in ("client", "lb0", "lb1", "s0", "s1", "s2", "s3")}
    assert ends == ports | {(name, "eth0") for name in NETWORK.namespaces if name != NETWORK.edge}


def test_router_spreads_over_balancers_and_kernels_over_servers_by_other_hashes() -> None:
    steps = network.build(NETWORK) + network.forward_by_kernel(NETWORK, [32, 32, 16, 16])
    (route,) = (line for line in runs(steps) if "-n tb-edge route add" in line)
    assert route.endswith("nexthop via 10.222.0.10 nexthop via 10.222.0.11")
    (to_servers,) = (line for line in runs(steps) if "-n tb-lb1 route replace" in line)
    assert to_servers.count("nexthop via") == 4
    assert to_servers.endswith("via 10.222.0.103 weight 16")
    seeds = {
        step.namespace: step.value
        for step in steps
        if isinstance(step, Sysctl) and step.key.endswith("fib_multipath_hash_seed")
    }
    assert len(set(seeds.values())) == len(seeds) == 3
    layer4 = [
        s.namespace
        for s in steps
        if isinstance(s, Sysctl) and s.key.endswith("hash_policy") and s.value == "1"
    ]
    assert sorted(layer4) == ["tb-edge", "tb-lb0", "tb-lb1"]


def test_addresses_differ() -> None:
    big = Network("x", network.MAX_BALANCERS, network.MAX_SERVERS)
    addresses = [network.balancer_address(i) for i in range(big.balancers)]
    addresses += [network.server_address(j) for j in range(big.servers)]
    assert len(set(addresses)) == len(addresses)
    assert max(int(address.rpartition(".")[2]) for address in addresses) < 255
    macs = [network.balancer_mac(i) for i in range(big.balancers)]
    macs += [network.server_mac(j) for j in range(big.servers)]
    assert len(set(macs)) == len(macs)


def test_kernel_weights_keep_ratios() -> None:
    assert network.kernel_weights([0.4, 0.4, 0.2, 0.2]) == [32, 32, 16, 16]
    assert network.kernel_weights([1000, 1]) == [32, 1]


@pytest.mark.parametrize("name", ["", "Big", "a-b", "../up", "9lives", "a" * 17, "a b", "x\n"])
def test_bad_names(name: str) -> None:
    with pytest.raises(UserError, match="--name"):
        Network(name, 1, 1)


def test_only_names_of_this_testbed_are_ours() -> None:
    yes = ["tb-client", "tb-edge", "tb-lb0", "tb-s12"]
    no = ["tb", "tb-", "tb-lb", "tbx-s1", "xtb-s1", "tb-s1x", "tb-other", "atb-client", "tb.s1"]
    assert [name for name in yes + no if network.is_ours("tb", name)] == yes


# --- capacity ---


@pytest.mark.parametrize(("share", "quota_us", "period_us"), [(0.4, 4000, 10_000), (1.0, 10_000, 10_000)])
def test_shares_as_quotas(share: float, quota_us: int, period_us: int) -> None:
    assert capacity.settings(share, 1) == {
        "cpu.cfs_period_us": str(period_us),
        "cpu.cfs_quota_us": str(quota_us),
    }
    assert capacity.settings(share, 2) == {"cpu.max": f"{quota_us} {period_us}"}


@pytest.mark.parametrize("share", [0.01, 0.025, 0.05, 0.1, 0.3, 0.999])
def test_small_shares_get_longer_periods(share: float) -> None:
    found = capacity.settings(share, 1)
    quota_us, period_us = int(found["cpu.cfs_quota_us"]), int(found["cpu.cfs_period_us"])
    assert quota_us >= capacity.MIN_QUOTA_US
    assert period_us <= capacity.MAX_PERIOD_US
    assert quota_us / period_us == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize("version", [1, 2])
def test_groups_in_either_version(tmp_path: Path, version: int) -> None:
    root = tmp_path / ("v1" if version == 1 else "v2")
    root.mkdir()
    (root / ("cpu.shares" if version == 1 else "cgroup.controllers")).write_text("cpuset cpu io")
    groups = capacity.find_groups(tmp_path / "v1", tmp_path / "v2")
    assert groups == capacity.CpuGroups(root, version)
    capacity.make(groups, "tb", 2)
    capacity.set_share(groups, "tb", 1, 0.25)
    assert capacity.share_of(groups, "tb", 1) == pytest.approx(0.25)
    written = "cpu.cfs_quota_us" if version == 1 else "cpu.max"
    assert not (root / "tb" / "s0" / written).exists()
    capacity.join(groups, "tb", 17)
    assert (groups.others("tb") / "cgroup.procs").read_text() == "17"


def test_a_machine_without_groups_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids")
    with pytest.raises(UserError, match="no cgroup with the cpu controller"):
        capacity.find_groups(tmp_path / "none", tmp_path)


# --- scenarios ---


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("pool.servers.0.cpu=fifo", r"pool\.servers\.0\.ps_cap"),
        ("pool.servers.0.ps_cap=300", r"pool\.servers\.0\.ps_cap = 300"),
        ("pool.servers.0.workers=2", r"pool\.servers\.0: workers = 2"),
        ("pool.servers.1.speed=1.5", "speed = 1.5"),
        ("pool.servers.1.present=false", r"pool\.servers\.1\.present"),
        ("pool.servers.1.count=200", r"pool\.servers"),
        ("pool.balancers=40", r"pool\.balancers"),
        ("workload.stages.0.kind=io", r"workload\.stages\.0\.kind"),
        ('events=[{kind="leave",t_s=1,targets=[0]}]', r"events\.0\.kind"),
        ('events=[{kind="speed",t_s=[1,2],value=0.5}]', r"events\.0: time and value"),
        ('events=[{kind="speed",t_s=1,value=[0.5,1]}]', r"events\.0: time and value"),
        ('events=[{kind="speed",t_s=1,value=0.5,count=1}]', r"events\.0: time and value"),
    ],
)
def test_scenarios_that_no_testbed_can_be(override: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        site.load("testbed-2x4", (override,))


@pytest.mark.parametrize("name", ["testbed-2x4", "testbed-2x7"])
def test_packaged_testbeds_state_their_load(name: str) -> None:
    scenario = site.load(name)
    assert scenario.scenario.offered_load is not None
    assert scenario.offered_load().cpu == pytest.approx(scenario.scenario.offered_load.cpu, rel=1e-9)
    speeds = [server.speed for server in scenario.servers]
    assert max(speeds) == pytest.approx(2 * min(speeds))


def test_racks_are_refused() -> None:
    with pytest.raises(UserError, match="another world"):
        site.load("rack-hom-8x8")


# --- what is asked for ---


def test_schedule_asks_for_the_demands_of_the_seed() -> None:
    made = Calibration(iterations_per_s=1e8, overhead_s=0.0005)
    plan = schedule(SCENARIO, 3, made)
    again = schedule(SCENARIO, 3, made)
    assert (plan.due_ns == again.due_ns).all()
    assert plan.paths == again.paths
    iterations = np.array([int(plan.paths[i].partition("?n=")[2]) for i in plan.path_of])
    wanted = np.maximum(1, (plan.demand_s - 0.0005) * 1e8)
    assert np.abs(iterations - wanted).max() <= 250
    count = SCENARIO.workload.arrival.rate * SCENARIO.episode.horizon_s
    assert abs(len(plan.due_ns) - count) < 4 * np.sqrt(count)


def test_schedule_of_a_trace_asks_for_files_too() -> None:
    trace = SCENARIO.with_overrides(
        [
            'workload.arrival={kind="trace",trace="web"}',
            'workload.stages=[{kind="cpu",demand={kind="trace"}}]',
        ]
    )
    plan = schedule(trace, 0, Calibration(1e8, 0.0))
    asked = [plan.paths[i] for i in plan.path_of]
    files = [path for path in asked if path.startswith("/static-")]
    assert 0.3 < len(files) / len(asked) < 0.5  # 41 % of the recording
    assert all(path.endswith(".bin") for path in files)


def test_iterations_are_bounded() -> None:
    made = Calibration(1e8, 0.01)
    assert made.iterations(0.0) == 1
    assert made.iterations(1e6) == 100_000_000


def test_timetable_in_the_order_of_time() -> None:
    assert play.timetable(SCENARIO.with_overrides(DROP)) == [(5, 0, 0.2), (6, 3, 0.05), (7, 0, 0.4)]


def test_server_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # pytest's folders are closed to www-data
    installed = Installation(Path("/usr/sbin/apache2"), (("headers_module", Path("/m/mod_headers.so")),))
    text = servers.configuration(installed, tmp_path / "s3", tmp_path / "htdocs", 3, 24)
    assert f"Listen {network.VIP}:80" in text
    assert 'Header always set X-Server "3"' in text
    assert "MaxRequestWorkers 24" in text
    assert f'DocumentRoot "{tmp_path}/htdocs"' in text
    assert f'PidFile "{tmp_path}/s3/httpd.pid"' in text


# --- rows ---


def an_episode() -> measure.Episode:
    """Two requests on server 0 (one in the warm-up), one on server 2, and one that failed."""
    lines = [
        LogLine("r1", 200, 9, 1, 20_000, 1),
        LogLine("r2", 200, 9, 1, 10_000, 1),
        LogLine("x", 200, 9, 1, 5, 1),
    ]
    columns = {
        "sent_ns": np.array([1, 4_000_000_000, 5_001_000_000, 6_000_000_000]),
        "done_ns": np.array([100_000_000, 4_100_000_000, 5_200_000_000, -1]),
        "server": np.array([0, 0, 2, -1]),
        "problem": np.array([0, 0, 0, 1]),
        "status": np.array([200, 200, 200, 0]),
    }
    return measure.episode(np.array([0, 4_000_000_000, 5_000_000_000, 6_000_000_000]), columns, lines)


def test_row_of_an_episode() -> None:
    row = measure.row(SCENARIO, an_episode())
    assert (row["flows"], row["rejected"], row["arrived"]) == (3, 1, 4)
    assert row["sojourn_mean_s"] == pytest.approx((0.1 + 0.2 + 20) / 3)
    assert row["sojourn_p50_s"] == pytest.approx(0.2)
    # Service of 20 ms at 0.4 of a processor is 50 ms; of 10 ms at 0.2 too.
    assert row["waiting_mean_s"] == pytest.approx((0.05 + 0.15) / 2)
    assert row["slowdown_mean"] == pytest.approx((2 + 4) / 2)
    assert row["server_flows"] == [1, 0, 1, 0]
    assert row["lag_p99_s"] == pytest.approx(0.001, rel=0.05)
    assert row["cpu_s"] == pytest.approx(0.03)


def test_balance_counts_requests_in_servers_over_their_capacity() -> None:
    found = an_episode()
    inside = measure.in_system(found, np.array([0.05, 2.0, 4.05, 5.1]), 4)
    assert inside.tolist() == [[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]]
    everywhere = measure.balance(SCENARIO, found)
    assert 0.25 <= everywhere["jain_mean"] <= 1


def test_speeds_follow_the_timetable() -> None:
    found = measure.speeds(SCENARIO.with_overrides(DROP), np.array([4.9, 5.0, 6.5, 7.0]))
    np.testing.assert_allclose(found[0], [0.4, 0.2, 0.2, 0.4])
    np.testing.assert_allclose(found[3], [0.2, 0.2, 0.05, 0.05])


def test_rows_go_where_rows_of_the_simulator_go(tmp_path: Path) -> None:
    fixed = {"scenario": "testbed-2x4", "run": 0, "convention": "uncensored"}
    rows = [
        fixed | {"policy": name, "contender": name, "seed": seed} | measure.row(SCENARIO, an_episode())
        for name in ("lsq", "sed")
        for seed in range(3)
    ]
    command.write_records(tmp_path / "live.json", rows)
    results.write_records("--json", tmp_path / "simulated.json", rows)
    assert (tmp_path / "live.json").read_text().split() == (tmp_path / "simulated.json").read_text().split()
    lines = comparison.summarise(rows, ["lsq"])
    assert [(line.contender, line.seeds) for line in lines] == [("lsq", 3), ("sed", 3)]
    (out,) = {line.sojourn_s.value for line in lines}
    assert out == pytest.approx((0.1 + 0.2 + 20) / 3)
    results.write_table("--table", tmp_path / "rows.csv", rows)
    results.write_table("--table", tmp_path / "rows.parquet", rows)


def test_an_episode_without_requests_has_a_row() -> None:
    empty = np.array([], int)
    columns = dict.fromkeys(("sent_ns", "done_ns", "server", "problem", "status"), empty)
    row = measure.row(SCENARIO, measure.episode(empty, columns, []))
    assert row["flows"] == 0
    assert np.isnan(row["sojourn_mean_s"])
    assert row["jain_mean"] == 1


# --- the command ---


@pytest.mark.parametrize("action", [["up"], ["down"], ["status"], ["run"], []])
def test_without_root_it_says_so(
    action: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
    assert (
        main(
            [
                "testbed",
                *action,
                *(["--policy", "ecmp", "--dataplane", "kernel"] if action == ["run"] else []),
            ]
        )
        == 2
    )
    said = capsys.readouterr().err
    assert "needs root" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["up", "--scenario", "nowhere"], "nowhere"),
        (["up", "--scenario", "cluster-a-cpu"], "pool.servers.0.ps_cap"),
        (["run", "--seeds", "3:3"], "--seeds: '3:3'"),
        (["run", "--scenario", "testbed-2x4", "--policy", "sed", "--dataplane", "kernel"], "--policy sed"),
        (["run", "--scenario", "testbed-2x4", "--policy", "tuned-sed"], "--policy tuned-sed"),
        (["run", "--scenario", "testbed-2x4", "--policy", "nonsense"], "nonsense"),
        (["run", "--json", "/nowhere/at/all.json"], "--json"),
        (["status", "--name", "UP"], "--name"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["testbed", *words]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_foreign_state_file_is_no_testbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "HOME", tmp_path)
    (tmp_path / "tb").mkdir()
    for text in ("", "{}", "[]", '{"scenario": {}, "calibration": {}}'):
        (tmp_path / "tb" / "state.json").write_text(text)
        assert site.read_state("tb") is None


def test_one_command_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "HOME", tmp_path / "home")
    with site.held("tb"), pytest.raises(UserError, match="in use by another command"), site.held("tb"):
        pass
    with site.held("tb"):
        assert os.listdir(tmp_path / "home") == ["tb.lock"]
