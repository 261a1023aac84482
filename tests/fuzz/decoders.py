"""Everything that turns bytes of others into values, in one table.

Each row feeds any bytes and returns, or raises an error that the row allows; whatever else it
raises is a finding.  Where something was understood, the feeder asserts that it survives being
said again.  `test_decoders` feeds every corpus file and mutations of it; `python -m tests.fuzz`
lets a coverage-guided fuzzer look for more; `corpora` writes the rows' seeds into files.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ftcomm.control.links.dial import BROKEN
from ftcomm.durable.store import DamagedObjectError
from ftcomm.errors import AuthenticationError, ConfigError, ProtocolError, ProtocolVersionError
from ftcomm.transport.interruptions import LinkLost, SignatureMismatch
from ftcomm_chaos.history.reader import HistoryError
from tests.fuzz import conversations, durable, memory, seeds, stored, wire

CORPORA = Path(__file__).parent / "corpora"
HANDSHAKE = (ProtocolError, AuthenticationError, ProtocolVersionError)


@dataclass(frozen=True, slots=True)
class Decoder:
    """One row.

    Attributes:
        name: also of its folder of corpus files.
        feed: takes any bytes.
        seeds: valid input by name.
        covers: the functions of the project that it is here for, by dotted name.
        allowed: what it may raise.
        limit: bytes, the longest input worth trying.
    """

    name: str
    feed: Callable[[bytes], object]
    seeds: Callable[[], Mapping[str, bytes]]
    covers: tuple[str, ...]
    allowed: tuple[type[Exception], ...] = (ProtocolError,)
    limit: int = 4096

    def files(self) -> dict[str, bytes]:
        """The corpus: seeds, and inputs that once found something or reach far."""
        folder = CORPORA / self.name
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*"))}


TABLE = (
    Decoder(
        "control-body",
        wire.feed_body,
        seeds.bodies,
        ("ftcomm.protocol.codec.decode_body", "ftcomm.protocol.schema.Record.read_fields"),
    ),
    Decoder(
        "control-stream",
        wire.feed_stream,
        seeds.streams,
        (
            "ftcomm.protocol.codec.Decoder.feed",
            "ftcomm.protocol.codec.frame_length",
            "ftcomm.protocol.member_deltas.MemberDeltaReader.take",
        ),
    ),
    Decoder(
        "messages",
        wire.feed_messages,
        seeds.messages,
        (
            "ftcomm.control.messages.message_parser.MessageParser.fed",
            "ftcomm.protocol.message_head.HeadDecoder.decode",
        ),
    ),
    Decoder(
        "frame-header",
        wire.feed_header,
        seeds.headers,
        ("ftcomm.protocol.frame_header.unpack_header",),
        limit=200,
    ),
    Decoder(
        "frame-expected",
        wire.feed_expected,
        seeds.headers,
        ("ftcomm.execution.header_check.check_header",),
        allowed=(LinkLost, SignatureMismatch),
        limit=200,
    ),
    Decoder(
        "records",
        wire.feed_records,
        seeds.records,
        (
            "ftcomm.protocol.checksum_records.RecordReader.take",
            "ftcomm.transport.checksum_link.CheckedLink.recv_into",
        ),
    ),
    Decoder(
        "signature",
        wire.feed_signature,
        seeds.signatures,
        ("ftcomm.protocol.signature.Signature.decode",),
        limit=64,
    ),
    Decoder(
        "link-context",
        wire.feed_context,
        seeds.contexts,
        ("ftcomm.protocol.handshake.DataContext.decode",),
        limit=255,  # its length travels in one byte
    ),
    Decoder(
        "handshake-server",
        wire.feed_server,
        seeds.client_words,
        ("ftcomm.protocol.handshake.ServerHandshake.use_key",),
        allowed=HANDSHAKE,
        limit=600,
    ),
    Decoder(
        "handshake-client",
        wire.feed_client,
        seeds.server_words,
        ("ftcomm.protocol.handshake.ClientHandshake.hello",),
        allowed=HANDSHAKE,
        limit=600,
    ),
    Decoder(
        "handshake-tampered",
        wire.feed_tampered,
        seeds.masks,
        ("ftcomm.protocol.handshake.ServerHandshake.use_key",),
        allowed=HANDSHAKE,
        limit=600,
    ),
    Decoder(
        "from-holder",
        conversations.feed_from_holder,
        seeds.served,
        (
            "ftcomm.memory.pool.dtype_from_wire",
            "ftcomm.memory.pool.stored_from_wire",
            "ftcomm.control.message_stream.receive_message",
        ),
        allowed=BROKEN,
    ),
    Decoder(
        "to-holder",
        conversations.feed_to_holder,
        seeds.fetch_requests,
        ("ftcomm.control.fetching.fetch.serve_fetch",),
        allowed=BROKEN,
    ),
    Decoder(
        "relay-answer",
        conversations.feed_relay,
        seeds.relay_answers,
        ("ftcomm.control.links.relay.open_through",),
        allowed=BROKEN,
    ),
    Decoder(
        "sharing",
        memory.feed_sharing,
        seeds.shares,
        (
            "ftcomm.control.links.segment_setup.receive_with",
            "ftcomm.control.links.segment_setup.receive_sharing",
        ),
        allowed=BROKEN,
    ),
    Decoder(
        "operator-requests",
        conversations.feed_operator,
        seeds.operator_requests,
        ("ftcomm_tracker.server.operators.Operators.hear",),
    ),
    Decoder(
        "to-tracker",
        conversations.feed_tracker,
        seeds.worker_words,
        ("ftcomm_tracker.core.roster.Roster.handle",),
    ),
    Decoder(
        "to-worker",
        conversations.feed_worker,
        seeds.tracker_words,
        ("ftcomm.recovery.machine.WorkerMachine.handle",),
    ),
    Decoder("state", stored.feed_state, seeds.states, ("ftcomm.state.serializer.unpack_state",)),
    Decoder(
        "exported-state",
        durable.feed_packed_state,
        seeds.states,
        ("ftcomm.durable.packed_state.read_packed_state",),
        allowed=(DamagedObjectError,),
    ),
    Decoder(
        "objects",
        stored.feed_objects,
        seeds.objects,
        (
            "ftcomm.requests.object_payload.unpack_items",
            "ftcomm.requests.object_payload.unpack_object",
        ),
    ),
    Decoder(
        "packed-result",
        stored.feed_packed_result,
        seeds.packed_results,
        ("ftcomm.memory.packed_result.unpack_result",),
    ),
    Decoder(
        "scatter",
        stored.feed_scatter,
        seeds.scatters,
        (
            "ftcomm.requests.object_payload.own_blob",
            "ftcomm.requests.object_payload.array_of",
        ),
    ),
    Decoder(
        "exchange",
        stored.feed_exchange,
        seeds.exchanges,
        ("ftcomm.requests.object_payload.own_rows",),
    ),
    Decoder(
        "journal-document",
        stored.feed_document,
        seeds.documents,
        (
            "ftcomm_tracker.core.durable_state.Durable.from_wire",
            "ftcomm_tracker.server.journal.document_of",
        ),
        allowed=(ConfigError,),
    ),
    Decoder(
        "journal-file",
        stored.feed_journal,
        seeds.journals,
        (
            "ftcomm_tracker.server.journal.Journal.load",
            "ftcomm_tracker.server.journal.remembered",
            "ftcomm_tracker.server.journal.last_written",
        ),
        allowed=(ConfigError,),
        limit=64 * 1024,
    ),
    Decoder(
        "chain-record",
        durable.feed_record,
        durable.chain_records,
        ("ftcomm.durable.records.decode_record",),
        allowed=(DamagedObjectError,),
    ),
    Decoder(
        "chain-record-body",
        durable.feed_record_body,
        durable.record_bodies,
        ("ftcomm.durable.records.decode_record",),
        allowed=(DamagedObjectError,),
    ),
    Decoder(
        "stored-record",
        durable.feed_stored_record,
        durable.later_records,
        ("ftcomm.durable.chain.Chain.read_one",),
        allowed=(DamagedObjectError,),
    ),
    Decoder(
        "container",
        durable.feed_container,
        durable.containers,
        (
            "ftcomm.durable.container.open_container",
            "ftcomm.durable.container.OpenContainer.verify",
        ),
        allowed=(DamagedObjectError, ConfigError),
        limit=8192,  # the raw bytes begin behind 4,096
    ),
    Decoder(
        "container-header",
        durable.feed_container_header,
        durable.container_headers,
        ("ftcomm.durable.container.open_container",),
        allowed=(DamagedObjectError, ConfigError),
    ),
    Decoder(
        "token",
        stored.feed_token,
        seeds.tokens,
        ("ftcomm.config.environment.read_token",),
        allowed=(ConfigError,),
    ),
    Decoder(
        "settings",
        stored.feed_settings,
        seeds.settings,
        ("ftcomm.config.job_settings.JobSettings.from_wire",),
        allowed=(ConfigError,),
    ),
    Decoder(
        "environment",
        stored.feed_environment,
        seeds.environments,
        (
            "ftcomm.config.environment.WorkerOptions.load",
            "ftcomm.config.job_settings.JobSettings.from_environment",
        ),
        allowed=(ConfigError,),
    ),
    Decoder(
        "address",
        stored.feed_address,
        seeds.addresses,
        (
            "ftcomm.config.environment.parse_address",
            "ftcomm.config.environment.parse_addresses",
            "ftcomm.config.environment.parse_endpoint",
        ),
        allowed=(ConfigError,),
    ),
    Decoder(
        "faults",
        stored.feed_faults,
        seeds.faults,
        ("ftcomm.diagnostics.fault_injection.parse_faults",),
        allowed=(ConfigError,),
    ),
    Decoder(
        "tracker-faults",
        stored.feed_tracker_faults,
        seeds.tracker_faults,
        ("ftcomm_tracker.server.fault_injection.parse_tracker_faults",),
        allowed=(ConfigError,),
    ),
    Decoder(
        "history",
        stored.feed_history,
        seeds.histories,
        ("ftcomm_chaos.history.reader.parse_lines", "ftcomm_chaos.history.reader.read_history"),
        allowed=(HistoryError,),
    ),
    Decoder(
        "spot-trace",
        stored.feed_trace,
        seeds.traces,
        ("ftcomm_chaos.runner.spot_trace.parse_trace", "ftcomm_chaos.runner.spot_trace.read_trace"),
        allowed=(ConfigError,),
    ),
    Decoder(
        "fault-plan",
        stored.feed_plan,
        seeds.plans,
        ("ftcomm_chaos.runner.fault_plan.parse_plan",),
        allowed=(ConfigError,),
    ),
    Decoder(
        "job-entry",
        stored.feed_job_entry,
        seeds.job_entries,
        (
            "ftcomm_tracker.operator.job_registry.parse_entry",
            "ftcomm_tracker.operator.job_registry.read_registry",
        ),
        allowed=(ValueError,),
    ),
)
