"""Central policies: the file, the compiled form, the simulator's gathering, and the learner's network."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from policy_specs import observations
from worlds import event

from steelyard import native
from steelyard.agents import export, rules
from steelyard.agents.central import CentralActor, CentralTwin
from steelyard.agents.layout import (
    DISCRETE_ACTIONS,
    central_bytes_per_step,
    central_row_dim,
    central_rows,
    observation_dim,
    server_rows,
)
from steelyard.agents.normaliser import Normaliser
from steelyard.deploy import compiler
from steelyard.deploy.export import export as export_policy
from steelyard.envs.central import LoadBalanceCentralEnv
from steelyard.envs.scenario import Scenario
from steelyard.trainers import cli

torch.set_num_threads(1)
CORPUS = Path(__file__).resolve().parent.parent / "native" / "tests" / "corpus" / "policy_blob"
SHORT = ["episode.horizon_s=20"]
M, N = 2, 8


def central_actor(discrete: bool = False, agents: int = M, servers: int = N, seed: int = 0) -> CentralActor:
    """An actor whose weights differ clearly between steps, servers and balancers."""
    torch.manual_seed(seed)
    actor = CentralActor(agents, servers, hidden=6, discrete=discrete)
    with torch.no_grad():
        actor.head.weight.mul_(20)
        actor.constant.normal_(0, 0.3)
    return actor


def warm_normaliser(servers: int = N, seed: int = 3) -> Normaliser:
    """Statistics of plausible observations."""
    normaliser = Normaliser(servers)
    normaliser.update(observations(servers, 50, seed))
    return normaliser


def blob_of(actor: CentralActor) -> bytes:
    """The central policy file of an actor."""
    return export.central_policy_bytes(actor, warm_normaliser(actor.num_servers), 5.0)


class Eager:
    """The PyTorch twin of `blob_of(actor)`, step by step."""

    def __init__(self, actor: CentralActor) -> None:
        vectors = warm_normaliser(actor.num_servers).vectors()
        self.mean, self.inverse = (torch.from_numpy(np.tile(v, actor.num_agents)) for v in vectors)
        self.actor, self.state = actor, actor.initial_state(1)

    @torch.no_grad()
    def head(self, obs: np.ndarray) -> torch.Tensor:
        """(M obs_dim,) -> (M N, 2 or 3); the state advances."""
        scaled = ((torch.from_numpy(obs.copy()) - self.mean) * self.inverse).clamp(-5.0, 5.0)
        output = self.actor(scaled.view(1, 1, -1), self.state)
        self.state = output.state
        return output.head[0, 0]


def joint_observations(agents: int, servers: int, steps: int, seed: int) -> np.ndarray:
    """(steps, M obs_dim)."""
    return observations(servers, steps * agents, seed).reshape(steps, -1)


def test_rows_hold_what_the_observations_say() -> None:
    obs = torch.from_numpy(observations(N, 3, 1))
    rows = central_rows(obs, N)
    assert rows.shape == (N, central_row_dim(3))
    torch.testing.assert_close(rows[:, :29], server_rows(obs.mean(0), N))
    for m in range(3):
        own = rows[:, 29 + 12 * m : 41 + 12 * m]
        torch.testing.assert_close(own[:, :11], obs[m, : 11 * N].view(N, 11))
        torch.testing.assert_close(own[:, 11], obs[m, -N:])


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize(("agents", "servers"), [(2, 8), (3, 5), (1, 4)])
def test_torch_and_native_inference_agree(discrete: bool, agents: int, servers: int) -> None:
    """|native - torch| <= 2e-6 max(1, |torch|) over the steps of an episode; outputs balancer by balancer."""
    actor = central_actor(discrete, agents, servers)
    policy, eager, moved = native.Policy(blob_of(actor)), Eager(actor), []
    assert (policy.central_agents, policy.num_agents, policy.num_actors) == (agents, 1, 1)
    assert policy.obs_size == agents * observation_dim(servers)
    for obs in joint_observations(agents, servers, 120, 2):
        found, head = policy.infer(0, obs), eager.head(obs)
        assert found.shape == (policy.action_size,) == (agents * servers,)
        if discrete:
            best = head.topk(2, dim=-1).values
            clear = (best[:, 0] - best[:, 1] > 1e-5).numpy()  # a nearer choice may fall either way
            expected = np.asarray(DISCRETE_ACTIONS, np.float32)[head.argmax(-1).numpy()]
            np.testing.assert_array_equal(found[clear], expected[clear])
        else:
            expected = torch.tanh(head[:, 0]).numpy()
            assert (np.abs(found - expected) <= 2e-6 * np.maximum(1, np.abs(expected))).all()
        moved.append(found)
    assert np.std(moved, axis=0).max() > 1e-3


@pytest.mark.parametrize("discrete", [False, True])
def test_scaling_weights_does_not_change_q_and_shapes(discrete: bool) -> None:
    critic = CentralTwin(3, N, hidden=12, discrete=discrete)
    obs = torch.randn(7, 3 * observation_dim(N))
    if discrete:
        assert critic(obs, None)[0].shape == (7, 3 * N, 3)
        return
    action = torch.rand(7, 3 * N) - 0.5
    shift = torch.tensor([0.3, -0.1, 0.2]).repeat_interleave(N)  # each balancer scales by another factor
    for one, other in zip(critic(obs, action), critic(obs, action + shift), strict=True):
        assert one.shape == (7,)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_policy_files_from_before_the_scope_decide_as_they_did() -> None:
    """Their bytes have 0 where the central agents stand now. Digests: of the build that wrote them."""
    recorded = {"gru_flat": "6728759f8cda727d", "gru_rows": "c0879dc477942505", "linear": "dd205d51d084f7fb"}
    for name, digest in recorded.items():
        blob = (CORPUS / f"{name}.bin").read_bytes()
        policy, draw, seen = native.Policy(blob), np.random.default_rng(1), hashlib.sha256()
        for _ in range(50):
            for actor in range(policy.num_actors):
                obs = draw.exponential(1.5, policy.obs_size).astype(np.float32)
                seen.update(policy.infer(actor, obs).tobytes())
        assert seen.hexdigest()[:16] == digest, name
        assert policy.central_agents == 0
        spec = native.decode_policy(blob)
        assert spec["scope"] == "per_agent"
        assert "num_agents" not in spec
        assert native.encode_policy(spec) == blob


def test_encoding_is_undone_by_decoding() -> None:
    blob = blob_of(central_actor())
    spec = native.decode_policy(blob)
    assert (spec["scope"], spec["num_agents"], spec["num_servers"]) == ("central", M, N)
    assert native.encode_policy(spec) == blob
    assert blob[8:16] == bytes([1, 0, 0, 0, M, 0, 0, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scope": "team"}, "scope is 'team'; must be one of per_agent, central"),
        ({"scope": "per_agent"}, "policy.num_agents is given; only a central scope has it"),
        ({"num_agents": 0}, "num_agents is 0; must be in 1..1024"),
        ({"num_agents": 3}, r"actors\[0\].mean has shape \(202,\); expected \(303,\)"),
        ({"input": "per_server"}, "input is per_server; a central policy reads flat"),
        ({"output": "discrete3"}, "has 16 outputs; the last layer must have 48"),
    ],
)
def test_bad_specs_are_refused_by_name(change: dict, message: str) -> None:
    spec = native.decode_policy(blob_of(central_actor())) | change
    with pytest.raises(ValueError, match=message):
        native.encode_policy(spec)


def test_a_central_spec_names_its_balancers_and_has_one_actor() -> None:
    spec = native.decode_policy(blob_of(central_actor()))
    with pytest.raises(ValueError, match="num_actors is 2; a central policy has 1"):
        native.encode_policy(spec | {"actors": spec["actors"] * 2})
    del spec["num_agents"]
    with pytest.raises(ValueError, match="policy misses the key 'num_agents' of a central scope"):
        native.encode_policy(spec)


C_PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "policy_c.h"

/* Reads the joint observations from stdin, writes the balancers' actions to stdout. */
int main(int argc, char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW);
  if (argc != 2 || !library) return 1;
  size_t (*size[3])(void);
  uint32_t (*count[2])(void);
  const char* sizes[3] = {"steelyard_policy_obs_size", "steelyard_policy_state_size",
                          "steelyard_policy_scratch_size"};
  const char* counts[2] = {"steelyard_policy_central_agents", "steelyard_policy_num_servers"};
  for (int i = 0; i < 3; ++i) size[i] = (size_t(*)(void))dlsym(library, sizes[i]);
  for (int i = 0; i < 2; ++i) count[i] = (uint32_t(*)(void))dlsym(library, counts[i]);
  int (*infer)(uint32_t, const float*, float*, float*, float*) =
      (int (*)(uint32_t, const float*, float*, float*, float*))dlsym(library, "steelyard_policy_infer");
  size_t outputs = (size_t)count[0]() * count[1]();
  float* obs = calloc(size[0](), sizeof(float));
  float* state = calloc(size[1]() + 1, sizeof(float));
  float* scratch = calloc(size[2](), sizeof(float));
  float* action = calloc(outputs, sizeof(float));
  while (fread(obs, sizeof(float), size[0](), stdin) == size[0]()) {
    if (infer(0, obs, state, scratch, action) != STEELYARD_POLICY_OK) return 2;
    fwrite(action, sizeof(float), outputs, stdout);
  }
  return 0;
}
"""


