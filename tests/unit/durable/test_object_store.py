"""The store in a bucket: against moto's server on loopback, with a proxy that makes calls fail."""

import socket
import threading
from collections.abc import Iterator
from typing import NoReturn

import pytest

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

from ftcomm.config.backoff import STORE_ATTEMPTS
from ftcomm.durable import s3_bucket
from ftcomm.durable.chain import Chain
from ftcomm.durable.fsspec_bucket import FsspecBucket
from ftcomm.durable.object_store import PART_BYTES, ObjectStore
from ftcomm.durable.opening import open_store, probe
from ftcomm.durable.records import AttemptRecord, SeriesRecord
from ftcomm.durable.s3_bucket import S3Bucket
from ftcomm.durable.store import MissingObjectError, StoredObject, StoreError
from tests.unit.durable.moto_bucket import SECRET, fresh_bucket, served
from tests.unit.durable.s3_proxy import Fault, Faults

pytestmark = pytest.mark.process  # a server takes long to start, in a thread too
SERIES = SeriesRecord("job", 2, (0, 1), (), b"")


@pytest.fixture(scope="module")
def moto() -> Iterator[tuple[str, int]]:
    with served() as address:
        yield address


@pytest.fixture
def faults(moto: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    with fresh_bucket(moto, monkeypatch) as found:
        yield found


def store() -> ObjectStore:
    return ObjectStore("s3://ckpt/run", S3Bucket("ckpt"), "run", lambda seconds: None)


def test_objects_come_back_whole_and_in_parts(faults: Faults) -> None:
    made = open_store("s3://ckpt/run/")
    assert made.url == "s3://ckpt/run"
    probe(made)
    assert made.list("") == []
    assert made.put("data/a.ftc", [b"abc", memoryview(b"defg")]) == 7
    assert [made.put_new("chain/1.rec", data) for data in (b"x", b"y")] == [True, False]
    out = bytearray(4)
    assert made.read_into("data/a.ftc", 2, memoryview(out)) == 4
    assert (made.get("data/a.ftc"), bytes(out), made.get("chain/1.rec")) == (
        b"abcdefg",
        b"cdef",
        b"x",
    )
    assert made.read_into("data/a.ftc", 5, memoryview(out)) == 2
    assert made.read_into("data/a.ftc", 9, memoryview(out)) == 0
    assert made.list("") == [StoredObject("chain/1.rec", 1), StoredObject("data/a.ftc", 7)]
    assert made.list("data/") == [StoredObject("data/a.ftc", 7)]
    with pytest.raises(StoreError, match="its name was to be new"):
        made.put("data/a.ftc", [b"z"])
    made.delete("data/a.ftc")
    made.delete("data/a.ftc")
    with pytest.raises(MissingObjectError, match=r"s3://ckpt/run has no object data/a\.ftc"):
        made.get("data/a.ftc")


def test_a_large_object_is_sent_in_parts_that_are_repeated_alone(faults: Faults) -> None:
    faults.due = [Fault("partNumber=2", "busy"), Fault("partNumber=3", "lost after")]
    whole = bytes(range(256)) * (PART_BYTES // 128) + b"end"
    assert store().put("data/a.ftc", [whole[:100], whole[100:]]) == len(whole)
    assert faults.due == []
    assert store().get("data/a.ftc") == whole
    sent = [each.partition("partNumber=")[2][:1] for each in faults.seen if "partNumber" in each]
    assert sent == ["1", "2", "2", "3", "3"]


def test_an_upload_whose_last_reply_is_lost_is_found(faults: Faults) -> None:
    faults.due = [Fault("POST /ckpt/run/data/a.ftc?uploadId", "lost after")]
    whole = bytes(PART_BYTES + 1)
    assert store().put("data/a.ftc", [whole]) == len(whole)
    assert (faults.due, store().list("")) == ([], [StoredObject("data/a.ftc", len(whole))])


def test_an_upload_whose_content_fails_is_aborted(faults: Faults) -> None:
    def broken() -> Iterator[bytes]:
        yield bytes(2 * PART_BYTES)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        store().put("data/a.ftc", broken())
    assert faults.seen[-1].startswith("DELETE /ckpt/run/data/a.ftc?uploadId")
    assert store().list("") == []
    assert store().remove_leftovers() == 0


def test_an_upload_that_somebody_aborts_is_an_error_that_says_so(faults: Faults) -> None:
    """As `gc` does with one that has lasted an hour."""
    faults.due = [Fault("partNumber=2", "no upload")]
    with pytest.raises(StoreError, match=r"s3://ckpt/run: data/a\.ftc: its upload was aborted"):
        store().put("data/a.ftc", [bytes(2 * PART_BYTES)])
    assert (faults.due, store().list("")) == ([], [])


@pytest.mark.parametrize("kind", ["busy", "conflict", "lost before"])
def test_a_put_that_failed_for_a_moment_is_repeated(faults: Faults, kind: str) -> None:
    faults.due = [Fault("PUT", kind)] * 2
    assert store().put_new("chain/1.rec", b"x") is True
    assert (faults.due, store().get("chain/1.rec")) == ([], b"x")


def test_a_reply_lost_after_a_record_was_put_is_found_by_its_nonce(faults: Faults) -> None:
    """The repeated put hears 412: the record that is there is the writer's own."""
    faults.due = [Fault("PUT", "lost after")]
    assert Chain(store()).append(SERIES, b"1" * 16, attempt=0) == 1
    assert faults.due == []
    faults.due = [Fault("PUT", "lost after")]
    chain = Chain(store())
    assert chain.append(AttemptRecord(1, 0), b"2" * 16, attempt=1) == 2
    assert [link.nonce[:1] for link in Chain(store()).read()] == [b"1", b"2"]


def test_a_put_of_another_writer_is_not_taken_for_ones_own(faults: Faults) -> None:
    first, second = Chain(store()), Chain(store())
    first.append(SERIES, b"1" * 16, attempt=0)
    second.read()
    assert first.put_next(AttemptRecord(1, 0), b"2" * 16) is True
    faults.due = [Fault("PUT", "lost before")]
    assert second.put_next(AttemptRecord(1, 0), b"3" * 16) is False
    assert second.links == first.links


def test_of_many_writers_one_creates_the_name(faults: Faults) -> None:
    won: list[int] = []

    def write(number: int) -> None:
        if shared.put_new("chain/1.rec", str(number).encode()):
            won.append(number)

    shared = store()  # also: it may be called by several threads
    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared.get("chain/1.rec") == str(*won).encode()


def test_a_store_that_stays_busy_is_an_error_after_a_few_tries(faults: Faults) -> None:
    faults.due = [Fault("", "busy")] * 9
    with pytest.raises(StoreError, match=r"s3://ckpt/run: data/a: SlowDown \(HTTP 503\)"):
        store().get("data/a")
    assert len(faults.seen) == 4


def test_a_call_without_an_answer_ends_in_time(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_bucket, "CALL_LIMIT_S", 1.0)
    faults.due = [Fault("PUT", "slow")]
    assert store().put_new("chain/1.rec", b"x") is True
    assert len(faults.seen) == 2


def test_a_bucket_that_is_not_there_is_no_damage_and_no_secret_is_told(faults: Faults) -> None:
    gone = ObjectStore("s3://gone", S3Bucket("gone"), "", lambda seconds: None)
    for call in (lambda: gone.get("a"), lambda: gone.list(""), lambda: gone.put("a", [b"a"])):
        with pytest.raises(StoreError, match=r"NoSuchBucket \(HTTP 404\)") as caught:
            call()
        assert SECRET not in str(caught.value)
        assert "AKIA" not in str(caught.value)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 4), (2, 4), (2, 9)])
