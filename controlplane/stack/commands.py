"""What `manage.py` can do: its own commands here, all others are Django's. Modules are imported when their command runs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from controlplane.stack.errors import StackError, explained

ROOT = Path(__file__).resolve().parents[2]

_HELP = """\
Twinpool:
  up          start everything on this machine (--help shows the options)
  status      what runs: processes, ports, memory (--json)
  down        stop it
  test        run the tests; --vllm: those with real engines
  bench       run a benchmark: bench NAME
  engine-env  install the environment of real engines
  join-token  print the token with which another machine's agent joins
  agent       be that agent
Django's commands (help, shell, changepassword, ...) use the running stack of --state, TWINPOOL_STATE or .twinpool.
"""


def dispatch(argv: Sequence[str]) -> int:
    """Run `manage.py` with these arguments (argv[0] is the program). Returns the exit code."""
    name, arguments = (argv[1], list(argv[2:])) if len(argv) > 1 else ("", [])
    if name in ("", "-h", "--help", "help") and not arguments:
        print(_HELP, end="")
        return 0
    try:
        if name not in _COMMANDS:
            return _django(list(argv))
        with explained():
            return _COMMANDS[name](arguments)
    except StackError as error:
        print(f"twinpool: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _up(arguments: list[str]) -> int:
    from controlplane.stack import detach, options, up

    asked = options.parse(arguments, ROOT)
    return detach.start(asked, arguments) if asked.detach else up.run(asked)


def _down(arguments: list[str]) -> int:
    from controlplane.stack import down, folder

    parser = argparse.ArgumentParser(prog="manage.py down", description="Stop the stack, engines too.")
    parser.add_argument("--state", metavar="DIR")
    return down.run(folder.chosen(parser.parse_args(arguments).state, ROOT))


def _status(arguments: list[str]) -> int:
    from controlplane.stack import folder, status

    parser = argparse.ArgumentParser(prog="manage.py status", description="Show what runs. Exit code 0: ready, 3: not.")
    parser.add_argument("--state", metavar="DIR")
    parser.add_argument("--json", action="store_true")
    read = parser.parse_args(arguments)
    return status.run(folder.chosen(read.state, ROOT), as_json=read.json)


def _test(arguments: list[str]) -> int:
    """Arguments go to pytest. `--vllm` runs tests/vllm in the managed engine environment."""
    from controlplane.core import names

    command = [sys.executable, "-m", "pytest"]
    env = dict(os.environ)
    if "--vllm" in arguments:
        if not env.get(names.ENV_VLLM_PYTHON):
            env[names.ENV_VLLM_PYTHON] = str(_engine_python())
        rest = [argument for argument in arguments if argument != "--vllm"]
        command += ["-m", "vllm", *(rest or ["tests/vllm"])]
    else:
        command += [*(() if "-m" in arguments else ("-m", "not vllm")), *arguments]
    return subprocess.call(command, cwd=ROOT, env=env)


def _bench(arguments: list[str]) -> int:
    found = {file.stem: file for file in sorted((ROOT / "benchmarks").glob("*.py")) if not file.stem.startswith("_")}
    if not arguments or arguments[0] not in found:
        raise StackError(f"name a benchmark: {', '.join(found) or 'there is none yet'}")
    return subprocess.call([sys.executable, str(found[arguments[0]]), *arguments[1:]], cwd=ROOT, env=_with_root())


def _engine_env(arguments: list[str]) -> int:
    argparse.ArgumentParser(prog="manage.py engine-env", description="Install what real engines need.").parse_args(arguments)
    print(_engine_python())
    return 0


def _engine_python() -> Path:
    from controlplane.stack.engine_env import ensure

    return ensure()


def _join_token(arguments: list[str]) -> int:
    from controlplane.stack import join

    return join.print_token(arguments, ROOT)


def _agent(arguments: list[str]) -> int:
    from controlplane.stack import join

    return join.run_agent(arguments, ROOT)


def _django(argv: list[str]) -> int:
    """Any other command, in the environment of the state folder's stack. What the caller has set is kept."""
    from controlplane.stack import endpoints, folder

    state, rest = _take_state(argv)
    for name, value in endpoints.stored_environment(folder.chosen(state, ROOT)).items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(rest)
    return 0


def _take_state(argv: list[str]) -> tuple[str | None, list[str]]:
    """Split `--state DIR` off the arguments."""
    rest, state = [], None
    arguments = iter(argv)
    for argument in arguments:
        if argument == "--state":
            state = next(arguments, None)
        elif argument.startswith("--state="):
            state = argument.partition("=")[2]
        else:
            rest.append(argument)
    return state, rest


def _with_root() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))}


_COMMANDS: Mapping[str, Callable[[list[str]], int]] = {
    "up": _up,
    "down": _down,
    "status": _status,
    "test": _test,
    "bench": _bench,
    "engine-env": _engine_env,
    "join-token": _join_token,
    "agent": _agent,
}