@pytest.mark.parametrize("discrete", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_blob_compiled_and_c_give_the_same_bits(tmp_path: Path, discrete: bool) -> None:
    blob = blob_of(central_actor(discrete, 3, 4))
    (tmp_path / "policy.bin").write_bytes(blob)
    export_policy(tmp_path / "policy.bin", tmp_path / "cpp", "cpp")
    interpreted, compiled = native.Policy(blob), native.Policy(tmp_path / "cpp" / "policy.so")
    for name in ("central_agents", "num_servers", "num_actors", "num_agents", "obs_size", "action_size"):
        assert getattr(compiled, name) == getattr(interpreted, name), name
    obs = joint_observations(3, 4, 100, 6)
    expected = [interpreted.infer(0, row).tobytes() for row in obs]
    assert [compiled.infer(0, row).tobytes() for row in obs] == expected
    (tmp_path / "host.c").write_text(C_PROGRAM)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-I", "cpp"]
    subprocess.run(["gcc", *flags, "host.c", "-ldl", "-o", "host"], cwd=tmp_path, check=True)
    host = [tmp_path / "host", tmp_path / "cpp" / "policy.so"]
    done = subprocess.run(host, input=obs.tobytes(), capture_output=True, check=True)
    assert done.stdout == b"".join(expected)
    card = (tmp_path / "cpp" / "MODEL_CARD.md").read_text()
    assert "1, central: it decides for all 3 load balancers at once" in card
    assert f"{central_bytes_per_step(3, 4)} bytes per step" in card
    assert "per decision for all 3 load balancers" in card


@pytest.mark.slow
def test_compiled_policies_of_the_abi_before_still_load(tmp_path: Path) -> None:
    """ABI 1 lacks steelyard_policy_central_agents; a later ABI than ours is refused."""
    blob = CORPUS / "gru_rows.bin"
    export_policy(blob, tmp_path / "new", "cpp")
    obs = observations(2, 20, 1)
    for abi in (1, 3):
        old = shutil.copytree(tmp_path / "new", tmp_path / f"abi{abi}")
        header, face = old / "native/core/policy_c.h", old / "native/core/policy_face.h"
        header.write_text(re.sub(r"POLICY_ABI \du", f"POLICY_ABI {abi}u", header.read_text()))
        face.write_text(re.sub(r"uint32_t steelyard_policy_central_agents.*\n", "", face.read_text()))
        compiler.build(old, ["g++"])
    policy, expected = native.Policy(tmp_path / "abi1" / "policy.so"), native.Policy(blob)
    assert policy.central_agents == 0
    assert all((policy.infer(1, row) == expected.infer(1, row)).all() for row in obs)
    with pytest.raises(ValueError, match="compiled policy has ABI 3; this build has 2"):
        native.Policy(tmp_path / "abi3" / "policy.so")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["pool.balancers=3"], "central, made for 2 load balancers, the scenario has 3"),
        (["pool.servers=[{count=3,workers=2}]"], "made for 8 servers, the scenario has 3"),
    ],
)
def test_another_pool_is_refused(tmp_path: Path, capsys, settings: list[str], message: str) -> None:
    path = tmp_path / "policy.bin"
    path.write_bytes(blob_of(central_actor()))
    scenario = Scenario.load("cluster-a-cpu", settings)
    with pytest.raises(ValueError, match=message):
        rules.policy_config(str(path), scenario.num_servers, scenario.num_agents)
    options = [part for setting in settings for part in ("--set", setting)]
    command = ["evaluate", "--scenario", "cluster-a-cpu", "--policy", str(path), "--seeds", "0:1", *options]
    assert cli.main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_native_hosts_refuse_another_number_of_balancers() -> None:
    blob = blob_of(central_actor())
    with pytest.raises(ValueError, match="policy is central, for 2 load balancers; this pool has 3"):
        native.Policy(blob, num_agents=3)
    rule = Scenario.load("cluster-a-cpu").to_rule("policy")
    rule.policy = native.Policy(blob)
    three = Scenario.load("cluster-a-cpu", ["pool.balancers=3", *SHORT])
    with pytest.raises(ValueError, match="policy is central, for 2 load balancers; this pool has 3"):
        native.simulate(three.to_native(), rule, [1])
    with pytest.raises(ValueError, match=r"agent is 1; must be in 0..0"):
        native.Policy(blob).infer(1, np.zeros(2 * observation_dim(N), np.float32))


