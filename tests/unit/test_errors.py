"""Errors as a user meets them: what catches them, what they say, and that they travel."""

import copy
import pickle

import pytest

from ftcomm import errors
from ftcomm.errors import FtcommError
from ftcomm_tracker.core.durable_state import FORMAT, Durable

ALSO: dict[type[FtcommError], type[Exception]] = {
    errors.CollectiveTimeoutError: TimeoutError,
    errors.TrackerLostError: ConnectionError,
    errors.ConfigError: ValueError,
    errors.AuthenticationError: PermissionError,
    errors.ThreadError: RuntimeError,
    errors.ForkError: RuntimeError,
    errors.LogLimitError: MemoryError,
}
ALL = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, FtcommError)
]


def facts(error: FtcommError) -> tuple[object, ...]:
    return (
        type(error), error.cause, error.rank, error.epoch, error.position, error.remedy,
        str(error), error.args,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ALL)
def test_an_error_says_and_keeps_all_it_was_given_and_travels(kind: type[FtcommError]) -> None:
    error = kind("it broke", rank=2, epoch=3, position="0.4", remedy="repair it")
    said = "it broke [rank 2, epoch 3, position 0.4] - repair it"
    assert facts(error) == (kind, "it broke", 2, 3, "0.4", "repair it", said, (said,))
    assert facts(pickle.loads(pickle.dumps(error))) == facts(error)
    assert facts(copy.copy(error)) == facts(error)
    assert repr(error) == f"{kind.__name__}({said!r})"
    assert kind("13").cause == "13"


def test_a_lost_job_says_with_what_the_same_command_goes_on() -> None:
    remedy = errors.JobLostError("gone").remedy
    assert [word in remedy for word in ("--checkpoint", "run --state-dir")] == [True, True]


@pytest.mark.parametrize(("kind", "base"), ALSO.items())
def test_an_error_is_caught_by_what_python_has_for_it(
    kind: type[FtcommError], base: type[Exception]
) -> None:
    with pytest.raises(base) as caught:
        raise kind("it broke")
    assert type(caught.value) is kind
    if isinstance(caught.value, OSError):  # which makes an errno of two arguments
        assert (caught.value.errno, caught.value.strerror, caught.value.filename) == (None,) * 3


def test_no_other_error_is_one_of_pythons_too() -> None:
    own = {FtcommError, Exception, BaseException, object}
    odd = {kind for kind in ALL if not set(kind.__mro__) <= {*own, *ALL}}
    assert odd == set(ALSO)
    assert {kind.__name__ for kind in ALL if issubclass(kind, OSError)} == {
        "AuthenticationError", "CollectiveTimeoutError", "TrackerLostError",
    }  # fmt: skip


def test_a_journal_of_another_format_is_not_called_damaged() -> None:
    """The refusal is a ValueError too, as is what a damaged journal raises."""
    document = {**Durable.fresh("job", 2).to_wire(), "format": 1}
    with pytest.raises(errors.ConfigError) as refused:
        Durable.from_wire(document)
    assert str(refused.value) == f"the journal has format 1, this version reads {FORMAT}"
