"""A bucket ``ckpt`` of moto's server on loopback, behind the proxy that makes calls fail."""

import contextlib
import http.client
from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from tests.unit.durable.s3_proxy import Faults, proxy

SECRET = "verysecretkeyvalue"


@contextlib.contextmanager
def served() -> Iterator[tuple[str, int]]:
    """Run moto's server; yield its address."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()
    finally:
        server.stop()


@contextlib.contextmanager
def fresh_bucket(moto: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Empty the bucket, and name its proxy in the environment."""
    _ask(moto, "POST", "/moto-api/reset")
    _ask(moto, "PUT", "/ckpt")
    with proxy(moto) as (url, found):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield found


def _ask(moto: tuple[str, int], method: str, path: str) -> None:
    connection = http.client.HTTPConnection(*moto, timeout=30)
    connection.request(method, path)
    assert connection.getresponse().status == 200
    connection.close()