def native_to_horizon(config: native.ClusterConfig, blob: bytes, seed: int) -> tuple[int, float]:
    """Digest and mean sojourn of an episode with the policy run natively inside the simulator."""
    rule = native.RuleConfig("policy")
    rule.policy = native.Policy(blob)
    (result,) = native.simulate(config, rule, [seed], convention="peer")
    return result["digest"], result["sojourn_mean_s"]


def run_to_horizon(config, blob: bytes, seed: int, down: dict[int, set[int]]) -> tuple[int, float]:
    """The same by hand: gather, infer once, hand out rows. down: step -> balancers that have failed."""
    world, policy = native.World(config, native.RuleConfig("policy"), seed), native.Policy(blob)
    for step in range(40):
        obs = world.observe_all()
        failed = down.get(step, set())
        obs[list(failed)] = 0
        action = policy.infer(0, obs.reshape(-1)).reshape(len(obs), -1)
        for i in set(range(len(obs))) - failed:
            world.act(i, action[i])
        world.run_until((step + 1) * 0.5)
    return world.digest, world.stats("peer")["sojourn_mean_s"]


@pytest.mark.parametrize("delay_s", [0.0, 0.2])
def test_the_simulator_gathers_infers_once_and_hands_out_rows(delay_s: float) -> None:
    """Decision by decision the same as by hand, also when the weights travel."""
    scenario = Scenario.load("cluster-a-cpu", [f"control.actuation_delay_s={delay_s}", *SHORT])
    blob = blob_of(central_actor())
    by_hand = run_to_horizon(scenario.to_native(), blob, 5, {})
    assert by_hand == native_to_horizon(scenario.to_native(), blob, 5)
    other = Scenario.load("cluster-a-cpu", SHORT)
    assert delay_s == 0 or by_hand != native_to_horizon(other.to_native(), blob, 5)


