"""Bytes to the router and bytes back, for what no HTTP client would send."""

from __future__ import annotations

import asyncio


async def exchange(port: int, *parts: bytes, pause_s: float = 0.0, timeout_s: float = 60.0) -> bytes:
    """Sends `parts` one by one and reads until the router closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        return await asyncio.wait_for(reader.read(), timeout_s)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass


def post(body: bytes, *headers: str, path: str = "/v1/completions") -> bytes:
    lines = "".join(f"{header}\r\n" for header in ("host: x", f"content-length: {len(body)}", *headers))
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body
