"""A forecast as a table for the terminal. Texts come from forecastrows.py; those from outside lose control characters."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from controlplane.physics.forecastrows import Cell, Sheet

_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
LEAST_WIDTH = 80


def rendered(sheet: Sheet, width: int, color: bool) -> str:
    """The table and its notes as text of at most `width` columns, with ANSI colors if `color`. Intervals are left out where
    there is no room for them."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=max(LEAST_WIDTH, width),
        force_terminal=color,
        color_system="auto" if color else None,
        highlight=False,
    )

    def say(text: str, style: str = "") -> None:
        console.print(Text(printable(text), style=style if color else ""))

    say(sheet.title, "bold")
    table = _table(sheet, spreads=True)
    needed = console.measure(table, options=console.options.update(max_width=1000)).maximum
    console.print(table if needed <= console.width else _table(sheet, spreads=False))
    for line in sheet.verdict:
        say(line)
    if sheet.criterion:
        say(f"criterion: {sheet.criterion}", "dim")
    for remark in sheet.remarks:
        say(f"! {remark}", "yellow")
    for number, note in enumerate(sheet.footnotes, 1):
        say(f"{_mark(number)} {note}", "dim")
    return file.getvalue()


def printable(text: str) -> str:
    """`text` without characters that would move the cursor, colour the terminal or turn its direction."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _table(sheet: Sheet, spreads: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    for name, mode in zip(sheet.names, sheet.modes, strict=True):
        pools = printable(name.partition(":")[2]).replace("@", "\n@").replace("+", "\n+ ")
        table.add_column(Text(f"{mode}\n{pools}"), justify="right")
    for group in sheet.groups:
        table.add_row(Text(group.title, style="bold"))
        for row in group.rows:
            table.add_row(Text(f"  {row.label}"), *(_cell(cell, spreads) for cell in row.cells))
    return table


def _cell(cell: Cell, spreads: bool) -> Text:
    text = Text(f"{'▲ ' if cell.over else ''}{cell.text}", style="red" if cell.over else "")
    if cell.spread and spreads:
        text.append(f" {cell.spread}", style="dim")
    if cell.marks:
        text.append("˒".join(map(_mark, cell.marks)))
    return text


def _mark(number: int) -> str:
    return str(number).translate(_SUPERSCRIPT)
