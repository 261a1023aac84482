"""Calls that end otherwise than with a result: mismatch, interrupt, signals, wrong arguments."""

import itertools
import signal
import threading
import time

import numpy as np
import pytest
import ranks_of_a_host as harness
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcomm.core.segment import ASLEEP_AT, BELL_AT, READY_AT
from ftcomm.protocol.frame_header import FrameHeader, make_suffix, pack_header, unpack_header
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind, Signature

pytestmark = harness.needs_a_core
OTHER = make_suffix(Signature(Kind.ALLREDUCE, count=9).encode(), "train.py:12")
KEEP = 7.5


@pytest.fixture(params=["compiled", "python"])
def lone(request):
    """Rank 0 of two; the other rank is this test."""
    return harness.Host(request.param, 2) if request.param == "python" else _compiled_host()


def _compiled_host():
    harness.require_compiled()
    return harness.Host("compiled", 2)


def barrier(core, *position):
    form = core.form(harness.SUFFIX, None, None, 0)
    return form.run(None, None, *(position or harness.POSITION))


def asleep(host, rank):
    return lambda: host.word(rank, ASLEEP_AT) == 1


# --- headers ------------------------------------------------------------------------------------


def test_a_slot_has_the_header_of_a_data_frame(kind):
    host = harness.Host(kind, 2)
    position = (7, 1, -2, 3, 4)

    def act(rank, core):
        form = core.form(harness.SUFFIX, None, None, 2)
        return form.run(b"ab", bytearray(4), *position)

    assert host.together(act) == [0, 0]
    wanted = FrameHeader(7, Position(1, -2, 3), 4, 2, harness.SIGNATURE, "train.py:12")
    for core, rank in itertools.product(host.cores, host.ranks):
        assert unpack_header(core.header(rank)) == wanted
        assert core.header(rank) == pack_header(wanted)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_the_rank_of_another_signature_is_named(kind, odd):
    host = harness.Host(kind, 3)

    def act(rank, core):
        suffix = OTHER if rank == odd else harness.SUFFIX
        out = np.full(2, KEEP)
        status = core.form(suffix, np.add, out.dtype, 16).run(out, out, *harness.POSITION)
        return status, list(out), core.header(odd)[32:]

    others = (1 + odd, [KEEP, KEEP], OTHER)
    first = 1 if odd == 0 else 0
    assert host.together(act) == [
        (1 + first, [KEEP, KEEP], OTHER) if rank == odd else others for rank in host.ranks
    ]


@pytest.mark.parametrize("field", range(5))
def test_another_position_is_a_mismatch(kind, field):
    def act(rank, core):
        position = list(harness.POSITION)
        position[field] += rank
        return barrier(core, *position)

    assert harness.Host(kind, 2).together(act) == [2, 1]


def test_another_length_is_a_mismatch(kind):
    def act(rank, core):
        form = core.form(harness.SUFFIX, np.add, np.dtype("u1"), 8 + rank)
        return form.run(bytes(8 + rank), bytearray(8 + rank), *harness.POSITION)

    assert harness.Host(kind, 2).together(act) == [2, 1]


def test_call_sites_may_differ(kind):
    def act(rank, core):
        suffix = make_suffix(harness.SIGNATURE, f"train.py:{rank}")
        return core.form(suffix, None, None, 0).run(None, None, *harness.POSITION)

    assert harness.Host(kind, 3).together(act) == [0, 0, 0]


# --- interrupts ---------------------------------------------------------------------------------


def test_no_call_begins_after_an_interrupt(lone):
    core, out = lone.cores[0], np.full(1, KEEP)
    form = core.form(harness.SUFFIX, np.add, out.dtype, 8)
    core.interrupt()
    lone.set_word(1, READY_AT, 1)
    assert [form.run(out, out, *harness.POSITION) for _ in range(2)] == [-1, -1]
    assert (list(out), lone.word(0, READY_AT)) == ([KEEP], 0)


