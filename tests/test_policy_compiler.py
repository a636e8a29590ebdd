"""The policy compiler: blob and compiled policy give the same bits, with Python and without."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from policy_specs import make, observations, policy_spec

from steelyard import native
from steelyard.deploy import compiler, cpp_source
from steelyard.deploy.export import export
from steelyard.envs.errors import UserError

POLICIES = {
    "flat gru": ("gru", 8, "flat", "tanh", 2),
    "row gru": ("gru", 5, "per_server", "discrete3", 1),
    "feedforward": ("feedforward", 3, "flat", "discrete3", 1),
    "linear": ("linear", 9, "flat", "clip", 3),
}

C_PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "policy_c.h"

/* Reads observations of agent 0 from stdin, writes its actions to stdout. */
int main(int argc, char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW);
  if (argc != 2 || !library) return 1;
  size_t (*obs_size)(void) = (size_t(*)(void))dlsym(library, "steelyard_policy_obs_size");
  size_t (*state_size)(void) = (size_t(*)(void))dlsym(library, "steelyard_policy_state_size");
  size_t (*scratch_size)(void) = (size_t(*)(void))dlsym(library, "steelyard_policy_scratch_size");
  uint32_t (*servers)(void) = (uint32_t(*)(void))dlsym(library, "steelyard_policy_num_servers");
  uint32_t (*actors)(void) = (uint32_t(*)(void))dlsym(library, "steelyard_policy_num_actors");
  int (*infer)(uint32_t, const float*, float*, float*, float*) =
      (int (*)(uint32_t, const float*, float*, float*, float*))dlsym(library, "steelyard_policy_infer");
  float* obs = calloc(obs_size(), sizeof(float));
  float* state = calloc(state_size() + 1, sizeof(float));
  float* scratch = calloc(scratch_size(), sizeof(float));
  float* action = calloc(servers(), sizeof(float));
  while (fread(obs, sizeof(float), obs_size(), stdin) == obs_size()) {
    if (infer(0, obs, state, scratch, action) != STEELYARD_POLICY_OK) return 2;
    fwrite(action, sizeof(float), servers(), stdout);
  }
  obs[0] = 0.0f / 0.0f;
  if (infer(0, obs, state, scratch, action) != STEELYARD_POLICY_NOT_FINITE) return 3;
  if (infer(actors(), obs, state, scratch, action) != STEELYARD_POLICY_NO_ACTOR) return 4;
  return 0;
}
"""


def blob_of(name: str) -> bytes:
    """A policy of POLICIES."""
    kind, servers, input_mode, output, actors = POLICIES[name]
    twins = [make(kind, servers, input_mode, output, hidden=20, seed=seed) for seed in range(actors)]
    return native.encode_policy(policy_spec(twins))


@pytest.fixture(scope="module", params=POLICIES)
def exported(request, tmp_path_factory) -> tuple[bytes, Path]:
    """A policy and the folder of its C++ export."""
    folder = tmp_path_factory.mktemp("export")
    blob = blob_of(request.param)
    (folder / "policy.bin").write_bytes(blob)
    export(folder / "policy.bin", folder / "cpp", "cpp")
    return blob, folder / "cpp"


def test_blob_and_compiled_give_the_same_bits(exported):
    blob, folder = exported
    interpreted, compiled = native.Policy(blob), native.Policy(folder / "policy.so")
    for attribute in ("num_servers", "num_actors", "schema_hash", "obs_size"):
        assert getattr(compiled, attribute) == getattr(interpreted, attribute)
    for obs in observations(interpreted.num_servers, 150, seed=7):
        for agent in range(interpreted.num_actors):
            assert compiled.infer(agent, obs).tobytes() == interpreted.infer(agent, obs).tobytes()
    assert compiled.state.tobytes() == interpreted.state.tobytes()


