"""The one exception of this package. Standard library only: the bootstrap uses it before any dependency exists."""

from __future__ import annotations


class StackError(Exception):
    """Something the operator can repair. The message is one line: what is wrong, then the remedy. Never holds a secret."""
