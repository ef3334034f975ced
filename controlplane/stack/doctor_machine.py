"""What `doctor` looks at on this machine: packages, disk, key files, ports of the stack's processes, GPUs, connectors."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

import pynvml

from controlplane.core import checkup, names
from controlplane.core.checkup import Finding
from controlplane.core.counts import some
from controlplane.stack import record
from controlplane.stack.folder import StateFolder
from controlplane.stack.services import ROOT

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)\s*(;[^\\]*)?", re.MULTILINE)
_CONNECT_S = 2.0
MODULES = {"nixl": "nixl", "example": "vllm"}
"""What each connector needs in the engines' environment."""


def packages() -> Finding:
    """Pins with a condition are for other machines or implementations, too: they are not compared."""
    different = {}
    for name, version, condition in _PIN.findall((ROOT / "requirements.lock").read_text()):
        if condition:
            continue
        try:
            have = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            have = ""
        if have != version:
            different[name] = (version, have)
    return checkup.packages(different)


def disk(state: StateFolder) -> Finding:
    at = next(folder for folder in (state.path, *state.path.parents) if folder.is_dir())
    usage = shutil.disk_usage(at)
    return checkup.disk(str(state.path), usage.free, usage.total)


def key_files(state: StateFolder) -> Finding:
    """Whether only their owner can read the secrets."""
    files = [file for file in (state.secrets, *state.secrets.rglob("*")) if file.exists()]
    open_ones = [str(file) for file in files if stat.S_IMODE(file.stat().st_mode) & 0o077]
    if open_ones:
        said = f"open to other users: {checkup.named(open_ones)}"
        return Finding("secrets", str(state.secrets), "fail", said, f"chmod -R go= {state.secrets}")
    return Finding("secrets", str(state.secrets), "ok", f"{len(files)} files and folders, none open to other users")


def ports(state: StateFolder) -> Iterator[Finding]:
    """Whether the stack's processes answer, as their supervisor sees it and on their ports."""
    known = record.read(state)
    if known is None:
        return
    for each in known.processes:
        if each.state in ("silent", "failed"):
            said = "runs and gives no answer" if each.state == "silent" else "cannot be kept running"
            yield Finding("processes", each.name, "fail", said, f"see {state.logs / (each.name + '.log')}")
        elif each.port and not _answers("127.0.0.1", each.port):
            said, remedy = f"nothing answers on port {each.port}", f"see {state.logs / (each.name + '.log')}"
            yield Finding("ports", each.name, "fail", said, remedy)
        elif each.port:
            yield Finding("ports", each.name, "ok", f"answers on port {each.port}")


def reach(urls: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Whether this machine reaches engines, as a router on it would. `urls`: (engine, its address)."""
    for engine, url in urls:
        parts = urlsplit(url)
        if not _answers(parts.hostname or "", parts.port or 80):
            remedy = "open that port between routers and nodes, or give the agent the right --address"
            yield Finding("ports", f"engine {engine}", "fail", f"{parts.netloc} cannot be reached from here", remedy)


def gpus(*, expected: bool) -> Finding:
    """The NVIDIA driver. `expected`: this node's agent was told to use it."""
    try:
        pynvml.nvmlInit()
        count, driver = pynvml.nvmlDeviceGetCount(), pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as error:
        if not expected:
            return Finding("nvml", "driver", "ok", "no NVIDIA driver here, and none is needed")
        remedy = "install the NVIDIA driver; in a container, start it with the NVIDIA runtime"
        return Finding("nvml", "driver", "fail", f"the NVIDIA driver cannot be asked ({error})", remedy)
    return Finding("nvml", "driver", "ok", f"driver {driver}, {some(count, 'GPU')}")


def connectors(wanted: Iterable[str]) -> Iterator[Finding]:
    """Of models' connectors, where this machine has an environment for engines."""
    python = os.environ.get(names.ENV_VLLM_PYTHON, "")
    modules = sorted({MODULES[each] for each in wanted if each in MODULES})
    if not python or not modules:
        return
    code = "import importlib.util as u, sys; print(*[m for m in sys.argv[1:] if u.find_spec(m) is None])"
    try:
        asked = subprocess.run([python, "-c", code, *modules], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = f"{python} cannot be run ({type(error).__name__})"
        yield Finding("connectors", "this machine", "fail", said, f"correct or unset {names.ENV_VLLM_PYTHON}")
        return
    yield checkup.connectors("this machine", asked.stdout.split())


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S):
            return True
    except OSError:
        return False
