"""Memory limit of a process: the least of the machine's memory and all groups around it."""

import os
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ftcomm.config import memory_limits
from ftcomm.config.memory_limits import limit_files, memory_limit, parse_limit

V2 = "31 23 0:28 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "35 31 0:32 {root} /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory"
OTHERS = (
    "22 28 0:21 / /proc rw - proc proc rw\n"
    "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "not a line of a mount\n"
)
FILES = ("memory.max", "memory.high")


def found(membership: str, *mounts: str) -> list[str]:
    return [str(file) for file in limit_files(membership, OTHERS + "\n".join(mounts))]


def of_groups(*groups: str) -> list[str]:
    return [str(PurePosixPath("/sys/fs/cgroup", group, name)) for group in groups for name in FILES]


@pytest.mark.parametrize(
    ("membership", "root", "groups"),
    [
        pytest.param("0::/a/b\n", "/", ("a/b", "a", ""), id="nested"),
        pytest.param("0::/\n", "/", ("",), id="a namespace of its own"),
        pytest.param("0::/kubepods/pod/c\n", "/kubepods/pod/c", ("",), id="mounted alone"),
        pytest.param("0::/kubepods/pod/c/d\n", "/kubepods/pod", ("c/d", "c", ""), id="in a part"),
        pytest.param("0::/../outside\n", "/", ("",), id="outside of the namespace"),
        pytest.param("0::/elsewhere\n", "/kubepods", ("",), id="outside of what is mounted"),
    ],
)
def test_limits_of_version_2_are_in_each_group_that_is_seen(
    membership: str, root: str, groups: tuple[str, ...]
) -> None:
    assert found(membership, V2.format(root=root)) == of_groups(*groups)


def test_limits_of_version_1_are_in_the_hierarchy_for_memory() -> None:
    membership = "9:name=systemd:/\n4:cpu,memory:/docker/c\n3:cpuset:/other\n"
    assert found(membership, V1.format(root="/")) == [
        f"/sys/fs/cgroup/memory/{group}memory.limit_in_bytes"
        for group in ("docker/c/", "docker/", "")
    ]


def test_with_both_versions_both_are_looked_at() -> None:
    membership = "4:memory:/job\n0::/\n"
    mounts = V1.format(root="/job"), V2.format(root="/")
    assert found(membership, *mounts) == [
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        *of_groups(""),
    ]


def test_a_folder_s_spaces_are_written_as_numbers() -> None:
    mount = r"31 23 0:28 / /run/my\040groups\134 rw - cgroup2 none rw"
    assert found("0::/", mount)[0] == "/run/my groups\\/memory.max"


def test_without_control_groups_there_are_none() -> None:
    assert found("", V2.format(root="/")) == found("0::/a") == []


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("1073741824\n", 1 << 30), ("0", 0), ("", None), ("-1", None)],
)
def test_a_group_without_a_limit_says_so(text: str, limit: int | None) -> None:
    assert parse_limit(text) == limit


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this process's group, inside another one, both without limits."""
    root = tmp_path / "groups"
    inner = root / "outer" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "membership").write_text("0::/outer/inner\n")
    (tmp_path / "mounts").write_text(f"1 2 3:4 / {root} rw - cgroup2 cgroup2 rw\n")
    monkeypatch.setattr(memory_limits, "_MEMBERSHIP", str(tmp_path / "membership"))
    monkeypatch.setattr(memory_limits, "_MOUNTS", str(tmp_path / "mounts"))
    return inner


def machine() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("inner", "outer", "limit"),
    [
        ({"memory.max": "3000000"}, {"memory.max": "max"}, 3_000_000),
        ({"memory.max": "max"}, {"memory.max": "2000000"}, 2_000_000),
        ({"memory.max": "3000000", "memory.high": "1000000"}, {"memory.max": "2000000"}, 1_000_000),
        ({"memory.max": str(1 << 62)}, {}, None),
        ({}, {}, None),
    ],
)
def test_the_least_limit_holds(
    group: Path, inner: dict[str, str], outer: dict[str, str], limit: int | None
) -> None:
    for folder, files in ((group, inner), (group.parent, outer)):
        for name, text in files.items():
            (folder / name).write_text(text)
    assert memory_limit() == (machine() if limit is None else limit)


def test_a_system_without_control_groups_has_the_machine_s(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limits, "_MEMBERSHIP", str(group / "absent"))
    assert memory_limit() == machine()


def test_a_system_that_does_not_say_its_size_has_no_limit(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: str) -> Any:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", unknown)
    (group / "memory.max").write_text("5000")
    assert memory_limit() == 5000
