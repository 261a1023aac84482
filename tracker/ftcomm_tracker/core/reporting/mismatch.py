"""The words of a mismatch: a pure function from what the ranks have called to what differs.

The first position at which two ranks have called different things is where the script went wrong,
whoever noticed it, and wherever the ranks stand by now.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ftcomm.protocol.messages import Calls, Leaf, Leaves
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.protocol.signature import (
    Kind,
    agree,
    differing_fields,
    function_of_site,
    is_open,
    signature_text,
)
from ftcomm_tracker.core.mismatch_inquiry import Evidence, Side

_LOAD = bytes([Kind.LOAD])  # what a signature of load_checkpoint() begins with
MOST_GROUPS = 3  # of ranks that called the same; a text that names more is read by nobody
MOST_RANKS = 8  # that are named one by one
USUAL_CAUSE = "the usual cause is a variable that is not in the checkpoint: add it to the state"


@dataclass(frozen=True, slots=True)
class Explained:
    """The fatal decision's words, and where and on which rank the calls first differ."""

    cause: str
    position: Position
    rank: int


def explain(
    evidence: Evidence,
    calls: Mapping[int, Calls],
    leaves: Mapping[int, Leaves],
    restarted: Mapping[int, str],
) -> Explained:
    """Say what differs.

    Args:
        evidence: the report that this began with.
        calls: the answers, by rank; some may be missing.
        leaves: the parts of the ranks' states, where these differ; some may be missing.
        restarted: ranks whose process is not the first one, with the worker's name.
    """
    if evidence.version > PRELUDE:
        return _states(evidence, calls, leaves, restarted)
    known = _known(evidence, calls, restarted)
    position = _first_difference(known) or min(side.position for side in evidence.sides)
    sides = [side for side in known if side.position == position and side.signature]
    groups = _grouped(sides)
    if len(groups) < 2:
        return _unknown(evidence, calls, restarted)
    odd = min(groups[1:], key=len)[0].rank
    parts = [f"ranks disagree about collective {position}: {_called(groups)}"]
    parts += _differences(groups)
    parts += _ahead(position, calls)
    named = {side.rank for side in sides}
    parts += _hints(named, position.version, calls, restarted)
    return Explained("; ".join(parts), position, odd)


# --- the calls ----------------------------------------------------------------------------------


def _known(
    evidence: Evidence, calls: Mapping[int, Calls], restarted: Mapping[int, str]
) -> list[Side]:
    """Every call that is known: the ranks' own words, and what the report says of the others.

    A restarted rank may leave out the rest of its prelude: where others have loaded, its load is
    not compared with what they called there.
    """
    others_have_loaded = any(said.position.past_load for said in calls.values())
    known = [
        Side(rank, made.position, made.signature, made.site)
        for rank, said in sorted(calls.items())
        for made in said.calls
        if not (others_have_loaded and rank in restarted and made.signature[:1] == _LOAD)
    ]
    heard = {(side.rank, side.position) for side in known if side.signature}
    known += [s for s in evidence.sides if s.log or (s.rank, s.position) not in heard]
    return known


def _first_difference(known: Iterable[Side]) -> Position | None:
    sides: dict[Position, list[Side]] = {}
    for side in known:
        if side.signature:
            sides.setdefault(side.position, []).append(side)
    return min((p for p, found in sides.items() if len(_grouped(found)) > 1), default=None)


def _grouped(sides: Iterable[Side]) -> list[list[Side]]:
    """Those that called the same together, the largest group first."""
    groups: dict[bytes, list[Side]] = {}
    # Last those that were given a broadcast's dtype and shape: they agree with any that had one.
    for side in sorted(sides, key=lambda s: (is_open(s.signature), s.log, s.rank)):
        alike = (known for known in groups if agree(side.signature, known))
        groups.setdefault(next(alike, side.signature), []).append(side)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0].rank))


def _called(groups: Sequence[Sequence[Side]]) -> str:
    shown = sorted(groups[:MOST_GROUPS], key=lambda group: min(side.rank for side in group))
    text = " but ".join(_group_text(group) for group in shown)
    others = sum(len(group) for group in groups[MOST_GROUPS:])
    return f"{text}, and {others} more called something else" if others else text


def _group_text(group: Sequence[Side]) -> str:
    first = group[0]
    ranks = sorted(side.rank for side in group if not side.log)
    who = [_ranks_text(ranks)] if ranks else []
    who += [f"the earlier process of rank {side.rank}" for side in group if side.log]
    where = "" if first.log else f" at {first.site or 'an unknown line'}"
    return f"{' and '.join(who)} called {signature_text(first.signature)}{where}"


def _differences(groups: Sequence[Sequence[Side]]) -> list[str]:
    """Of two calls of one kind: in what they differ."""
    if len(groups) != 2:
        return []
    one, other = sorted(groups, key=lambda group: group[0].rank)
    sites = (_labelled_site(one), _labelled_site(other))
    fields = differing_fields(one[0].signature, other[0].signature, sites)
    return [f"they differ in {fields}"] if fields else []


def _labelled_site(group: Sequence[Side]) -> str:
    """The site of the first of these that names its function, else of the first."""
    return next((side.site for side in group if function_of_site(side.site)), group[0].site)


