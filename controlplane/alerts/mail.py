"""One message by e-mail, over the SMTP server of TWINPOOL_SMTP_URL."""

from __future__ import annotations

import smtplib
from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage, get_connection
from django.core.validators import validate_email

from controlplane.alerts.webhook import NotDelivered

MAX_ADDRESSES = 20
BACKEND = "django.core.mail.backends.smtp.EmailBackend"
NO_SERVER = "no SMTP server is set: give one in TWINPOOL_SMTP_URL (smtps://user:password@host) and restart"


def parse_addresses(text: str) -> list[str]:
    """Addresses separated by commas. Raises ValueError, which says what is wrong."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not 1 <= len(found) <= MAX_ADDRESSES:
        raise ValueError(f"give 1 to {MAX_ADDRESSES} e-mail addresses, separated by commas")
    for address in found:
        try:
            validate_email(address)
        except ValidationError:
            raise ValueError(f"{address!r:.80} is no e-mail address") from None
    return found


def send(addresses: Sequence[str], message_id: str, body: Mapping[str, Any]) -> None:
    """Raises NotDelivered. A repetition has the same Message-ID, by which mailboxes know it."""
    if not settings.EMAIL_HOST:
        raise NotDelivered(NO_SERVER)
    message = EmailMessage(
        subject=_subject(body),
        body=_text(body),
        to=list(addresses),
        headers={"Message-ID": f"<{message_id}@twinpool>", "Auto-Submitted": "auto-generated"},
        connection=get_connection(BACKEND),
    )
    try:
        message.send()
    except smtplib.SMTPResponseException as error:
        raise NotDelivered(f"the SMTP server answered {error.smtp_code}") from None
    except smtplib.SMTPRecipientsRefused as error:
        codes = sorted({code for code, _ in error.recipients.values()})
        raise NotDelivered(f"the SMTP server refused every address: {', '.join(map(str, codes))}", away=False) from None
    except (smtplib.SMTPException, OSError) as error:
        raise NotDelivered(f"the SMTP server does not take it: {type(error).__name__}") from None


def _subject(body: Mapping[str, Any]) -> str:
    words = " ".join(str(body["text"]).split())
    return f"[Twinpool] {words}"[:200]


def _text(body: Mapping[str, Any]) -> str:
    alert = body.get("alert")
    lines = [str(body["text"]), ""]
    if alert:
        times = [("Began", "began_at"), ("Fired", "fired_at"), ("Resolved", "resolved_at")]
        lines += [f"{name}: {alert[key]}" for name, key in times if alert[key]]
        lines += ["", f"What to do: {alert['remedy']}"] if body["event"] == "fired" else []
        lines += ["", str(body["url"])]
    return "\n".join(lines)
