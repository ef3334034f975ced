"""How many of something, in words. Pure."""

from __future__ import annotations


def some(count: float, one: str) -> str:
    """`some(1, "GPU")` is "1 GPU", `some(1024, "GPU")` "1,024 GPUs"; a count that is not whole is rounded."""
    whole = f"{count:,.0f}"
    return f"{whole} {one}" if whole == "1" else f"{whole} {one}s"
