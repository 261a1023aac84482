"""Records of the chain: from the cores' facts and effects to the store's records, and back."""

from ftcomm.durable.chain import Chain
from ftcomm.durable.chain_state import chain_state
from ftcomm.durable.records import StoredPart, VersionRecord
from ftcomm.protocol.durable.store_messages import ObjectOrder, ObjectWritten
from ftcomm_tracker.core.durable.chain_facts import ChainFacts, RecordedAttempt, RecordedVersion
from ftcomm_tracker.core.durable.pending_version import PRELUDE_KIND
from ftcomm_tracker.core.events import PutVersion


def facts_of(chain: Chain) -> ChainFacts:
    """The chain, as far as it was read, as the cores know it."""
    links = chain.links
    state = chain_state(links)
    nonces = {link.number: link.nonce for link in links}
    series = state.series
    return ChainFacts(
        length=len(links),
        series="" if series is None else series.series,
        world_size=0 if series is None else series.world_size,
        settings=() if series is None else series.settings,
        grouping=() if series is None else series.grouping,
        tables=b"" if series is None else series.tables,
        attempts=tuple(
            RecordedAttempt(record.attempt, record.parent, nonces[number])
            for number, record in state.attempts.items()
        ),
        versions=tuple(
            RecordedVersion(
                number, record.attempt, record.version, _prelude_of(record), record.written_at
            )
            for number, record in state.versions.items()
        ),
        damaged=tuple(sorted(state.damaged.items())),
        finished=state.finished,
        epochs=state.epochs,
        ended=state.ended,
        first_nonce=links[0].nonce[::-1] if links else b"",
    )


def record_of(effect: PutVersion, now_us: int) -> VersionRecord:
    """The record of a version whose objects are all there."""
    return VersionRecord(
        attempt=effect.attempt,
        version=effect.version,
        epoch=effect.epoch,
        written_at=now_us,
        nbytes=effect.nbytes,
        digest=effect.digest,
        prelude_length=effect.prelude_length,
        local_ranks=effect.local_ranks,
        parts=tuple(
            StoredPart(
                written.order.kind,
                written.order.rank,
                written.order.lo,
                written.order.hi,
                written.name,
                written.nbytes,
                written.digest,
                written.prelude,
            )
            for written in effect.objects
        ),
    )


def _prelude_of(record: VersionRecord) -> tuple[ObjectWritten, ...]:
    """The objects of the prelude's results, as a member said that it has written them."""
    return tuple(
        ObjectWritten(
            version=record.version,
            order=ObjectOrder(part.kind, part.rank, part.lo, part.hi),
            name=part.name,
            nbytes=part.nbytes,
            digest=part.digest,
            state_digest=record.digest,
            prelude=part.runs,
        )
        for part in record.parts
        if part.kind == PRELUDE_KIND
    )
