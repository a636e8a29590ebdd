"""The RLlib engine before Ray starts: tables, options, sweep files, refusals that leave nothing behind."""

import dataclasses
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers import algorithms, cli, run_logger
from steelyard.trainers.rllib import cluster, settings, sweep, sweep_file

SCENARIO = Scenario.load("cluster-a-cpu")
SWEEP = """
scenario = "cluster-a-cpu"
algo = "ippo"
samples = 2
[space]
lr = {loguniform = [1e-4, 1e-2]}
hidden = {grid = [8, 16]}
num_envs = 4
"""


def refusal(capsys: pytest.CaptureFixture[str], status: int) -> str:
    assert status == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def train(run: Path, *more: str) -> int:
    common = ["train", "--engine", "rllib", "--scenario", "cluster-a-cpu", "--run", str(run), "--quiet"]
    return cli.main([*common, *more])


@pytest.mark.parametrize("name", settings.ALGORITHMS)
def test_defaults_of_every_algorithm_are_allowed(name: str) -> None:
    kind = settings.find_entry(name).settings
    for policies in ("own", "shared"):
        kind(policies=policies).check(SCENARIO)
    documented = Path(settings.__file__).read_text()
    for field in dataclasses.fields(kind):
        assert documented.count(f"    {field.name}: ") >= 1


def test_engines_have_their_own_algorithms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    line = refusal(capsys, train(run, "--algo", "distr-lb"))
    assert "distr-lb" in line
    assert "ippo" in line
    local = ["train", "--scenario", "cluster-a-cpu", "--run", str(run)]
    assert "distr-lb" in refusal(capsys, cli.main([*local, "--algo", "appo"]))
    assert "only with --engine rllib" in refusal(capsys, cli.main([*local, "--env-runners", "2"]))
    assert "only with --engine rllib" in refusal(capsys, cli.main([*local, "--ray-address", "x:1"]))
    assert not run.exists()


@pytest.mark.parametrize(
    ("algo", "setting", "words"),
    [
        ("ippo", "policies=ours", "own or shared or central"),
        ("ippo", "gama=.5", "did you mean 'gamma'"),
        ("ippo", "minibatch=100000", "at most 1920"),
        ("ippo", "sequence=1000", "1 to 120"),
        ("ippo", "input=shared", "flat or per_server for a policy"),
        ("ippo", "gae_lambda=2", "0 to 1"),
        ("mappo", "policies=central", "own or shared for mappo"),
        ("sac", "discrete=true", "sac here sets continuous weights"),
        ("sac", "critic=wide", "flat or set"),
        ("sac", "tau=0.0", "above 0 and below 1"),
        ("appo", "lr=0.0", "a number above 0"),
        ("impala", "reward=happiness", "happiness"),
    ],
)
def test_bad_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algo: str, setting: str, words: str
) -> None:
    assert words in refusal(capsys, train(tmp_path / "run", "--algo", algo, "--set", f"algo.{setting}"))
    assert not (tmp_path / "run").exists()


def test_what_a_central_policy_reads() -> None:
    settings.Ippo(policies="central").check(SCENARIO)
    settings.Ippo(policies="central", recurrent=True, input="shared").check(SCENARIO)
    with pytest.raises(UserError, match="shared for a central recurrent policy"):
        settings.Ippo(policies="central", recurrent=True).check(SCENARIO)
    with pytest.raises(UserError, match="set for these policies"):
        settings.Sac(policies="central", critic="flat").check(SCENARIO)


@pytest.mark.parametrize("address", ["", "ray://host:1", "host:port", "host:0", "host:99999", "a b:1"])
def test_what_is_no_address(tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str) -> None:
    line = refusal(capsys, train(tmp_path / "run", "--algo", "ippo", "--ray-address", address))
    assert "--ray-address" in line
    assert not (tmp_path / "run").exists()


def test_nobody_answers_at_the_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    line = refusal(capsys, train(tmp_path / "run", "--algo", "ippo", "--ray-address", address))
    assert f"no Ray cluster at {address}" in line
    assert not (tmp_path / "run").exists()


def test_somebody_else_answers_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_CONNECT_S", 0.2)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        with pytest.raises(UserError, match=r"no Ray cluster at 127\.0\.0\.1"):
            cluster.check_address(f"127.0.0.1:{mute.getsockname()[1]}")


@pytest.mark.parametrize("engine", ["local", "rllib"])
def test_online_without_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    algo = "ippo" if engine == "rllib" else "distr-lb"
    line = refusal(capsys, train(tmp_path / "run", "--engine", engine, "--algo", algo, "--wandb", "online"))
    assert "WANDB_API_KEY" in line
    assert not (tmp_path / "run").exists()
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password 0123456789\n")
    run_logger.check_wandb("online")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    run_logger.check_wandb("online")


def read(tmp_path: Path, text: str) -> sweep_file.Sweep:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return sweep_file.read(str(path))[0]