@pytest.mark.parametrize("awaited", [READY_AT, ASLEEP_AT], ids=["spinning", "asleep"])
def test_an_interrupt_ends_a_wait(kind, awaited):
    for _ in range(20):
        host = harness.Host(kind, 3)
        core, out = host.cores[1], np.full(1, KEEP)
        form = core.form(harness.SUFFIX, np.add, out.dtype, 8)
        call = harness.Background(lambda: form.run(out, out, *harness.POSITION))  # noqa: B023 - awaited here
        harness.await_condition(lambda: host.word(1, awaited) == 1)  # noqa: B023 - likewise
        core.interrupt()
        assert (call.result(), list(out)) == (-1, [KEEP])


def test_an_interrupt_that_comes_before_the_last_rank_wins(lone):
    core = lone.cores[0]
    call = harness.Background(lambda: barrier(core))
    harness.await_condition(asleep(lone, 0))
    core.interrupt()
    lone.set_word(1, READY_AT, 1)
    assert call.result() == -1
    assert barrier(core) == -1


def test_an_interrupt_during_the_fold_in_python_leaves_out_alone(monkeypatch):
    """The compiled core has the interpreter's lock from its last look at the interrupt on."""
    host = harness.Host("python", 2)
    core, out = host.cores[0], np.full(1, KEEP)
    form = core.form(harness.SUFFIX, np.add, out.dtype, 8)
    fold = type(form)._fold

    def interrupted(folding):
        if folding is form:
            core.interrupt()
        return fold(folding)

    monkeypatch.setattr(type(form), "_fold", interrupted)
    peer = host.cores[1].form(harness.SUFFIX, np.add, out.dtype, 8)
    call = harness.Background(lambda: peer.run(np.ones(1), np.ones(1), *harness.POSITION))
    assert (form.run(out, out, *harness.POSITION), list(out)) == (-1, [KEEP])
    call.result()


def test_an_interrupt_rings_the_own_bell(lone):
    before = lone.word(0, BELL_AT)
    lone.cores[0].interrupt()
    assert lone.word(0, BELL_AT) != before


def test_who_sleeps_is_rung_and_who_is_awake_is_not(kind):
    host = harness.Host(kind, 4)
    host.set_word(2, ASLEEP_AT, 1)
    before = [host.word(rank, BELL_AT) for rank in host.ranks]
    call = harness.Background(lambda: barrier(host.cores[0]))
    harness.await_condition(asleep(host, 0))
    after = [host.word(rank, BELL_AT) for rank in host.ranks]
    assert [a != b for a, b in zip(after, before, strict=True)] == [False, False, True, False]
    host.cores[0].interrupt()
    assert call.result() == -1


def test_no_two_rings_leave_the_same_value(kind):
    host = harness.Host(kind, 3)
    host.set_word(2, ASLEEP_AT, 1)
    seen = [host.word(2, BELL_AT)]

    def ring(rank):
        call = harness.Background(lambda: barrier(host.cores[rank]))
        harness.await_condition(asleep(host, rank))
        seen.append(host.word(2, BELL_AT))
        return call

    calls = [ring(0), ring(1)]
    host.cores[2].interrupt()
    seen.append(host.word(2, BELL_AT))
    for core in host.cores:
        core.interrupt()
    assert len(set(seen)) == 4
    assert [call.result() for call in calls] == [-1, -1]


# --- who is missing -----------------------------------------------------------------------------


def test_missing_names_the_ranks_that_are_waited_for(kind):
    host = harness.Host(kind, 4)
    core = host.cores[1]
    assert core.missing() == ()
    calls = [harness.Background(lambda: barrier(core))]
    harness.await_condition(lambda: core.missing() == (0, 2, 3))
    calls.append(harness.Background(lambda: barrier(host.cores[2])))
    harness.await_condition(lambda: core.missing() == (0, 3))
    late = (host.cores[0], host.cores[3])
    calls += [harness.Background(lambda core=core: barrier(core)) for core in late]
    assert [call.result() for call in calls] == [0, 0, 0, 0]
    assert [core.missing() for core in host.cores] == [()] * 4


# --- signals ------------------------------------------------------------------------------------


def signalled_asleep(host, number):
    """Send a signal to this thread when rank 0 sleeps."""
    me = threading.get_ident()

    def send():
        harness.await_condition(asleep(host, 0))
        signal.pthread_kill(me, number)

    return harness.Background(send)


