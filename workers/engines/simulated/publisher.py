"""Publishes KV events over ZMQ as vLLM 0.32 does: a PUB socket, and a ROUTER socket that repeats missed batches.

Frames of a batch: topic, 8-byte big-endian sequence number from 0 on, payload. A reader asks the replay socket for a
sequence number (8 bytes, from a REQ or DEALER socket with an empty first frame) and gets every buffered batch from it on as
topic, number, payload, then an empty topic, -1 and nothing. Who does not read misses batches; nothing here ever waits.
"""

from __future__ import annotations

import asyncio
from collections import deque

import zmq

from workers.engines.simulated.settings import EventsConfig

END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """Raises OSError (zmq.ZMQError is one) if it cannot listen."""

    def __init__(self, config: EventsConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._topic = config.topic.encode()
        self._number = 0
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps if config.replay_endpoint else 0)
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._pub = self._socket(zmq.PUB, config.endpoint, config.listen, config.hwm)
        if config.replay_endpoint:
            whole = max(config.hwm, config.buffer_steps + 1)  # all that is kept and the end: a reader waits for that
            self._replay = self._socket(zmq.ROUTER, config.replay_endpoint, True, whole)
            loop.add_reader(self._replay.fileno(), self._repeat)

    def _socket(self, kind: int, endpoint: str, listen: bool, hwm: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        self._sockets.append(socket)
        socket.set_hwm(hwm)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, "[" in endpoint)
        try:
            if listen:
                socket.bind(endpoint)
            else:
                socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, f"KV events at {endpoint}: {error.strerror}") from error
        return socket

    def publish(self, payload: bytes) -> None:
        number = self._number.to_bytes(8, "big")
        self._number += 1
        self._pub.send_multipart((self._topic, number, payload), zmq.DONTWAIT)
        self._kept.append((number, payload))

    def close(self) -> None:
        for socket in self._sockets:
            if socket.socket_type == zmq.ROUTER:
                self._loop.remove_reader(socket.fileno())
            socket.close()
        self._context.term()

    def _repeat(self) -> None:
        """Somebody may have asked the replay socket: its descriptor tells only that there may be something."""
        while self._replay.poll(0):
            frames = self._replay.recv_multipart(zmq.DONTWAIT)
            if len(frames) != 3:
                continue
            reader, empty, start = frames
            for number, payload in list(self._kept):
                if number >= start.rjust(8, b"\0"):
                    self._replay.send_multipart((reader, empty, self._topic, number, payload), zmq.DONTWAIT)
            self._replay.send_multipart((reader, empty, b"", END, b""), zmq.DONTWAIT)
