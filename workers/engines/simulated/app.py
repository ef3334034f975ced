"""The HTTP surface of a simulated engine: vLLM's routes on the engine, and what happens while it shuts down."""

from __future__ import annotations

import hmac
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import orjson

from workers.engines.simulated import api, tokenizer
from workers.engines.simulated.admin import FAULTS_PATH, Admin, Route
from workers.engines.simulated.answers import Answer, StreamedAnswer, WholeAnswer
from workers.engines.simulated.api import ApiError, EngineAsserts
from workers.engines.simulated.engine import Engine
from workers.engines.simulated.gang import Leader
from workers.engines.simulated.generation import Generation
from workers.engines.simulated.http import Connection, Exchange
from workers.engines.simulated.settings import VERSION

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class App:
    """`key` is the bearer token that everything under /v1 asks for; empty means none, as in vLLM. What `admin` does is never
    open without a key."""

    def __init__(self, engine: Engine, key: str, started: int, admin: Admin, gang: Leader | None = None) -> None:
        self._engine, self._admin, self._gang = engine, admin, gang
        self._key = f"Bearer {key}".encode() if key else b""
        self._started = started
        self._number = 0
        self.load = 0
        """Requests being answered."""
        self.closing = False
        """Shutting down: what runs may finish, nothing new begins."""
        settings = engine.settings
        self._hasher = settings.hasher()
        self._offered = api.Offered(settings.model, settings.max_model_len, settings.handoff)
        self._routes: Mapping[str, Mapping[str, Route]] = {
            "/health": {"GET": lambda exchange: exchange.answer(503 if self._incomplete() else 200, b"")},
            "/version": {"GET": lambda exchange: _json(exchange, {"version": VERSION})},
            "/load": {"GET": lambda exchange: _json(exchange, {"server_load": self.load})},
            "/metrics": {"GET": lambda exchange: exchange.answer(200, admin.metrics(), METRICS_TYPE)},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/models": {"GET": self._models},
            "/v1/completions": {"POST": lambda exchange: self._generate(exchange, chat=False)},
            "/v1/chat/completions": {"POST": lambda exchange: self._generate(exchange, chat=True)},
            **admin.routes,
        }

    def connection(self) -> Connection:
        """The protocol of a new client connection."""
        return Connection(self._handle)

    def _handle(self, exchange: Exchange) -> None:
        if self._engine.faults.any and exchange.path != FAULTS_PATH and self._struck(exchange):
            return
        of_admin = exchange.path in self._admin.routes
        if (of_admin or exchange.path.startswith("/v1")) and not self._authorised(exchange):
            exchange.answer(401, b'{"error":"Unauthorized"}')
            return
        if of_admin and not self._key:
            exchange.answer(403, api.error_body(403, "this engine was started without a key, so nobody may ask this of it"))
            return
        methods = self._routes.get(exchange.path)
        if methods is None:
            exchange.answer(404, b'{"detail":"Not Found"}')
        elif exchange.method not in methods:
            exchange.answer(405, b'{"detail":"Method Not Allowed"}')
        else:
            try:
                methods[exchange.method](exchange)
            except ApiError as error:
                exchange.answer(error.status, error.body())
            except EngineAsserts as assertion:
                # vLLM's engine core dies of this and takes its server along, at once and with all that runs.
                sys.stderr.write(f"AssertionError: {assertion}\n")
                sys.stderr.flush()
                os._exit(1)
            except Exception:  # noqa: BLE001  # as any web server: one request nobody foresaw must not end the others
                traceback.print_exc()
                exchange.answer(500, api.error_body(500, "Internal server error"))

    def _struck(self, exchange: Exchange) -> bool:
        """Whether a fault answers instead, or leaves the client without an answer."""
        strike, now = self._engine.faults.strike, self._engine.now()
        if strike("refuse", now) is not None:
            exchange.cut()
            return True
        status = strike("status", now) if exchange.path.startswith("/v1") else None
        if status:
            exchange.answer(status["code"], api.error_body(status["code"], "a fault that was asked for"))
        return status is not None

    def _authorised(self, exchange: Exchange) -> bool:
        given = exchange.headers.get("authorization", "").encode("utf-8", "replace")
        return not self._key or hmac.compare_digest(given, self._key)

    # --- what it tells ----------------------------------------------------------------------------------------------------

    def _models(self, exchange: Exchange) -> None:
        offered = self._offered
        model = {
            "id": offered.model,
            "object": "model",
            "created": self._started,
            "owned_by": "twinpool",
            "root": offered.model,
            "parent": None,
            "max_model_len": offered.max_model_len,
        }
        _json(exchange, {"object": "list", "data": [model]})

    def _tokenize(self, exchange: Exchange) -> None:
        body = api.read_body(exchange.body)
        api.check_model(body, self._offered)
        if "messages" in body:
            tokens = api.chat_tokens(body, api.read_messages(body))
        else:
            tokens = list(api.prompt_tokens(body.get("prompt")))
        document = {"count": len(tokens), "max_model_len": self._offered.max_model_len, "tokens": tokens}
        _json(exchange, {**document, "token_strs": None})

    def _detokenize(self, exchange: Exchange) -> None:
        body = api.read_body(exchange.body)
        api.check_model(body, self._offered)
        _json(exchange, {"prompt": tokenizer.decode(api.prompt_tokens(body.get("tokens")))})

    # --- generation -------------------------------------------------------------------------------------------------------

    def _incomplete(self) -> str:
        """Which ranks of this engine are still missing."""
        return self._gang.missing() if self._gang else ""

    def _generate(self, exchange: Exchange, chat: bool) -> None:
        if missing := self._incomplete():
            raise ApiError(503, missing)
        if self.closing:
            raise ApiError(500, "the engine is shutting down")
        ask = api.read_ask(exchange.body, chat, self._offered)
        name = f"{'chatcmpl' if chat else 'cmpl'}-{os.urandom(16).hex()}"
        kind: type[Answer] = StreamedAnswer if ask.stream else WholeAnswer
        self.load += 1
        answer = kind(exchange, ask, name, self._offered.model, self._over)
        answer.generations = [
            self._generation(answer, index, ask.prompts[index // ask.n]) for index in range(len(ask.prompts) * ask.n)
        ]
        exchange.on_disconnect = lambda: self._over(answer)
        for generation in answer.generations:
            self._engine.submit(generation)

    def _generation(self, answer: Answer, index: int, prompt: Any) -> Generation:
        self._number += 1
        ask = answer.ask
        return Generation(
            self._number,
            f"{answer.name}-{index}",
            prompt,
            ask.sampling,
            answer,
            index=index,
            block_size=self._engine.settings.limits.block_size,
            salt=ask.salt,
            hold=ask.hold,
            remote=ask.remote,
            hasher=self._hasher,
        )

    def _over(self, answer: Answer) -> None:
        """Answered, failed or abandoned: whatever of it still runs is for nobody."""
        self.load -= 1
        self._engine.abort(answer.generations)


def _json(exchange: Exchange, document: Mapping[str, Any]) -> None:
    exchange.answer(200, orjson.dumps(document))
