"""The command that installs an extra, for each way in which ftcomm was installed."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ftcomm.config import extras


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'ftcomm[notebook]'"),
        (
            {"url": "file:///home/you/my%20ftcomm", "dir_info": {}},
            "pip install '/home/you/my ftcomm[notebook]'",
        ),
        (
            {"url": "file:///src/ftcomm", "dir_info": {"editable": True}},
            "pip install -e '/src/ftcomm[notebook]'",
        ),
        (
            {"url": "https://there/ftcomm", "vcs_info": {"vcs": "git", "commit_id": "5af3"}},
            "pip install 'ftcomm[notebook] @ git+https://there/ftcomm'",
        ),
        (
            {"url": "https://there/ftcomm-0.2.0-py3-none-any.whl", "archive_info": {}},
            "pip install 'ftcomm[notebook] @ https://there/ftcomm-0.2.0-py3-none-any.whl'",
        ),
    ],
)
def test_the_extra_comes_from_where_ftcomm_came(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, command: str
) -> None:
    text = None if origin is None else json.dumps(origin)
    found = SimpleNamespace(read_text={"direct_url.json": text}.get)
    monkeypatch.setattr(extras, "distribution", lambda _: found)
    assert extras.pip_install("notebook") == command


def test_an_ftcomm_that_is_not_installed_names_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise extras.PackageNotFoundError

    monkeypatch.setattr(extras, "distribution", missing)
    assert extras.pip_install("bf16") == "pip install 'ftcomm[bf16]'"
