"""Measures of the code that are read from its syntax trees; nothing is imported or run."""

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file.

    Attributes:
        name: dotted, as it is imported.
        path: of the file, below the root of the project.
        text: its content.
    """

    name: str
    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of its syntax; walking a tree costs more than all that is asked of it."""
        return list(ast.walk(self.tree))

    @property
    def lines(self) -> int:
        """Number of its lines."""
        return len(self.text.splitlines())

    @property
    def is_named(self) -> bool:
        """True if the file has a name of its own, which ``__init__`` and ``__main__`` are not."""
        return not self.path.endswith(("/__init__.py", "/__main__.py"))


@dataclass(frozen=True)
class OwnClass:
    """One class of the project.

    Attributes:
        name: without its module.
        place: file and line.
        bases: the last parts of its bases' names.
        members: non-public methods, class attributes and attributes of `self`.
    """

    name: str
    place: str
    bases: tuple[str, ...]
    members: frozenset[str]


@dataclass
class Package:
    """One importable package of the project.

    Attributes:
        name: of the package.
        modules: all of its files.
    """

    name: str
    modules: list[Module] = field(default_factory=list)


def read_package(root: Path, folder: str) -> Package:
    """Parse the package in `folder`, relative to `root`."""
    top = root / folder
    package = Package(top.name)
    for path in sorted(top.rglob("*.py")):
        parts = list(path.relative_to(top.parent).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        text = path.read_text(encoding="utf-8")
        package.modules.append(Module(".".join(parts), path.relative_to(root).as_posix(), text))
    return package


# --- classes ----------------------------------------------------------------------------------


def classes(packages: Iterable[Package]) -> list[OwnClass]:
    """All classes, in the order of the files."""
    return [
        _class(node, module.path)
        for package in packages
        for module in package.modules
        for node in module.nodes
        if isinstance(node, ast.ClassDef)
    ]


def _class(node: ast.ClassDef, path: str) -> OwnClass:
    bases = tuple(_last_name(base) for base in node.bases)
    return OwnClass(node.name, f"{path}:{node.lineno}", bases, frozenset(_members(node)))


def _last_name(base: ast.expr) -> str:
    base = base.value if isinstance(base, ast.Subscript) else base
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


def _members(node: ast.ClassDef) -> Iterator[str]:
    for part in ast.walk(node):
        names: list[str] = []
        if isinstance(part, Function):
            names = [part.name]
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            names = [part.attr] if getattr(part.value, "id", "") == "self" else []
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            names = [part.target.id] if part in node.body else []
        elif isinstance(part, ast.Assign) and part in node.body:
            names = [target.id for target in part.targets if isinstance(target, ast.Name)]
        yield from (name for name in names if is_private(name))


def is_private(name: str) -> bool:
    """Not public, and not one of Python's own names."""
    return name.startswith("_") and not name.endswith("__")


def inherited(found: Iterable[OwnClass]) -> dict[OwnClass, list[OwnClass]]:
    """Each class with its bases in the project, and theirs."""
    found = list(found)
    by_name = {item.name: item for item in found}

    def above(item: OwnClass) -> list[OwnClass]:
        direct = [by_name[base] for base in item.bases if base in by_name and base != item.name]
        return [*direct, *(more for base in direct for more in above(base))]

    return {item: above(item) for item in found}


def depth(item: OwnClass, above: dict[OwnClass, list[OwnClass]]) -> int:
    """Number of the project's classes in the longest chain that ends with `item`.

    Errors and protocols are left out: their hierarchy is their interface.  A class that
    implements a protocol counts, and so do those below it.
    """
    names = {item.name, *item.bases, *(base for more in above[item] for base in more.bases)}
    if "Protocol" in item.bases or any(name.endswith(("Error", "Exception")) for name in names):
        return 0
    by_name = {more.name: more for more in above[item]}
    below = [depth(by_name[base], above) for base in item.bases if base in by_name]
    return 1 + max(below, default=0)


# --- modules ----------------------------------------------------------------------------------


def import_cycles(package: Package) -> list[list[str]]:
    """Groups of modules that import one another, types alone left out."""
    known = {module.name for module in package.modules}
    graph = {m.name: {*_imports(_executed(m.tree), known)} - {m.name} for m in package.modules}
    return [sorted(group) for group in _components(graph) if len(group) > 1]


def _imports(nodes: Iterable[ast.AST], known: set[str]) -> Iterator[str]:
    """The modules of `known` that these statements import; a name of a module is not one."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            full = {f"{node.module}.{alias.name}" for alias in node.names} & known
            named = len(full) < len(node.names)
            yield from full | ({node.module} & known if named else set())
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & known


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        yield node
        yield from _executed(node)


def _components(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components (Kosaraju 1978)."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        _visit(start, graph, seen, order.append)
    back: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        for target in targets:
            back[target].add(name)
    components = []
    seen = set()
    for start in reversed(order):
        group: list[str] = []
        _visit(start, back, seen, group.append)
        if group:
            components.append(set(group))
    return components


def _visit(
    start: str, graph: dict[str, set[str]], seen: set[str], leave: Callable[[str], None]
) -> None:
    """Depth first from `start`, without recursion; `leave` is called behind all below a node."""
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(sorted(graph.get(start, ()))))]
    while stack:
        name, targets = stack[-1]
        for target in targets:
            if target not in seen:
                seen.add(target)
                stack.append((target, iter(sorted(graph.get(target, ())))))
                break
        else:
            stack.pop()
            leave(name)


def importers(packages: Iterable[Package]) -> dict[str, set[str]]:
    """The modules that import each module, for types too."""
    modules = [module for package in packages for module in package.modules]
    known = {module.name for module in modules}
    found: dict[str, set[str]] = {name: set() for name in known}
    for module in modules:
        for name in _imports(module.nodes, known):
            found[name].add(module.name)
    return found


def importers_of_folder(folder: str, by_module: dict[str, set[str]]) -> set[str]:
    """The modules outside of the dotted `folder` that import a module of it."""

    def is_inside(name: str) -> bool:
        return f"{name}.".startswith(f"{folder}.")

    names = {name for module, used_by in by_module.items() if is_inside(module) for name in used_by}
    return {name for name in names if not is_inside(name)}


def root_modules(package: Package) -> list[str]:
    """The files that lie directly in the package's folder."""
    top = min((Path(module.path).parent for module in package.modules), key=lambda p: len(p.parts))
    return sorted(m.path for m in package.modules if Path(m.path).parent == top)


# --- functions --------------------------------------------------------------------------------


def function_sizes(package: Package) -> dict[str, int]:
    """Lines of every function, by file, line and name."""
    return {
        f"{module.path}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for module in package.modules
        for node in module.nodes
        if isinstance(node, Function)
    }
