"""Short secrets that the server must read again, sealed with Django's key: a copy of the database tells none of them."""

from __future__ import annotations

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.utils.encoding import force_bytes

_PURPOSE = b"twinpool second factor:"


class BadSeal(ValueError):
    """It was sealed with another key, or is not what was sealed."""


def seal(secret: bytes) -> str:
    return _fernet().encrypt(secret).decode()


def unseal(sealed: str) -> bytes:
    """Raises BadSeal."""
    try:
        return _fernet().decrypt(sealed.encode())
    except InvalidToken as error:
        raise BadSeal("sealed with another key than Django's present one") from error


def _fernet() -> MultiFernet:
    """With the present key, and former ones for reading."""
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return MultiFernet(
        [Fernet(base64.urlsafe_b64encode(hashlib.sha256(_PURPOSE + force_bytes(key)).digest())) for key in keys]
    )
