"""What Twinpool's own secrets look like, so that one that somebody pasted into a reason is not kept for ever. Pure."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "[secret]"
_SHAPES = re.compile(
    r"""
    \bsk-[A-Za-z0-9_-]{20,}              # an inference key
    | \btp-[A-Za-z0-9]{20,}              # a token of the REST API
    | \brc(?:-[a-z2-7]{4}){4}\b          # a recovery code
    | (?<=secret=)[A-Z2-7]{16,}          # of a second factor, as its QR code says it
    | \bwhsec_[A-Za-z0-9+/=_-]{16,}      # what signs a webhook
    | \beyJ[A-Za-z0-9_=.-]{40,}          # a join token: JSON in base64, as other tokens are
    | (?<=://)[^/@\s]+(?=@)              # name and password in an address
    | (?i:(?<=bearer\s))\S{8,}
    """,
    re.VERBOSE,
)


def hide(value: Any) -> Any:
    """A text, or a JSON value with all its texts and names, without what looks like a secret."""
    if isinstance(value, str):
        return _SHAPES.sub(HIDDEN, value)
    if isinstance(value, dict):
        return {hide(name): hide(inner) for name, inner in value.items()}
    return [hide(inner) for inner in value] if isinstance(value, list | tuple) else value
