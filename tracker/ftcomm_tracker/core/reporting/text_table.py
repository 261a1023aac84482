"""Tables: of texts that name facts in braces, as `explain` and `doctor` say them; of cells.  Pure.

Of each kind a line ``kind: what is said``, or ``kind! what is said`` of what nothing waits for;
below it lines of evidence, and after ``>`` what to do.  A line that names an unknown fact is left
out.  A line ``* rows: text`` is said of each row of that list.  Of what to do the first line that
is left is said.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

Facts = Mapping[str, Any]
MAX_ROWS = 8  # of a list that are said one by one


@dataclass(frozen=True, slots=True)
class TextRow:
    """The texts of one kind."""

    waiting: bool
    what: str
    evidence: tuple[str, ...]
    todo: tuple[str, ...]

    def said(self, facts: Facts) -> tuple[str, tuple[str, ...], str]:
        """A statement, its evidence, and the remedy."""
        evidence = tuple(_known(self.evidence, facts))
        return self.what.format(**facts), evidence, next(_known(self.todo, facts), "")


def texts_by_kind(table: str) -> dict[str, TextRow]:
    """The texts by kind."""
    texts = {}
    for block in re.split(r"\n(?=\w)", table.strip()):
        head, *lines = block.splitlines()
        kind, mark, what = re.split(r"([:!]) ", head, maxsplit=1)
        todo = tuple(line[4:] for line in lines if line.startswith("  > "))
        evidence = tuple(line[2:] for line in lines if not line.startswith("  > "))
        texts[kind] = TextRow(mark == ":", what, evidence, todo)
    return texts


def _known(lines: tuple[str, ...], facts: Facts) -> Iterator[str]:
    for line in lines:
        template, rows = line, [facts]
        if line.startswith("* "):
            name, _, template = line[2:].partition(": ")
            rows = facts[name][:MAX_ROWS]
        names = [field for _, field, _, _ in Formatter().parse(template) if field]
        for row in rows:
            if all(row.get(name) is not None for name in names):
                yield template.format(**row)


def aligned(rows: Sequence[Sequence[object]]) -> str:
    """Lines of which each column is as wide as its widest cell."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
