"""The command `steelyard`: finds its subcommands by entry point and runs one.

A command is a dataclass with `run(self) -> int`, registered in the entry-point group "steelyard.commands".
Only the module of the command that was named is imported; the overview reads the others' docstrings from
their source, so it costs no import.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from steelyard.envs.errors import LiveError

GROUP = "steelyard.commands"
ORDER = ("scenarios", "simulate", "train", "evaluate", "compare", "tune", "sweep", "export", "bench")
"""Commands in the order a newcomer needs them; others follow by name."""

_EXTRAS = {"ray": "learn,rllib", "wandb": "learn,wandb"}
"""Extras of pyproject.toml by the package that they bring; the others come with `learn`."""

STATUS_ERROR = 1
STATUS_USAGE = 2
STATUS_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `steelyard ARGV`; the exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    found = discover()
    if not args or args[0] in ("-h", "--help", "help"):
        print(overview(found))
        return 0 if args else STATUS_USAGE
    if args[0] == "--version":
        print(f"steelyard {metadata.version('steelyard')}")
        return 0
    if args[0] not in found:
        return fail(unknown_command(args[0], found))
    return run_command(found[args[0]], args[1:])


def run_command(entry: metadata.EntryPoint, args: Sequence[str]) -> int:
    """Parse args for one command and run it. Bad input is one line on stderr and status 2.

    STEELYARD_TRACEBACK=1 in the environment shows where an error came from.
    """
    import tyro

    try:
        command = tyro.cli(entry.load(), prog=f"steelyard {entry.name}", args=list(args))
        return int(command.run())
    except KeyboardInterrupt:
        return fail("interrupted", STATUS_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return STATUS_ERROR
    except LiveError as error:
        return fail(str(error), STATUS_ERROR)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if os.environ.get("STEELYARD_TRACEBACK") == "1":
            raise
        if isinstance(error, ModuleNotFoundError):
            return fail(missing_module(entry.name, error), STATUS_ERROR)
        return fail(str(error))


def fail(message: str, status: int = STATUS_USAGE) -> int:
    """Print one line on stderr; the status."""
    print(f"steelyard: error: {' '.join(message.split())}", file=sys.stderr)
    return status


def discover() -> dict[str, metadata.EntryPoint]:
    """Commands by name, in the order of the overview."""
    entries = {entry.name: entry for entry in metadata.entry_points(group=GROUP)}
    rank = {name: index for index, name in enumerate(ORDER)}
    return {name: entries[name] for name in sorted(entries, key=lambda n: (rank.get(n, len(rank)), n))}


def overview(found: dict[str, metadata.EntryPoint]) -> str:
    """Text of `steelyard --help`: one line per command."""
    width = max((len(name) for name in found), default=0)
    lines = [f"  {name:<{width}}  {summary(entry)}" for name, entry in found.items()]
    return "\n".join(
        [
            "usage: steelyard COMMAND [OPTIONS]",
            "",
            "Learn, compare and deploy load-balancing policies.",
            "",
            "commands:",
            *lines,
            "",
            "`steelyard COMMAND --help` tells the options of a command.",
        ]
    )


def summary(entry: metadata.EntryPoint) -> str:
    """First line of the docstring of the command's class, read from its source."""
    spec = importlib.util.find_spec(entry.module)
    if spec is None or spec.origin is None:
        return f"(not installed: {entry.module})"
    with open(spec.origin, encoding="utf-8") as stream:
        tree = ast.parse(stream.read())
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == entry.attr:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return f"(no {entry.attr} in {entry.module})"


def unknown_command(name: str, found: dict[str, metadata.EntryPoint]) -> str:
    """The error line for a command that does not exist."""
    near = difflib.get_close_matches(name, found, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"allowed: {', '.join(found)}"
    return f"unknown command {name!r}; {hint}"


def missing_module(command: str, error: ModuleNotFoundError) -> str:
    """The error line for a package that is not installed."""
    missing = error.name or str(error)
    if missing.startswith("steelyard."):
        return f"{command} needs {missing}, which is not built; run `make native`"
    package = missing.partition(".")[0]
    extra = _EXTRAS.get(package, "learn")
    return f"{command} needs the package {package}; install it, for example: pip install 'steelyard[{extra}]'"


if __name__ == "__main__":
    sys.exit(main())