def test_a_failed_balancer_is_seen_as_zeros_and_gets_no_row() -> None:
    """From the step after the failure until the one before the recovery; it comes back with equal weights."""
    config = Scenario.load("cluster-a-cpu", SHORT).to_native()
    config.events = [event("balancer_fail", 4.2, targets=[1], duration_s=5.0)]
    down = {step: {1} for step in range(9, 19)}  # steps at 4.5 s ... 9.0 s
    blob = blob_of(central_actor())
    assert run_to_horizon(config, blob, 7, down) == native_to_horizon(config, blob, 7)
    assert run_to_horizon(config, blob, 7, {}) != native_to_horizon(config, blob, 7)


@pytest.mark.parametrize("discrete", [False, True])
def test_native_episodes_are_those_of_the_central_env(discrete: bool) -> None:
    """The same actor in PyTorch, stepped through the Gymnasium env: same order of balancers, same times."""
    actor = central_actor(discrete)
    env = LoadBalanceCentralEnv("cluster-a-cpu", overrides=SHORT, discrete=discrete)
    for seed in (3, 4):
        eager, over = Eager(actor), False
        obs, _ = env.reset(seed=seed)
        while not over:
            head = eager.head(obs)
            action = head.argmax(-1).numpy() if discrete else torch.tanh(head[:, 0]).numpy()
            obs, _, _, over, info = env.step(action)
        config = Scenario.load("cluster-a-cpu", SHORT).to_native()
        _, sojourn_s = native_to_horizon(config, blob_of(actor), seed)
        assert info["sojourn_mean_s"] == pytest.approx(sojourn_s, rel=5e-3)


def test_a_swap_of_balancers_would_show() -> None:
    """What the test before relies on: with rows handed out in another order the episode is another."""
    config, blob = Scenario.load("cluster-a-cpu", SHORT).to_native(), blob_of(central_actor())
    spec = native.decode_policy(blob)
    head = spec["actors"][0]["layers"][-1]
    for key in ("weight", "bias"):
        head[key] = np.ascontiguousarray(np.concatenate([head[key][N:], head[key][:N]]))
    swapped = native_to_horizon(config, native.encode_policy(spec), 3)
    assert swapped[1] != pytest.approx(native_to_horizon(config, blob, 3)[1], rel=5e-3)


def test_training_counts_its_traffic() -> None:
    """4 bytes x M x (12 N + 5 observed + N weights) at every step of every episode."""
    from steelyard.trainers.centr_lb import CentrLb, CentrLbTrainer

    scenario = Scenario.load("cluster-a-cpu", ["episode.horizon_s=10", "pool.balancers=3"])
    played = CentrLbTrainer(CentrLb(num_envs=2), scenario, 0).round(2)
    assert central_bytes_per_step(3, 8) == 4 * 3 * (101 + 8)
    assert played.bytes_exchanged == 2 * 20 * 4 * 3 * (101 + 8)
    policy = native.Policy(blob_of(central_actor(agents=3)))
    assert central_bytes_per_step(3, 8) == 4 * (policy.obs_size + policy.action_size)
