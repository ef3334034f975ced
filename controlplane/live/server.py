"""The web process: `python -m controlplane.live.server --host HOST --port PORT`. Uvicorn with our socket protocol, which its
own command line cannot be told."""

from __future__ import annotations

import argparse
import os
import sys

import uvicorn

from controlplane.config import BadSetting, config
from controlplane.core import names
from controlplane.live.messages import MAX_BYTES
from controlplane.live.protocol import LiveProtocol

CONNECTIONS = 16
"""To PostgreSQL, shared by the threads of requests; what is more waits for one. Reads and changes take milliseconds."""
OPEN_REQUESTS_S = 5
"""Open requests may take so long to finish when the process is told to end; sockets and long polls are closed then."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m controlplane.live.server", description="The console's web process.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--proxies", default="", help="comma-separated addresses whose X-Forwarded-For is believed")
    options = parser.parse_args()
    os.environ.setdefault(names.ENV_DATABASE_CONNECTIONS, str(CONNECTIONS))  # before settings are read
    try:
        config()
    except BadSetting as error:
        sys.exit(f"twinpool: {error}")
    uvicorn.run(
        "controlplane.asgi:application",
        host=options.host,
        port=options.port,
        ws=LiveProtocol,
        ws_max_size=8 * MAX_BYTES,
        # Each frame would be compressed anew for each socket; a page gets some 20 kB a second.
        ws_per_message_deflate=False,
        # Uvicorn's own default trusts whoever connects from this machine; logins are counted by the client's address.
        proxy_headers=bool(options.proxies),
        forwarded_allow_ips=options.proxies or None,
        access_log=False,
        timeout_graceful_shutdown=OPEN_REQUESTS_S,
    )


if __name__ == "__main__":
    main()
