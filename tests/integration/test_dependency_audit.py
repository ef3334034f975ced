"""`.ci/audit` with the real pip-audit, and an advisory service on this machine that knows what it is told to know."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from controlplane.stack.services import ROOT

LOCKED = dict(re.findall(r"^([a-z0-9-]+)==(\S+) ", (ROOT / "requirements.lock").read_text(), re.MULTILINE))


@contextmanager
def advisories(weak: str) -> Iterator[str]:
    """Answers as OSV does; one package has a vulnerability that the next version has not."""

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            known = [ADVISORY | {"affected": [affected(weak)]}] if asked["package"]["name"] == weak else []
            answer = json.dumps({"vulns": known} if known else {}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


ADVISORY = {"id": "TWP-2026-1", "summary": "made for a test", "published": "2026-01-01T00:00:00Z"}


def affected(name: str) -> dict[str, object]:
    events = [{"introduced": "0"}, {"fixed": "9999.0"}]
    return {"package": {"ecosystem": "PyPI", "name": name}, "ranges": [{"type": "ECOSYSTEM", "events": events}]}


def audited(url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / ".ci" / "audit", "--vulnerability-service", "osv", "--osv-url", url]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)


def test_a_weak_dependency_of_the_lock_file_fails_and_its_remedy_is_named() -> None:
    with advisories("django") as url:
        found = audited(url)
    assert found.returncode == 1, found.stdout + found.stderr
    assert f"django {LOCKED['django']}: TWP-2026-1, fixed in 9999.0" in found.stdout
    told = re.search(r"(\d+) of (\d+) dependencies audited, 1 known", found.stdout)
    assert told and int(told[1]) > 0.9 * len(LOCKED), found.stdout


def test_a_lock_file_that_nothing_is_known_of_passes() -> None:
    with advisories("no-such-package") as url:
        found = audited(url)
    assert found.returncode == 0 and "0 known vulnerabilities" in found.stdout, found.stdout + found.stderr


def test_a_service_that_is_away_is_said_and_passes() -> None:
    found = audited("http://127.0.0.1:1")
    assert found.returncode == 0 and "not audited" in found.stdout, found.stdout + found.stderr
