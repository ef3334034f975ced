"""`manage.py compile-router` builds a router that serves; one of other source is never used."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from controlplane.core.names import ENV_ROUTER_BUILDS
from controlplane.router import compiled
from controlplane.stack import compile_router
from controlplane.stack.errors import StackError
from tests.integration.router_kit import TEXT, fakes, whole_model, write_table
from tests.integration.router_process import router_process

needs_compiler = pytest.mark.skipif(compile_router.missing() is not None, reason=str(compile_router.missing()))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of this source: that of the checkout if it has one, else one that is made here."""
    made = compiled.ROOT / ".compiled" / compiled.current().name
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_ROUTER_BUILDS, str(tmp_path_factory.mktemp("builds")))
        if compiled.files(made):
            shutil.copytree(made, compiled.current())
        else:
            assert compile_router.run(["--level", "0"]) == 0
        yield compiled.current()


async def served(folder: Path, *options: str) -> str:
    """The /metrics page of a new router that has answered a request."""
    async with fakes("e1") as (engine,):
        table = folder / "table.json"
        write_table(table, [whole_model(engine)])

        def ask() -> str:
            with router_process(folder, "", "--table", str(table), *options) as router:
                assert router.post(TEXT).status_code == 200
                page = httpx.get(router.url + "/metrics", trust_env=False).text
                assert router.stop() == 0
                return page

        return await asyncio.to_thread(ask)


@needs_compiler
@pytest.mark.timeout(900)
async def test_a_build_is_made_once_and_used_unless_that_is_refused(
    build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compile_router.run([]) == 0
    assert "up to date" in capsys.readouterr().out
    assert [each for each in compiled.builds().iterdir() if each.is_dir()] == [build]
    assert 'twinpool_router_processes{code="compiled"} 1' in await served(tmp_path)
    assert 'twinpool_router_processes{code="interpreted"} 1' in await served(tmp_path, compiled.INTERPRETED)


@needs_compiler
@pytest.mark.timeout(900)
def test_a_build_of_other_source_is_left_alone_and_that_is_said_once(build: Path, tmp_path: Path) -> None:
    other = build.rename(build.with_name("0" * len(build.name)))
    try:
        page = asyncio.run(served(tmp_path, "--processes", "2"))
    finally:
        other.rename(build)
    assert 'code="interpreted"' in page
    assert 'code="compiled"' not in page
    assert (tmp_path / "router.log").read_text().count("running interpreted") == 1


def test_without_a_compiler_the_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_ROUTER_BUILDS, str(tmp_path / "builds"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match=r"no C compiler.*Routers run interpreted"):
        compile_router.run([])
    assert not (tmp_path / "builds").exists()
