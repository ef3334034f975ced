"""`manage.py compile-router` builds a router that serves, and one of other source is never used."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import httpx
import pytest

from controlplane.core.names import ENV_ROUTER_BUILDS
from controlplane.router import compiled
from controlplane.stack import compile_router
from controlplane.stack.errors import StackError
from tests.integration.router_kit import TEXT, fakes, whole_model, write_table
from tests.integration.router_process import router_process


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


@pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="needs a C compiler")
@pytest.mark.timeout(900)
async def test_a_compiled_router_serves_until_its_source_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENV_ROUTER_BUILDS, str(tmp_path / "builds"))
    assert await asyncio.to_thread(compile_router.run, ["--level", "0"]) == 0
    assert compile_router.run([]) == 0
    assert "up to date" in capsys.readouterr().out
    build = compiled.current()
    assert [each for each in compiled.builds().iterdir() if each.is_dir()] == [build]

    page = await served(tmp_path)
    assert 'twinpool_router_processes{code="compiled"} 1' in page
    page = await served(tmp_path, compiled.INTERPRETED)
    assert 'twinpool_router_processes{code="interpreted"} 1' in page

    build.rename(build.with_name("0" * len(build.name)))
    page = await served(tmp_path, "--processes", "2")
    assert 'code="interpreted"' in page
    assert 'code="compiled"' not in page
    assert (tmp_path / "router.log").read_text().count("running interpreted") == 1


def test_without_a_compiler_the_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_ROUTER_BUILDS, str(tmp_path / "builds"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match="no C compiler"):
        compile_router.run([])
    assert not (tmp_path / "builds").exists()
