"""Forms of the console."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth import authenticate
from django.contrib.auth.forms import AuthenticationForm, SetPasswordForm
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from controlplane.access.scopes import READ, SCOPES
from controlplane.core.joining import TOKEN_HOURS


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


class OwnPasswordForm(SetPasswordForm):  # type: ignore[type-arg]
    """The old password and a new one, twice. Wrong old ones count as wrong passwords at the door do."""

    error_messages = {"password_mismatch": _("The two new passwords are not the same.")}
    old_password = forms.CharField(label=_("Present password"), strip=False, widget=forms.PasswordInput)

    def __init__(self, user: User, *args: Any, request: HttpRequest | None = None, **kwargs: Any) -> None:
        super().__init__(user, *args, **kwargs)
        self.request = request

    def clean_old_password(self) -> str:
        old: str = self.cleaned_data["old_password"]
        if authenticate(self.request, username=self.user.get_username(), password=old) is None:
            raise forms.ValidationError(_("The present password is another one."))
        return old


class TokenForm(forms.Form):
    """A token of one's own."""

    name = forms.CharField(label=_("What it is called"), max_length=63)
    days = forms.IntegerField(label=_("Days until it expires"), min_value=1, max_value=3650, initial=90)
    scopes = forms.MultipleChoiceField(label=_("May be used to"), choices=[(each, each) for each in SCOPES], initial=[READ])


class KeyForm(forms.Form):
    """An inference key. Limits that are left out are none."""

    name = forms.CharField(label=_("What it is called"), max_length=63)
    team = forms.CharField(label=_("Team"), max_length=63)
    models = forms.CharField(label=_("Models"), max_length=2000, required=False)
    requests_per_minute = forms.IntegerField(label=_("Requests per minute"), required=False)
    tokens_per_minute = forms.IntegerField(label=_("Tokens per minute"), required=False)
    days = forms.IntegerField(label=_("Days until it expires"), required=False, initial=365)
    reason = forms.CharField(label=_("Reason"), max_length=500, required=False)


class JoinTokenForm(forms.Form):
    """What a machine joins with."""

    node = forms.CharField(label=_("Node"), max_length=63)
    hours = forms.FloatField(label=_("Hours until it expires"), initial=TOKEN_HOURS)
    address = forms.CharField(label=_("How the node reaches Valkey (HOST:PORT)"), max_length=255, required=False)
    reason = forms.CharField(label=_("Reason"), max_length=500, required=False)


class GrantForm(forms.Form):
    """A model for a user. `until` is sent by who gives again what was taken back."""

    model = forms.CharField(label=_("Model"), max_length=128, widget=forms.TextInput({"list": "model-names"}))
    user = forms.CharField(label=_("User"), max_length=150, widget=forms.TextInput({"list": "user-names"}))
    days = forms.IntegerField(label=_("Days, or empty: until it is taken back"), min_value=1, max_value=3650, required=False)
    until = forms.DateTimeField(required=False)
    reason = forms.CharField(label=_("Reason"), max_length=500)
