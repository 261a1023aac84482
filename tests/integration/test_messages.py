"""Messages between real processes: what is refused, what ends the job, and what handles do."""

import hashlib
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import ftcomm
from ftcomm.testing import local_group

pytestmark = pytest.mark.process

LIMIT_S = 60.0  # for a job of a second on a machine that is busy with others
HEAD = """\
import threading
import numpy as np, ftcomm
def job():
    with ftcomm.init() as comm:
        comm.load_checkpoint(0)
        other = 1 - comm.rank
        run(comm, other)
"""


def run(script: str, folder: Path, *options: str) -> tuple[int, str]:
    """Status and output of a job of two ranks that runs `script`."""
    (folder / "job.py").write_text(f"{HEAD}{script}job()\n")
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", "2", *options]
    done = subprocess.run(
        [*command, "--", sys.executable, "job.py"],
        cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


NOT_RECEIVED = """\
def run(comm, other):
    if comm.rank == 0:
        comm.send(np.zeros(3), other)
        comm.send(np.zeros(3), other)
    else:
        comm.recv(other)
    comm.checkpoint(0)
"""
NOT_RECEIVED_AT_CLOSE = """\
def run(comm, other):
    if comm.rank == 1:
        comm.send_object("left", other)
"""
TOO_LATE = """\
def run(comm, other):
    if comm.rank == 0:
        comm.recv(other, "x", deadline=0.5)
    comm.barrier()
"""
TOO_MUCH = """\
def run(comm, other):
    if comm.rank == 0:
        for _ in range(100):
            comm.send(np.zeros(10_000), other)
    comm.barrier()
"""


@pytest.mark.parametrize(
    ("script", "error", "cause"),
    [
        (
            NOT_RECEIVED,
            ftcomm.CollectiveMismatchError,
            (
                "at checkpoint() (job.py:14) rank 1 has received 1 of 2 messages from rank 0"
                " since the last checkpoint; the first missing one was sent at job.py:11: receive"
                " it before"
            ),
        ),
        (
            NOT_RECEIVED_AT_CLOSE,
            ftcomm.CollectiveMismatchError,
            (
                "at close() (job.py:4) rank 0 has received 0 of 1 message from rank 1 since"
                " the last checkpoint; the first missing one was sent at job.py:10: receive it"
                " before"
            ),
        ),
        (
            TOO_LATE,
            ftcomm.CollectiveTimeoutError,
            (
                "rank 0 gave recv(source=1, tag='x') at job.py:10 a deadline of 0.5 s, and it took"
                " longer; it was waiting for a message of rank 1"
            ),
        ),
        (
            TOO_MUCH,
            ftcomm.LogLimitError,
            (
                "the messages that rank 0 has sent since checkpoint 0, now one to rank 1 at"
                " job.py:11, would take more than the limit of 1000000 bytes"
            ),
        ),
    ],
    ids=["checkpoint", "close", "deadline", "limit"],
)
def test_what_is_wrong_for_all_ends_the_job_with_one_error(
    script: str, error: type[ftcomm.FtcommError], cause: str, tmp_path: Path
) -> None:
    status, out = run(script, tmp_path, "--log-limit", "1MB")
    said = re.findall(rf"ftcomm\.errors\.{error.__name__}: (.*?) \[rank", out)
    assert (status, set(said)) == (error.exit_code, {cause}), out


class _State:
    """State of a checkpoint, which tells when it is packed."""

    def __init__(self, pack: Callable[[], object] = lambda: None) -> None:
        self.pack = pack


def _packed(state: _State) -> int:
    state.pack()
    return 0


def test_a_receive_posted_while_a_checkpoint_runs_gets_a_message_of_the_next_version() -> None:
    """Its source was asked for messages of the version before, and must be asked again."""
    ftcomm.register(_State, _packed, lambda _: _State())

    def job(comm: ftcomm.Communicator) -> Any:
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            comm.checkpoint(_State())
            return comm.send(7, 1)
        handles: list[ftcomm.Handle[Any]] = []
        thread = threading.Thread(target=lambda: handles.append(comm.irecv(0, deadline=20)))

        def post() -> None:
            if not handles:
                thread.start()
                thread.join()

        comm.checkpoint(_State(post))
        return handles[0].result()

    with local_group(2) as group:
        assert group.run(job) == [None, 7]


@pytest.mark.smoke
@pytest.mark.parametrize("count", [10_000, 1_000_000])  # float64: one write, or many
def test_an_array_may_be_overwritten_as_soon_as_it_is_sent(count: int) -> None:
    """A link takes it at once, or its receiver has yet to ask for it."""

    def job(comm: ftcomm.Communicator) -> list[float]:
        comm.load_checkpoint(default=0)
        seen: list[float] = []
        for version in range(3):
            if comm.rank == 1:
                comm.barrier()
                for _ in range(4):
                    seen += sorted(set(comm.recv(0).tolist()))
            else:
                x = np.zeros(count)
                for number in range(4):
                    x[:] = number + 4 * version
                    comm.send(x, 1)
                    x[:] = -1.0
                    if number == 1:  # two are sent before the receiver asks, two as it reads
                        comm.barrier()
            comm.checkpoint(version)
        return seen

    with local_group(2) as group:
        assert group.run(job)[1] == [*map(float, range(12))]


class _Fussy:
    """An object that not every content can be made into."""

    made_on: ClassVar[list[int]] = []  # threads

    def __init__(self, number: int) -> None:
        self.number = number


def _fussy(number: int) -> _Fussy:
    _Fussy.made_on.append(threading.get_ident())
    if number < 0:
        raise ValueError(f"{number} is not counted")
    return _Fussy(number)


def test_an_object_that_cannot_be_made_is_its_receivers_error_and_no_link_is_lost() -> None:
    """Its receiver's own thread makes it, so that a slow one holds up no heartbeat either."""
    ftcomm.register(_Fussy, lambda fussy: fussy.number, _fussy)
    _Fussy.made_on.clear()

    def job(comm: ftcomm.Communicator) -> Any:
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            for number in (-1, -2, 3, 4):
                comm.send_object(_Fussy(number), 1)
            return comm.epoch
        with pytest.raises(ValueError, match="-1 is not counted"):
            comm.recv_object(0, deadline=20)
        pending = comm.irecv_object(0, deadline=20)
        with pytest.raises(ValueError, match="-2 is not counted"):
            pending.wait()
        assert isinstance(pending.exception(), ValueError)
        pending = comm.irecv_object(0, deadline=20)
        got = [pending.wait().number, pending.wait().number, comm.recv_object(0).number]
        assert set(_Fussy.made_on) == {threading.get_ident()}
        return got, len(_Fussy.made_on), comm.epoch

    with local_group(2) as group:
        epoch, received = group.run(job)
    assert received == ([3, 3, 4], 4, epoch)


def test_an_array_that_became_read_only_is_its_receivers_error() -> None:
    def job(comm: ftcomm.Communicator) -> Any:
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            comm.barrier()
            comm.send(np.ones(3), 1)
            comm.send(np.ones(3), 1)
            return None
        out, place = np.zeros(3), np.zeros(3)
        pending = comm.irecv(0, out=out, deadline=20)
        engine = comm.engine()
        engine.recv(place, 0)
        out.flags.writeable = place.flags.writeable = False
        comm.barrier()
        with pytest.raises(ValueError, match="read-only"):
            pending.wait()
        with pytest.raises(ValueError, match="read-only"):
            engine.wait()
        engine.close()
        return None

    with local_group(2) as group:
        group.run(job)


REFUSED = """\
def run(comm, other):
    def refused(function, *arguments, **options):
        try:
            function(*arguments, **options)
        except (TypeError, ValueError) as error:
            print(f"{type(error).__name__}: {error}", flush=True)
    if comm.rank == 0:
        comm.send(np.zeros(5), other)
        for tag in range(1024):
            comm.send(tag, other, tag)
        refused(comm.send, 1, other, "one more")
        refused(comm.send, 1, 0)
        refused(comm.send, 1, 2)
    else:
        out = np.zeros(5, np.float32)
        refused(comm.recv, other, out=np.zeros(3))
        refused(comm.recv, other, like=out)
        refused(comm.recv, other, out=out, like=out)
        refused(comm.recv_object, other)
        info = comm.probe(other)
        print(info.dtype, info.shape, info.nbytes, info.is_object, flush=True)
        assert comm.recv(other).tolist() == [0.0] * 5
        assert [comm.recv(other, tag) for tag in range(1024)] == [*range(1024)]
"""


def test_local_mistakes_are_named_and_take_no_message(tmp_path: Path) -> None:
    status, out = run(REFUSED, tmp_path)
    assert status == 0, out
    for said in (
        "ValueError: rank 1 has been sent 1024 distinct tags since the last checkpoint, the",
        "ValueError: to=0 is this rank; a rank cannot message itself",
        "ValueError: to=2 is no rank of this job: they are 0 to 1",
        "ValueError: rank 0 sent float64[5], and out= or like= is float64[3]",
        "ValueError: rank 0 sent float64[5], and out= or like= is float32[5]",
        "TypeError: recv() takes like= or out=, not both",
        "TypeError: rank 0 sent float64[5]; receive it with recv()",
        "float64 (5,) 40 False",
    ):
        assert said in out, out


BURSTS = """\
import random
def run(comm, other):
    turns, number = random.Random(5), 0
    for _ in range(1500):
        burst, tag = turns.randint(1, 6), turns.choice((0, 0, 1))
        size = turns.choice((1, 1, 16, 5000))
        has_answer = turns.random() < 0.5
        for number in range(number, number + burst):
            if comm.rank == 1:
                comm.send(np.full(size, number), other, tag)
            else:
                got = comm.recv(other, tag, out=np.empty(size, np.int64))
                assert got[0] == got[-1] == number, f"{number} is due, and {got[0]} has come"
        number += 1
        if has_answer and comm.rank == 0:
            comm.send(number, other, 9)
        elif has_answer:
            assert comm.recv(other, 9) == number
    comm.checkpoint(0)
"""


def test_messages_that_come_at_once_are_received_one_by_one(tmp_path: Path) -> None:
    """Several of them are read in one piece, and a thread that reads takes the first."""
    status, output = run(BURSTS, tmp_path)
    assert status == 0, output


HANDLES = """\
def run(comm, other):
    seen, done = [], threading.Event()
    def answer(handle):
        seen.append(float(handle.result()[0]))
        comm.send_object(seen[-1], other, "answer")  # a callback may send
        if len(seen) == 3:
            done.set()
    handles = [comm.irecv(other, tag) for tag in range(3)]
    for handle in handles:
        handle.add_done_callback(answer)
    pending = comm.irecv_object(other, "answer")
    try:
        pending.wait(0)
    except TimeoutError as error:
        print(error, flush=True)
    total = comm.iallreduce(np.ones(2))  # a message waits for no collective
    for tag in (2, 1, 0):
        assert comm.isend(np.full(2, tag + 0.5), other, tag).done()
    answers = [pending.wait(), comm.recv_object(other, "answer"), comm.recv_object(other, "answer")]
    assert sorted(answers) == [0.5, 1.5, 2.5]
    assert [float(handle.wait()[0]) for handle in handles] == [0.5, 1.5, 2.5]
    assert done.wait(30)
    assert total.wait().tolist() == [2.0, 2.0]
    comm.checkpoint(0)
    late = comm.irecv(other)
    try:
        comm.checkpoint(0)
    except ValueError as error:
        print(error, flush=True)
    comm.barrier()  # a message that has come would let the other rank's checkpoint begin
    comm.send(1, other)
    late.wait()
    heard = threading.Event()
    late.add_done_callback(lambda _: heard.set())  # of one that is done
    assert heard.wait(30)
    counts = [comm.stats().kinds[kind].count for kind in ("send", "recv")]
    print("all well", *counts, flush=True)
"""


@pytest.mark.smoke
def test_handles_are_done_as_their_messages_come(tmp_path: Path) -> None:
    status, out = run(HANDLES, tmp_path)
    assert status == 0, out
    assert out.count("all well 7 7") == 2, out
    assert "recv_object(source=0, tag='answer') is still pending after 0 s" in out
    waits = "checkpoint() was called while recv(source=1, tag=0) at job.py:32 is pending"
    assert waits in out, out


TASKS = """\
def run(comm, other):
    with comm.engine() as engine:
        edges = [np.zeros(4) for _ in range(6)]
        got = [np.zeros(4) for _ in range(6)]
        sums = np.zeros(4)
        for number in range(6):  # more receives than the engine has threads: none waits on one
            engine.recv(got[number], other, number % 2)
        for number in range(6):
            def fill(number=number):
                edges[number][:] = comm.rank + 10 * number
            engine.push(fill, mutate=[edges[number]])
            engine.send(edges[number], other, number % 2)
        for number in range(6):
            def add(number=number):
                sums[:] += got[number]
            engine.push(add, read=[got[number]], mutate=[sums])
        engine.wait()
        assert [float(x[0]) for x in got] == [other + 10.0 * number for number in range(6)]
        total = engine.allreduce(sums)
        engine.wait_for(total)
        assert total.tolist() == [6.0 + 2 * 150] * 4, total
        last = np.zeros(2)
        pushed = threading.Event()
        def push(handle):
            engine.push(lambda: last.fill(handle.result()), mutate=[last])
            pushed.set()
        comm.irecv(other, "last").add_done_callback(push)  # a callback may push
        comm.send(7.0, other, "last")
        assert pushed.wait(30)
        engine.wait_for(last)
        assert last.tolist() == [7.0, 7.0]
        wrong = np.zeros(3)
        engine.recv(wrong, other, "wrong")
        comm.send(np.zeros(2), other, "wrong")
        try:
            engine.wait()
        except ValueError as error:
            print(error, flush=True)
        comm.recv(other, "wrong")
    print("all well", flush=True)
"""


def test_tasks_send_and_receive_in_the_order_of_their_pushing(tmp_path: Path) -> None:
    status, out = run(TASKS, tmp_path)
    assert status == 0, out
    assert out.count("all well") == 2, out
    assert "rank 0 sent float64[2], and out= or like= is float64[3]" in out, out


PENDING = """\
def run(comm, other):
    if comm.rank == 0:
        handle = comm.irecv(other)
        try:
            comm.abort("enough")
        finally:
            try:
                handle.wait()
            except ftcomm.ClosedError as error:
                print("ended:", error, flush=True)
"""


def test_a_receive_ends_with_its_communicator(tmp_path: Path) -> None:
    _, out = run(PENDING, tmp_path, "--max-restarts", "0")
    assert "ended: the communicator ended before this message came" in out, out


MANY = """\
def run(comm, other):
    def kib():
        return int(open("/proc/self/statm").read().split()[1]) * 4
    version, sizes = 0, []
    while version < 100:
        for number in range(1000):
            if comm.rank == 0:
                comm.send(np.full(8, float(number)), other)
            else:
                assert comm.recv(other)[0] == number
        version = comm.checkpoint(0)
        sizes.append(kib())
    print("grown by", max(sizes[50:]) - max(sizes[10:50]), "KiB", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the size of a process is read from /proc")
def test_messages_of_committed_versions_leave_nothing(tmp_path: Path) -> None:
    status, out = run(MANY, tmp_path)
    grown = [int(kib) for kib in re.findall(r"grown by (-?\d+) KiB", out)]
    assert (status, len(grown)) == (0, 2), out
    assert max(grown) < 2048, out


FILLED = """\
import hashlib, os, pathlib, signal
from ftcomm.control.messages import intake
from ftcomm.control.messages.direct_receive import DirectReceive
from ftcomm.transport.socket_link import SocketLink
# One thread reads the link: the one that receives, however late a message is.
intake.HOT_S = intake.LOOK_S = intake.DIRECT_S = 60.0
filled, place_for, init, killed = [], DirectReceive.place_for, SocketLink.__init__, []
def noted(self, *args):
    place = place_for(self, *args)
    if place is not None:
        filled.append(self)
    return place
def breaking(self, *args, **given):
    init(self, *args, **given)
    sendmsg = self.sendmsg
    def send(buffers, *args):
        parts = [bytes(memoryview(buffer).cast("B")[:1 << 20]) for buffer in buffers]
        if killed and max(map(len, parts)) == 1 << 20:
            sendmsg(parts)
            os.kill(os.getpid(), signal.SIGKILL)
        return sendmsg(buffers, *args)
    self.sendmsg = send
DirectReceive.place_for, SocketLink.__init__ = noted, breaking
kills = pathlib.Path("killed_at")
def run(comm, other):
    out, digest = np.empty(1 << 20), hashlib.sha256()
    for step in range(12):
        if comm.rank == 1:
            comm.recv(other)  # the other one waits for the message, and so reads the link
            if kills.exists() and step == int(kills.read_text()):
                kills.unlink()
                killed.append(step)
            comm.send(np.full(1 << 20, step, np.float64), other)
        else:
            comm.send(step, other)
            comm.recv(other, out=out)
            digest.update(out)
    if comm.rank == 0:
        print(digest.hexdigest(), "unfinished", sum(one.value is None for one in filled))
    comm.checkpoint(0)
"""


@pytest.mark.parametrize("step", [3, 4, 7, 11])
def test_a_sender_that_is_killed_while_its_message_comes_into_an_array_changes_no_byte(
    step: int, tmp_path: Path
) -> None:
    """Of 8 MiB at most one has left it."""
    (tmp_path / "killed_at").write_text(str(step))
    status, out = run(FILLED, tmp_path)
    wanted = hashlib.sha256()
    for number in range(12):
        wanted.update(np.full(1 << 20, number, np.float64))
    assert status == 0, out
    assert f"{wanted.hexdigest()} unfinished 1\n" in out, out


def test_a_group_of_one_has_nobody_to_send_to() -> None:
    with ftcomm.init("none") as comm:
        with pytest.raises(ValueError, match=r"send\(\) must come after load_checkpoint\(\)"):
            comm.send(np.zeros(1), 0)
        comm.load_checkpoint()
        with pytest.raises(ValueError, match="to=0 is this rank; a rank cannot message itself"):
            comm.send(np.zeros(1), 0)
        with pytest.raises(ValueError, match="source=1 is no rank of this job: they are 0 to 0"):
            comm.irecv(1)
    with pytest.raises(ftcomm.ClosedError):
        comm.recv_object(0)
