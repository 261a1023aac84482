"""Measures of the documents: length of sentences and of lines."""

import re
from collections.abc import Iterator
from pathlib import Path

FENCE = re.compile(r"^\s*(```|~~~|:::)")
# Where a line is not prose: tables, headings, comments, links' targets, pictures.
NOT_PROSE = re.compile(r"^\s*(\||#|<!--|\[[^\]]+\]: |!\[)")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\"(])|(?<=:)\s*\n")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line outside of code blocks and tables."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            in_code = not in_code
        elif not in_code and not NOT_PROSE.match(line):
            yield number, line


def wide_lines(path: Path, columns: int) -> list[str]:
    """Lines of prose with more than `columns` characters; one long word may pass them."""
    text = path.read_text(encoding="utf-8")
    return [
        f"{path.name}:{number} has {len(line)}"
        for number, line in prose_lines(text)
        if len(line) > columns and len(line.split()) > 1
    ]


def sentences(text: str) -> list[str]:
    """The sentences of the prose; an item of a list begins one."""
    paragraphs: list[list[str]] = [[]]
    for _, line in prose_lines(text):
        if not line.strip():
            paragraphs.append([])
        elif ITEM.match(line):
            paragraphs.append([ITEM.sub("", line)])
        else:
            paragraphs[-1].append(line.strip())
    found = (part for lines in paragraphs for part in SENTENCE_END.split(" ".join(lines)))
    return [part.strip() for part in found if part.strip()]


def words(sentence: str) -> int:
    """Number of words; what is written as code counts as one."""
    return len(re.sub(r"`[^`]*`", "code", sentence).split())


def sentence_percentile(text: str, percent: int) -> int:
    """Words of the sentence that `percent` of all do not pass."""
    lengths = sorted(map(words, sentences(text)))
    return lengths[min(len(lengths) - 1, len(lengths) * percent // 100)] if lengths else 0
