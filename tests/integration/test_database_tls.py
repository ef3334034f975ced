"""PostgreSQL over TLS, as `?sslmode=verify-full` asks for it. This build of it has none: what is in between ends TLS."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from controlplane.core import names
from controlplane.stack import doctor_servers
from controlplane.stack.pgtools import Login, tools_for
from controlplane.stack.postgres import EmbeddedPostgres
from tests.integration.upkeep_kit import database, manage

TLS = Path(__file__).parents[1] / "data" / "tls"
SSL_REQUEST = struct.pack("!ii", 8, 80877103)


def pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(65536):
            sink.sendall(part)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def serve(client: socket.socket, port: int) -> None:
    """One connection: whoever does not ask for TLS is not let in."""
    with suppress(OSError), client, socket.create_connection(("127.0.0.1", port)) as server:
        if client.recv(8, socket.MSG_WAITALL) != SSL_REQUEST:
            return
        client.sendall(b"S")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "server.pem")
        with context.wrap_socket(client, server_side=True) as inner:
            back = threading.Thread(target=pump, args=(server, inner))
            back.start()
            pump(inner, server)
            back.join()


@contextmanager
def tls_before(port: int) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    running: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                running.append(threading.Thread(target=serve, args=(client, port)))
                running[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (accepting, *running):
            thread.join()


def test_the_database_is_reached_over_tls_and_its_certificate_is_checked(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    with database(postgres, "upkeep_t") as env, tls_before(postgres.port) as port:

        def over_tls(options: str) -> dict[str, str]:
            urls = (names.ENV_DATABASE_URL, names.ENV_DATABASE_OWNER_URL)
            plain = f"@127.0.0.1:{postgres.port}/"
            return env | {name: env[name].replace(plain, f"@localhost:{port}/") + options for name in urls}

        trusted = over_tls(f"?sslmode=verify-full&sslrootcert={TLS / 'ca.pem'}")
        migrated = manage(trusted, "migrate", "--database", "owner", "-v0")
        assert migrated.returncode == 0, migrated.stderr
        for asked, level in ((trusted, "ok"), (over_tls("?sslmode=verify-full&sslrootcert=system"), "fail")):
            told, *_ = doctor_servers.database(asked[names.ENV_DATABASE_URL], [])[0]
            assert (told.check, told.level) == ("database", level), told
            assert level == "ok" or "certificate verify failed" in told.said, told

        backup = manage(trusted, "backup", str(tmp_path / "a.backup"))
        assert backup.returncode == 0 or "with TLS are here (found: 18 without TLS" in backup.stderr, backup.stderr
        assert backup.stderr.count("\n") <= 1


def test_programs_without_tls_are_not_taken_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    assert Login.of("postgresql://a@db/x?sslmode=verify-full").tls and not Login.of("postgresql://a@db/x").tls
    assert not Login.of("postgresql://a@db/x?sslmode=prefer").tls
    monkeypatch.setenv("PGSSLMODE", "require")
    assert Login.of("postgresql://a@db/x").tls
    monkeypatch.setenv(names.ENV_POSTGRES_BIN, str(tools_for(18).folder))
    with pytest.raises(Exception, match=r"newer with TLS are here \(found: 18 without TLS\)"):
        tools_for(18, tls=True)
