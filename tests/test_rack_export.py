"""Rack policies through the policy compiler: blob, C++ and run decide alike; nothing damaged is let in."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from policy_specs import make, policy_spec
from test_malcolm_runs import TINY

from steelyard import native
from steelyard.agents import malcolm_file
from steelyard.deploy import compiler, policy_file
from steelyard.deploy.export import export
from steelyard.deploy.rack_file import RackFile
from steelyard.envs.errors import UserError
from steelyard.envs.rack_scenario import RackScenario
from steelyard.trainers import cli, malcolm_policy
from steelyard.trainers.consensus_ac import VARIANTS

RACK = RackScenario.load("rack-het-2x14-9x4", ["episode.horizon_s=0.03", "episode.warmup_s=0.003"])
SERVERS = 11


def learned(directory: Path, variant: str = "thesis", seed: int = 0, **changes: object) -> Path:
    """A policy.npz of random weights, for the rack above, in a directory of its own."""
    config = getattr(native.MalcolmConfig, variant)()
    for name, value in changes.items():
        setattr(config, name, value)
    inputs = native.MalcolmServer(config, SERVERS, 0, 1).inputs.size
    critic = native.MalcolmServer(config, SERVERS, 0, 1).critic_parameters.size
    draw = np.random.default_rng(seed)
    parameters = draw.normal(0, 0.7, (SERVERS, 2 * SERVERS * (inputs + 1) + critic)).astype(np.float32)
    directory.mkdir()
    (directory / "policy.npz").write_bytes(malcolm_policy.encode(config, parameters))
    return directory


def digest(source: Path, rack: RackScenario = RACK) -> list[int]:
    """Of two episodes that a policy plays."""
    from steelyard.trainers import rack_policies

    config = rack.to_native()
    contender = rack_policies.parse_policy(str(source))
    rule = rack_policies.member_rule(rack, contender.members[0], config)
    return [episode["digest"] for episode in native.simulate_rack(config, rule, [1, 2])]


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The one line on stderr of a command that must fail with status 2."""
    assert cli.main([str(arg) for arg in args]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and its exports blob and cpp beside it."""
    folder = tmp_path_factory.mktemp("rack")
    run = learned(folder / "run", steal_below=2, load_smoothing=0.25)
    export(run, folder / "blob", "blob")
    export(run, folder / "cpp", "cpp")
    return folder


def test_every_form_plays_the_same_episodes(exported: Path) -> None:
    """policy.npz in the learner's own decider, the blob and the compiled library behind its C face."""
    expected = digest(exported / "run")
    assert len(set(expected)) == 2
    for form in ("run/policy.npz", "blob", "blob/policy.bin", "cpp/policy.so"):
        assert digest(exported / form) == expected, form


@pytest.mark.parametrize("variant", ["thesis", "code", "live"])
@pytest.mark.parametrize("rate_average", ["time", "inverse"])
def test_every_variant_survives_its_blob(tmp_path: Path, variant: str, rate_average: str) -> None:
    run = learned(tmp_path / "run", variant, rate_average=rate_average, initial_service_s=20e-6)
    export(run, tmp_path / "blob")
    assert digest(tmp_path / "blob") == digest(run)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_trained_run_is_exported_as_it_plays(tmp_path: Path, variant: str) -> None:
    run = tmp_path / "run"
    options = ["--scenario", "rack-hom-8x8", "--algo", "malcolm", "--run", str(run), "--threads", "1"]
    assert cli.main(["train", *options, "--quiet", *TINY, "--set", f"algo.variant={variant}"]) == 0
    rack = RackScenario.load("rack-hom-8x8", [TINY[1], TINY[3]])
    for form in ("blob", "cpp"):
        export(run, tmp_path / form, form)
    expected = digest(run, rack)
    assert digest(tmp_path / "blob", rack) == digest(tmp_path / "cpp" / "policy.so", rack) == expected


def test_a_clone_of_the_world_goes_on_alike(exported: Path) -> None:
    config = RACK.to_native()
    for source in (exported / "blob" / "policy.bin", exported / "cpp" / "policy.so"):
        world = native.RackWorld(config, native.RackPolicy(source).rule(), 5)
        world.run_until(0.01)
        copy = world.clone()
        world.drain()
        copy.drain()
        assert world.digest == copy.digest


def words_of(field: str) -> list[str]:
    """Every value that a field of words takes, from its refusal of another."""
    config = native.MalcolmConfig()
    with pytest.raises(ValueError, match="must be one of") as refusal:
        setattr(config, field, "no such word")
    return str(refusal.value).rpartition("one of ")[2].split(", ")


def carried(config: native.MalcolmConfig) -> dict[str, object]:
    """The fields of a configuration after its way through a file."""
    inputs = native.MalcolmServer(config, 4, 0, 1).inputs.size
    blob = native.encode_rack_policy(config, np.zeros((4, 8 * (inputs + 1)), np.float32))
    found = native.decode_rack_policy(blob)
    assert set(found["fields"]) == set(malcolm_policy.fields_of(config))
    return malcolm_policy.fields_of(found["config"])


def changes(config: native.MalcolmConfig) -> Iterator[tuple[str, object, native.MalcolmConfig]]:
    """One field changed at a time: its name, its new value, the configuration."""
    for name, value in malcolm_policy.fields_of(config).items():
        for other in words_of(name) if isinstance(value, str) else [_other(value)]:
            changed = config.copy()
            setattr(changed, name, other)
            yield name, other, changed


def test_the_file_carries_every_field_of_the_configuration() -> None:
    """Also those that are not there yet when this is written: names and words are asked of the extension."""
    every, accepted = set(), set()
    for config in (native.MalcolmConfig.thesis(), native.MalcolmConfig.code(), native.MalcolmConfig.live()):
        assert carried(config) == malcolm_policy.fields_of(config)
        for name, value, changed in changes(config):
            case = (name, value if isinstance(value, str) else "another number")
            every.add(case)
            try:
                native.MalcolmServer(changed, 4, 0, 1)
            except ValueError:  # words of one kind of draws alone: the other configuration has them
                continue
            assert carried(changed) == malcolm_policy.fields_of(changed), name
            accepted.add(case)
    assert accepted == every


def _other(value: object) -> object:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else 0.5 * value + 0.125


def test_both_kinds_of_policy_and_of_world_are_told_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, exported: Path
) -> None:
    cluster = tmp_path / "cluster.bin"
    cluster.write_bytes(native.encode_policy(policy_spec([make("linear", SERVERS, "flat", "tanh")])))
    rack, rack_so = exported / "blob" / "policy.bin", exported / "cpp" / "policy.so"
    on_rack = ["simulate", "--scenario", "rack-het-2x14-9x4", "--seeds", "0:1", "--policy"]
    on_cluster = ["simulate", "--scenario", "moderate-2x7", "--seeds", "0:1", "--policy"]
    assert "a policy of load balancers, not of a rack" in refused(capsys, *on_rack, cluster)
    for source in (rack, rack_so):
        assert "a policy of a rack's servers, not of load balancers" in refused(capsys, *on_cluster, source)
    assert "learned by servers of a rack" in refused(capsys, *on_cluster, exported / "run")
    line = refused(capsys, "simulate", "--scenario", "rack-hom-8x8", "--seeds", "0:1", "--policy", rack)
    assert "policy is for 11 servers; this rack has 8" in line
    assert str(rack) in line


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda blob: blob[:-9], "truncated policy file"),
        (lambda blob: blob[:900] + bytes([blob[900] ^ 8]) + blob[901:], "checksum does not match"),
        (lambda blob: b"", "not a policy file"),
        (lambda blob: b"SLYDRCK1", "truncated policy file"),
    ],
)
def test_damaged_blobs_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, exported: Path, damage: object, message: str
) -> None:
    path = tmp_path / "policy.bin"
    path.write_bytes(damage((exported / "blob" / "policy.bin").read_bytes()))  # type: ignore[operator]
    run = ["simulate", "--scenario", "rack-het-2x14-9x4", "--seeds", "0:1", "--policy", path]
    assert message in refused(capsys, *run)
    assert message in refused(capsys, "export", path, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    run = learned(tmp_path / "run")
    found = malcolm_file.read(run / "policy.npz")
    found.parameters[3, 7] = np.nan
    (run / "policy.npz").write_bytes(malcolm_policy.encode(found.config, found.parameters))
    with pytest.raises(UserError, match=r"policy\.npz: actors\[\d+\] is nan; must be finite"):
        export(run, tmp_path / "out")
    (run / "policy.npz").write_bytes(b"PK nonsense")
    with pytest.raises(UserError, match="not a policy of a rack"):
        export(run, tmp_path / "out")


def test_a_library_of_other_weights_is_caught(exported: Path, tmp_path: Path) -> None:
    other = policy_file.read(learned(tmp_path / "other", seed=9))
    with pytest.raises(UserError, match="differs from the blob"):
        compiler.check_same(other.blob, exported / "cpp" / "policy.so")


def test_broken_shared_objects_are_refused(exported: Path, tmp_path: Path) -> None:
    whole = (exported / "cpp" / "policy.so").read_bytes()
    path = tmp_path / "policy.so"
    for size in (4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"(truncated|corrupt) shared object"):
            native.RackPolicy(path)
    (tmp_path / "other.c").write_text("int other(void) { return 1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "other.c", "-o", "policy.so"], cwd=tmp_path, check=True)
    with pytest.raises(ValueError, match="it has no function steelyard_rack_policy_abi"):
        native.RackPolicy(path)


C_HOST = r"""
#include <dlfcn.h>
#include <stdio.h>
#include "rack_policy_c.h"

#define FIND(name) __typeof__(&name) p_##name = (__typeof__(&name))dlsym(library, #name)

/* Server 3 of 2 workers hears loads and draws; one line per decision. */
int main(int argc, char** argv) {
  void* library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (!library) return 1;
  FIND(steelyard_rack_server_new);
  FIND(steelyard_rack_server_free);
  FIND(steelyard_rack_policy_num_servers);
  FIND(steelyard_rack_on_accept);
  FIND(steelyard_rack_broadcast);
  FIND(steelyard_rack_on_load);
  FIND(steelyard_rack_on_window);
  FIND(steelyard_rack_migrate);
  FIND(steelyard_rack_steal);
  if (p_steelyard_rack_server_new(99, 2, 1) || p_steelyard_rack_server_new(0, 0, 1)) return 2;
  steelyard_rack_server* server = p_steelyard_rack_server_new(3, 2, 1);
  if (!server) return 3;
  uint64_t word = 1;
  for (uint32_t k = 0; k < 200; ++k) {
    steelyard_rack_load told = {1e-5f * (float)(k % 13), 0, 0, 6e-6f, 8};
    if (k % 4 == 0) p_steelyard_rack_on_accept(server, 0);
    p_steelyard_rack_on_load(server, k % p_steelyard_rack_policy_num_servers(), &told);
    if (k % 5 == 0) {
      p_steelyard_rack_broadcast(server, &told);
      p_steelyard_rack_on_window(server);
    }
    word = word * 6364136223846793005u + 1442695040888963407u;
    printf("%u %d\n", p_steelyard_rack_migrate(server, word), p_steelyard_rack_steal(server, ~word));
  }
  p_steelyard_rack_server_free(server);
  return 0;
}
"""


def test_the_c_face_serves_without_python(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "host.c").write_text(C_HOST)
    include = f"-I{exported / 'cpp'}"
    build = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", include, "host.c", "-ldl", "-o", "host"]
    subprocess.run(build, cwd=tmp_path, check=True)
    done = subprocess.run(
        [tmp_path / "host", exported / "cpp" / "policy.so"], capture_output=True, text=True, check=True
    )
    player, word, lines = native.RackPolicy(exported / "blob" / "policy.bin").player(3, 2), 1, []
    for k in range(200):
        if k % 4 == 0:
            player.on_accept()
        load_s = float(np.float32(1e-5) * np.float32(k % 13))
        player.on_load_message(k % SERVERS, load_s, task_s=6e-6, workers=8)
        if k % 5 == 0:
            player.broadcast()
            player.on_window()
        word = (word * 6364136223846793005 + 1442695040888963407) % 2**64
        stolen = player.steal(word ^ (2**64 - 1)) if (to := player.migrate(word)) is not None else None
        lines.append(f"{to} {-1 if stolen is None else stolen}")
    assert done.stdout.splitlines() == lines
    assert len(set(lines)) > 10


def test_the_folder_builds_elsewhere(exported: Path) -> None:
    """As its comment says, and nothing but libc and libm is needed."""
    folder = exported / "cpp"
    text = (folder / "policy.cpp").read_text()
    assert " ".join(compiler.build_command(["g++"], compiler.RACK)) in text
    assert '{"load_smoothing", 0x3e800000ULL},  // 0.25' in text
    for name in compiler.kernel_files(compiler.RACK):
        assert (folder / "native" / "core" / name).read_bytes() == (
            native.include_dir() / "native" / "core" / name
        ).read_bytes()
    needed = subprocess.run(
        ["readelf", "-d", folder / "policy.so"], capture_output=True, text=True, check=True
    )
    libraries = [line.split("[")[1].rstrip("]") for line in needed.stdout.splitlines() if "NEEDED" in line]
    assert {name.partition(".so")[0] for name in libraries} <= {"libc", "libm", "ld-linux-x86-64"}


def test_card_states_evaluation_and_costs(exported: Path, tmp_path: Path) -> None:
    run = learned(tmp_path / "run")
    rows = [
        {
            "scenario": "rack-het-2x14-9x4",
            "policy": policy,
            "seed": seed,
            "latency_mean_us": 70.0 + seed % 3,
            "latency_p99_us": p99 + seed % 5,
            "migrations": 10,
        }
        for policy, p99 in (("run", 260.0), ("jsq", 255.0), ("po2", 300.0))
        for seed in range(20)
    ]
    (run / "evaluation.json").write_text(json.dumps(rows))
    (run / "config.json").write_text(json.dumps({"scenario": RACK.to_dict(), "algorithm": "malcolm"}))
    export(run, tmp_path / "out", weights="bf16")
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    for expected in (
        "| rack-het-2x14-9x4 | run | 20 | 0..19 | 7",
        "Difference of the p99 latency to each rival",
        "is slower than jsq by 5.0 [5.0, 5.0] us",
        "| a migration drawn, random word included |",
        "| servers of the rack | 11 |",
        "| algorithm | malcolm |",
        "## Weights in bfloat16",
        "observations recorded on rack-het-2x14-9x4",
        "steelyard-rack-v1;servers=11;inputs=11",
    ):
        assert expected in card
    assert "is slower than po2" not in card


def test_rounded_weights_are_near(tmp_path: Path) -> None:
    run = learned(tmp_path / "run")
    exact = policy_file.read(run)
    assert isinstance(exact, RackFile)
    rounded = exact.rounded()
    assert rounded.bfloat16
    for before, after in zip(exact.matrices, rounded.matrices, strict=True):
        assert (np.abs(after - before) <= 2.0**-8 * np.abs(before)).all()
        assert (after != before).mean() > 0.9
    assert len(exact.blob) - len(rounded.blob) == 2 * 2 * SERVERS * SERVERS * SERVERS
    export(run, tmp_path / "out", weights="bf16")
    assert policy_file.read(tmp_path / "out").blob == rounded.blob
