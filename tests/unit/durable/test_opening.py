"""Opening a store by its name, and the probe."""

import re
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ftcomm.durable.directory_store import TEMPORARY, DirectoryStore
from ftcomm.durable.opening import find_sign, leave_sign, open_store, probe
from ftcomm.durable.store import StoreError
from ftcomm.errors import ConfigError


def refused(url: str) -> str:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    return str(caught.value)


def test_a_directory_is_opened_by_path_and_by_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = [open_store(name).url for name in ("a b/c", f"file://{tmp_path}/a%20b/c")]
    assert opened == [str(tmp_path / "a b" / "c")] * 2
    assert [path.name for path in (tmp_path / "a b" / "c").iterdir()] == [TEMPORARY]


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA:SECRET@bucket/run",
        "s3://AKIA@bucket/run",
        "s3://bucket/run?secret=SECRET",
        "az://bucket/run#SECRET",
        "file://user:SECRET@host/run",
    ],
)
def test_a_url_with_credentials_is_refused_and_not_repeated(url: str) -> None:
    text = refused(url)
    assert "credentials come from the environment" in text
    assert "SECRET" not in text
    assert "AKIA" not in text


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "the checkpoint store has no name"),
        ("http://host/run", "stores of the kind http:// are not supported - give a directory"),
        ("s3:///run", "s3:///run names no bucket - give s3://BUCKET/PREFIX"),
        ("file://host/run", "file://host/run names no directory of this host"),
        ("s3://a[b/SECRET", "the URL of the checkpoint store is malformed - give a directory"),
        ("s3://bucket/\udcff", "the URL of the checkpoint store is malformed"),
        ("file:///tmp/a%00", r"checkpoint store '/tmp/a\x00': its name is not UTF-8 text"),
        ("/tmp/a\udcff", r"checkpoint store '/tmp/a\udcff': its name is not UTF-8 text"),
        ("~nobody-of-this-name/x", "there is no such home directory"),
    ],
)
def test_what_names_no_store_is_refused(url: str, words: str) -> None:
    text = refused(url)
    assert (words in text, "SECRET" in text) == (True, False), text


@pytest.mark.parametrize(
    ("url", "module", "words"),
    [
        ("s3://b/run", "s3fs", r"needs the package s3fs - pip install .*\[durable\]'$"),
        ("gs://b/run", "fsspec", r"the package gcsfs - pip install .*\[durable\]' gcsfs$"),
    ],
)
def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for own in ("s3_bucket", "fsspec_bucket"):
        monkeypatch.delitem(sys.modules, f"ftcomm.durable.{own}", raising=False)
    assert re.search(words, refused(url))


@pytest.mark.parametrize("error", [ValueError("SECRET"), RuntimeError("SECRET")])
def test_settings_that_a_package_refuses_are_not_repeated(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    bucket = pytest.importorskip(
        "ftcomm.durable.fsspec_bucket", reason="fsspec is not installed", exc_type=ImportError
    )

    def refuse(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(bucket.fsspec, "filesystem", refuse)
    text = refused("az://container/run")
    name = type(error).__name__
    assert text.startswith(f"az://container/run cannot be opened: {name} in adlfs - look at")
    assert "SECRET" not in text


def test_a_process_without_descriptors_can_open_the_store_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = pytest.importorskip(
        "ftcomm.durable.fsspec_bucket", reason="fsspec is not installed", exc_type=ImportError
    )

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(bucket.fsspec, "filesystem", refuse)
    with pytest.raises(StoreError, match="gs://b/run: Too many open files"):
        open_store("gs://b/run")


class Overwriting(DirectoryStore):
    """A service that ignores If-None-Match."""

    def put_new(self, name: str, data: Any) -> bool:
        self.delete(name)
        return super().put_new(name, data)


class Forgetful(DirectoryStore):
    """A store whose readers see something else."""

    def get(self, name: str) -> bytes:
        return b"other"


def test_a_store_that_keeps_its_promises_passes_the_probe(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    probe(store)
    assert store.list("") == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [(Overwriting, "ignores create-only puts"), (Forgetful, "does not return what was put")],
)
def test_a_store_that_does_not_is_refused(
    tmp_path: Path, kind: type[DirectoryStore], words: str
) -> None:
    store = kind(tmp_path)
    with pytest.raises(ConfigError, match=words):
        probe(store)
    assert store.list("") == []


def test_a_store_that_is_away_at_the_probe_is_said_to_be(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    (tmp_path / TEMPORARY).rmdir()
    with pytest.raises(StoreError):
        probe(store)


def test_only_the_store_with_the_trackers_sign_is_its_store(tmp_path: Path) -> None:
    here, elsewhere = (open_store(str(tmp_path / name)) for name in ("here", "elsewhere"))
    leave_sign(here, "job ü/.1")
    leave_sign(here, "job ü/.1")  # the tracker was started again
    find_sign(here, "job ü/.1")
    for store, job_id in ((elsewhere, "job ü/.1"), (here, "job ü/.2")):
        with pytest.raises(ConfigError, match="is not the store in which the tracker has begun"):
            find_sign(store, job_id)
