"""One word stands for one concept: words that the glossary replaced do not come back."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What is banned, in identifiers too, and the words of the field that are used for it.
BANNED = {
    r"common[_ ](?:memory|results?)|(?<!\w)in common(?!\w)": "shared window, shared-memory results",
    r"(?<![a-z])express(?![a-z])|(?<![a-z])calm(?![a-z])|(?<!\w)repeating": "fast path, quiescent",
    r"asynchronous|(?<![a-z])baton|beginners": "nonblocking, engine ownership, waiting submitter",
    r"(?<![a-z])life(?!time|cycle|[a-z])": "incarnation, restarted worker, process",
    r"(?<![a-z])seats?(?![a-z])|(?<![a-z])rolls?(?![a-z])|vouch": "rank slot, member delta",
    r"(?<![a-z])keepers?(?![a-z])|laggard": "replica holders, lagging rank",
    r"(?<![a-z])plant(?:ed|ing)(?![a-z])": "mutant, mutation testing",
    r"weather|(?<![a-z])luck": "impairments, seed, random plan",
    r"siege|fortress|stranger": "load under attack, unauthenticated peers",
    r"come[s_ ]+to[_ ]grief|(?<![a-z])let[_ ]in(?![a-z])": "fail, be admitted",
    r"(?<![a-z])mend(?:s|ed|ing)?(?![a-z])": "repair",
    r"(?<![a-z])be[_ ]heard|(?<![a-z])bye(?![a-z])": "be confirmed, closed",
    r"(?<![a-z])nap(?![a-z])|(?<![a-z])story(?![a-z])": "sleep, scenario",
    r"log_?account|worker_?core": "LogQuota, WorkerMachine",
    r"(?<![a-z])lets?[_ ]go(?![a-z])": "released",
    r"(?<![a-z])(?:rig|tally|judging|HandingOut|SoloEngine)(?![a-z])": "harness, counter, verdict",
    r"(?<![a-z])hop(?:e|ing)(?![a-z])": "grace period",
    r"must_hear|hear_first|come_to_it": "needs_confirmation, CONFIRM_FIRST, reach_position",
}
# Where a word has another meaning, or is quoted: the files, and why.
ALLOWED = {
    "CHANGELOG.md": "names what 0.1 had",
    "docs/testing.md": "names the model's macros",
    "tests/project/test_banned_words.py": "the table",
    "tests/adapters/dask/test_arguments.py": "an attribute of Dask's clients",
    "tracker/ftcomm_tracker/embedding/dask_gang.py": "likewise",
}
WHERE = ("ftcomm", "tracker", "chaos", "tests", "examples", "benchmarks", "docs")
SUFFIXES = {".py", ".toml", ".md"}


def sources() -> list[Path]:
    inside = (path for folder in WHERE for path in (ROOT / folder).rglob("*"))
    paths = [*ROOT.glob("*.md"), ROOT / "pyproject.toml", *inside]
    found = (path for path in paths if path.suffix in SUFFIXES and path.is_file())
    return sorted(path for path in found if path.relative_to(ROOT).as_posix() not in ALLOWED)


def banned_in(text: str, name: str = "", patterns: Iterable[str] = BANNED) -> list[str]:
    """Each use, with what is written instead."""
    found = []
    for pattern in patterns:
        for match in re.finditer(pattern, text, re.IGNORECASE):
            number = text.count("\n", 0, match.start()) + 1
            found.append(f"{name}:{number}: {match[0]!r}; use: {BANNED[pattern]}")
    return found


def test_no_banned_word_is_used() -> None:
    """Each word is looked at once, wherever it is; pairs of words are searched in all files."""
    texts = {path: f"{path.read_text(encoding='utf-8')}\n{path.stem}" for path in sources()}
    of_pairs = [pattern for pattern in BANNED if " " in pattern]
    words = {word for text in texts.values() for word in re.findall(r"\w+", text)}
    known = banned_in("\n".join(words), patterns=BANNED.keys() - of_pairs)
    searched = BANNED if known else of_pairs  # to name the places
    used = [
        line
        for path, text in texts.items()
        for line in banned_in(text, path.relative_to(ROOT).as_posix(), searched)
    ]
    assert used == []


@pytest.mark.parametrize(
    ("text", "banned"),
    [
        ("def let_go(self): ...", True),
        ("class Tally:", True),
        ("kept in common", True),
        ("the next life", True),
        ("Rolls: who is where", True),
        ("a link is mended", True),
        ("class WorkerCore:", True),
        ("to recommend", False),
        ("rollback, history, a snapshot", False),
        ("a lifetime", False),
        ("the whole expression", False),
        ("an origin", False),
    ],
)
def test_a_word_is_found_in_text_and_in_names(text: str, banned: bool) -> None:
    assert bool(banned_in(text)) == banned


def test_every_exception_is_a_file() -> None:
    assert [name for name in ALLOWED if not (ROOT / name).is_file()] == []
