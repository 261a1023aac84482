"""docs/checkpoint_format.md names what records and objects are made of."""

import dataclasses
import re
from pathlib import Path
from typing import get_args

import pytest

from ftcomm.durable.container import ALGORITHM, ALIGNMENT, ContainerHeader, Entry
from ftcomm.durable.packed_state import ALIGNMENT as BODY_ALIGNMENT
from ftcomm.durable.packed_state import FACTORIES
from ftcomm.durable.records import ChainRecord, EpochMember, StoredPart

TEXT = (Path(__file__).parents[3] / "docs" / "checkpoint_format.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", get_args(ChainRecord), ids=lambda kind: str(kind.__name__))
def test_each_kind_of_record_has_its_fields(kind: type) -> None:
    name = kind.__name__.removesuffix("Record")
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |"))
    named = re.findall(r"`(\w+)`", row.split("|")[2])
    fields = [field.name for field in dataclasses.fields(kind)]
    assert [each for each in named if each in fields] == fields


@pytest.mark.parametrize(
    "kind",
    [ContainerHeader, Entry, StoredPart, EpochMember],
)
def test_each_field_of_an_object_is_explained(kind: type) -> None:
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields - set(re.findall(r"`(\w+)`", TEXT)) == set()


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"multiple of {ALIGNMENT:,}:" in TEXT
    assert f"next multiple of {BODY_ALIGNMENT};" in TEXT
    assert f"`{ALGORITHM}`" in TEXT
    assert ", ".join(FACTORIES) in " ".join(TEXT.split())
