"""Shapes generated text into vLLM's OpenAI answers, whole or as server-sent events, and writes them to the client."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from workers.engines.simulated.api import Ask, error_body
from workers.engines.simulated.generation import Ending, Generation
from workers.engines.simulated.http import Exchange

FAILED = "Internal server error"


@dataclass
class _Choice:
    text: str
    generated: int = 0
    ending: Ending | None = None


class Answer:
    """Collects the sequences of one request; a generation.Sink. Subclasses write."""

    def __init__(self, exchange: Exchange, ask: Ask, name: str, model: str, done: Callable[[Answer], None]) -> None:
        self.exchange, self.ask, self.name, self.model = exchange, ask, name, model
        self.created = int(time.time())
        self.generations: list[Generation] = []
        """Set by whoever submits them, before the first token."""
        self._done = done
        self._left = len(ask.prompts) * ask.n
        self._choices = [_Choice(ask.echo) for _ in range(self._left)]

    def piece(self, index: int, text: str, generated: int) -> None:
        raise NotImplementedError

    def end(self, index: int, ending: Ending) -> None:
        self._choices[index].ending = ending
        self._left -= 1
        if self._left == 0:
            self._complete()
            self._done(self)

    def failed(self, index: int) -> None:
        """One sequence failed: the whole request does."""
        if self._left:
            self._left = 0
            self._fail()
            self._done(self)

    def _complete(self) -> None:
        raise NotImplementedError

    def _fail(self) -> None:
        raise NotImplementedError

    def _usage(self) -> dict[str, Any]:
        prompt = sum(map(len, self.ask.prompts))
        completion = sum(generation.request.generated for generation in self.generations)
        firsts = self.generations[:: self.ask.n]
        cached = sum(each.request.local_hit_tokens + each.request.external_tokens for each in firsts)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": cached} if cached else None,
        }


class WholeAnswer(Answer):
    """One JSON document when all sequences have ended."""

    def piece(self, index: int, text: str, generated: int) -> None:
        self._choices[index].text += text

    def _complete(self) -> None:
        first = self._choices[0].ending
        document = {
            "id": self.name,
            "object": "chat.completion" if self.ask.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(index, choice) for index, choice in enumerate(self._choices)],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": self._usage(),
            "kv_transfer_params": first.kv_transfer_params if first else None,
        }
        self.exchange.answer(200, orjson.dumps(document))

    def _choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        ending = choice.ending
        shaped: dict[str, Any] = {
            "index": index,
            "logprobs": None,
            "finish_reason": ending.reason if ending else None,
            "stop_reason": ending.stop_reason if ending else None,
        }
        if self.ask.chat:
            shaped["message"] = {"role": "assistant", "content": choice.text, "refusal": None, "tool_calls": []}
        else:
            shaped |= {"text": choice.text, "prompt_logprobs": None}
        return shaped

    def _fail(self) -> None:
        self.exchange.answer(500, error_body(500, FAILED))


class StreamedAnswer(Answer):
    """One event per token. What is equal in all events of a sequence is encoded once."""

    def __init__(self, exchange: Exchange, ask: Ask, name: str, model: str, done: Callable[[Answer], None]) -> None:
        super().__init__(exchange, ask, name, model, done)
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        head = orjson.dumps({"id": name, "object": kind, "created": self.created, "model": model})[:-1]
        self._head = b"data: " + head + b',"choices":['
        open_text = b',"delta":{"content":' if ask.chat else b',"text":'
        self._before = [self._head + b'{"index":%d' % index + open_text for index in range(self._left)]
        self._after = (b"}" if ask.chat else b"") + b',"logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
        exchange.stream()

    def piece(self, index: int, text: str, generated: int) -> None:
        choice = self._choices[index]
        event = self._before[index] + orjson.dumps(choice.text + text) + self._after
        choice.text = ""
        if choice.generated == 0 and self.ask.chat:
            event = self._role(index) + event
        choice.generated = generated
        self.exchange.send(event)

    def end(self, index: int, ending: Ending) -> None:
        delta = b"{}" if self.ask.chat else b'""'
        event = self._head + b'{"index":%d,"%b":%b' % (index, b"delta" if self.ask.chat else b"text", delta)
        event += b',"logprobs":null,"finish_reason":%b,"stop_reason":%b}]}\n\n' % (
            orjson.dumps(ending.reason),
            orjson.dumps(ending.stop_reason),
        )
        if self._choices[index].generated == 0 and self.ask.chat:
            event = self._role(index) + event
        self.exchange.send(event)
        super().end(index, ending)

    def _role(self, index: int) -> bytes:
        delta = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
        return self._head + delta % index

    def _complete(self) -> None:
        if self.ask.include_usage:
            self.exchange.send(self._head + b'],"usage":%b}\n\n' % orjson.dumps(self._usage()))
        self._close()

    def _fail(self) -> None:
        self.exchange.send(b"data: %b\n\n" % error_body(500, FAILED))
        self._close()

    def _close(self) -> None:
        self.exchange.send(b"data: [DONE]\n\n")
        self.exchange.finish()
