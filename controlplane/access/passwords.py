"""Which passwords are too easy to guess. Reads nothing of ours."""

from __future__ import annotations

import re

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import CommonPasswordValidator
from django.core.exceptions import ValidationError
from django.utils.translation import gettext

_LOOKS = str.maketrans("@4301!$5+7", "aaeoiisstt")
_PAD = re.compile(r"[^a-z]+")
FEWEST_SIGNS = 5


class NoDressedUpCommonPassword:
    """Refuses a common password with digits, signs or a year around it, with letters written as digits, or repeated: lists
    of leaked passwords are tried with all of that. Django's own validator knows the plain ones."""

    def __init__(self) -> None:
        self._common = CommonPasswordValidator().passwords

    def validate(self, password: str, user: User | None = None) -> None:
        if len(set(password)) < FEWEST_SIGNS or any(each in self._common for each in _undressed(password)):
            raise ValidationError(self.get_help_text(), code="password_dressed_up")

    def get_help_text(self) -> str:
        return gettext("The password must not be a common one with digits or signs around it, or the same few signs again.")


def _undressed(password: str) -> set[str]:
    """What is left of it when each usual disguise is taken off."""
    plain = password.lower()
    forms = set()
    for text in (plain, plain.translate(_LOOKS)):
        core = re.sub(r"^[^a-z]+|[^a-z]+$", "", text)
        forms |= {core, _PAD.sub("", text), _once(core), _once(text)}
    # A word of three letters is in the list too; with nine digits behind it that is no disguise any more.
    return {form for form in forms if len(form) * 2 >= len(password) or form == _once(plain)}


def _once(text: str) -> str:
    """`abcabc` is `abc`."""
    for length in range(1, len(text) // 2 + 1):
        if len(text) % length == 0 and text[:length] * (len(text) // length) == text:
            return text[:length]
    return text
