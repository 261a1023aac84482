"""The form of the project keeps its bounds, and each measure finds what breaks it."""

from pathlib import Path

from tests.project import code_measures as code
from tests.project.measure_house import (
    BOUNDS,
    FEATURES,
    FOLDERS,
    ROOT,
    WORTH_THE_JUMP,
    above_bound,
    as_table,
    c_of,
    code_of,
    measure_all,
    prose_of,
    words_of,
)
from tests.project.prose_measures import sentence_percentile, sentences, wide_lines


def test_the_project_keeps_its_bounds() -> None:
    """If it fails: python tests/project/measure_house.py names the places."""
    measured = measure_all()
    assert above_bound(measured) == {}
    lines = as_table(measured).splitlines()
    assert BOUNDS.keys() == measured.keys()
    assert [name for name in BOUNDS if not any(line.startswith(f"{name} ") for line in lines)] == []


def test_every_file_that_is_worth_the_jump_is_one() -> None:
    assert [path for path in WORTH_THE_JUMP if not (ROOT / path).is_file()] == []


def test_a_project_that_breaks_every_bound_is_above_each(tmp_path: Path) -> None:
    members = "".join(f"    def _m{n}(self): self._m{n}()\n" for n in range(36))
    classes = f"class A:\n{members}class B(A): ...\nclass C(B): ...\nclass Same: ...\n"
    long = "def long():\n" + "    f()\n" * 60
    sources = {"__init__": "", "a": f"import ftcomm.b\n{classes}", "b": "import ftcomm.a\n"}
    sources |= {"c": long + "\n" * 50_000, "d": "class Same: ..."}
    small = [f"small{number}" for number in range(99)]
    sources |= dict.fromkeys(small, "")
    features = {f"{core}.{name}.x" for core, names in FEATURES.values() for name in names}
    sources |= {name.partition(".")[2].replace(".", "/"): "" for name in features}
    every = "".join(f"import {name}\n" for name in features)
    sources |= {f"n{number}": every for number in range(99)}
    for folder in FOLDERS:
        package = Path(folder).name
        importer = {"one": "".join(f"import {package}.{name}\n" for name in small)}
        for name, source in {**sources, **importer}.items():
            path = tmp_path.joinpath(folder, name).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
    (tmp_path / FOLDERS[0] / "a.c").write_text(f"int {'x' * 100};\n" * 1401, encoding="utf-8")
    sentence = f"{'word ' * 26}end.\n\n"
    (tmp_path / "README.md").write_text(sentence * 999, encoding="utf-8")
    measured = {**words_of(999, 999, 999), **code_of(tmp_path, FOLDERS), **prose_of(tmp_path)}
    measured |= c_of(tmp_path, FOLDERS)
    assert BOUNDS.keys() - above_bound(measured).keys() == set()
    assert " above " in as_table(measured)


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


def test_the_importers_of_a_folder_are_outside_of_it(tmp_path: Path) -> None:
    package = package_of(
        tmp_path,
        {
            "sub/__init__": "",
            "sub/a": "",
            "sub/b": "from pkg.sub import a",
            "subject": "import pkg.sub.b",
            "other": "from pkg.sub.a import f\nfrom pkg import subject",
        },
    )
    by_module = code.importers([package])
    assert by_module["pkg.sub.a"] == {"pkg.sub.b", "pkg.other"}
    assert by_module["pkg.subject"] == {"pkg.other"}
    assert code.importers_of_folder("pkg.sub", by_module) == {"pkg.subject", "pkg.other"}
    assert code.root_modules(package) == [
        "pkg/__init__.py", "pkg/other.py", "pkg/subject.py",
    ]  # fmt: skip


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