def _ahead(position: Position, calls: Mapping[int, Calls]) -> list[str]:
    """Describe the ranks that have made more calls since than others, and their current calls."""
    later = {
        rank: [made for made in said.calls if made.position > position]
        for rank, said in calls.items()
    }
    fewest = min(map(len, later.values()), default=0)
    texts = []
    for rank, made in sorted(later.items()):
        count = len(made) - fewest
        if count:
            many = "1 call" if count == 1 else f"{count} calls"
            now = f"in {signature_text(made[-1].signature)} at {made[-1].site}"
            texts.append(f"rank {rank} is {many} ahead, {now}")
    return texts[:MOST_GROUPS]


def _unknown(
    evidence: Evidence, calls: Mapping[int, Calls], restarted: Mapping[int, str]
) -> Explained:
    """No position is known at which two ranks differ: say where each of them was seen."""
    sides = sorted(evidence.sides, key=lambda side: (side.log, side.position, side.rank))
    text = " but ".join(f"{_group_text([side])} as collective {side.position}" for side in sides)
    position = sides[0].position
    parts = [f"ranks disagree: {text}"]
    parts += _hints({side.rank for side in sides}, position.version, calls, restarted)
    return Explained("; ".join(parts), position, sides[-1].rank)


# --- restarts -----------------------------------------------------------------------------------


def _hints(
    ranks: Iterable[int], version: int, calls: Mapping[int, Calls], restarted: Mapping[int, str]
) -> list[str]:
    """Describe the restarted ranks; a restart after the last checkpoint is the usual cause."""
    texts, recent = [], False
    for rank in sorted(set(ranks) & restarted.keys())[:MOST_GROUPS]:
        loaded = calls[rank].loaded if rank in calls else PRELUDE
        since = f" from checkpoint {loaded}" if loaded > PRELUDE else ""
        texts.append(f"rank {rank} (worker {restarted[rank]}) was restarted{since}")
        recent |= loaded in (PRELUDE, version)
    return [f"{', '.join(texts)}: {USUAL_CAUSE}"] if recent else texts


# --- the states ---------------------------------------------------------------------------------


def _states(
    evidence: Evidence,
    calls: Mapping[int, Calls],
    leaves: Mapping[int, Leaves],
    restarted: Mapping[int, str],
) -> Explained:
    sides = [side for side in evidence.sides if side.rank in calls] or list(evidence.sides)
    usual, odd = _unequal(evidence, calls, restarted)
    site = next((side.site for side in sides if side.site), "") or "an unknown line"
    parts = [f"ranks disagree about collective {evidence.position}"]
    parts[0] += f": {_ranks_text(usual)} and {_ranks_text(odd)} passed different states to"
    parts[0] += f" checkpoint() at {site}"
    one = next((leaves[rank].leaves for rank in usual if rank in leaves), None)
    other = next((leaves[rank].leaves for rank in odd if rank in leaves), None)
    if one is not None and other is not None:
        parts.append(_where(one, other, _ranks_text(usual), _ranks_text(odd)))
    parts += _hints([*usual, *odd], evidence.position.version, calls, restarted)
    return Explained("; ".join(parts), evidence.position, odd[0])


def _unequal(
    evidence: Evidence, calls: Mapping[int, Calls], restarted: Mapping[int, str]
) -> tuple[list[int], list[int]]:
    """The ranks of the state that most have, and those of another one."""
    groups: dict[bytes, list[int]] = {}
    for rank, said in sorted(calls.items()):
        if said.digest:
            groups.setdefault(said.digest, []).append(rank)
    if len(groups) < 2:
        ranks = [side.rank for side in evidence.sides]
        return ranks[:1], ranks[1:2]

    def unusual(ranks: list[int]) -> tuple[int, bool, int]:
        return -len(ranks), not restarted.keys().isdisjoint(ranks), ranks[0]

    usual, odd, *_ = sorted(groups.values(), key=unusual)
    return usual, odd


def _where(one: Sequence[Leaf], other: Sequence[Leaf], usual: str, odd: str) -> str:
    """In which part two states differ, and how."""
    ours, theirs = ({leaf.path: leaf for leaf in leaves} for leaves in (one, other))
    unlike = [path for path in ours if path in theirs and ours[path] != theirs[path]]
    if not unlike:
        return "they have the same parts"
    inner = [p for p in unlike if not any(q != p and q.startswith(f"{p}[") for q in unlike)]
    path = inner[0]
    text = _how(path, ours, theirs, usual, odd)
    return f"{text}; {len(inner) - 1} more parts differ" if len(inner) > 1 else text


def _how(
    path: str, ours: Mapping[str, Leaf], theirs: Mapping[str, Leaf], usual: str, odd: str
) -> str:
    mine, other = ours[path], theirs[path]
    if mine.what != other.what:
        return f"{path} is {mine.what} on {usual} and {other.what} on {odd}"
    for leaves, rest, holder, lacks in (
        (ours, theirs, usual, odd),
        (theirs, ours, odd, usual),
    ):
        missing = [p for p in leaves if p.startswith(f"{path}[") and p not in rest]
        if missing:
            return f"{missing[0]} exists on {holder} and is missing on {lacks}"
    if any(p.startswith(f"{path}[") for p in ours):
        return f"the keys of {path} come in another order on {odd} than on {usual}"
    return f"{path} ({mine.what}) has other values on {odd} than on {usual}"


# --- ranks --------------------------------------------------------------------------------------


def _ranks_text(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    names = ", ".join(map(str, ranks[:MOST_RANKS]))
    more = f" and {len(ranks) - MOST_RANKS} more" if len(ranks) > MOST_RANKS else ""
    return f"ranks {names}{more}"
