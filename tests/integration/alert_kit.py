"""Receivers of alerts: a real HTTP(S) server and a real SMTP server on this machine, which keep what they are told."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from django.utils import timezone

from controlplane.alerts.models import Alert


def firing(rule: str = "pool_empty", subject: str = "pool:m/decode", model: str = "m", **values: Any) -> Alert:
    """An alert as a look leaves it."""
    now = timezone.now()
    known: dict[str, Any] = {"label": "m decode", "severity": "bad", "value": 0.0, "peak": 0.0, "threshold": 1.0}
    known |= {"state": "firing", "looked_at": now.timestamp(), "last": "bad", "began_at": now, "fired_at": now}
    return Alert.objects.create(rule=rule, subject=subject, model=model, **known | values)


TLS = Path(__file__).parents[1] / "data" / "tls"


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Hooks:
    """`answer(received)` -> (status, headers); it may take its time."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answer: Callable[[Received], tuple[int, dict[str, str]]] = lambda _received: (204, {})


@contextmanager
def hooks(*, tls: bool = False) -> Iterator[Hooks]:
    kept = Hooks()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got = Received(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            kept.received.append(got)
            status, headers = kept.answer(got)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # a client that hangs up is what some tests are about

    server = Server(("127.0.0.1", 0), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "server.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    kept.url = f"{'https' if tls else 'http'}://{'localhost' if tls else '127.0.0.1'}:{server.server_port}/hook/s3cret-path"
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Mailbox:
    port: int = 0
    messages: list[EmailMessage] = field(default_factory=list)
    to: list[list[str]] = field(default_factory=list)
    refuse: str = ""
    """An SMTP answer to MAIL FROM; empty: taken."""


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    """An SMTP server, as far as one message needs it (RFC 5321)."""
    kept, ready, over = Mailbox(), threading.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(text: str) -> None:
            writer.write(f"{text}\r\n".encode())
            await writer.drain()

        to: list[str] = []
        await say("220 test")
        while line := await reader.readline():
            verb = line.decode().strip()
            match verb.partition(" ")[0].upper():
                case "MAIL" if kept.refuse:
                    await say(kept.refuse)
                case "RCPT":
                    to.append(verb.partition("<")[2].partition(">")[0])
                    await say("250 ok")
                case "DATA":
                    await say("354 go on")
                    data = await reader.readuntil(b"\r\n.\r\n")
                    kept.messages.append(message_from_bytes(data[:-3], policy=policy.default))  # type: ignore[arg-type]
                    kept.to.append(to)
                    await say("250 ok")
                case "QUIT":
                    await say("221 bye")
                    break
                case _:
                    await say("250 ok")
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        kept.port = server.sockets[0].getsockname()[1]
        loop.append(asyncio.get_running_loop())
        ready.set()
        async with server:
            await over.wait()

    loop: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        yield kept
    finally:
        loop[0].call_soon_threadsafe(over.set)
        thread.join()
