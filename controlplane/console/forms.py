"""Forms of the console."""

from __future__ import annotations

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.utils.translation import gettext_lazy as _


class LoginForm(AuthenticationForm):
    """Name and password. The message never tells which of the two was wrong."""

    error_messages = {
        "invalid_login": _("That name and password do not match."),
        "inactive": _("This account is switched off. Ask an admin."),
    }
    username = forms.CharField(label=_("Name"), max_length=150, error_messages={"required": _("Enter your name.")})
    password = forms.CharField(
        label=_("Password"), strip=False, widget=forms.PasswordInput, error_messages={"required": _("Enter your password.")}
    )
