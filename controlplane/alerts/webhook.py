"""One message to one URL: signed as Standard Webhooks has it, to an address that was judged, and answered in time or not at
all. Redirects are not followed: they would lead past the judgement."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Sequence

from controlplane.alerts.addresses import BadTarget, Target, parse_url, resolve
from controlplane.common.outward import Network

CONNECT_WITHIN_S = 5.0
ANSWER_WITHIN_S = 10.0
"""Of the whole exchange, however slowly the answer drips."""
MAX_BODY = 32_768
SECRET_PREFIX = "whsec_"  # noqa: S105  # how Standard Webhooks marks one
HERE_TO_STAY = frozenset(range(400, 500)) - {408, 425, 429}
"""Statuses that speak of this message, not of a receiver that is away."""


class NotDelivered(Exception):
    """The message did not arrive, or nobody said that it did. The text holds no secret. `away`: the next would fail too."""

    def __init__(self, reason: str, *, away: bool = True) -> None:
        super().__init__(reason)
        self.away = away


def shown_secret(key: bytes) -> str:
    """As receivers' libraries take it."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


def sign(key: bytes, message_id: str, at: int, body: bytes) -> str:
    """The value of `webhook-signature`: HMAC-SHA256 of `<id>.<Unix seconds>.<body>`."""
    signed = f"{message_id}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def post(url: str, key: bytes, message_id: str, body: bytes, allowed: Sequence[Network]) -> None:
    """Send it; any answer 2xx says that it arrived. Raises NotDelivered."""
    if len(body) > MAX_BODY:
        raise NotDelivered(f"the message is larger than {MAX_BODY} bytes", away=False)
    try:
        target = parse_url(url)
        place = resolve(target, allowed)
    except BadTarget as error:
        raise NotDelivered(str(error)) from None
    at = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Twinpool",
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": sign(key, message_id, at, body),
        "Connection": "close",
    }
    status = _exchange(target, place.ip, body, headers)
    if 300 <= status < 400:
        raise NotDelivered(f"it answered HTTP {status}: redirects are not followed, give the final URL")
    if not 200 <= status < 300:
        raise NotDelivered(f"it answered HTTP {status}", away=status not in HERE_TO_STAY)


class _Pinned(http.client.HTTPConnection):
    """Connects to one address, whatever its host's name leads to now; the certificate must be the name's."""

    def __init__(self, target: Target, ip: str) -> None:
        host = f"[{target.host}]" if ":" in target.host else target.host
        super().__init__(host, target.port, timeout=CONNECT_WITHIN_S)
        self.default_port = 443 if target.secure else 80
        self._target, self._ip = target, ip
        self.over = False

    def connect(self) -> None:
        self.sock = socket.create_connection((self._ip, self._target.port), CONNECT_WITHIN_S)
        if self._target.secure:
            context = ssl.create_default_context()
            secure = context.wrap_socket(self.sock, server_hostname=self._target.host, do_handshake_on_connect=False)
            self.sock = secure  # before the handshake, so that it can be cut too
            secure.do_handshake()
        if self.over:
            self.cut()

    def cut(self) -> None:
        """From another thread: whoever waits for this connection is told that it ended."""
        self.over = True
        if self.sock is not None:
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended by itself


def _exchange(target: Target, ip: str, body: bytes, headers: dict[str, str]) -> int:
    """The status. The body of the answer is not read."""
    connection = _Pinned(target, ip)
    deadline = threading.Timer(ANSWER_WITHIN_S, connection.cut)
    deadline.daemon = True
    deadline.start()
    try:
        connection.request("POST", target.path, body, headers)
        return int(connection.getresponse().status)
    except ssl.SSLCertVerificationError as error:
        raise NotDelivered(f"its certificate is not trusted ({error.verify_message}): https is always verified") from None
    except TimeoutError:
        raise NotDelivered(f"no answer within {CONNECT_WITHIN_S:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        if connection.over:
            raise NotDelivered(f"no answer within {ANSWER_WITHIN_S:g} s") from None
        raise NotDelivered(f"no connection or no answer: {type(error).__name__}") from None
    finally:
        deadline.cancel()
        connection.close()
