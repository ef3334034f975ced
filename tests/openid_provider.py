"""A small OpenID provider, as a process of its own: discovery, keys, the code flow with PKCE, signed ID tokens.

`POST /next` with {"claims": {...}, "fault": "..."} says who signs in next and what is wrong with their token. Whoever comes
to /authorize is signed in at once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey

CLIENT, SECRET = "twinpool", "the-clients-secret"
OURS = ECKey.generate_key("P-256", {"kid": "1", "use": "sig", "alg": "ES256"})
STRANGERS = ECKey.generate_key("P-256", {"kid": "1", "use": "sig", "alg": "ES256"})
NEWER = ECKey.generate_key("P-256", {"kid": "2", "use": "sig", "alg": "ES256"})


class Provider(BaseHTTPRequestHandler):
    issuer = ""
    keys = [OURS]
    asked: dict[str, dict[str, str]] = {}
    then: dict[str, Any] = {"claims": {}, "fault": ""}

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/.well-known/openid-configuration":
            self._say(200, self._metadata())
        elif url.path == "/keys":
            self._say(200, KeySet(self.keys).as_dict(private=False))
        elif url.path == "/authorize":
            self._authorize(query)
        else:
            self._say(404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        if self.path == "/next":
            Provider.then = json.loads(body)
            Provider.keys = [OURS, NEWER] if self.then["fault"] == "new_key" else [OURS]
            self._say(200, {})
        elif self.path == "/token":
            self._token({name: values[0] for name, values in parse_qs(body).items()})
        else:
            self._say(404, {})

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256", "HS256", "none"],
        }

    def _authorize(self, query: dict[str, str]) -> None:
        good = query.get("client_id") == CLIENT and query.get("response_type") == "code"
        if not (good and query.get("code_challenge_method") == "S256" and query.get("state") and query.get("nonce")):
            self._say(400, {"error": "invalid_request"})
            return
        code = hashlib.sha256(f"{time.time_ns()}".encode()).hexdigest()
        self.asked[code] = query
        state = query["state"] if self.then["fault"] != "state" else "another"
        answer = (
            {"error": "access_denied", "state": state} if self.then["fault"] == "denied" else {"code": code, "state": state}
        )
        if self.then["fault"] == "mixed_up":
            answer["iss"] = "https://another.example"
        self.send_response(302)
        self.send_header("Location", f"{query['redirect_uri']}?{urlencode(answer)}")
        self.end_headers()

    def _token(self, form: dict[str, str]) -> None:
        query = self.asked.pop(form.get("code", ""), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest()).decode()
        wanted = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if (
            query is None
            or query["code_challenge"] != challenge.rstrip("=")
            or query["redirect_uri"] != form["redirect_uri"]
        ):
            self._say(400, {"error": "invalid_grant"})
        elif self.headers.get("Authorization") != f"Basic {wanted}":
            self._say(401, {"error": "invalid_client"})
        else:
            answer = {"access_token": "at", "token_type": "Bearer", "expires_in": 60}
            if self.then["fault"] != "no_token":
                answer["id_token"] = self._signed(query["nonce"])
            self._say(200, answer)

    def _signed(self, nonce: str) -> str:
        now, fault = int(time.time()), self.then["fault"]
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 60, "nonce": nonce, **self.then["claims"]}
        claims |= {
            "nonce": {"nonce": "another"},
            "audience": {"aud": "another"},
            "issuer": {"iss": "https://another.example"},
            "expired": {"iat": now - 7200, "exp": now - 3600},
            "several_audiences": {"aud": [CLIENT, "another"]},
        }.get(fault, {})
        if fault == "no_nonce":
            del claims["nonce"]
        if fault == "secrets_signature":
            return jwt.encode({"alg": "HS256", "kid": "1"}, claims, OctKey.import_key(SECRET * 3))
        if fault == "no_signature":
            parts = [{"alg": "none"}, claims]
            return ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts) + "."
        key = {"signature": STRANGERS, "new_key": NEWER}.get(fault, OURS)
        return jwt.encode({"alg": "ES256", "kid": key.kid}, claims, key)

    def _say(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    Provider.issuer = f"http://127.0.0.1:{server.server_port}"
    print(server.server_port, flush=True)
    sys.stdin.close()
    server.serve_forever()
