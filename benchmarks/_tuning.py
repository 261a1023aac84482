"""From figures to a table of algorithms; nothing here measures."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from _report import table

from ftcomm.config.algorithm_table import AlgorithmTable, Row, SizeRule

Figures = Sequence[tuple[int, Mapping[str, float]]]  # bytes, and microseconds by algorithm


def rules_from(figures: Figures, margin: float) -> tuple[SizeRule, ...]:
    """The rules of one row: from each size on what was fastest there.

    Args:
        figures: ascending by bytes, at least one; the algorithm to begin with comes first.
        margin: by which part of its time another algorithm must be faster than the one that is
            used so far; less is noise, and a rule more.
    """
    rules = [SizeRule(0, next(iter(figures[0][1])))]
    for number, (nbytes, times) in enumerate(figures):
        best = min(times, key=lambda name: (times[name], name))
        if times[best] < times[rules[-1].use] * (1 - margin):
            rules.append(SizeRule(nbytes, best))
            if number == 0:  # the smallest arrays that were measured stand for all below
                rules = [SizeRule(0, best)]
    return tuple(rules)


def with_row(
    known: AlgorithmTable, kind: str, ranks: int, rules: tuple[SizeRule, ...]
) -> AlgorithmTable:
    """The known table with other rules for groups of `ranks`; the other rows stay."""
    others = [row for row in getattr(known, kind) if row.up_to_ranks != ranks]
    rows = sorted([*others, Row(ranks, rules)], key=lambda row: row.up_to_ranks)
    return replace(known, **{kind: tuple(rows)})


def report(kind: str, ranks: int, figures: Figures) -> str:
    """The figures as a table for people."""
    names = list(figures[0][1])
    rows = [
        [f"{nbytes:,}", *(f"{times[name]:,.0f}" for name in names)] for nbytes, times in figures
    ]
    return f"{kind}, {ranks} ranks, microseconds\n\n{table(['bytes', *names], rows)}"
