"""What processes do without their secret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from controlplane.core import names

ROOT = Path(__file__).parents[2]
SHOW_KEY = "import django; django.setup(); from django.conf import settings; print(settings.SECRET_KEY)"


def run(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {names.ENV_STATE: str(state), "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )


def test_the_web_process_does_not_start_without_the_secret_that_signs_sessions(tmp_path: Path) -> None:
    refused = run(tmp_path, "-c", "import controlplane.asgi")
    assert refused.returncode != 0
    assert f"no secret to sign sessions with in {tmp_path}" in refused.stderr
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "django.key").write_text("x" * 50)
    assert run(tmp_path, "-c", "import controlplane.asgi").returncode == 0


def test_a_command_without_the_secret_uses_one_that_nobody_knows(tmp_path: Path) -> None:
    first, second = (run(tmp_path, "-c", SHOW_KEY) for _ in range(2))
    assert first.returncode == 0
    assert len(first.stdout) > 50 and first.stdout != second.stdout


def test_the_control_worker_does_not_start_without_the_fleets_secret(tmp_path: Path) -> None:
    refused = run(
        tmp_path, "-m", "celery", "-A", "controlplane.celery", "worker", "-Q", names.CONTROL_QUEUE, "-P", "threads"
    )
    assert refused.returncode == 1
    assert "cannot read the fleet secret" in refused.stderr
