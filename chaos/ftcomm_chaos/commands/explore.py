"""``ftcomm-chaos explore``: every order of events of a small job."""

import json
import sys
import time

import click

from ftcomm.config.plurals import counted
from ftcomm_chaos.explorer.search import MAX_STATES, SearchProgress, SearchResult
from ftcomm_chaos.explorer.search import explore as search
from ftcomm_chaos.explorer.workload import MESSAGES, SIGNATURES, Script

SAY_EVERY_S = 5.0  # of the search's progress
VIOLATION, INCOMPLETE = 1, 2  # exit statuses


class _Reporter:
    """Says on stderr how far the search has come."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self._said = self.began

    def __call__(self, progress: SearchProgress) -> None:
        """Called often; speaks seldom."""
        now = time.perf_counter()
        if now - self._said < SAY_EVERY_S:
            return
        self._said = now
        rate = progress.states / (now - self.began)
        line = (
            f"{counted(progress.states, 'state')}, {progress.frontier} of them to go on from, "
            f"depth {progress.depth}, {rate:.0f} states/s"
        )
        memory = _memory_mib()
        click.echo(line if memory is None else f"{line}, {memory} MiB", err=True)


def _memory_mib() -> int | None:
    """The most memory that this process has had; None where the system does not say."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most) // (1 << 20 if sys.platform == "darwin" else 1 << 10)


def _letters(ctx: click.Context, param: click.Parameter, value: str) -> str:
    strange = sorted(set(value) - set(SIGNATURES) - set(MESSAGES))
    if strange or not value:
        known = " ".join([*SIGNATURES, *MESSAGES])
        raise click.BadParameter(f"{value!r}: give letters of {known}", ctx, param)
    before = value.replace("P", "C").partition("C")[0]  # what comes before the first checkpoint
    loads = value.count("L")
    if loads > 1 or loads > before.count("L") or (before != value and not loads):
        raise click.BadParameter(
            f"{value!r}: a checkpoint (C, P) comes after a load (L), of which there is one",
            ctx,
            param,
        )
    if set(value.partition("L")[0] if loads else value) & set(MESSAGES):
        words = "a message (M, V, W) comes after a load (L)"
        raise click.BadParameter(f"{value!r}: {words}", ctx, param)
    return value


@click.command()
@click.argument("letters", default="SB", callback=_letters)
@click.argument("ranks", default=2, type=click.IntRange(1, 8))
@click.argument("crashes", default=1, type=click.IntRange(0))
@click.option(
    "--max-states",
    default=MAX_STATES,
    show_default=True,
    help="End here, incomplete; a million take about 300 MiB.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explore(letters: str, ranks: int, crashes: int, max_states: int, *, as_json: bool) -> None:
    """Try every order of events of a small job.

    LETTERS is the script: S a synchronising collective, B a broadcast, L load, C checkpoint, P
    checkpoint with a local state, E close.  Of R and N each rank keeps its own input, to which a
    restarted rank gives the same (R) or not (N); of K others keep each rank's result.  M is a
    message of rank 0 to rank 1, W one of rank 1 to rank 0, and V is M of which a restarted rank
    sends other bytes.

    The exit status is 0 if all states were visited and all rules held, 1 if a rule was broken, 2
    if the limit on states ended the search before that.
    """
    if ranks == 1 and set(letters) & set(MESSAGES):
        raise click.UsageError("a message (M, V, W) needs 2 ranks")
    reporter = _Reporter()
    found = search(Script(letters, ranks, crashes), max_states=max_states, progress=reporter)
    seconds = time.perf_counter() - reporter.began
    click.echo(json.dumps(_document(found, seconds)) if as_json else _text(found, seconds))
    sys.exit(VIOLATION if found.violation else 0 if found.complete else INCOMPLETE)


def _text(found: SearchResult, seconds: float) -> str:
    lines = [f"  {_words(move)}" for move in found.path]
    if found.violation:
        lines.append(f"violation: {found.violation}")
    elif found.complete:
        lines.append("all rules held")
    else:
        lines.append("INCOMPLETE: no rule was broken up to the limit on states; see --max-states")
    lines.append(
        f"{counted(found.states, 'state')}, {counted(found.moves, 'move')},"
        f" {counted(found.ends, 'end')}, depth {found.depth} "
        f"in {seconds:.1f} s"
    )
    return "\n".join(lines)


def _document(found: SearchResult, seconds: float) -> dict[str, object]:
    return {
        "ok": found.complete and not found.violation,
        "complete": found.complete,
        "states": found.states,
        "moves": found.moves,
        "ends": found.ends,
        "depth": found.depth,
        "seconds": round(seconds, 2),
        "memory_mib": _memory_mib(),
        "violation": found.violation,
        "path": [_words(move) for move in found.path],
    }


def _words(move: tuple[object, ...]) -> str:
    return " ".join(map(str, move))
