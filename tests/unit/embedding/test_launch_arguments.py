"""Refusals of `launch` and `Tracker` before anything is started, and the parts of a launch."""

import functools
import json
import operator
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.errors import ConfigError
from ftcomm_tracker.embedding import pickled
from ftcomm_tracker.embedding.arguments import (
    checked_call,
    checked_restarts,
    checked_settings,
    checked_workers,
    naming_arguments,
)
from ftcomm_tracker.embedding.launch_folder import PATH, HostEnd, LaunchFolder, WorkerReport
from ftcomm_tracker.embedding.outcomes import results_of


def work(*given: object) -> int:
    return len(given)


def train(steps: int, *, rate: float = 0.1) -> float:
    return steps * rate


@functools.wraps(train)
def train_ten() -> float:
    return train(10)


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"workers": 0}, "workers is 0: a job has 1 to 2048 workers"),
        ({"workers": True}, "workers is True, must be a whole number"),
        ({"workers": "2"}, "workers is '2', must be a whole number"),
        ({"function": 3}, "the function is 3: pass the function itself, not a result"),
        ({"args": "ab"}, "args is 'ab', must be a tuple or a list"),
        ({"kwargs": [1]}, r"kwargs is \[1\], must have values by name"),
        ({"kwargs": {1: 2}}, "must have values by name"),
        ({"environment": {"A": 1}}, "environment is {'A': 1}, must have texts by name"),
        ({"environment": {"A=B": "1"}}, "environment has 'A=B', which is no name of a variable"),
        ({"environment": {"": "1"}}, "environment has '', which is no name of a variable"),
        ({"environment": {"A\0": "1"}}, r"environment has 'A\\x00', which is no name"),
        ({"environment": {"A": "\0"}}, "environment has A with a character that no variable"),
        ({"environment": {"A": "\ud800"}}, "environment has A with a character that no vari"),
        ({"max_restarts": -1}, "max_restarts is -1, must be a whole number from 0 on"),
        ({"restart_window": 0}, "restart_window is 0, must be seconds, above 0"),
        ({"term_grace": -1}, "term_grace is -1, must be seconds, from 0 to 2592000"),
        ({"state_dir": 3}, "state_dir is 3, must be a text or a path"),
        ({"state_dir": b"d"}, "state_dir is b'd', must be a text or a path"),
        ({"settings": ["spares"]}, r"settings is \['spares'\], must have values by name"),
        ({"settings": {1: 2}}, "settings is {1: 2}, must have values by name"),
        ({"settings": {"detect_wihin": 1}}, "no such job setting: detect_wihin - did you mean det"),
        ({"settings": {"detect_within": 0.01}}, "^detect_within is 0.01, must be a number from"),
        ({"settings": {"checkpoint_every": 60}}, "^checkpoint_every is 60, must be a text"),
        ({"settings": {"checkpoint_every": 5}}, "^checkpoint_every is 5, must be a text"),
        ({"settings": {"log_limit": "5 apples"}}, "^log_limit: '5 apples' is not a size such as"),
        ({"args": (threading.Lock(),)}, "work and its arguments cannot be sent to the workers: "),
    ],
)
def test_wrong_arguments_of_launch_are_named(given: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        ftcomm.launch(**{"function": work, "workers": 2, **given})


@pytest.mark.parametrize(
    ("args", "kwargs", "refusal"),
    [
        ((1, 2), {}, r"train\(.*\) -> float with 2 positional arguments: too many positional"),
        ((), {"rate": 1}, "with 0 positional arguments and rate: missing a required argument"),
        ((1,), {"rat": 1}, "got an unexpected keyword argument 'rat'"),
    ],
)
def test_arguments_that_a_function_does_not_take_are_refused_at_once(
    args: tuple[Any, ...], kwargs: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(TypeError, match=refusal):
        ftcomm.launch(train, 2, args, kwargs)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (train, (1,)),
        (train_ten, ()),  # what it wraps takes an argument
        (functools.partial(train, rate=2.0), (1,)),
        (max, (1, 2)),  # it shows no signature
    ],
)
def test_arguments_that_a_function_takes_are_not_refused(
    function: Any, args: tuple[Any, ...]
) -> None:
    checked_call(function, args, None)


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"workers": None}, "workers is None"),
        ({"settings": {"keep": 0}}, "keep is 0"),
        ({"state_dir": 3}, "state_dir is 3, must be a text or a path"),
        ({"host": 5}, "host is 5, must be a name or an address of this machine"),
        ({"port": "80"}, "port is '80', must be a whole number; 0 takes a free one"),
        ({"port": True}, "port is True, must be a whole number"),
        ({"port": -1}, "port is -1, must be from 0 to 65535"),
        ({"port": 70000}, "port is 70000, must be from 0 to 65535"),
        ({"token_file": True}, "token_file is True, must be a text or a path"),
    ],
)
def test_wrong_arguments_of_a_tracker_are_named(given: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        ftcomm.Tracker(**{"workers": 2, **given})


def test_settings_may_be_texts_as_on_the_command_line() -> None:
    given = {"log_limit": "512MiB", "detect_within": "2", "spares": 1, "transport": "tcp"}
    wanted = {"log_limit": 512 << 20, "detect_within": 2.0, "spares": 1, "transport": "tcp"}
    assert checked_settings(given) == wanted


def test_whole_numbers_may_be_those_of_numpy() -> None:
    three = np.int64(3)
    assert (checked_workers(three), checked_restarts(three, 1.0).max_restarts) == (3, 3)
    assert json.dumps(checked_settings({"spares": three})) == '{"spares": 3}'


def test_a_refusal_names_arguments() -> None:
    with pytest.raises(ConfigError) as caught, naming_arguments():
        raise ConfigError("FTCOMM_DETECT_WITHIN is 1", remedy="give --state-dir or -n, not --port")
    assert (caught.value.cause, caught.value.remedy) == (
        "detect_within is 1",
        "give state_dir or -n, not port",
    )


def test_without_cloudpickle_what_workers_cannot_import_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pickled, "_cloudpickle", lambda: None)
    with pytest.raises(ConfigError, match=r"cannot be sent .*pip install .*\[notebook\]'"):
        pickled.dump_call(lambda: 1, (), {})
    function = functools.partial(work)
    monkeypatch.setattr(work, "__module__", "__main__")
    with pytest.raises(ConfigError, match=r"^work is defined in the notebook or the script itself"):
        pickled.dump_call(function, (), {})


