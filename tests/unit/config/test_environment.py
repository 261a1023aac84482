"""Settings come from arguments, then the environment, and are refused by name."""

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.config import environment
from ftcomm.config.environment import (
    VARIABLES,
    WorkerOptions,
    job_settings,
    parse_address,
    parse_addresses,
    parse_endpoint,
    read_token,
)
from ftcomm.config.ip_addresses import is_loopback
from ftcomm.config.job_settings import SETTINGS, JobSettings
from ftcomm.errors import ConfigError

TOKEN = "0123456789abcdef" * 4


def load(environ: dict[str, str] | None = None, **arguments: Any) -> WorkerOptions:
    return WorkerOptions.load(environ=environ or {}, **arguments)


# --- job settings -----------------------------------------------------------------------------


def test_settings_survive_the_wire() -> None:
    settings = JobSettings(detect_within=0.5, replicas=3, algorithm="ring", log_limit=7)
    assert JobSettings.from_wire(settings.to_wire()) == settings
    assert dict(JobSettings().to_wire()) == {
        "detect_within": "5.0",
        "replicas": "2",
        "local_replicas": "2",
        "log_limit": "2147483648",
        "algorithm": "auto",
        "transport": "auto",
        "streams": "1",
        "call_deadline": "0.0",
        "form_within": "600.0",
        "replace_within": "600.0",
        "reattach_within": "30.0",
        "spares": "0",
        "verify": "none",
        "checksum": "none",
        "checkpoint": "",
        "checkpoint_every": "60s",
        "keep": "3",
        "max_attempts": "100",
        "keep_by_all": "268435456",
        "max_incarnations": "100",
        "spare_fetch_rate": "104857600",
        "last_will": "60.0",
    }


def test_a_whole_number_of_seconds_reads_the_same_from_every_source() -> None:
    asked = load({}, asked={"detect_within": 5}).asked
    assert asked == (("detect_within", "5.0"),)
    assert JobSettings(detect_within=5).to_wire() == JobSettings().to_wire()
    assert JobSettings().differences(asked) is None


def test_overrides_beat_variables_and_variables_beat_defaults() -> None:
    environ = {"FTCOMM_DETECT_WITHIN": "2", "FTCOMM_REPLICAS": "3", "FTCOMM_ALGORITHM": ""}
    settings = job_settings({"replicas": 4, "log_limit": None}, environ=environ)
    assert settings == JobSettings(detect_within=2.0, replicas=4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("detect_within", 0.01),
        ("detect_within", float("nan")),
        ("detect_within", True),
        ("replicas", 0),
        ("replicas", 1.5),
        ("local_replicas", -1),
        ("log_limit", 0),
        ("algorithm", "tree"),
        ("transport", "carrier pigeon"),
        ("streams", 0),
        ("streams", 17),
        ("form_within", -1),
        ("replace_within", -1),
        ("reattach_within", float("inf")),
        ("keep_by_all", -1),
        ("max_incarnations", 0),
        ("spare_fetch_rate", 0),
        ("last_will", float("nan")),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_variable(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"FTCOMM_{name.upper()} is"):
        JobSettings(**{name: value})  # a whole-number or float range


@pytest.mark.parametrize("name", SETTINGS)
def test_the_default_reads_back_from_how_a_person_writes_it(name: str) -> None:
    setting = SETTINGS[name]
    assert setting.kind.read(name, setting.default_text) == setting.default
    assert setting.kind.read(name, setting.kind.canonical(setting.default)) == setting.default


@pytest.mark.parametrize(
    "pairs",
    [
        (),
        JobSettings().to_wire()[1:],
        (*JobSettings().to_wire(), ("strings", "4")),
        (*JobSettings().to_wire(), ("replicas", "2")),
        (*JobSettings().to_wire()[1:], ("detect_within", "soon")),
    ],
)
def test_settings_of_another_version_are_refused(pairs: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(ConfigError):
        JobSettings.from_wire(pairs)


def test_an_unknown_or_malformed_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="no such job setting: colour"):
        job_settings({"colour": "red"}, environ={})
    with pytest.raises(ConfigError, match="FTCOMM_REPLICAS is 'two', not a number"):
        job_settings(environ={"FTCOMM_REPLICAS": "two"})


def test_a_size_may_have_a_unit_in_a_variable_too() -> None:
    assert job_settings(environ={"FTCOMM_LOG_LIMIT": "1.5GiB"}).log_limit == 3 << 29
    assert job_settings(environ={"FTCOMM_LOG_LIMIT": "64MiB"}).by_all_limit == 64 << 20
    assert load({"FTCOMM_LOG_LIMIT": "1 MiB"}).asked == (("log_limit", "1048576"),)
    for text in ("many", "1 PB", "9" * 400, "-1"):
        with pytest.raises(ConfigError, match=r"FTCOMM_LOG_LIMIT: .* is not a size such as"):
            job_settings(environ={"FTCOMM_LOG_LIMIT": text})


def test_a_worker_that_asks_for_another_value_is_told_both() -> None:
    asked = load({"FTCOMM_REPLICAS": "3"}, asked={"detect_within": 1.0, "transport": None}).asked
    assert asked == (("detect_within", "1.0"), ("replicas", "3"))
    assert JobSettings().differences(asked) == (
        "detect_within: this worker asks for 1.0, the job has 5.0; "
        "replicas: this worker asks for 3, the job has 2"
    )
    assert JobSettings(detect_within=1.0, replicas=3).differences(asked) is None


def test_differences_takes_whatever_a_peer_sends() -> None:
    text = JobSettings().differences((("strings", "4"), ("replicas", "many")))
    assert text is not None
    assert "no such setting" in text
    assert "asks for many" in text


# --- worker options ---------------------------------------------------------------------------


def test_an_empty_environment_is_a_group_of_one() -> None:
    assert load() == WorkerOptions()


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("node1", ("node1", 0)),
        ("node1:31700", ("node1", 31700)),
        ("fd00::5", ("fd00::5", 0)),
        ("fe80::1%eth0", ("fe80::1%eth0", 0)),
        ("[fd00::5]:7000", ("fd00::5", 7000)),
    ],
)
def test_an_address_may_name_a_port(text: str, endpoint: tuple[str, int]) -> None:
    assert parse_endpoint(text, name="FTCOMM_BIND") == endpoint


