"""What `manage.py` can do: its own commands here, all others are Django's. Modules are imported when their command runs."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tomllib
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
  prove-rebalance
              change pools and modes under streams, on a fleet of its own, and check that nothing is lost
  prove-planner
              shift a load's mix on a fleet of its own, and check that the planner answers and nothing is lost
  compile-router
              build the router's hot modules as C extensions
  engine-env  install the environment of real engines
  join-token  print the token with which another machine's agent joins
  agent       be that agent
  doctor      look for what is wrong, and say the remedy (--json)
  backup      write the database to a file
  restore     put a backup in the database's place
  fleet-secret
              carry the fleet secret to another machine while it is changed
Django's commands (help, shell, changepassword, ...) use the running stack of --state, TWINPOOL_STATE or .twinpool.
"""


def dispatch(argv: Sequence[str]) -> int:
    """Run `manage.py` with these arguments (argv[0] is the program). Returns the exit code."""
    from controlplane.stack import endpoints

    try:
        with explained():
            endpoints.forget_libpq_settings()
            code = _run(argv)
        sys.stdout.flush()
        return code
    except StackError as error:
        print(f"twinpool: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        from controlplane.stack.output import drop_output

        drop_output()
        return 1


def _run(argv: Sequence[str]) -> int:
    name, arguments = (argv[1], list(argv[2:])) if len(argv) > 1 else ("", [])
    if name in ("", "-h", "--help", "help") and not arguments:
        print(_HELP, end="")
        return 0
    if name in ("--version", "version"):
        print(f"twinpool {_version()}")
        return 0
    if name == "help" and arguments[0] in _COMMANDS:
        name, arguments = arguments[0], ["--help"]
    return _COMMANDS[name](arguments) if name in _COMMANDS else _django(list(argv))


def _version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


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


def _prove(arguments: list[str]) -> int:
    from controlplane.proof import command

    return command.run(arguments)


def _prove_planner(arguments: list[str]) -> int:
    from controlplane.proof import shiftcommand

    return shiftcommand.run(arguments)


def _compile_router(arguments: list[str]) -> int:
    from controlplane.stack import compile_router

    return compile_router.run(arguments)


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


def _module(name: str) -> Callable[[list[str]], int]:
    """The command that a module of this package is."""

    def command(arguments: list[str]) -> int:
        return int(importlib.import_module(f"controlplane.stack.{name}").run(arguments, ROOT))

    return command


def _django(argv: list[str]) -> int:
    """Any other command, in the environment of the state folder's stack. What the caller has set is kept."""
    from controlplane.core import names
    from controlplane.stack import endpoints, folder

    state_option, rest = _take_state(argv)
    state = folder.chosen(state_option, ROOT)
    own_database = names.ENV_DATABASE_URL not in os.environ
    try:
        endpoints.adopt(state)
    except PermissionError as error:
        if own_database:
            raise StackError(
                f"{state.path} belongs to another user: become that user, or name yours with --state"
            ) from error
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    _execute(rest, state.path, own_database=own_database)
    return 0


def _execute(argv: list[str], state: Path, *, own_database: bool) -> None:
    """Run Django's command line. Raises StackError for what its user can repair."""
    from django.core.management import execute_from_command_line
    from django.db import OperationalError
    from kombu.exceptions import OperationalError as NoBroker
    from redis.exceptions import RedisError

    from controlplane.config import BadSetting
    from controlplane.core import names

    try:
        execute_from_command_line(argv)
    except BadSetting as error:
        raise StackError(str(error)) from error
    except EOFError as error:
        raise StackError("this command asks something and nobody answers: run it in a terminal") from error
    except (OperationalError, NoBroker, RedisError) as error:
        if "--traceback" in argv:
            raise
        if own_database:
            raise StackError(
                f"no stack answers on {state}: start it with `manage.py up`, or name it with --state"
            ) from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StackError(
            f"a server of {names.ENV_DATABASE_URL} or {names.ENV_VALKEY_URL} does not answer: {reason}; "
            "start it or correct the URL"
        ) from error


def _take_state(argv: list[str]) -> tuple[str | None, list[str]]:
    """Split `--state DIR` off the arguments."""
    rest, state = [], None
    arguments = iter(argv)
    for argument in arguments:
        if argument == "--state":
            if (state := next(arguments, None)) is None:
                raise StackError("--state names no folder: write --state DIR")
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
    "prove-rebalance": _prove,
    "prove_rebalance": _prove,
    "prove-planner": _prove_planner,
    "prove_planner": _prove_planner,
    "compile-router": _compile_router,
    "engine-env": _engine_env,
    "join-token": _join_token,
    "agent": _agent,
    "doctor": _module("doctor"),
    "backup": _module("backup"),
    "restore": _module("restore"),
    "fleet-secret": _module("fleetsecret"),
}
