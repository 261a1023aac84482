"""The form of the project keeps its bounds, and each measure finds what breaks it."""

from pathlib import Path

import pytest

from tests.project import code_measures as code
from tests.project.measure_house import (
    BOUNDS,
    FOLDERS,
    ROOT,
    above_bound,
    as_table,
    code_of,
    prose_of,
    visits_of,
)
from tests.project.prose_measures import sentence_percentile, sentences, wide_lines
from tests.project.visited_modules import Visit, measure


def test_the_code_keeps_its_bounds() -> None:
    """If it fails: python tests/project/measure_house.py names the places."""
    assert above_bound(code_of(ROOT, FOLDERS)) == {}


def test_the_documents_keep_their_bounds() -> None:
    assert above_bound(prose_of(ROOT)) == {}


@pytest.mark.smoke
@pytest.mark.process
def test_an_allreduce_goes_through_few_modules() -> None:
    assert above_bound(visits_of(measure())) == {}


def test_the_table_has_every_measure_and_marks_what_is_above() -> None:
    visits = {name: Visit(("a.py",) * 99, 0, 0) for name in ("cold", "repeated")}
    measured = {**code_of(ROOT, FOLDERS), **visits_of(visits), **prose_of(ROOT)}
    lines = as_table(measured).splitlines()
    marks = {name: line for line in lines for name in BOUNDS if line.startswith(f"{name} ")}
    assert marks.keys() == BOUNDS.keys() == measured.keys()
    above = {name for name, line in marks.items() if " above " in line}
    assert above == {"modules, cold allreduce", "modules, repeated allreduce"}


def test_a_project_that_breaks_every_bound_is_above_each(tmp_path: Path) -> None:
    members = "".join(f"    def _m{n}(self): self._m{n}()\n" for n in range(36))
    classes = f"class A:\n{members}class B(A): ...\nclass C(B): ...\nclass _Same: ...\n"
    long = "def _long():\n" + "    f()\n" * 60 + "_long()\n"
    many = {f"m{number}": "" for number in range(17)}
    sources = {**many, "a": f"import ftcomm.b\n{classes}", "b": "import ftcomm.a\n" + long * 10}
    for folder in FOLDERS:
        extra = {"one": "class _Same: ...\ndef _one(): ...\n_one()\n"}
        for name, source in {"__init__": "", **sources, **extra}.items():
            path = tmp_path.joinpath(folder, name).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
    sentence = f"{'word ' * 26}end.\n\n"
    (tmp_path / "README.md").write_text(sentence * 66, encoding="utf-8")
    visits = {name: Visit(("a.py",) * 99, 0, 0) for name in ("cold", "repeated")}
    measured = {**code_of(tmp_path, FOLDERS), **visits_of(visits), **prose_of(tmp_path)}
    assert BOUNDS.keys() - above_bound(measured).keys() == set()


def package_of(folder: Path, sources: dict[str, str]) -> code.Package:
    """A package with these modules."""
    for name, source in {"__init__": "", **sources}.items():
        path = folder.joinpath("pkg", name).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return code.read_package(folder, "pkg")


def test_a_chain_of_classes_is_as_deep_as_it_is_long(tmp_path: Path) -> None:
    source = """
from typing import Protocol
class A: ...
class B(A): ...
class C(B): ...
class Shape(Protocol): ...
class Square(Shape): ...
class Tile(Square): ...
class OneError(Exception): ...
class OtherError(OneError): ...
class LastError(OtherError): ...
"""
    found = code.classes([package_of(tmp_path, {"a": source})])
    above = code.inherited(found)
    depths = {item.name: code.depth(item, above) for item in found}
    errors = dict.fromkeys(("OneError", "OtherError", "LastError"), 0)
    assert depths == {"A": 1, "B": 2, "C": 3, "Shape": 0, "Square": 1, "Tile": 2, **errors}


def test_all_that_is_not_public_on_an_object_is_counted(tmp_path: Path) -> None:
    source = """
class A:
    _limit = 3
    __slots__ = ("_never_set",)
    def __init__(self, other): self._x = self.y = 1; other._z = 2
    def _step(self): self._later: int = 2
class B(A):
    def _more(self): ...
"""
    found = code.classes([package_of(tmp_path, {"a": source})])
    above = code.inherited(found)
    members = {item.name: item.members.union(*(b.members for b in above[item])) for item in found}
    own = {"_limit", "_x", "_step", "_later"}
    assert members == {"A": own, "B": own | {"_more"}}


def test_modules_that_import_one_another_are_found(tmp_path: Path) -> None:
    package = package_of(
        tmp_path,
        {
            "a": "from pkg.b import f",
            "b": "def f():\n    from pkg import c",
            "c": "import pkg.a",
            "d": "import pkg.a\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING: import pkg.e",
            "e": "import pkg.d",
        },
    )
    assert code.import_cycles(package) == [["pkg.a", "pkg.b", "pkg.c"]]


def test_the_modules_of_each_folder_are_counted(tmp_path: Path) -> None:
    package = package_of(tmp_path, dict.fromkeys(("a", "b", "sub/__init__", "sub/c"), ""))
    assert code.modules_by_folder(package) == {"pkg": 2, "pkg/sub": 1}
    assert code.root_modules(package) == ["pkg/__init__.py", "pkg/a.py", "pkg/b.py"]


def test_a_private_function_with_one_caller_counts(tmp_path: Path) -> None:
    source = "def _a(): ...\ndef _b(): _a()\ndef c(): _b(); _b()\n"
    assert code.single_caller_share(package_of(tmp_path, {"a": source})) == 50


def test_code_and_tables_are_no_prose(tmp_path: Path) -> None:
    path = tmp_path / "text.md"
    wide = "word " * 30
    path.write_text(f"# {wide}\n\n| {wide} |\n\n```\n{wide}\n```\n\n{wide}\n\n{'x' * 200}\n")
    assert wide_lines(path, 110) == ["text.md:9 has 150"]


def test_sentences_end_at_stops_and_items() -> None:
    text = "One thing, `a.b` or so. Two\nthings: this\n\n- first item\n- second item. And more!\n"
    assert sentences(text) == [
        "One thing, `a.b` or so.", "Two things: this", "first item", "second item.", "And more!",
    ]  # fmt: skip
    assert [sentence_percentile(text, percent) for percent in (0, 50, 90)] == [2, 2, 5]
