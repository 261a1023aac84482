"""The C library's limits for copies, as workers get them."""

from pathlib import Path

import pytest

from ftcomm_tracker.launcher.memcpy_tuning import (
    MOVSB_FROM,
    STREAMS_FROM,
    VARIABLE,
    with_tuned_copies,
)

LIMIT = f"{STREAMS_FROM}=0x2000000"
MOVSB_LIMIT = f"{MOVSB_FROM}=0x2000000"


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


@pytest.fixture
def of_intel(tmp_path: Path) -> Path:
    return processors(tmp_path, "GenuineIntel")


@pytest.fixture
def of_amd(tmp_path: Path) -> Path:
    return processors(tmp_path, "AuthenticAMD")


def processors(folder: Path, vendor: str) -> Path:
    """As the system tells of its processors."""
    found = folder / vendor
    found.write_text("".join(f"processor\t: {n}\nvendor_id\t: {vendor}\n\n" for n in (0, 1)))
    return found


def test_where_a_processor_seems_to_have_a_host_s_cache_the_limit_is_lowered(
    of_a_host: Path, of_intel: Path
) -> None:
    assert with_tuned_copies({"A": "b"}, of_a_host, of_intel) == {"A": "b", VARIABLE: LIMIT}


def test_processors_of_amd_copy_in_a_loop(tmp_path: Path, of_a_host: Path, of_amd: Path) -> None:
    assert with_tuned_copies({}, tmp_path / "none", of_amd) == {VARIABLE: MOVSB_LIMIT}
    assert with_tuned_copies({}, of_a_host, of_amd) == {VARIABLE: f"{LIMIT}:{MOVSB_LIMIT}"}


def test_what_the_user_has_set_stays(of_a_host: Path, of_intel: Path, of_amd: Path) -> None:
    given = {VARIABLE: "glibc.malloc.check=3"}
    wanted = {VARIABLE: f"glibc.malloc.check=3:{LIMIT}"}
    assert with_tuned_copies(given, of_a_host, of_intel) == wanted
    given = {VARIABLE: f"{STREAMS_FROM}=0x7000:glibc.malloc.check=3"}
    assert with_tuned_copies(given, of_a_host, of_intel) is given
    wanted = {VARIABLE: f"{given[VARIABLE]}:{MOVSB_LIMIT}"}
    assert with_tuned_copies(given, of_a_host, of_amd) == wanted
    given = {VARIABLE: f"{MOVSB_FROM}=0x7000"}
    wanted = {VARIABLE: f"{MOVSB_FROM}=0x7000:{LIMIT}"}
    assert with_tuned_copies(given, of_a_host, of_amd) == wanted


@pytest.mark.parametrize(
    "last",
    [("3", "491520K", "0-7,16-23"), ("3", "43690K", "0"), ("3", "much", "0"), ("3", "8K", "all")],
)
def test_a_limit_that_is_lower_or_unknown_is_left_alone(
    tmp_path: Path, of_intel: Path, last: tuple[str, str, str]
) -> None:
    folder = caches(tmp_path, ("2", "2048K", "0-1"), last)
    assert with_tuned_copies({}, folder, of_intel) == {}


def test_where_the_system_tells_of_no_processor_nothing_is_set(tmp_path: Path) -> None:
    assert with_tuned_copies({}, tmp_path / "none", tmp_path / "none") == {}


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "x86_64"), ("Linux", "aarch64")])
def test_others_have_no_such_limit(
    monkeypatch: pytest.MonkeyPatch, of_a_host: Path, of_amd: Path, system: str, machine: str
) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert with_tuned_copies({}, of_a_host, of_amd) == {}