def test_ctrl_c_ends_a_wait_and_the_use_of_the_segment(lone):
    core = lone.cores[0]
    sender = signalled_asleep(lone, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        barrier(core)
    sender.result()
    lone.set_word(1, READY_AT, 1 << 32)
    assert (barrier(core), core.missing()) == (-1, ())


def test_a_handler_that_raises_nothing_does_not_end_a_wait(lone):
    core, heard = lone.cores[0], []
    other = lone.cores[1]
    calls = []

    def handle(number, _):
        heard.append(number)
        calls.append(harness.Background(lambda: barrier(other)))

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        sender = signalled_asleep(lone, signal.SIGUSR1)
        assert barrier(core) == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
    sender.result()
    assert (heard, calls[0].result()) == ([signal.SIGUSR1], 0)


def test_a_handler_cannot_make_a_call_of_the_core_that_waits(lone):
    core = lone.cores[0]
    before = signal.signal(signal.SIGUSR1, lambda *_: barrier(core))
    try:
        sender = signalled_asleep(lone, signal.SIGUSR1)
        with pytest.raises(RuntimeError, match="is running"):
            barrier(core)
    finally:
        signal.signal(signal.SIGUSR1, before)
    sender.result()
    assert barrier(core) == -1


def test_two_threads_cannot_make_calls_of_one_core(lone):
    core = lone.cores[0]
    call = harness.Background(lambda: barrier(core))
    harness.await_condition(asleep(lone, 0))
    with pytest.raises(RuntimeError, match="is running"):
        barrier(core)
    core.interrupt()
    assert call.result() == -1


# --- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "out"),
    [
        (np.zeros(3), np.zeros(2)),
        (np.zeros(2), np.zeros(3)),
        (np.zeros((2, 2))[:, 0], np.zeros(2)),
        (np.zeros(2), np.zeros((2, 2))[:, 0]),
        (b"", np.zeros(2)),
        (bytes(16), bytes(16)),
        (np.zeros(2), np.frombuffer(bytes(16))),
    ],
    ids=["long x", "long out", "strided x", "strided out", "empty x", "bytes", "read-only out"],
)
def test_a_wrong_buffer_is_refused_before_anything_is_published(lone, x, out):
    form = lone.cores[0].form(harness.SUFFIX, np.add, np.dtype("f8"), 16)
    with pytest.raises((ValueError, BufferError)):
        form.run(x, out, *harness.POSITION)
    assert (lone.word(0, READY_AT), lone.cores[0].missing()) == (0, ())


def test_out_in_the_segment_is_refused(lone):
    form = lone.cores[0].form(harness.SUFFIX, np.add, np.dtype("u1"), 16)
    inside = memoryview(lone.segment)[-16:]
    with pytest.raises(ValueError, match="lies in the segment"):
        form.run(bytes(16), inside, *harness.POSITION)
    with pytest.raises(ValueError, match="lies in the segment"):
        form.run(bytes(16), bytearray(16), *harness.POSITION, inside)


@pytest.mark.parametrize(
    "also",
    [np.zeros(3), np.zeros((2, 2))[:, 0], bytes(16), np.frombuffer(bytes(16))],
    ids=["long", "strided", "bytes", "read-only"],
)
def test_a_wrong_second_out_is_refused_before_anything_is_published(lone, also):
    form = lone.cores[0].form(harness.SUFFIX, np.add, np.dtype("f8"), 16)
    with pytest.raises((ValueError, BufferError)):
        form.run(np.zeros(2), np.zeros(2), *harness.POSITION, also)
    assert (lone.word(0, READY_AT), lone.cores[0].missing()) == (0, ())


@pytest.mark.parametrize(
    ("field", "value"),
    [(0, -1), (0, 1 << 32), (1, 1 << 64), (2, 1 << 31), (3, -(1 << 63)), (4, "5")],
)
def test_a_number_that_no_header_can_have_is_refused(lone, field, value):
    position = list(harness.POSITION)
    position[field] = value
    with pytest.raises((ValueError, TypeError)):
        barrier(lone.cores[0], *position)
    assert lone.word(0, READY_AT) == 0


