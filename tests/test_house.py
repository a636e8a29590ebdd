"""The rules of the house: who may import whom, sizes, and that each file is named in HACKING.md."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("native", "envs", "agents", "trainers", "deploy", "benchmarks")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
HEAVY = ("torch", "torchrl", "tensordict", "ray", "wandb", "matplotlib", "pandas", "pyarrow", "scipy")

# Room -> the other rooms that it may import.
PYTHON_RULES = {
    "native": set(),
    "envs": {"native"},
    "agents": {"native"},
    "trainers": {"native", "envs", "agents"},
    "deploy": {"native", "envs", "agents"},
    "benchmarks": set(ROOMS),
    "tests": set(ROOMS),
}

# Folder of native/ -> the other folders that it may include. sim and dataplane never meet.
CPP_RULES = {
    "core": set(),
    "sim": {"core"},
    "dataplane": {"core", "shm", "tape"},
    "shm": {"core"},
    "tape": {"core"},
    "bind": {"core", "sim", "dataplane", "shm", "tape"},
    "tests": {"core", "sim", "dataplane", "shm", "tape"},
    "vpp": {"core", "dataplane", "shm", "tape", "tests"},  # of deploy; its tests include those of native
}

# The core has no clock, no I/O, no chance but draw(seed, key); test_core_needs_no_libm adds libm.
NOT_IN_CORE = {"random", "chrono", "ctime", "time.h", "iostream", "fstream", "thread"}

LIBM = re.compile(
    r"(a?(sin|cos|tan)h?|atan2|exp|exp2|expm1|log|log2|log10|log1p|pow|erfc?|fma|fmod|sqrt|cbrt|hypot"
    r"|floor|ceil|l?round|rint|nearbyint|trunc|ldexp)f?"
)


def python_files() -> list[Path]:
    """Every Python file of the project."""
    in_rooms = [sorted((ROOT / folder).rglob("*.py")) for folder in (*ROOMS, "tests")]
    return [ROOT / "setup.py", *(path for paths in in_rooms for path in paths)]


def cpp_files() -> list[Path]:
    """Every C++ file of the project."""
    endings = [(room, ending) for room in ("native", "deploy") for ending in ("cc", "h", "c")]
    return sorted(path for room, ending in endings for path in (ROOT / room).rglob(f"*.{ending}"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import of a file, lazy ones included."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "steelyard":
            yield from ((node.lineno, f"steelyard.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


def may_import(room: str, parts: list[str]) -> bool:
    """Whether a file of this room (or top-level file) may import steelyard.<parts>."""
    return room not in PYTHON_RULES or not parts or parts[0] in PYTHON_RULES[room] | {room}


def python_offences(path: Path) -> Iterator[str]:
    """Each import of a file that the house forbids, with the reason."""
    room = path.relative_to(ROOT).parts[0]
    for line, name in imports(path):
        where = f"{path.relative_to(ROOT)}:{line}: {name}"
        parts = name.split(".")
        if name.startswith("."):
            yield f"{where}: relative import; write steelyard.{room}..."
        elif parts[0] in ROOMS:
            yield f"{where}: would load a second copy; write steelyard.{name}"
        elif parts[0] == "steelyard" and not may_import(room, parts[1:]):
            yield f"{where}: {room} may import only {sorted(PYTHON_RULES[room])}"


def cpp_offences(path: Path) -> Iterator[str]:
    """Each include of a file that the house forbids, with the reason."""
    room, folder = path.relative_to(ROOT).parts[:2]
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        if quoted := re.match(r'\s*#\s*include\s+"([^"]+)"', line):
            parts = quoted[1].split("/")
            if parts[0] not in {"native", room} or len(parts) < 3:
                yield f'{where}: write "native/<folder>/<file>"'
            elif parts[1] not in CPP_RULES[folder] | {folder}:
                yield f"{where}: {folder} may include only {sorted(CPP_RULES[folder])}"
        angled = re.match(r"\s*#\s*include\s+<([^>]+)>", line)
        if angled and folder == "core" and angled[1] in NOT_IN_CORE:
            yield f"{where}: not in the core"


def long_functions(path: Path) -> Iterator[str]:
    """Functions of a file with more lines than allowed; docstrings and nested functions count apart."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        first = node.body[0]
        if ast.get_docstring(node) is not None:
            lines -= (first.end_lineno or first.lineno) - first.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {lines} lines"


