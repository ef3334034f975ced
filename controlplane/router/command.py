"""The router's command line. Options are checked here; a bad one is one clear line and exit status 2."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from controlplane.common.files import BadKey
from controlplane.common.keyring import Keyring
from controlplane.core import names
from controlplane.router import compiled
from controlplane.router.limits import Limits
from controlplane.router.processes import supervise
from controlplane.router.server import Options, Worker, run


def main(argv: list[str], note: str | None = None) -> int:
    """`note`: why a compiled router is not used, if somebody expects it to be."""
    parser = argparse.ArgumentParser(prog="python -m controlplane.router", description=__doc__)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--table", type=Path, metavar="FILE", help="routing table as JSON; read again when it changes")
    source.add_argument(
        "--valkey",
        nargs="?",
        const="",
        metavar="URL",
        help=f"follow the published table; without URL (better, if it has a password): {names.ENV_VALKEY_URL}",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any free port")
    parser.add_argument("--id", default="", help="the router's name in facts, unique in the fleet; default HOSTNAME-PORT")
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="that share the port and their work; default 1"
    )
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    parser.add_argument(
        "--cache", type=Path, metavar="FILE", help="disk copy of the published table, used while Valkey is away"
    )
    parser.add_argument("--indexer", type=Path, metavar="SOCKET", help="of this host's controlplane.indexer: who holds what")
    parser.add_argument(
        "--indexer-ms", type=float, default=Limits().indexer_s * 1000, metavar="MS", help="how long a request waits for it"
    )
    parser.add_argument("--body-limit", type=int, default=Limits().body_bytes, metavar="BYTES", help="of a request's body")
    parser.add_argument(
        "--stop-s", type=float, default=Limits().stop_s, metavar="S", help="open requests may go on so long after SIGTERM"
    )
    parser.add_argument(compiled.INTERPRETED, action="store_true", help="even where a compiled router is (write it in full)")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        options = _options(args)
        if note and options.worker is None:
            log.warning("%s", note)
        if args.processes > 1 and options.worker is None:
            return supervise(options, argv, args.processes)
        run(options)
    except _Unusable as problem:
        return _complain(str(problem))
    except OSError as error:
        return _complain(f"cannot listen on {args.host}:{args.port}: {error.strerror}. Choose another --port or --host.")
    return 0


log = logging.getLogger(__name__)
MOST_STOP_S = 86_400.0


class _Unusable(ValueError):
    """A setting that cannot work; the message names the remedy."""


def _options(args: argparse.Namespace) -> Options:
    if not 1 <= args.processes <= names.MOST_ROUTER_PROCESSES:
        raise _Unusable(f"--processes must be 1 to {names.MOST_ROUTER_PROCESSES}.")
    if args.interpreted and compiled.code() == "compiled":
        raise _Unusable(f"write {compiled.INTERPRETED} in full.")
    if args.body_limit <= 0:
        raise _Unusable("--body-limit must be a positive number of bytes.")
    if not 0 <= args.stop_s <= MOST_STOP_S:
        raise _Unusable(f"--stop-s must be 0 to {MOST_STOP_S:g} seconds.")
    if not 0 < args.indexer_ms <= 10_000:
        raise _Unusable("--indexer-ms must be more than 0, and 10000 at most.")
    url = "" if args.table is not None else args.valkey or os.environ.get(names.ENV_VALKEY_URL, "")
    if args.table is None and not url:
        raise _Unusable(f"no routing table: give --table FILE, --valkey URL, or set {names.ENV_VALKEY_URL}.")
    if url and not _usable(url):
        raise _Unusable("the Valkey URL is no usable one: write it like redis://:password@host:6379/0.")
    if args.valkey and urlsplit(args.valkey).password and not args.worker:
        log.warning("the password in --valkey is seen by every user of this machine: give it in %s", names.ENV_VALKEY_URL)
    return Options(
        host=args.host,
        port=args.port,
        id=args.id,
        table=args.table,
        valkey_url=url,
        telemetry_url=os.environ.get(names.ENV_TELEMETRY_URL, ""),
        fleet_secret=_fleet_secret(needed=bool(url)),
        cache=args.cache,
        limits=Limits(body_bytes=args.body_limit, indexer_s=args.indexer_ms / 1000, stop_s=args.stop_s),
        indexer=args.indexer,
        worker=Worker(*map(int, args.worker.split(","))) if args.worker else None,
    )


def _usable(url: str) -> bool:
    from controlplane.common import valkey  # its client library: a router with a table file needs none of that memory

    return valkey.usable(url)


def _fleet_secret(needed: bool) -> Keyring | None:
    given = os.environ.get(names.ENV_FLEET_SECRET_FILE)
    path = Path(given) if given else Path(os.environ.get(names.ENV_STATE, ".twinpool")) / "secrets" / "fleet.key"
    if not needed and not given and not path.exists():
        return None
    try:
        return Keyring(path)
    except BadKey as error:
        raise _Unusable(f"{error}. {names.ENV_FLEET_SECRET_FILE} names the file.") from error


def _complain(problem: str) -> int:
    print(f"router: {problem}", file=sys.stderr)  # noqa: T201
    return 2
