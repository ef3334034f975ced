"""What an installer's output means for the person who reads it. Pure, standard library only."""

from __future__ import annotations

_NETWORK = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "No route to host",
    "Connection refused",
    "NewConnectionError",
    "ConnectTimeoutError",
    "Max retries exceeded",
    "ProxyError",
    "ReadTimeoutError",
    "dns error",
    "client error (Connect)",
    "error sending request",
    "CERTIFICATE_VERIFY_FAILED",
)
_HASH = ("DO NOT MATCH THE HASHES", "Hash mismatch", "hash mismatch")


def explain(
    output: str,
    root: str,
    *,
    needs: str = "about 700 MB for .venv",
    lock: str = "requirements.lock",
    elsewhere: str = "use a clone of your own",
    afresh: str = ".venv",
) -> str:
    """One line for the failed installation below `root` that printed `output`: the cause, then the remedy."""
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return f"the disk of {root} is full: free some space ({needs}; TMPDIR too) and run it again"
    if "Permission denied" in output or "Read-only file system" in output:
        return f"cannot write below {root}: make it writable for you, or {elsewhere}"
    if "ensurepip" in output and "returned non-zero" in output:
        return (
            "this Python cannot make environments with pip: install its venv package (Debian: python3-venv), or install uv"
        )
    if any(sign in output for sign in _HASH):
        return f"a downloaded package does not match {lock}: check the package index or proxy, then run it again"
    if any(sign in output for sign in _NETWORK):
        return "cannot reach the package index: check network and proxy (or PIP_INDEX_URL, UV_INDEX_URL), then run it again"
    return f"the installation failed: {_last_error(output)}; run it again, or delete {afresh} first"


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no reason given"])[-1][:300]