@pytest.mark.parametrize(
    "text",
    [
        *("node1:", ":7000", "node1:0", "node1:65536", "[fd00::5]", "node1:7000:7001", "[a:b]:1"),
        *(" ", "10.0.0.1 10.0.0.2", "node..1"),
    ],
)
@pytest.mark.parametrize("name", ["FTCOMM_BIND", "FTCOMM_ADVERTISE"])
def test_an_address_that_is_none_is_named(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*must be an address or address:port"):
        load({name: text})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("FTCOMM_ADVERTISE", text) for text in ("0.0.0.0", "0.0.0.0:7000", "::", "[fe80::2]:7")),
        ("FTCOMM_BIND", "fe80::2"),
    ],
)
def test_an_address_that_nobody_else_can_dial_is_named(name: str, text: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^{name} is .*, which other machines cannot dial - give"
    ):
        load({name: text})


@pytest.mark.parametrize(
    ("name", "text"),
    [("FTCOMM_BIND", "::"), ("FTCOMM_ADVERTISE", "fe80::2%eth0"), ("FTCOMM_ADVERTISE", "fd00::2")],
)
def test_an_address_that_others_can_dial_is_taken(name: str, text: str) -> None:
    load({name: text})


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        *((host, True) for host in ("127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1")),
        *((host, True) for host in ("0.0.0.0", "::", "localhost", "LOCALHOST")),
        *((host, False) for host in ("10.0.0.1", "fd00::1", "fe80::1%lo", "node1", "127.example")),
    ],
)
def test_loopback_is_told_from_other_addresses(host: str, wanted: bool) -> None:
    assert is_loopback(host) is wanted


