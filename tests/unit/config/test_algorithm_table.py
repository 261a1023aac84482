"""Table of algorithms; a file is accepted whole or refused by file and key."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ftcomm.collectives.selection import algorithm_in
from ftcomm.config.algorithm_table import (
    CHOICES,
    DEFAULT_TABLE,
    MAX_ROWS,
    AlgorithmTable,
    Row,
    SizeRule,
    table_in_file,
    table_in_text,
    table_of,
)
from ftcomm.config.environment import WorkerOptions, job_settings, read_algorithm_table
from ftcomm.config.job_settings import JobSettings
from ftcomm.errors import ConfigError
from ftcomm.protocol.field_types import MAX_WORLD_SIZE
from ftcomm_tracker.cli.main import main

SMALL = """
[[allreduce]]
up_to_ranks = 4
algorithms = [
    { from_bytes = 0, use = "recursive_doubling" },
    { from_bytes = 65536, use = "halving_doubling" },
]
[[allreduce]]
up_to_ranks = 8
algorithms = [{ from_bytes = 0, use = "ring" }]
[[broadcast]]
up_to_ranks = 1024
algorithms = [{ from_bytes = 0, use = "chain" }]
"""
SMALL_LINE = (
    "allreduce 4:0=recursive_doubling,65536=halving_doubling 8:0=ring; broadcast 1024:0=chain"
)


def rows_of(kind: str) -> st.SearchStrategy[tuple[Row, ...]]:
    def rules(sizes: set[int]) -> st.SearchStrategy[tuple[SizeRule, ...]]:
        choice = st.sampled_from(CHOICES[kind])
        return st.tuples(
            *(st.builds(SizeRule, st.just(size), choice) for size in sorted(sizes | {0}))
        )

    some_rules = st.sets(st.integers(1, 1 << 40), max_size=2).flatmap(rules)
    limits = st.sets(st.integers(1, 1024), min_size=1, max_size=4)
    return limits.flatmap(
        lambda ranks: st.tuples(*(st.builds(Row, st.just(n), some_rules) for n in sorted(ranks)))
    )


TABLES = st.builds(AlgorithmTable, rows_of("allreduce"), rows_of("broadcast"))


@given(TABLES)
def test_a_table_survives_its_line_and_both_files(table: AlgorithmTable) -> None:
    assert table_in_text(table.to_text()) == table
    assert table_in_file(table.to_toml().encode(), "a.toml") == table
    document = {
        kind: [
            {
                "up_to_ranks": row.up_to_ranks,
                "algorithms": [{"from_bytes": r.from_bytes, "use": r.use} for r in row.algorithms],
            }
            for row in getattr(table, kind)
        ]
        for kind in CHOICES
    }
    assert table_in_file(json.dumps(document).encode(), "a.json") == table


@given(TABLES, st.sampled_from(list(CHOICES)), st.integers(1, 2000), st.integers(0, 1 << 41))
def test_what_is_picked_is_the_last_rule_that_has_begun_in_the_first_row_that_fits(
    table: AlgorithmTable, kind: str, ranks: int, nbytes: int
) -> None:
    rows = getattr(table, kind)
    fitting = [row for row in rows if ranks <= row.up_to_ranks] or [rows[-1]]
    begun = [rule.use for rule in fitting[0].algorithms if rule.from_bytes <= nbytes]
    assert algorithm_in(table, kind, ranks, nbytes) == begun[-1]


def test_the_built_in_table_has_a_name_and_passes_its_own_examination() -> None:
    assert table_in_text("default") is DEFAULT_TABLE
    assert table_in_text(DEFAULT_TABLE.to_text()) == DEFAULT_TABLE
    assert JobSettings().table is DEFAULT_TABLE


def test_a_kind_that_is_left_out_is_as_in_the_built_in_table() -> None:
    table = table_in_file(SMALL.partition("[[broadcast]]")[0].encode(), "a.toml")
    assert table.broadcast == DEFAULT_TABLE.broadcast
    assert table.to_text().startswith("allreduce 4:")


def rule(**changes: Any) -> dict[str, Any]:
    return {"from_bytes": 0, "use": "ring", **changes}


def row(**changes: Any) -> dict[str, Any]:
    return {"up_to_ranks": 4, "algorithms": [rule()], **changes}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "is empty, must have allreduce or broadcast"),
        ([], r"is \[\], must have the keys allreduce or broadcast"),
        ({"reduce": []}, "has the key 'reduce', must be allreduce or broadcast"),
        ({"allreduce": []}, f"allreduce is 0 entries, must be a list of 1 to {MAX_ROWS}"),
        ({"allreduce": {}}, "allreduce is {}, no list, must be"),
        ({"allreduce": [row()] * (MAX_ROWS + 1)}, "is 17 entries"),
        ({"allreduce": [3]}, r"allreduce\[0\] is 3, must have the keys up_to_ranks or algorithms"),
        ({"allreduce": [{"up_to_ranks": 2}]}, r"allreduce\[0\] lacks the key 'algorithms'"),
        ({"allreduce": [row(colour=1)]}, r"allreduce\[0\] has the key 'colour'"),
        ({"allreduce": [row(up_to_ranks=0)]}, r"\[0\].up_to_ranks is 0, must be a whole number"),
        ({"allreduce": [row(up_to_ranks=True)]}, "up_to_ranks is True"),
        (
            {"allreduce": [row(), row()]},
            r"allreduce\[1\].up_to_ranks is 4, must be more than the 4",
        ),
        ({"broadcast": [row()]}, r"algorithms\[0\].use is 'ring', must be binomial or chain"),
        ({"allreduce": [row(algorithms=[rule(use=["ring"])])]}, r"use is \['ring'\]"),
        ({"allreduce": [row(algorithms=[rule(from_bytes=1.5)])]}, "from_bytes is 1.5"),
        ({"allreduce": [row(algorithms=[rule(from_bytes=9)])]}, "from_bytes is 9, must be 0"),
        (
            {"allreduce": [row(algorithms=[rule(), rule(from_bytes=5), rule(from_bytes=5)])]},
            r"allreduce\[0\].algorithms\[2\].from_bytes is 5, must be more than the 5",
        ),
    ],
)
def test_what_is_wrong_is_named_by_file_and_key(document: object, words: str) -> None:
    with pytest.raises(ConfigError, match=f"algorithm table t.json.*{words}"):
        table_in_file(json.dumps(document).encode(), "t.json")
    with pytest.raises(ConfigError, match=f"^here.*{words}"):
        table_of(document, "here")


@pytest.mark.parametrize(
    ("raw", "name", "words"),
    [
        (b"allreduce =", "t.toml", "is no TOML"),
        (b"{", "t.json", "is no JSON"),
        (b"\xff\xfe", "t.toml", "is no TOML"),
        (b"[" * 60_000, "t.json", "is no JSON"),
    ],
)
def test_a_file_in_neither_format_is_refused(raw: bytes, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"algorithm table {name} {words}"):
        table_in_file(raw, name)


def test_a_table_that_the_wire_cannot_carry_is_refused_before_the_job_begins() -> None:
    rules = [rule(from_bytes=size, use="recursive_doubling") for size in range(MAX_ROWS)]
    document = {"allreduce": [row(up_to_ranks=n, algorithms=rules) for n in (1, 2, 3)]}
    with pytest.raises(ConfigError, match="bytes in one line, at most 1000"):
        table_in_file(json.dumps(document).encode(), "t.json")


def test_a_row_may_reach_as_far_as_a_job_may() -> None:
    line = SMALL_LINE.replace("broadcast 1024", f"broadcast {MAX_WORLD_SIZE}")
    assert JobSettings(algorithm_table=line).table.broadcast[-1].up_to_ranks == MAX_WORLD_SIZE
    with pytest.raises(ConfigError, match=r"up_to_ranks.*1 to 2048"):
        JobSettings(algorithm_table=line.replace("2048", "2049"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ring",
        SMALL_LINE.replace("; ", ";"),
        SMALL_LINE.replace(" 8:", " 08:"),
        SMALL_LINE + "; broadcast 1024:0=chain",
        SMALL_LINE.partition(";")[0],
        "x" * 1001,
    ],
)
def test_a_line_that_no_table_is_written_as_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="algorithm table"):
        JobSettings(algorithm_table=text)


def test_the_file_becomes_the_jobs_setting_and_a_worker_may_ask_for_it(tmp_path: Path) -> None:
    path = tmp_path / "table.toml"
    path.write_text(SMALL)
    environ = {"FTCOMM_ALGORITHM_TABLE": str(path)}
    settings = job_settings(environ=environ)
    assert settings.algorithm_table == SMALL_LINE == read_algorithm_table(path)
    assert algorithm_in(settings.table, "allreduce", 3, 65536) == "halving_doubling"
    assert JobSettings.from_wire(settings.to_wire()) == settings
    asked = WorkerOptions.load(environ=environ).asked
    assert asked == (("algorithm_table", SMALL_LINE),)
    assert settings.differences(asked) is None
    assert "the job has default" in (JobSettings().differences(asked) or "")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * 70_000)
    for path, words in (
        (tmp_path / "none.toml", "No such file"),
        (tmp_path, "not a regular file"),
        ("\0", "not the name of a file"),
        (large, "has more than 65536 bytes"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_algorithm_table(path)


@pytest.mark.parametrize("command", ["serve", "run"])
def test_the_command_line_refuses_a_bad_table_and_says_where(command: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(SMALL.replace("chain", "tree"))
    done = CliRunner().invoke(main, [command, "-n", "2", "--algorithm-table", str(path), "--", "x"])
    assert done.exit_code == 2
    assert "broadcast[0].algorithms[0].use is 'tree'" in done.output
