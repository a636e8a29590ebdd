"""VPP on a testbed, without VPP: what it is told, what it says, what is refused; dataplanes side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
from zero_policy import policy_blob

from steelyard.benchmarks import dataplane_gaps, sim_to_real
from steelyard.deploy import vpp_process
from steelyard.deploy.testbed import balancers, live, network, site, vpp_balancers, vpp_config
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers.cli import main

SCENARIO = Scenario.load("testbed-2x4")
SHARED = Path("/dev/shm/steelyard-lb1")


def plugin(source: str, publish: bool = False) -> list[str]:
    """The lines of balancer 1."""
    return [line.text for line in vpp_config.plugin_lines(SCENARIO, 1, source, SHARED, 7, publish)]


# --- what VPP is told ---


def test_a_balancer_is_on_the_cable_and_knows_its_servers() -> None:
    lines = vpp_config.link_lines(1, 2)
    assert [line.text for line in lines] == [
        "create host-interface name eth0 v2 cksum-gso-disable hw-addr 02:53:4c:00:01:01",
        "set interface state host-eth0 up",
        "set interface ip address host-eth0 10.222.0.11/24",
        "set ip neighbor host-eth0 10.222.0.100 02:53:4c:00:02:00",
        "set ip neighbor host-eth0 10.222.0.101 02:53:4c:00:02:01",
    ]
    assert lines[0].answer == "host-eth0"


def test_the_plugin_follows_a_rule_by_the_scenarios_weights() -> None:
    assert plugin("sed") == [
        "steelyard interface host-eth0",
        "steelyard seed 7",
        "steelyard balancer 1 of 2",
        "steelyard vip add web address 10.222.2.1 port 80 forwarding l3-dsr dscp 2 rule sed",
        "steelyard server add web 10.222.0.100 weight 0.4",
        "steelyard server add web 10.222.0.101 weight 0.4",
        "steelyard server add web 10.222.0.102 weight 0.2",
        "steelyard server add web 10.222.0.103 weight 0.2",
        "steelyard vip set web interval 0.25 reservoir-size 128",
    ]


def test_a_policy_file_is_loaded_after_all_servers(tmp_path: Path) -> None:
    lines = plugin(str(tmp_path / "policy.bin"))
    assert "rule lsq" in lines[3]
    settings = f"policy {tmp_path}/policy.bin interval 0.25 reservoir-size 128"
    assert lines[-1] == f"steelyard vip set web {settings}"


def test_an_agent_reads_five_times_a_step() -> None:
    settings = f"interval 0.05 reservoir-size 128 shared-memory {SHARED}"
    assert plugin("agent")[-1] == f"steelyard vip set web policy agent {settings} max-age 2.0"
    assert plugin("sed", publish=True)[-1] == f"steelyard vip set web {settings}"


def test_vpps_own_balancer_has_as_many_addresses_of_a_server_as_its_weight() -> None:
    lines = [line.text for line in vpp_config.stock_lines(SCENARIO, 0, "wcmp")]
    assert lines[1] == "lb vip 10.222.2.1/32 protocol tcp port 80 encap l3dsr dscp 2 new_len 4096"
    assert [line.split()[5] for line in lines if line.startswith("ip route")] == [
        *["10.222.0.100"] * 2,
        *["10.222.0.101"] * 2,
        "10.222.0.102",
        "10.222.0.103",
    ]
    names = " ".join(f"10.222.16.{index}" for index in range(6))
    assert lines[-1] == f"lb as 10.222.2.1/32 protocol tcp port 80 {names}"
    equal = [line.text for line in vpp_config.stock_lines(SCENARIO, 0, "ecmp")]
    assert sum(line.startswith("ip route") for line in equal) == 4


def test_weights_are_small_whole_numbers() -> None:
    uneven = SCENARIO.with_overrides(["rule.weights=[3, 1.5, 1, 1]"])
    assert vpp_config.shares(SCENARIO) == [2, 2, 1, 1]
    assert vpp_config.shares(uneven) == [32, 16, 11, 11]


def test_other_addresses_are_nobody_elses() -> None:
    others = [network.other_address(index) for index in range(4096)]
    own = [network.server_address(j) for j in range(128)] + [network.balancer_address(i) for i in range(32)]
    assert len({*others, *own, network.VIP, network.GATEWAY}) == 4096 + 128 + 32 + 2


def test_servers_put_the_virtual_address_back() -> None:
    steps = network.restore_vip(network.Network("tb", 2, 3))
    assert [step.argv[1] for step in steps if isinstance(step, network.Run)] == [
        f"--net=/run/netns/tb-s{j}" for j in range(3)
    ]
    assert all("ip dscp 2 tcp dport 80 ip daddr set 10.222.2.1" in str(step) for step in steps)


# --- what VPP says ---

SHOWN = """\
source none, none; mtu 1500; balancer 0 of 2; 1 threads
  forwarded      12034
