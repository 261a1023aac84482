"""StoreFacts: what the tracker of an attempt knows of its store when it begins; pure."""

from dataclasses import dataclass

from ftcomm.protocol.durable.store_messages import ObjectWritten
from ftcomm.protocol.position import PRELUDE


@dataclass(frozen=True, slots=True)
class ExpectedDigest:
    """The digest with which an earlier attempt has committed the version behind the parent.

    Attributes:
        version: of that checkpoint.
        digest: of its packed state.
        attempt: has committed it.
        is_binding: the same launcher has started that attempt's workers, so they run the same
            script: another digest ends the job.
    """

    version: int
    digest: bytes
    attempt: int
    is_binding: bool


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Facts of the store's chain when a tracker begins with an attempt.

    Attributes:
        attempt: number of the attempt, from 1; 0 for a job without a store.
        durable_version: the newest version with a record of this attempt, or the one that it
            resumed from; -1 for none.
        prelude: the objects that hold the prelude's results, once a record names them.
        age_s: of the newest version, None if there is none.
        is_begun: the chain has its series record, and that of this attempt.
        is_finished: the chain says that the job has finished.
        parent_version: of the record that the attempt began from; -1 for none.
        has_standby: another tracker may take over: epochs and ends are recorded first.
        expected: the digest of the version behind the parent, None if no attempt got that far.
    """

    attempt: int = 0
    durable_version: int = PRELUDE
    prelude: tuple[ObjectWritten, ...] | None = None
    age_s: float | None = None
    is_begun: bool = False
    is_finished: bool = False
    parent_version: int = PRELUDE
    has_standby: bool = False
    expected: ExpectedDigest | None = None


NO_STORE = StoreFacts()