def test_a_service_that_ignores_the_range_of_a_read_is_told(
    faults: Faults, offset: int, nbytes: int
) -> None:
    """Its bytes are others than were asked for, and no damage of the object."""
    store().put("data/a.ftc", [b"abcdefg"])
    faults.due = [Fault("GET", "no range")]
    with pytest.raises(StoreError, match=r"s3://ckpt/run: data/a\.ftc: .*the header Range"):
        store().read_into("data/a.ftc", offset, memoryview(bytearray(nbytes)))
    assert faults.due == []


def test_a_whole_object_that_was_asked_for_is_one_without_a_range_too(faults: Faults) -> None:
    store().put("data/a.ftc", [b"abcdefg"])
    faults.due = [Fault("GET", "no range")]
    out = bytearray(9)
    assert store().read_into("data/a.ftc", 0, memoryview(out)) == 7
    assert bytes(out) == b"abcdefg\0\0"


def test_a_list_that_is_cut_without_saying_where_is_an_error(faults: Faults) -> None:
    faults.due = [Fault("GET", "no end")]
    with pytest.raises(StoreError, match=r"s3://ckpt/run: data/: its answer has no NextCont"):
        store().list("data/")


def test_the_age_of_an_upload_is_not_guessed(faults: Faults) -> None:
    """Our clock may be wrong: an upload that lasts would be aborted."""
    faults.due = [Fault("GET", "no date")] * 2
    assert store().remove_leftovers() == 0
    S3Bucket("ckpt").begin("run/data/a.ftc")  # moto gives each the same age, of years
    with pytest.raises(StoreError, match=r"s3://ckpt/run: uploads: its answer has no date"):
        store().remove_leftovers()
    assert (faults.due, store().remove_leftovers()) == ([], 1)


