"""Numbers and classes in messages."""

from typing import Any

import numpy as np

from ftcomm.config.plurals import counted, kind_of


def test_one_is_not_many() -> None:
    said = [counted(number, "more worker") for number in (0, 1, 2)]
    said.append(counted(2, "entry", "entries"))
    assert said == ["0 more workers", "1 more worker", "2 more workers", "2 entries"]


def test_the_article_fits_the_class() -> None:
    values: list[Any] = [[], 1, "", None, {}, object(), np.ones(1)]
    said = ["a list", "an int", "a str", "None", "a dict", "an object", "an ndarray"]
    assert [kind_of(value) for value in values] == said