def test_a_sweep_file(tmp_path: Path) -> None:
    found = read(tmp_path, SWEEP)
    assert (found.engine, found.algo, found.samples, found.scheduler) == ("rllib", "ippo", 2, "none")
    assert found.space["lr"] == sweep_file.Range("loguniform", (1e-4, 1e-2))
    assert found.space["hidden"].values == (8, 16)
    assert found.config({"lr": 0.002, "hidden": 16}) == settings.Ippo(lr=0.002, hidden=16, num_envs=4)
    local = SWEEP.replace('"ippo"', '"distr-lb"\nengine = "local"').replace("lr =", "actor_lr =")
    assert read(tmp_path, local).config({"hidden": 8}).num_envs == 4


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("samples", "sampels", "did you mean 'samples'"),
        ('"cluster-a-cpu"', '"cluster-z"', "cluster-z"),
        ('"ippo"', '"distr-lb"', "distr-lb"),
        ("loguniform", "normal", "allowed: choice, grid, loguniform, uniform"),
        ("[1e-4, 1e-2]", "[0.1, 0.01]", "low < high"),
        ("[1e-4, 1e-2]", "[0.0, 0.01]", "low < high above 0"),
        ("[8, 16]", "[8, 0]", "space.hidden: 0 is refused"),
        ("hidden", "hiden", "did you mean 'hidden'"),
        ("samples = 2", "samples = 0", "1 to"),
        ("samples = 2", 'scheduler = "best"', "asha or none"),
        ("samples = 2", 'metric = "reward"', "eval_sojourn_s"),
        ("[space]", "[space]\n[other]", "other"),
    ],
)
def test_bad_sweep_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str
) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP.replace(old, new))
    assert words in refusal(capsys, cli.main(["sweep", str(path), "--out", str(tmp_path / "out")]))
    assert not (tmp_path / "out").exists()


def test_a_sweep_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "sweep.toml", tmp_path / "out"
    path.write_text(SWEEP)
    line = ["sweep", str(path), "--out", str(out)]
    assert "no sweep to resume" in refusal(capsys, cli.main([*line, "--resume"]))
    assert not out.exists()
    out.mkdir()
    (out / "thesis.txt").write_text("do not lose me")
    assert "not a sweep's directory" in refusal(capsys, cli.main(line))
    (out / "sweep.toml").write_text(SWEEP.replace("samples = 2", "samples = 3"))
    assert "--resume" in refusal(capsys, cli.main(line))
    with pytest.raises(UserError, match="begun with"):
        sweep.check_directory(out, SWEEP, True)
    assert sorted(each.name for each in out.iterdir()) == ["sweep.toml", "thesis.txt"]
    assert "cannot be read" in refusal(capsys, cli.main(["sweep", str(tmp_path / "no"), "--out", str(out)]))


def test_stored_hyper_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = tmp_path / "best.toml"
    best.write_text('engine = "rllib"\nalgo = "ippo"\n[hyper]\ngamma = 7.0\n')
    run = tmp_path / "run"
    stored = ["--hyper", str(best)]
    assert "algo.gamma = 7.0" in refusal(capsys, train(run, "--algo", "ippo", *stored))
    assert "is for algo 'ippo'" in refusal(capsys, train(run, "--algo", "sac", *stored))
    over = ["--set", "algo.gamma=.5", "--set", "algo.tau=1"]
    assert "algo.tau" in refusal(capsys, train(run, "--algo", "ippo", *stored, *over))
    assert "cannot be read" in refusal(capsys, train(run, "--algo", "ippo", "--hyper", str(run)))
    best.write_text("x = 1")
    assert "no table [hyper]" in refusal(capsys, train(run, "--algo", "ippo", *stored))
    assert not run.exists()


def test_options_need_neither_ray_nor_torch(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SWEEP)
    script = (
        "import sys; from steelyard.trainers import cli; from steelyard.trainers.rllib import sweep_file;"
        f"sweep_file.read({str(tmp_path / 's.toml')!r});"
        "cli.main(['train', '--engine', 'rllib', '--scenario', 'cluster-a-cpu', '--run', 'r',"
        " '--algo', 'sac', '--set', 'algo.tau=2.0']);"
        "sys.exit('ray' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=tmp_path, timeout=60).returncode == 0


def test_without_ray(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert train(tmp_path / "run", "--algo", "ippo") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "needs the package ray" in line
    assert "steelyard[learn,rllib]" in line
    assert not (tmp_path / "run").exists()


def test_env_config_is_checked() -> None:
    from steelyard.envs import rllib

    env = rllib.central_env({"scenario": "cluster-a-cpu", "overrides": ["pool.balancers=3"]})
    assert env.action_space.shape == (24,)
    with pytest.raises(UserError, match="did you mean 'scenario'"):
        rllib.central_env({"scenari": "cluster-a-cpu"})


def test_a_hyper_parameter_is_typed() -> None:
    made = algorithms.make_config(settings.Sac, {"alpha": 1, "recurrent": True})
    assert made.alpha == 1.0
    with pytest.raises(UserError, match="a whole number"):
        algorithms.make_config(settings.Sac, {"batch_size": 1.5})
