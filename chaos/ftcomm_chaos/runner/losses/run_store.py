"""The store of checkpoints that a run has, as the harness reads it."""

from pathlib import Path

from ftcomm.durable.chain import Chain
from ftcomm.durable.chain_state import ChainState, chain_state
from ftcomm.durable.opening import open_store
from ftcomm.errors import ConfigError
from ftcomm.protocol.position import PRELUDE
from ftcomm_chaos.history.harness_events import AttemptFound, EverythingLost


def read_store(folder: Path) -> ChainState:
    """The records of a run's store; none if the job has not made it yet.

    Raises:
        FtcommError: a record is damaged, or cannot be read.
    """
    try:
        store = open_store(str(folder), create=False)
    except ConfigError:
        return chain_state([])
    return chain_state(Chain(store).read())


def has_finished(state: ChainState) -> bool:
    """True if the store says that the job has ended well."""
    return state.finished > PRELUDE


def everything_lost(state: ChainState, every: str, served_s: float) -> EverythingLost:
    """The event of a loss of everything, after which the store had these records."""
    return EverythingLost(state.newest_attempt, _newest(state, None), every, served_s)


def attempts_found(state: ChainState) -> list[AttemptFound]:
    """Every attempt in the store: from where it begins, and from where it should."""
    found = []
    for number, record in sorted(state.attempts.items()):
        parent = state.versions.get(record.parent)
        version = None if parent is None else parent.version
        found.append(AttemptFound(record.attempt, version, _newest(state, number)))
    return found


def _newest(state: ChainState, before: int | None) -> int | None:
    """Newest version in the store, or in its records before one."""
    numbers = [number for number in state.versions if before is None or number < before]
    return state.versions[max(numbers)].version if numbers else None
