"""Measures of the code that are read from its syntax trees; nothing is imported or run."""

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file.

    Attributes:
        name: dotted, as it is imported.
        path: of the file, below the root of the project.
        tree: its syntax.
    """

    name: str
    path: str
    tree: ast.Module


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
        tree = ast.parse(path.read_text(encoding="utf-8"))
        package.modules.append(Module(".".join(parts), path.relative_to(root).as_posix(), tree))
    return package


# --- classes ----------------------------------------------------------------------------------


def classes(packages: Iterable[Package]) -> list[OwnClass]:
    """All classes, in the order of the files."""
    return [
        _class(node, module.path)
        for package in packages
        for module in package.modules
        for node in ast.walk(module.tree)
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
    graph = {m.name: {to for to in _imports(m, known) if to != m.name} for m in package.modules}
    return [sorted(group) for group in _components(graph) if len(group) > 1]


def _imports(module: Module, known: set[str]) -> Iterator[str]:
    for node in _executed(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from {full, node.module} & known if full in known else {node.module} & known
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & known


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
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


def modules_by_folder(package: Package) -> dict[str, int]:
    """Number of modules in each folder; `__init__` and `__main__` are not counted."""
    special = ("__init__.py", "__main__.py")
    paths = [Path(m.path) for m in package.modules]
    return dict(Counter(path.parent.as_posix() for path in paths if path.name not in special))


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
        for node in ast.walk(module.tree)
        if isinstance(node, Function)
    }


def single_caller_share(package: Package) -> float:
    """Percent of non-public functions whose name occurs once outside of its definition."""
    defined: list[str] = []
    used: Counter[str] = Counter()
    for module in package.modules:
        for node in ast.walk(module.tree):
            if isinstance(node, Function) and is_private(node.name):
                defined.append(node.name)
            elif isinstance(node, ast.Attribute):
                used[node.attr] += 1
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used[node.id] += 1
    if not defined:
        return 0.0
    return 100 * sum(used[name] == 1 for name in defined) / len(defined)