def test_a_service_that_is_down_is_told(faults: Faults) -> None:
    faults.due = [Fault("", "lost before")] * 9
    with pytest.raises(StoreError, match=r"s3://ckpt/run: a: \w+Error"):
        store().get("a")


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Set variables behind those for credentials."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return monkeypatch


def test_a_connection_that_cannot_be_made_is_tried_again(variables: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    variables.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    pauses = list[float]()
    with pytest.raises(StoreError, match=r"a: EndpointConnectionError"):
        ObjectStore("s3://ckpt", S3Bucket("ckpt"), "", pauses.append).get("a")
    assert len(pauses) == STORE_ATTEMPTS - 1


def test_an_endpoint_that_is_none_is_an_error_of_the_store(variables: pytest.MonkeyPatch) -> None:
    variables.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(StoreError, match="its endpoint, as the environment names it, is malformed"):
        store().get("a")


class NoBucket:
    """The file system of a service that has no such bucket: a 404, as gcsfs tells it."""

    def __init__(self, *, opens: bool) -> None:
        self._opens = opens  # nothing is asked of the service before the first part

    def pipe_file(self, path: str, data: bytes, mode: str) -> NoReturn:
        raise FileNotFoundError(path)

    def open(self, path: str, mode: str) -> "NoBucket":
        if not self._opens:
            raise FileNotFoundError(path)
        return self

    def write(self, data: bytes) -> NoReturn:
        raise FileNotFoundError

    def discard(self) -> NoReturn:
        raise FileNotFoundError


@pytest.mark.parametrize("opens", [False, True])
def test_a_bucket_of_another_service_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    bucket = FsspecBucket("memory", "gone")
    monkeypatch.setattr(bucket, "_files", NoBucket(opens=opens))
    gone = ObjectStore("gs://gone", bucket, "", pytest.fail)
    with pytest.raises(StoreError, match=r"gs://gone: probe/\w+: there is no such bucket - "):
        probe(gone)
    with pytest.raises(StoreError, match=r"gs://gone: data/a\.ftc: there is no such bucket"):
        gone.put("data/a.ftc", [bytes(2 * PART_BYTES)])


def test_the_calls_for_other_services_keep_the_same_promises() -> None:
    """On fsspec's file system in memory, in the place of Google's and Azure's."""
    made = ObjectStore("memory://b/run", FsspecBucket("memory", "b"), "run", lambda seconds: None)
    probe(made)
    assert [made.put_new("chain/1.rec", data) for data in (b"x", b"y")] == [True, False]
    whole = bytes(PART_BYTES + 5)
    assert made.put("data/a.ftc", [whole]) == len(whole)
    assert made.get("data/a.ftc") == whole
    out = bytearray(4)
    assert made.read_into("data/a.ftc", len(whole) - 2, memoryview(out)) == 2
    FsspecBucket("memory", "b").create("run/chain/a copy", b"somebody else's")
    assert made.list("") == [
        StoredObject("chain/1.rec", 1),
        StoredObject("data/a.ftc", len(whole)),
    ]
    made.delete("data/a.ftc")
    made.delete("data/a.ftc")
    with pytest.raises(MissingObjectError):
        made.get("data/a.ftc")
    assert (made.list("data/"), made.remove_leftovers()) == ([], 0)
