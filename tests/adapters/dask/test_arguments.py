"""Arguments of `ftcomm.dask.run` that cannot be meant are refused before anything is started."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

distributed = pytest.importorskip("distributed")

import ftcomm  # noqa: E402 - as Dask is there
import ftcomm.dask  # noqa: E402 - likewise
from ftcomm_tracker.embedding import dask_gang  # noqa: E402 - likewise


def work(number: int) -> int:
    return number


class Client(distributed.Client):  # type: ignore[misc]  # Dask has no types
    """A client of no cluster."""

    def __init__(self, *, waits: bool = True, knows_ftcomm: bool = True) -> None:
        self.id, self.waits, self.knows_ftcomm = "client", waits, knows_ftcomm
        self.status = "running"

    @property
    def asynchronous(self) -> bool:
        return not self.waits

    def register_plugin(self, plugin: Any) -> None:
        if not self.knows_ftcomm:
            raise ModuleNotFoundError("No module named 'ftcomm'")
        raise AssertionError("this is a client of no cluster")

    def __del__(self) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize(
    ("client", "given", "kind", "refusal"),
    [
        ("tcp://host:8786", {}, ftcomm.ConfigError, "client is 'tcp://host:8786', must be one of"),
        (Client(waits=False), {}, ftcomm.ConfigError, "run waits - call it with another client"),
        (Client(), {"workers": 0}, ftcomm.ConfigError, "workers is 0: a job has 1 to"),
        (Client(), {"args": 3}, ftcomm.ConfigError, "args is 3, must be a tuple or a list"),
        (Client(), {"args": ()}, TypeError, "missing a required argument"),
        (Client(), {"settings": {"spars": 1}}, ftcomm.ConfigError, "did you mean spares"),
        (Client(knows_ftcomm=False), {}, ftcomm.ConfigError, "install the same release of ftcomm"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    client: Any, given: dict[str, Any], kind: type[Exception], refusal: str
) -> None:
    with pytest.raises(kind, match=refusal):
        ftcomm.dask.run(client, work, **{"workers": 2, "args": (1,), **given})


def test_another_scheduler_is_the_loss_of_the_tracker() -> None:
    answer = dask_gang._answer("ftcomm-1", "status", dask_scheduler=SimpleNamespace(plugins={}))
    with pytest.raises(ftcomm.TrackerLostError, match="Dask's scheduler is lost"):
        asyncio.run(answer)


def test_no_log_of_dask_has_the_token() -> None:
    call = dask_gang.RankCall("0", "127.0.0.1:1", b"secret", b"call")
    assert repr(call) == "RankCall(worker_id='0', tracker='127.0.0.1:1')"