def report(offences: list[str]) -> str:
    """All offences under one another, as an assertion's message."""
    return "\n" + "\n".join(offences)


def test_python_import_rules() -> None:
    offences = [offence for path in python_files() for offence in python_offences(path)]
    assert not offences, report(offences)


def test_cpp_include_rules() -> None:
    offences = [offence for path in cpp_files() for offence in cpp_offences(path)]
    assert not offences, report(offences)


def test_core_needs_no_libm() -> None:
    archives = sorted((ROOT / "build").glob("cmake-release/native/libsteelyard_core.a"))
    if not archives:
        pytest.skip("the core archive is not built in this checkout")
    listing = subprocess.run(["nm", "-u", archives[0]], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"^\s+U (\w+)$", listing, re.MULTILINE))
    assert not {name for name in needed if LIBM.fullmatch(name)}


def test_sizes() -> None:
    offences = [offence for path in python_files() for offence in long_functions(path)]
    for path in python_files() + cpp_files():
        lines = len(path.read_text().splitlines())
        if lines > MAX_FILE_LINES:
            offences.append(f"{path.relative_to(ROOT)}: {lines} lines")
    assert not offences, report(offences)


def test_sources_leave_no_work_behind() -> None:
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    files = python_files() + cpp_files()
    offences = [str(path.relative_to(ROOT)) for path in files if marks.search(path.read_text())]
    assert not offences, report(offences)


def names(pattern: str, file: str) -> bool:
    """Whether a path pattern of HACKING.md stands for a file; `*` stays within its folder."""
    return PurePosixPath("/" + file).match("/" + pattern)


def test_hacking_names_every_file() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    files = [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    patterns = re.findall(r"^- `([^`]+)`", (ROOT / "HACKING.md").read_text(), re.MULTILINE)
    unnamed = [name for name in files if not any(names(pattern, name) for pattern in patterns)]
    stale = [pattern for pattern in patterns if not any(names(pattern, name) for name in files)]
    assert not unnamed + stale, f"not named: {unnamed}; named but missing: {stale}"


def test_constraints_pin_every_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [project["project"]["dependencies"], *project["project"]["optional-dependencies"].values()]
    wanted = {re.split(r"[\[<>=~! ]", item)[0].lower() for group in groups for item in group}
    pins = re.findall(r"^([A-Za-z0-9._-]+)==\S+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert wanted <= {name.lower().replace("_", "-") for name in pins}


def test_every_command_is_registered_and_loads() -> None:
    points = importlib.metadata.entry_points(group="steelyard.commands")
    known = {point.name for point in points}
    assert known >= {"scenarios", "simulate", "train", "evaluate", "compare", "tune", "export", "bench"}
    assert all(point.load() is not None for point in points)


LIGHT_COMMANDS = {
    "help": "--help",
    "simulate": "simulate --scenario moderate-2x7 --policy sed --seeds 0:1 --quiet --set episode.horizon_s=1"
    " --set episode.warmup_s=0",
    "simulate-help": "simulate --help",
    "export-help": "export --help",
}


@pytest.mark.parametrize("line", LIGHT_COMMANDS.values(), ids=LIGHT_COMMANDS.keys())
def test_light_commands_load_no_heavy_module(line: str) -> None:
    code = (
        "import sys\nfrom steelyard.trainers.cli import main\nstatus = 0\n"
        f"sys.argv = ['steelyard', *{line.split()!r}]\n"
        "try:\n    status = main()\nexcept SystemExit as stop:\n    status = stop.code\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not status, status\nassert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