def test_files_may_be_in_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell expands no ``--token-file=~/token``."""
    monkeypatch.setenv("HOME", "/home/me")
    environ = {"FTCOMM_TRACKER": "a:1", "FTCOMM_TOKEN_FILE": "~/token", "FTCOMM_HISTORY": "~/h"}
    options = WorkerOptions.load(environ=environ)
    assert (options.token_file, options.history) == (Path("/home/me/token"), Path("/home/me/h"))
    environ["FTCOMM_TOKEN_FILE"] = "~nobody-of-this-name/token"
    with pytest.raises(ConfigError, match="there is no such home directory"):
        WorkerOptions.load(environ=environ)


def test_arguments_beat_the_environment() -> None:
    environ = {
        "FTCOMM_TRACKER": "a:1,[::1]:2",
        "FTCOMM_WORKER_ID": "env",
        "FTCOMM_TOKEN_FILE": "/etc/token",
        "FTCOMM_TRACKER_TIMEOUT": "6.5",
        "FTCOMM_BIND": "0.0.0.0",
        "FTCOMM_ADVERTISE": "node1",
        "FTCOMM_HOST": "machine 7",
        "FTCOMM_FAULTS": "kill@1.2>/tmp/record",
        "FTCOMM_LOG": "debug",
    }
    from_environment = WorkerOptions(
        routes=(("a", 1), ("::1", 2)),
        worker_id="env",
        token_file=Path("/etc/token"),
        connect_timeout=6.5,
        tracker_timeout=6.5,
        bind="0.0.0.0",
        advertise="node1",
        host="machine 7",
        faults="kill@1.2",
        faults_log="/tmp/record",
        log_level="debug",
    )
    assert load(environ) == from_environment
    changed = load(environ, tracker="b:3", worker_id="arg", tracker_timeout=1)
    assert (changed.routes, changed.worker_id) == ((("b", 3),), "arg")
    assert (changed.connect_timeout, changed.tracker_timeout) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("environ", "worker_id", "size"),
    [
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, "3", 8),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, "1", 4),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "0", 2),
        ({"RANK": "0", "WORLD_SIZE": "many"}, "0", None),
        ({"JOB_COMPLETION_INDEX": "7"}, "7", None),
        ({"WORLD_SIZE": "4"}, None, None),
        ({"RANK": "1", "WORLD_SIZE": "4", "FTCOMM_WORKER_ID": "mine"}, "mine", 4),
    ],
)
def test_a_schedulers_index_is_the_worker_id(
    environ: dict[str, str], worker_id: str | None, size: int | None
) -> None:
    options = load({**environ, "FTCOMM_TRACKER": "t:1"})
    assert (options.worker_id, options.scheduler_size) == (worker_id, size)


def test_many_processes_without_a_tracker_are_refused_unless_told_none() -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "4"}
    with pytest.raises(ConfigError, match="started 4 processes"):
        load(environ)
    assert load({**environ, "FTCOMM_TRACKER": "none"}).routes is None
    assert load({"RANK": "0", "WORLD_SIZE": "1"}).routes is None


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({"JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX"),
        ({"JOB_COMPLETION_INDEX": "3", "FTCOMM_TRACKER": "none"}, None),
        ({"JOB_COMPLETION_INDEX": "3", "FTCOMM_TRACKER": "t:1"}, None),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "some"}, "SLURM_PROCID"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"FTCOMM_WORKER_ID": "3"}, None),
    ],
)
def test_who_is_numbered_and_alone_without_being_told_so_is_noticed(
    environ: dict[str, str], variable: str | None
) -> None:
    assert load(environ).lonely == variable


@pytest.mark.parametrize(
    "environ",
    [
        {"FTCOMM_TRACKER_TIMEOUT": "soon"},
        {"FTCOMM_TRACKER_TIMEOUT": "-1"},
        {"FTCOMM_TRACKER_TIMEOUT": "nan"},
        {"FTCOMM_LOG": "loud"},
        {"FTCOMM_WORKER_ID": "x" * 65},
        {"FTCOMM_TRACKER": "a:1,,b:2"},
        {"FTCOMM_DETECT_WITHIN": "0"},
    ],
    ids=str,
)
def test_a_malformed_variable_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        load(environ)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("node1:8080", ("node1", 8080)),
        (" 10.0.0.1:1 ", ("10.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("[fe80::1%eth0]:9", ("fe80::1%eth0", 9)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "::1:80", "[]:80", "h:0", "h:65536", "h:8o", "h:²"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)


# --- token ------------------------------------------------------------------------------------


def token_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_is_read_and_without_a_file_the_key_is_empty(tmp_path: Path) -> None:
    assert read_token(token_file(tmp_path, TOKEN.upper() + "\n")) == TOKEN.encode()
    assert read_token(None) == b""


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660])
def test_a_token_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token(token_file(tmp_path, TOKEN, mode))


@pytest.mark.parametrize("text", ["", TOKEN[:-1], "x" * 64, "a" * 1025, TOKEN + " " + TOKEN])
def test_what_is_no_token_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_token(token_file(tmp_path, text))
    assert not text or text not in str(refused.value)


def test_a_token_file_that_is_no_path_is_named() -> None:
    no_path: Any = 3
    with pytest.raises(ConfigError, match=r"^token file is 3, must be a text or a path$"):
        load(token_file=no_path)


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: No such file"):
        read_token(tmp_path / "nowhere")


# --- the environment as a whole ---------------------------------------------------------------


def test_every_job_setting_has_a_variable_and_a_line_of_help() -> None:
    constants = ["keep_by_all", "max_incarnations", "spare_fetch_rate", "last_will"]
    fields = [field.name for field in dataclasses.fields(JobSettings)]
    on_the_wire = [name for name, _ in JobSettings().to_wire()]
    assert [*SETTINGS, *constants] == fields == on_the_wire
    assert {setting.variable for setting in SETTINGS.values()} <= set(VARIABLES)
    assert VARIABLES["FTCOMM_LOG_LIMIT"] == (
        "job: results kept per worker between two checkpoints"
        " [1 to 1024TiB, such as 512MiB or 2GiB] (2GiB)"
    )


def test_the_process_environment_is_read_when_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FTCOMM_WORKER_ID", "from-process")
    monkeypatch.setenv("FTCOMM_REPLICAS", "5")
    assert WorkerOptions.load(tracker="t:1").worker_id == "from-process"
    assert job_settings().replicas == 5
    assert environment.process_environment()["FTCOMM_REPLICAS"] == "5"


def test_trackers_are_dialled_in_the_order_of_their_list() -> None:
    assert parse_addresses("b:2, [::1]:1,a:2") == (("b", 2), ("::1", 1), ("a", 2))


@pytest.mark.parametrize(
    ("text", "why"),
    [("a:1,", "address '' is not host:port"), ("a:1,b:1,a:1", "name a tracker twice")],
)
def test_a_list_of_trackers_names_each_once(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_addresses(text)


def test_a_directory_may_have_a_question_mark_and_a_url_may_not() -> None:
    assert job_settings(environ={"FTCOMM_CHECKPOINT": "/x/what?"}).checkpoint == "/x/what?"
    with pytest.raises(ConfigError, match="FTCOMM_CHECKPOINT must not have credentials in it"):
        job_settings(environ={"FTCOMM_CHECKPOINT": "s3://bucket/run?secret=x"})


@pytest.mark.parametrize("text", ["/tmp/x\udcff", "/tmp/x\0"])
def test_a_name_that_no_message_carries_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="FTCOMM_CHECKPOINT is no name of a store"):
        job_settings(environ={"FTCOMM_CHECKPOINT": text})


# --- arguments of init ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 3, np.int64(3)])
def test_a_worker_id_may_be_a_whole_number(number: int) -> None:
    environ = {"FTCOMM_TRACKER": "t:1", "FTCOMM_WORKER_ID": "other"}
    assert load(environ, worker_id=number).worker_id == str(number)


def test_a_timeout_may_be_a_timedelta() -> None:
    span = dt.timedelta(minutes=2)
    options = load(tracker_timeout=span)
    assert (options.connect_timeout, options.tracker_timeout) == (120.0, 120.0)


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"tracker": 5}, "tracker is 5, must be a text"),
        ({"worker_id": 1.5}, "worker_id is 1.5, must be a text or a whole number"),
        ({"worker_id": True}, "worker_id is True, must be a text or a whole number"),
        ({"bind": 3}, "bind is 3, must be a text"),
        ({"advertise": b"h"}, "advertise is b'h', must be a text"),
        ({"tracker_timeout": "x"}, "tracker_timeout is 'x', must be a number of seconds or"),
        ({"tracker_timeout": 1 << 2000}, "FTCOMM_TRACKER_TIMEOUT is inf, must be"),
        ({"tracker_timeout": True}, "tracker_timeout is True, must be a number of seconds or"),
        ({"tracker_timeout": np.timedelta64(1, "m")}, "tracker_timeout is .*timedelta64.*, must"),
        ({"expect": 3}, "expect is 3, must have values by name"),
        ({"expect": {1: 2}}, "expect is {1: 2}, must have values by name"),
        ({"expect": {"checkpoint_every": 60}}, "FTCOMM_CHECKPOINT_EVERY is 60, must be a text"),
        ({"expect": {"checkpoint_every": 5}}, "FTCOMM_CHECKPOINT_EVERY is 5, must be a text"),
    ],
    ids=str,
)
def test_an_argument_of_init_of_another_type_is_named(given: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigError, match=f"^{refusal}"):
        ftcomm.init(**{"tracker": "none", **given})


def test_a_given_role_counts_and_not_that_of_the_environment() -> None:
    environ = {"FTCOMM_SPARE": "1"}
    given = [WorkerOptions.load(environ=environ, spare=spare).spare for spare in (None, False)]
    assert given == [True, False]
