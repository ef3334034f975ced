"""Machines as network namespaces: each has its own addresses, ports and loopback; a bridge in the first one joins them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
NETWORK = "10.231.7"
_NEW_NET = 0x40000000
_LISTENING = "0A"


@dataclass(frozen=True)
class Machine:
    """`link`: the bridge's end of its cable, in the first machine's namespace."""

    name: str
    address: str
    link: str = ""

    def command(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *words]

    def inside(self, question: Callable[[], T]) -> T:
        """What a thread on this machine answers: sockets that it opens are this machine's."""
        answers: list[T] = []
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                with Path(f"/run/netns/{self.name}").open() as handle:
                    if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), _NEW_NET):
                        raise OSError(ctypes.get_errno(), f"cannot enter {self.name}")
                answers.append(question())
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return answers[0]

    def listening(self) -> set[tuple[str, int]]:
        """Address and port of every TCP socket that listens here, IPv4 and IPv6."""
        shown = subprocess.run(
            self.command("cat", "/proc/net/tcp", "/proc/net/tcp6"), check=True, capture_output=True, text=True
        )
        rows = [line.split() for line in shown.stdout.splitlines()]
        return {_place(row[1]) for row in rows if len(row) > 3 and row[3] == _LISTENING}


def _place(text: str) -> tuple[str, int]:
    address, _, port = text.partition(":")
    raw = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
    if len(raw) == 16 and raw[:12] != bytes(10) + b"\xff\xff":
        return raw.hex(), int(port, 16)
    return ".".join(map(str, raw[-4:])), int(port, 16)


def impossible() -> str:
    """Why this machine can make no such machines; empty if it can."""
    if not shutil.which("ip"):
        return "there is no program `ip` (iproute2)"
    if os.geteuid() != 0:
        return "network namespaces are made by root alone"
    name = f"twp{os.getpid()}t"
    for words in (
        ("ip", "netns", "add", name),
        ("ip", "-n", name, "link", "add", "br0", "type", "bridge"),
        ("ip", "-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1"),
    ):
        tried = subprocess.run(words, capture_output=True, text=True)
        if tried.returncode:
            break
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return f"`{' '.join(words)}` is refused: {tried.stderr.strip()}" if tried.returncode else ""


@contextlib.contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """So many machines on one network, 10.231.7.1 and on; gone at the end with all that runs on them."""
    first = f"twp{os.getpid()}m1"
    found = [Machine(first, f"{NETWORK}.1")]
    found += [Machine(f"twp{os.getpid()}m{n}", f"{NETWORK}.{n}", f"to{n}") for n in range(2, count + 1)]
    try:
        for each in found:
            _ip("netns", "add", each.name)
            _ip("-n", each.name, "link", "set", "lo", "up")
        _ip("-n", first, "link", "add", "br0", "type", "bridge")
        _ip("-n", first, "addr", "add", f"{found[0].address}/24", "dev", "br0")
        _ip("-n", first, "link", "set", "br0", "up")
        for each in found[1:]:
            _ip("-n", first, "link", "add", each.link, "type", "veth", "peer", "name", "eth0", "netns", each.name)
            _ip("-n", first, "link", "set", each.link, "master", "br0", "up")
            _ip("-n", each.name, "addr", "add", f"{each.address}/24", "dev", "eth0")
            _ip("-n", each.name, "link", "set", "eth0", "up")
        yield found
    finally:
        for each in found:
            pids = subprocess.run(["ip", "netns", "pids", each.name], capture_output=True, text=True).stdout.split()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            subprocess.run(["ip", "netns", "del", each.name], capture_output=True)


@contextlib.contextmanager
def cut(first: Machine, other: Machine) -> Iterator[None]:
    """Nothing that is sent to or from `other` arrives while the block runs; nobody is told."""
    _ip("-n", first.name, "link", "set", other.link, "nomaster")
    try:
        yield
    finally:
        _ip("-n", first.name, "link", "set", other.link, "master", "br0")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
