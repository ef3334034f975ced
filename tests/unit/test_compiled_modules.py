"""What the compiler cannot do right is not in what it compiles."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from controlplane.router import compiled


def waits_in_handlers(tree: ast.AST) -> Iterator[int]:
    """Lines that wait while an exception is being handled: compiled coroutines leave it to whoever runs meanwhile."""
    for attempt in ast.walk(tree):
        if isinstance(attempt, ast.Try):
            statements = [*(each for handler in attempt.handlers for each in handler.body), *attempt.finalbody]
            for node in (node for each in statements for node in ast.walk(each)):
                if isinstance(node, ast.Await | ast.AsyncWith | ast.AsyncFor):
                    yield node.lineno


@pytest.mark.parametrize("module", compiled.MODULES)
def test_no_compiled_coroutine_waits_while_it_handles_an_exception(module: str) -> None:
    source = compiled.ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text()
    assert list(waits_in_handlers(ast.parse(source))) == []