def test_compiled_policy_runs_without_python(exported, tmp_path):
    blob, folder = exported
    (tmp_path / "host.c").write_text(C_PROGRAM)
    build = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{folder}", "host.c", "-ldl", "-o", "host"]
    subprocess.run(build, cwd=tmp_path, check=True)
    policy = native.Policy(blob)
    obs = observations(policy.num_servers, 130, seed=8)
    host = [tmp_path / "host", folder / "policy.so"]
    done = subprocess.run(host, input=obs.tobytes(), capture_output=True, check=True)
    assert done.stdout == b"".join(policy.infer(0, row).tobytes() for row in obs)


def test_compiled_policy_needs_only_libc(exported):
    """Neither a math library, nor an allocator, nor the C++ runtime."""
    _, folder = exported
    needed = subprocess.run(
        ["readelf", "-d", folder / "policy.so"], capture_output=True, text=True, check=True
    )
    assert [line for line in needed.stdout.splitlines() if "NEEDED" in line and "libc.so" not in line] == []
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", folder / "policy.so"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name.partition("@")[0] for name in symbols} <= {
        "U", "w", "memcpy", "memset", "memmove", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable",
        "__cxa_finalize", "__gmon_start__",
    }  # fmt: skip


@pytest.mark.parametrize(
    "flags",
    [
        ["-Werror"],
        pytest.param(["-Werror", "-Wno-psabi", "-march=x86-64"], marks=pytest.mark.slow),
        pytest.param(["-O0"], marks=pytest.mark.slow),
    ],
)
def test_source_builds_elsewhere_to_the_same_bits(exported, tmp_path, flags):
    """In a copy of the folder, as its comment says, and with less of the processor or of the optimiser."""
    blob, folder = exported
    copy = shutil.copytree(folder, tmp_path / "copy")
    command = compiler.build_command(["g++"])
    assert " ".join(command) in (copy / "policy.cpp").read_text()
    at = command.index("-shared")
    subprocess.run([*command[:at], *flags, *command[at:]], cwd=copy, check=True)
    compiler.check_same(blob, copy / "policy.so")


@example(0.0)
@example(-0.0)
@example(1e-45)
@example(3.4028234663852886e38)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_hex_floats_read_back_exactly(value):
    text = cpp_source.hex_float(value)
    assert text.endswith("F")
    assert np.float32(float.fromhex(text[:-1])).tobytes() == np.float32(value).tobytes()


def test_a_library_of_other_weights_is_caught(exported):
    """The check that stands before every export."""
    blob, folder = exported
    compiler.check_same(blob, folder / "policy.so")
    spec = native.decode_policy(blob)
    spec["actors"][-1]["layers"][-1]["bias"] += np.float32(0.25)
    spec["actors"][-1]["layers"][-1]["bias"][0] -= np.float32(0.5)
    with pytest.raises(UserError, match="differs from the blob"):
        compiler.check_same(native.encode_policy(spec), folder / "policy.so")


def test_broken_shared_objects_are_refused(exported, tmp_path):
    _, folder = exported
    whole = (folder / "policy.so").read_bytes()
    path = tmp_path / "policy.so"
    for size in (4, 63, 100, 1000, 4096, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"(truncated|corrupt) shared object"):
            native.Policy(path)
    (tmp_path / "other.c").write_text("int other(void) { return 1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "other.c", "-o", "policy.so"], cwd=tmp_path, check=True)
    with pytest.raises(ValueError, match="not a compiled policy: it has no function steelyard_policy_abi"):
        native.Policy(path)


def test_a_policy_of_another_schema_is_refused(exported, tmp_path):
    _, folder = exported
    copy = shutil.copytree(folder, tmp_path / "copy")
    source = (copy / "policy.cpp").read_text()
    old = f"{native.Policy(folder / 'policy.so').schema_hash:#018x}ULL"
    assert old in source
    (copy / "policy.cpp").write_text(source.replace(old, "0x1234ULL"))
    compiler.build(copy, ["g++"])
    with pytest.raises(ValueError, match="observation schema is 0x0000000000001234; this build has"):
        native.Policy(copy / "policy.so")
