"""The words of a mismatch: a pure function from what the ranks have called to what differs.

The first position at which two ranks have called different things is where the script went wrong,
whoever noticed it, and wherever the ranks stand by now.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ftcomm.config.plurals import counted
from ftcomm.protocol.messages import Calls, Leaf, Leaves
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.protocol.signature import (
    USUAL_CAUSE,
    Kind,
    agree,
    differing_fields,
    function_of_site,
    is_open,
    signature_text,
)
from ftcomm_tracker.core.mismatch_inquiry import Evidence, Side
from ftcomm_tracker.core.reporting.incident_words import named

_LOAD = bytes([Kind.LOAD])  # what a signature of load_checkpoint() begins with
MOST_GROUPS = 3  # of ranks that called the same; a text that names more is read by nobody
MOST_RANKS = 8  # that are named one by one
OF_EACH_RANK = "what each rank has of its own is passed apart: checkpoint(state, local)"


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
    known = _Known(evidence, calls, leaves, restarted)
    return known.states() if evidence.version > PRELUDE else known.called()


@dataclass(frozen=True, slots=True)
class _Known:
    """All that is known, and what it says."""

    evidence: Evidence
    calls: Mapping[int, Calls]
    leaves: Mapping[int, Leaves]
    restarted: Mapping[int, str]

    def called(self) -> Explained:
        """The first calls that differ."""
        known = self._sides()
        position = _first_difference(known) or min(side.position for side in self.evidence.sides)
        sides = [side for side in known if side.position == position and side.signature]
        groups = _grouped(sides)
        if len(groups) < 2:
            return self._unknown()
        parts = [f"ranks disagree about collective {position}: {_called(groups)}"]
        parts += [*_differences(groups), *self._ahead(position)]
        parts += self._hints({side.rank for side in sides}, position.version)
        return Explained("; ".join(parts), position, min(groups[1:], key=len)[0].rank)

    def _sides(self) -> list[Side]:
        """Every call that is known: the ranks' own words, and what the report says of the others.

        A restarted rank may leave out the rest of its prelude: where others have loaded, its load
        is not compared with what they called there.
        """
        others_have_loaded = any(said.position.past_load for said in self.calls.values())
        known = [
            Side(rank, made.position, made.signature, made.site)
            for rank, said in sorted(self.calls.items())
            for made in said.calls
            if not (others_have_loaded and rank in self.restarted and made.signature[:1] == _LOAD)
        ]
        heard = {(side.rank, side.position) for side in known if side.signature}
        sides = self.evidence.sides
        return known + [s for s in sides if s.log or (s.rank, s.position) not in heard]

    def _unknown(self) -> Explained:
        """No position is known at which two ranks differ: say where each of them was seen."""
        sides = sorted(self.evidence.sides, key=lambda side: (side.log, side.position, side.rank))
        text = " but ".join(f"{_group_text([s])} as collective {s.position}" for s in sides)
        position = sides[0].position
        hints = self._hints({side.rank for side in sides}, position.version)
        cause = "; ".join([f"ranks disagree: {text}", *hints])
        return Explained(cause, position, sides[-1].rank)

    def _ahead(self, position: Position) -> list[str]:
        """Describe the ranks that have made more calls since than others, and their calls now."""
        later = {
            rank: [made for made in said.calls if made.position > position]
            for rank, said in sorted(self.calls.items())
        }
        fewest = min(map(len, later.values()), default=0)
        return [
            f"rank {rank} is {counted(len(made) - fewest, 'call')} ahead, in"
            f" {signature_text(made[-1].signature)} at {made[-1].site}"
            for rank, made in later.items()
            if len(made) > fewest
        ][:MOST_GROUPS]

    def _hints(self, ranks: Iterable[int], version: int) -> list[str]:
        """Describe restarted ranks; a restart after the last checkpoint is the usual cause."""
        texts, recent = [], False
        for rank in sorted(set(ranks) & self.restarted.keys())[:MOST_GROUPS]:
            loaded = self.calls[rank].loaded if rank in self.calls else PRELUDE
            since = f" from checkpoint {loaded}" if loaded > PRELUDE else ""
            texts.append(f"rank {rank} (worker {self.restarted[rank]}) was restarted{since}")
            recent |= loaded in (PRELUDE, version)
        return [f"{', '.join(texts)}: {USUAL_CAUSE}"] if recent else texts

    def states(self) -> Explained:
        """The states that differ."""
        evidence, (usual, odd) = self.evidence, self._unequal()
        sides = [side for side in evidence.sides if side.rank in self.calls] or evidence.sides
        site = next((side.site for side in sides if side.site), "") or "an unknown line"
        names = named("rank", usual), named("rank", odd)
        parts = [f"ranks disagree about collective {evidence.position}: {names[0]} and {names[1]}"]
        parts[0] += f" passed different states to checkpoint() at {site}"
        parted = [
            next((self.leaves[rank].leaves for rank in ranks if rank in self.leaves), None)
            for ranks in (usual, odd)
        ]
        if parted[0] is not None and parted[1] is not None:
            parts.append(_where(parted[0], parted[1], *names))
        hints = self._hints([*usual, *odd], evidence.position.version)
        parts += hints or ([OF_EACH_RANK] if len(parts) > 1 else [])
        return Explained("; ".join(parts), evidence.position, odd[0])

    def _unequal(self) -> tuple[list[int], list[int]]:
        """The ranks of the state that most have, and those of another one."""
        groups: dict[bytes, list[int]] = {}
        for rank, said in sorted(self.calls.items()):
            if said.digest:
                groups.setdefault(said.digest, []).append(rank)
        if len(groups) < 2:
            ranks = [side.rank for side in self.evidence.sides]
            return ranks[:1], ranks[1:2]

        def unusual(ranks: list[int]) -> tuple[int, bool, int]:
            return -len(ranks), not self.restarted.keys().isdisjoint(ranks), ranks[0]

        usual, odd, *_ = sorted(groups.values(), key=unusual)
        return usual, odd


# --- the calls ----------------------------------------------------------------------------------


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
    who = [named("rank", ranks)] if ranks else []
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


# --- the states ---------------------------------------------------------------------------------


def _where(one: Sequence[Leaf], other: Sequence[Leaf], usual: str, odd: str) -> str:
    """In which part two states differ, and how."""
    ours, theirs = ({leaf.path: leaf for leaf in leaves} for leaves in (one, other))
    unlike = [path for path in ours if path in theirs and ours[path] != theirs[path]]
    if not unlike:
        return "they have the same parts"
    inner = [p for p in unlike if not any(q != p and q.startswith(f"{p}[") for q in unlike)]
    path = inner[0]
    text = _how(path, ours, theirs, usual, odd)
    return f"{text}; {counted(len(inner) - 1, 'more part')} too" if len(inner) > 1 else text


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
