"""The C library's limit for streamed copies, as workers get it."""

from pathlib import Path

import pytest

from ftcomm_tracker.launcher.memcpy_tuning import TUNABLE, VARIABLE, with_streaming_copies

LIMIT = f"{TUNABLE}=0x2000000"


@pytest.fixture(autouse=True)
def linux_on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def caches(folder: Path, *found: tuple[str, str, str]) -> Path:
    """As the system tells of a processor's caches: level, size, and who shares each."""
    for index, told in enumerate(found):
        cache = folder / f"index{index}"
        cache.mkdir()
        for name, value in zip(("level", "size", "shared_cpu_list"), told, strict=True):
            (cache / name).write_text(f"{value}\n")
    return folder


@pytest.fixture
def of_a_host(tmp_path: Path) -> Path:
    return caches(tmp_path, ("1", "48K", "0"), ("2", "2048K", "0"), ("3", "491520K", "0-1"))


def test_where_a_processor_seems_to_have_a_host_s_cache_the_limit_is_lowered(
    of_a_host: Path,
) -> None:
    assert with_streaming_copies({"A": "b"}, of_a_host) == {"A": "b", VARIABLE: LIMIT}


def test_what_the_user_has_set_stays(of_a_host: Path) -> None:
    given = {VARIABLE: "glibc.malloc.check=3"}
    assert with_streaming_copies(given, of_a_host) == {VARIABLE: f"glibc.malloc.check=3:{LIMIT}"}
    given = {VARIABLE: f"{TUNABLE}=0x7000:glibc.malloc.check=3"}
    assert with_streaming_copies(given, of_a_host) is given


@pytest.mark.parametrize(
    "last",
    [("3", "491520K", "0-7,16-23"), ("3", "43690K", "0"), ("3", "much", "0"), ("3", "8K", "all")],
)
def test_a_limit_that_is_lower_or_unknown_is_left_alone(
    tmp_path: Path, last: tuple[str, str, str]
) -> None:
    assert with_streaming_copies({}, caches(tmp_path, ("2", "2048K", "0-1"), last)) == {}


def test_where_the_system_tells_of_no_caches_nothing_is_set(tmp_path: Path) -> None:
    assert with_streaming_copies({}, tmp_path / "none") == {}


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "x86_64"), ("Linux", "aarch64")])
def test_others_have_no_such_limit(
    monkeypatch: pytest.MonkeyPatch, of_a_host: Path, system: str, machine: str
) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert with_streaming_copies({}, of_a_host) == {}
