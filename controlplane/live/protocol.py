"""How the web server speaks on a live socket: uvicorn's protocol, with an end for clients that do not read.

What a client does not read waits in the kernel and in the transport, and a transport that is closed in order waits until
the client has read it: for ever, if it never does. So what may wait is bounded, and a socket whose buffers are not empty
soon after its end is aborted (TCP reset), which gives everything back at once.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

KERNEL_BYTES = 128 * 1024
"""Asked for; Linux takes twice that. Left alone it would grow to 4 MB."""
WAITING_BYTES = 256 * 1024
"""From here on the transport asks to wait, so that only the newest frame is sent later."""
READ_WITHIN_S = 5.0


class Ending:
    """A transport whose `close` is followed by `abort` if the client does not take the rest soon."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def close(self) -> None:
        self._transport.close()
        if self._transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(READ_WITHIN_S, self._abort_if_unread)

    def _abort_if_unread(self) -> None:
        if self._transport.get_write_buffer_size():
            self.abort()

    def abort(self) -> None:
        """A plain close would leave what waits in the kernel, which offers it for minutes more."""
        own = self._transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class LiveProtocol(WebSocketsSansIOProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        own: Any = transport  # uvloop's transports are none of asyncio's classes
        own.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        own.set_write_buffer_limits(high=WAITING_BYTES)
        ending: Any = Ending(own)
        super().connection_made(ending)

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close" and not self.writable.is_set() and not self.transport.is_closing():
            self.transport.abort()  # a farewell would wait behind what the client does not read
            return
        await super().send(message)
