"""Numbers in messages."""

from ftcomm.config.plurals import counted


def test_one_is_not_many() -> None:
    said = [counted(number, "more worker") for number in (0, 1, 2)]
    said.append(counted(2, "entry", "entries"))
    assert said == ["0 more workers", "1 more worker", "2 more workers", "2 entries"]
