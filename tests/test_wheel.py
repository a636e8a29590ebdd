"""A wheel builds, installs away from the source tree, and runs there."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    """Output of a command; its own words if it fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_environment(folder: Path) -> Path:
    """Virtual environment that sees our installed dependencies but not the editable install; its python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", where, cwd=folder).strip())
    links = site / "dependencies"
    links.mkdir()
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        # The editable install works through its .pth file and finder: without them it is not there.
        if "steelyard" not in installed.name and installed.suffix != ".pth":
            (links / installed.name).symlink_to(installed)
    (site / "dependencies.pth").write_text(f"{links}\n")
    return python


@pytest.mark.slow
def test_wheel_installs_and_runs_elsewhere(tmp_path: Path) -> None:
    wheel_flags = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", tmp_path / "dist")
    run(sys.executable, "-m", "pip", "wheel", *wheel_flags, ROOT, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("steelyard-*.whl")
    python = make_environment(tmp_path / "venv")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    run(*pip, wheel, cwd=tmp_path)
    place = "import steelyard.native as n, steelyard.envs as e; print(n.__file__); print(e.__file__)"
    for file in run(python, "-c", place, cwd=tmp_path).split():
        assert Path(file).is_relative_to(tmp_path)
    headers = "import steelyard.native as n; print(*(n.include_dir() / 'native/core').glob('*.h'))"
    assert "policy.h" in run(python, "-c", headers, cwd=tmp_path)
    tuned = "from steelyard.agents import rules; print(*rules.tuned_directories()[-1].glob('*.json'))"
    assert "cluster-a-cpu.sed.json" in run(python, "-c", tuned, cwd=tmp_path)
    studies = "from steelyard.benchmarks.study import study_names; print(*study_names())"
    assert {"leaderboard", "smoke"} <= set(run(python, "-c", studies, cwd=tmp_path).split())
    steelyard = tmp_path / "venv" / "bin" / "steelyard"
    line = "simulate --scenario moderate-2x7 --policy sed --seeds 0:2 --quiet --json out.json"
    run(steelyard, *line.split(), "--set", "episode.horizon_s=5", "--set", "episode.warmup_s=0", cwd=tmp_path)
    records = json.loads((tmp_path / "out.json").read_text())
    assert [record["seed"] for record in records] == [0, 1]
    assert all(record["flows"] > 0 and record["sojourn_mean_s"] > 0 for record in records)