@pytest.mark.parametrize(
    ("ufunc", "dtype"),
    [
        (np.add, "M8[s]"),
        (np.add, "O"),
        (np.add, "S8"),
        (np.add, "g"),
        (np.add, ">f8"),
        (np.logical_and, "i8"),
        (np.divmod, "f8"),
        (np.negative, "f8"),
        (np.bitwise_and, "f8"),
        (max, "f8"),
        pytest.param(object(), "f8", id="no-ufunc"),
    ],
    ids=str,
)
def test_a_ufunc_without_a_loop_for_the_dtype_is_refused(lone, ufunc, dtype):
    dtype = np.dtype(dtype)
    with pytest.raises(TypeError):
        lone.cores[0].form(harness.SUFFIX, ufunc, dtype, 16 * dtype.itemsize)


@pytest.mark.parametrize("dtype", ["f8", None, np.float64, 12])
def test_what_is_no_dtype_is_refused(lone, dtype):
    with pytest.raises(TypeError):
        lone.cores[0].form(harness.SUFFIX, np.add, dtype, 16)


@pytest.mark.parametrize(
    ("suffix", "nbytes"), [(bytes(71), 8), (bytes(73), 8), (harness.SUFFIX, -8)]
)
@pytest.mark.parametrize("ufunc", [np.add, None])
def test_a_wrong_length_of_a_form_is_refused(lone, suffix, nbytes, ufunc):
    with pytest.raises(ValueError, match="bytes"):
        lone.cores[0].form(suffix, ufunc, np.dtype("f8"), nbytes)


def test_half_an_element_and_a_large_gather_are_refused(lone):
    with pytest.raises(ValueError, match="12 bytes"):
        lone.cores[0].form(harness.SUFFIX, np.add, np.dtype("f8"), 12)
    with pytest.raises(ValueError, match="8200 bytes"):
        lone.cores[0].form(harness.SUFFIX, None, None, 8200)


@pytest.mark.parametrize(("ranks", "rank"), [(0, 0), (65, 0), (2, 2), (2, -1), (3, 0)])
def test_a_wrong_rank_or_a_small_segment_is_refused(lone, ranks, rank):
    with pytest.raises(ValueError, match=r"rank|segment"):
        type(lone.cores[0])(lone.segment, ranks, rank)


@pytest.mark.parametrize("rank", [-1, 2, 1 << 40])
def test_the_header_of_no_rank_is_refused(lone, rank):
    with pytest.raises(ValueError, match="rank"):
        lone.cores[0].header(rank)


ANYTHING = st.one_of(
    st.none(),
    st.integers(-(1 << 70), 1 << 70),
    st.binary(max_size=80),
    st.text(max_size=3),
    st.sampled_from([harness.SUFFIX, np.add, np.sin, np.dtype("f8"), np.dtype("O"), np.zeros(2)]),
    st.builds(bytearray, st.integers(0, 20)),
)


@given(arguments=st.lists(ANYTHING, max_size=8), name=st.sampled_from(["form", "run", "header"]))
@settings(max_examples=300)
@pytest.mark.parametrize("made", ["compiled", "python"])
def test_no_argument_breaks_the_process(made, arguments, name):
    if made == "compiled":
        harness.require_compiled()
    core = harness.Host(made, 2).cores[0]
    core.interrupt()  # else right arguments would wait for the other rank
    owner = core if name != "run" else core.form(harness.SUFFIX, np.add, np.dtype("f8"), 16)
    try:
        result = getattr(owner, name)(*arguments)
    except (TypeError, ValueError, OverflowError, BufferError):
        return
    assert result == -1 or name != "run"


@pytest.mark.parametrize("count", [1, 200_000])
def test_a_call_says_since_when_it_sleeps(kind, count):
    """Not since when it runs: one that moves waits again and again, and nobody is to blame."""
    host = harness.Host(kind, 2)
    x, outs = np.ones(count), [np.zeros(count) for _ in range(2)]

    def run(rank, seqno):
        form = host.cores[rank].form(harness.SUFFIX, np.add, x.dtype, x.nbytes)
        return form.run(x, outs[rank], 1, 0, 0, seqno, 0)

    for seqno in range(2):
        began = time.monotonic()
        own = harness.Background(lambda: run(0, seqno))  # noqa: B023 - in this turn
        harness.await_condition(host.cores[0].sleeps_since)
        assert began <= host.cores[0].sleeps_since() <= time.monotonic()
        assert host.cores[0].missing() == (1,)
        assert (run(1, seqno), own.result()) == (0, 0)
        assert [core.sleeps_since() for core in host.cores] == [0, 0]