vip web: 10.222.2.1 port 80 tcp, l3-dsr, rule policy, every 0.25 s
  policy /runs/a/policy.bin: followed, 80 decisions, 0 fallbacks
  connections 3 of 65536 a thread; fallback packets 0, untracked 0, half-open refused 0, adopted 2, evicted 0
"""


def test_a_pool_that_was_served_tells_nothing() -> None:
    assert vpp_config.trouble(SHOWN) == ""
    assert vpp_config.trouble(SHOWN.replace("  policy /runs/a/policy.bin: followed, 80", "  no")) == ""


@pytest.mark.parametrize(
    ("said", "instead", "told"),
    [
        ("0 fallbacks", "2 fallbacks", "2 fallbacks of the policy"),
        ("untracked 0", "untracked 5", "5 untracked"),
        ("evicted 0", "evicted 7", "7 evicted"),
        ("followed,", "not followed (lsq): it is for 7 servers,", "policy not followed: it is for 7 servers"),
    ],
)
def test_a_pool_that_was_not_served_tells_why(said: str, instead: str, told: str) -> None:
    assert vpp_config.trouble(SHOWN.replace(said, instead)) == told


# --- what is refused ---


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEELYARD_VPP_PREFIX", str(tmp_path))


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("dataplane", ["vpp", "vpp-lb"])
def test_without_vpp_it_is_said_what_to_do(dataplane: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=rf"--dataplane {dataplane}: VPP is not installed.*docs/vpp\.md"):
        balancers.check(SCENARIO, "ecmp", dataplane)
    assert main(f"testbed run --scenario testbed-2x4 --dataplane {dataplane} --policy ecmp".split()) == 2
    assert "VPP is not installed" in capsys.readouterr().err


def test_without_the_plugin_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/vpp").touch()
    monkeypatch.setenv("STEELYARD_VPP_PREFIX", str(tmp_path))
    monkeypatch.setenv("STEELYARD_VPP_PLUGIN", str(tmp_path / "nothing.so"))
    with pytest.raises(UserError, match="the plugin is not built: make vpp-plugin"):
        vpp_balancers.check_installed("vpp")
    (tmp_path / "nothing.so").touch()
    assert vpp_process.plugin() == tmp_path / "nothing.so"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="nft is missing; install it: sudo apt-get install"):
        vpp_balancers.check_installed("vpp")


def test_an_installed_plugin_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "lib/x86_64-linux-gnu/vpp_plugins"
    folder.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for path in (tmp_path / "bin/vpp", folder / "steelyard_plugin.so"):
        path.touch()
    monkeypatch.setenv("STEELYARD_VPP_PREFIX", str(tmp_path))
    monkeypatch.setattr(vpp_process, "ROOT", tmp_path)
    assert vpp_process.plugin() == folder / "steelyard_plugin.so"
    assert vpp_process.libraries(tmp_path)["LD_LIBRARY_PATH"].startswith(str(folder.parent))


def test_a_policy_for_another_pool_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vpp_balancers, "check_installed", lambda dataplane: None)
    path = tmp_path / "policy.bin"
    path.write_bytes(policy_blob(5))
    with pytest.raises(ValueError, match="made for 5 servers, the scenario has 4"):
        balancers.check(SCENARIO, str(path), "vpp")
    with pytest.raises(UserError, match="VPP's own balancer cannot run it, only ecmp, wcmp"):
        balancers.check(SCENARIO, "lsq", "vpp-lb")
    with pytest.raises(UserError, match=r"agent: VPP's own balancer cannot run it"):
        balancers.check(SCENARIO, "agent", "vpp-lb")


def test_dataplane_is_for_live_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = f"train --scenario testbed-2x4 --run {tmp_path / 'run'} --dataplane vpp"
    assert main(run.split()) == 2
    assert "--dataplane vpp: only with --live" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_shared_memory_of_a_killed_testbed_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(site, "SHARED_MEMORY", tmp_path)
    for name in ("slx-lb0", "slx-lb1-vpp-global_vm", "slxy-lb0", "slx-other"):
        (tmp_path / name).touch()
    assert [Path(trace).name for trace in site.traces("slx")] == ["slx-lb0", "slx-lb1-vpp-global_vm"]
    site.take_down("slx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["slx-other", "slxy-lb0"]


# --- dataplanes side by side ---


def test_who_only_hashes_plays_what_it_can() -> None:
    contenders = live.parse(["wcmp", "lsq"])
    found = live.turns(contenders, ["lb", "vpp", "vpp-lb"])
    assert [(turn.member.name, turn.dataplane) for turn in found] == [
        ("wcmp", "lb"),
        ("wcmp", "vpp"),
        ("wcmp", "vpp-lb"),
        ("lsq", "lb"),
        ("lsq", "vpp"),
    ]
    assert len(live.turns(contenders, ["vpp-lb"])) == 2  # refused by name, not left out


def test_names_of_dataplanes() -> None:
    assert dataplane_gaps.parse("lb,vpp") == ("lb", "vpp")
    with pytest.raises(UserError, match="dpdk"):
        dataplane_gaps.parse("lb,dpdk")
    with pytest.raises(UserError, match="names one twice"):
        dataplane_gaps.parse("vpp,vpp")


def row(contender: str, dataplane: str, seed: int, mean_s: float, **more: float) -> dict[str, object]:
    fixed = {"contender": contender, "dataplane": dataplane, "run": 0, "seed": seed, "flows": 10}
    told = {"rejected": 0, "service_mean_s": 0.01, "lag_p99_s": 0.001, "lb_cpu_share": 0.1}
    return {**fixed, **told, **dict.fromkeys(sim_to_real.METRICS, mean_s), **more}


def test_dataplanes_are_told_apart_and_compared_under_the_same_seeds() -> None:
    real = [
        *(row("wcmp", "lb", seed, mean_s) for seed, mean_s in enumerate((0.2, 0.4))),
        *(row("wcmp", "vpp", seed, mean_s, lb_cpu_share=0.3) for seed, mean_s in enumerate((0.25, 0.41))),
        *(row("lsq", "lb", seed, 0.1) for seed in range(2)),
        *(row("sed", "lb", seed, 0.05) for seed in range(2)),
    ]
    real, model = dataplane_gaps.label(real, [{**each, "sojourn_mean_s": 0.1} for each in real])
    assert [each["contender"] for each in model][::2] == [
        "wcmp by lb",
        "wcmp by vpp",
        "lsq by lb",
        "sed by lb",
    ]
    summary = sim_to_real.compare(real, model)
    found = dataplane_gaps.compare(real, summary)
    assert list(found["against_first"]) == ["wcmp by vpp"]
    assert found["against_first"]["wcmp by vpp"] == pytest.approx(
        {"difference_s": 0.03, "least_s": 0.01, "largest_s": 0.05}
    )
    assert found["by_dataplane"]["vpp"]["lb_cpu_share"] == pytest.approx(0.3)
    assert found["by_dataplane"]["vpp"]["rank_correlation"] == {}
    assert found["by_dataplane"]["lb"]["rank_correlation"]["sojourn_p50_s"] == pytest.approx(1)
    text = dataplane_gaps.table(summary | found | {"vpp": "v26.06"})
    assert "| wcmp by vpp | +30.0 | +10.0 | +50.0 |" in text
    assert "VPP v26.06." in text


def test_one_dataplane_adds_nothing() -> None:
    real, model = dataplane_gaps.label([row("lsq", "lb", 0, 0.1)], [row("lsq", "lb", 0, 0.1)])
    summary = sim_to_real.compare(real, model)
    assert summary["contenders"] == ["lsq"]
    assert dataplane_gaps.compare(real, summary) == {}
    assert dataplane_gaps.table(summary) == ""