def test_a_call_comes_back_with_its_arguments() -> None:
    assert pickled.load_call(pickled.dump_call(operator.add, [1], {}))(2) == 3
    assert pickled.load_call(pickled.dump_call(dict, (), {"a": 1}))() == {"a": 1}


def test_marks_of_import_hooks_in_the_path_stay_as_they_are(tmp_path: Path) -> None:
    mark = "__editable__.mine-1.0.finder.__path_hook__"
    folder = LaunchFolder(tmp_path)
    folder.write_path(["", "tests", mark])
    here = Path.cwd()
    assert json.loads((tmp_path / PATH).read_text()) == [str(here), str(here / "tests"), mark]


def test_content_keeps_the_name_of_its_file() -> None:
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    function = pickled.load(pickled.dump(lambda: 1))
    assert (function(), function.__code__.co_filename) == (1, __file__)


@pytest.fixture
def only_here(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function of a module that workers cannot import."""
    module = types.ModuleType("only_in_this_process")
    exec("def name(*given): return 'here'", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_modules_that_the_user_sends_by_content_stay_so(only_here: Any) -> None:
    cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    cloudpickle.register_pickle_by_value(only_here)
    pickled.dump_call(only_here.name, (), {})
    cloudpickle.unregister_pickle_by_value(only_here)  # refused if it is not registered


def test_launches_of_two_threads_send_one_module_by_content(only_here: Any) -> None:
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    sent: list[bytes] = []

    class Beside:
        """Another thread launches a function of the same module while this is pickled."""

        def __reduce__(self) -> tuple[Any, ...]:
            beside.start()
            beside.join(0.1)  # it waits for this one
            return str, ()

    beside = threading.Thread(target=lambda: sent.append(dump()))
    dump = functools.partial(pickled.dump_call, only_here.name, (), {})
    sent.append(pickled.dump_call(only_here.name, (Beside(),), {}))
    beside.join()
    del sys.modules[only_here.__name__]
    assert [pickled.load_call(data)() for data in sent] == ["here", "here"]


def report(rank: int | None, error: Exception | None = None, *, own: bool = True) -> WorkerReport:
    kind, body = "" if error is None else type(error).__name__, pickled.dump(error or rank)
    return WorkerReport(
        str(rank), rank, kind, str(error), "the traceback", own and bool(error), 1.0, body
    )


FAILED = HostEnd(False, 83, "ScriptFailedError", "it failed twice")


@pytest.mark.parametrize(
    ("end", "status", "reports", "wanted"),
    [
        (None, -9, [], "the process that ran the job was killed by SIGKILL"),
        (HostEnd(False, 143), 143, [], "the process that ran the job exited with status 143"),
        (FAILED, 83, [], "it failed twice"),
        (FAILED, 83, [report(0, ftcomm.RankLostError("lost"), own=False)], "it failed twice"),
        (FAILED, 83, [report(0, ftcomm.ScriptFailedError("as told"), own=False)], "as told"),
        (FAILED, 83, [report(0), report(1, ValueError("mine"))], "mine"),
        (HostEnd(True, 0), 0, [report(0)], "the process of rank 1 ended after its close"),
    ],
)
def test_the_error_nearest_to_the_cause_is_raised(
    end: HostEnd | None, status: int, reports: list[WorkerReport], wanted: str
) -> None:
    with pytest.raises(Exception, match=wanted):
        results_of(end, status, reports, 2)


def test_reports_are_read_as_they_were_written_and_the_newest_counts() -> None:
    with LaunchFolder.made() as folder:
        assert folder.path.stat().st_mode & 0o777 == 0o700
        for rank in (1, 0):
            folder.write_report(report(rank, ValueError("x")))
            folder.write_report(report(rank))
        folder.write_report(report(2))
        folder.remove_report("2")
        reports = folder.reports()
        assert results_of(HostEnd(True, 0), 0, reports, 2) == [0, 1]
        assert folder.read_end() is None
        folder.write_end(FAILED)
        assert folder.read_end() == FAILED
    assert not Path(folder.path).exists()


class WrongError(Exception):
    """Its constructor is not called with what `args` has."""

    def __init__(self, row: int, *, column: str) -> None:
        super().__init__(f"row {row}, column {column}")


def test_a_result_that_the_caller_cannot_read_is_named_with_its_rank() -> None:
    body = pickled.dump(WrongError(3, column="x"))
    results = [WorkerReport(str(n), n, "", "", "", False, 1.0, body) for n in (0, 1)]
    with pytest.raises(TypeError, match="__init__") as caught:
        results_of(HostEnd(True, 0), 0, results, 2)
    [note] = caught.value.__notes__
    assert note.startswith("while the result of rank 0 of 2 (worker 0) was read")


class SealedError(Exception):
    """An error that takes no attributes."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


def test_an_error_that_takes_no_note_is_raised_without_one() -> None:
    with pytest.raises(SealedError, match="row 3"):
        results_of(FAILED, 83, [report(1, SealedError("row 3"))], 2)
