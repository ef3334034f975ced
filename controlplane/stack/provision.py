"""Brings a database to the present schema and writes a fleet's desired state: one process, so that Django is loaded once.

`python -m controlplane.stack.provision FLEET`: migrations as `owner`, the fleet as `app`. The last line it prints is what
`seed_fleet` printed: a JSON object with `admin_created` and `to_be_served`.
"""

from __future__ import annotations

import os
import sys

import django
from django.core.management import call_command


def main(fleet: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    call_command("migrate", database="owner", interactive=False, verbosity=1, stdout=sys.stderr)
    call_command("seed_fleet", fleet=fleet)


if __name__ == "__main__":
    main(sys.argv[1])
