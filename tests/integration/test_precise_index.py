"""The precise index: real engines publish, a real indexer listens, real routers ask it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.indexer_kit import PATIENT, Fleet, fleet
from tests.integration.router_kit import route_of
from tests.integration.router_process import RouterProcess
from tests.simulated_engines import MODEL


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("precise")) as made:
        yield made


def text(topic: str, words: int = 500) -> str:
    return " ".join(f"{topic}{number}" for number in range(words))


def body(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 2, **fields}


def chat(*contents: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content} for content in contents]
    return {"model": MODEL, "messages": messages, "max_tokens": 2, **fields}


def chosen(router: RouterProcess, request: dict[str, Any]) -> str:
    path = "/v1/chat/completions" if "messages" in request else "/v1/completions"
    answer = router.post(request, path)
    assert answer.status_code == 200, answer.text
    return route_of(answer)["decode"]


def counted(router: RouterProcess) -> dict[str, float]:
    import httpx

    page = httpx.get(router.url + "/metrics", trust_env=False).text
    lines = [line for line in page.splitlines() if line.startswith("twinpool_router_indexer_total")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


def test_a_prompt_goes_where_it_was_served_behind_the_routers_back(three: Fleet, tmp_path: Path) -> None:
    requests = [
        body(text("plain")),
        body(list(range(3000, 4500))),
        body(text("salted"), cache_salt="s"),
        chat(text("chat"), text("more")),
        chat(text("template"), add_generation_prompt=False),
    ]
    with three.router(tmp_path, *PATIENT) as router:
        for round in range(2):
            for number, request in enumerate(requests):
                name = sorted(three.engines)[(number + round) % 3]
                own = {**request, "cache_salt": f"{request.get('cache_salt', '')}{round}"}
                three.serve(name, own, "/v1/chat/completions" if "messages" in own else "/v1/completions")
                assert chosen(router, own) == name
        counts = counted(router)
        assert (counts["answered"], counts["right"]) == (10, 10)
        assert not any(counts[each] for each in ("unknown", "late", "away", "wrong"))
