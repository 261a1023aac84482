"""The documents form one site: each is reachable, each link leads somewhere, each path exists."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
TOCTREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\((?P<path>[^)#:]*\.md)?(?:#(?P<anchor>[^)]*))?\)")
LOOKUPS = DOCS / "where_is_what.md"


def prose(path: Path) -> str:
    return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and myst make them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return names


def dead_links(path: Path) -> list[str]:
    dead = []
    for link in LINK.finditer(prose(path)):
        target = path if link["path"] is None else path.parent / link["path"]
        if not target.exists() or (link["anchor"] and link["anchor"] not in anchors(target)):
            dead.append(link[0])
    return dead


def defined_names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_document_is_in_one_toctree() -> None:
    trees = TOCTREE.findall((DOCS / "index.md").read_text(encoding="utf-8"))
    entries = [line for tree in trees for line in tree.splitlines() if line[:1].isalpha()]
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(entries) == sorted(pages - {"index"})


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_to_a_document_resolves(path: Path) -> None:
    assert dead_links(path) == []


def test_a_link_to_a_missing_heading_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Two words\n[a](#two-words) [b](#three) [c](page.md#two-words) [d](no.md)\n")
    assert dead_links(page) == ["](#three)", "](no.md)"]


def test_the_lookups_lead_to_code() -> None:
    text = LOOKUPS.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*) \|$", text.partition("\n## ")[0], re.MULTILINE)
    lookups = [row.split(" | ") for row in rows if "`" in row]
    paths = re.findall(r"`(\w+/[\w/]+\.\w+)`", text)
    missing = [
        name.strip("`")
        for _, path, name, _ in lookups
        if name.strip() and name.strip("`") not in defined_names(ROOT / path.strip("`"))
    ]
    assert [len(lookups), [path for path in paths if not (ROOT / path).exists()], missing] == [
        30,
        [],
        [],
    ]


def test_readme_and_quickstart_show_one_script() -> None:
    first, second = (
        re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)[0]
        for path in (ROOT / "README.md", DOCS / "quickstart.md")
    )
    assert first == second


@pytest.mark.heavy
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="sphinx is not installed: make docs installs it")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    built = subprocess.run(
        [*command, "-b", "html", str(DOCS), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    assert (tmp_path / "index.html").exists()


def test_every_make_target_is_explained() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    explained = re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE)
    assert sorted(explained) == sorted(phony.split())
    helped = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [line.split()[0] for line in helped.stdout.splitlines()] == explained
