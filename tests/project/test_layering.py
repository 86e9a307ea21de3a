"""Rules of the architecture that import contracts (``.importlinter``) cannot express."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from configparser import ConfigParser
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import ensemble_core

CORE = Path(ensemble_core.__file__).parent
TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
CONTRACTS = Path(__file__).parents[2] / ".importlinter"


def pure() -> list[str]:
    """Return the modules of the contract "pure": their results depend only on their arguments."""
    contracts = ConfigParser()
    contracts.read(CONTRACTS)
    modules = contracts["importlinter:contract:pure"]["source_modules"].split()
    rooms = [module.removeprefix("ensemble_core.") for module in modules]
    files = [f for room in rooms for f in (CORE / room).glob("*.py")] + [CORE / "errors.py"]
    return sorted(str(file.relative_to(CORE).with_suffix("")) for file in files)


PURE = pure()
#: Builtins that do input or output, run code, or differ between processes.
WORLD = {"breakpoint", "eval", "exec", "hash", "input", "open", "print", "__import__"}
#: An exception: the compiler of formulas builds its syntax tree from harmless nodes.
MAY = {"model/formula_compiler": {"eval"}}


def world_calls(source: str, may: Collection[str] = ()) -> list[tuple[int, str]]:
    return [
        (node.lineno, node.func.id)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in WORLD.difference(may)
    ]


def unordered_loops(source: str) -> list[int]:
    """Return the lines with a loop over a set display, a set comprehension or ``set(…)``."""

    def is_set(node: ast.expr) -> bool:
        return isinstance(node, (ast.Set, ast.SetComp)) or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("set", "frozenset")
        )

    return [
        node.iter.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.For, ast.comprehension)) and is_set(node.iter)
    ]


def test_pure_modules_call_no_impure_builtins() -> None:
    found = {
        module: world_calls((CORE / f"{module}.py").read_text(), MAY.get(module, ()))
        for module in PURE
    }
    assert {module: calls for module, calls in found.items() if calls} == {}


def test_pure_modules_do_not_loop_over_sets() -> None:
    found = {module: unordered_loops((CORE / f"{module}.py").read_text()) for module in PURE}
    assert {module: lines for module, lines in found.items() if lines} == {}


def test_impure_calls_and_loops_over_sets_are_detected() -> None:
    assert world_calls("def f(x):\n    print(hash(x))\n") == [(2, "print"), (2, "hash")]
    assert world_calls("eval(x), exec(x)", {"eval"}) == [(1, "exec")]
    assert unordered_loops("for x in {1, 2}:\n    pass\n[x for x in set(y)]") == [1, 3]


def test_the_engine_is_in_the_contract_of_pure_modules() -> None:
    assert {
        "engine/engine",
        "metrics/store",
        "model/conditions",
        "engine/job_table",
        "errors",
    } <= set(PURE)


@pytest.mark.parametrize(
    "file", sorted((CORE / "session").glob("*.py")), ids=lambda file: file.stem
)
def test_the_session_package_does_not_print(file: Path) -> None:
    assert "print" not in [name for _, name in world_calls(file.read_text())]


def imports(root: Path) -> dict[str, set[str]]:
    """Return which modules of its package each module imports, also in functions and for types."""
    files = {
        ".".join([root.name, *file.relative_to(root).with_suffix("").parts]).removesuffix(
            ".__init__"
        ): file
        for file in root.rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for module, file in files.items():
        named: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                named |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                full = {each.name: f"{node.module}.{each.name}" for each in node.names}
                named |= {name if name in files else node.module for name in full.values()}
        # The package imports its public names lazily.
        found[module] = {name for name in named if name in files} - {module, root.name}
    return found


def circle(imports: Mapping[str, Collection[str]]) -> list[str]:
    """Return an import cycle, or an empty list."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_import_cycles_even_for_types() -> None:
    graph = {module: named for module, named in imports(CORE).items() if module != CORE.name}
    assert len(graph) > 200
    assert circle(graph) == []


def room(module: str) -> str:
    return module.split(".")[1]


def test_import_cycles_for_types_are_detected(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "room").mkdir(parents=True)
    (package / "room" / "one.py").write_text("from package.room import two\n")
    (package / "room" / "two.py").write_text(
        "if TYPE_CHECKING:\n    from package.room.three import Three\n"
    )
    (package / "room" / "three.py").write_text("def f():\n    import package.room.one\n")
    assert set(circle(imports(package))) == {f"package.room.{n}" for n in ("one", "two", "three")}


def test_the_layers_of_the_engine_hold_for_type_only_imports() -> None:
    contracts = ConfigParser()
    contracts.read(CONTRACTS)
    layers = [
        [f"ensemble_core.engine.{name}" for name in line.split(" | ")]
        for line in contracts["importlinter:contract:engine"]["layers"].strip().splitlines()
    ]
    graph = {
        module: {name for name in named if room(name) == "engine"}
        for module, named in imports(CORE).items()
        if module.startswith("ensemble_core.engine.")
    }
    reached: dict[str, set[str]] = {}
    for module in TopologicalSorter(graph).static_order():
        reached[module] = graph[module].union(*(reached[each] for each in graph[module]))
    for place, layer in enumerate(layers):
        above = {module for higher in layers[: place + 1] for module in higher}
        for module in layer:
            assert reached[module].isdisjoint(above), f"{module} imports upwards"


#: Modules of the core that a plugin imports besides the public names.
PUBLIC = ("ensemble_core", "ensemble_core.cli.toolkit")
MORE = {
    # The nodes of pilots run the supervisor of the local executor.
    "ensemble_pilot": re.compile(r"ensemble_pilot\..* -> ensemble_core\.local\..*"),
    # It stands in for the runtime, and has the same parts.
    "ensemble_simulate": re.compile(r"ensemble_simulate\.virtual_runtime -> ensemble_core\..*"),
    # Suites for plugins on these bases. The contract "testing" has what it imports of the core.
    "ensemble_testing": re.compile(r"\S+ -> ensemble_(core|batch|programs)\b.*"),
}
#: Requirements that a plugin does not import. Of MiniClusters, the operator knows only what is
#: registered.
NOT_IMPORTED = {"ensemble_operator": {"ensemble_minicluster"}}


def run_time_imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import that is not only for types; a module imported
    as such has no name.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, each.name) for each in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        else:
            yield from run_time_imports(node)


def forbidden(package: str, module: str, source: str, required: Collection[str]) -> list[str]:
    """Return imports of our distributions that a module of the plugin ``package`` must not have."""
    bad = []
    for other, name in run_time_imports(ast.parse(source)):
        top = other.partition(".")[0]
        if not top.startswith("ensemble_") or top == package:
            continue
        of_core = other in PUBLIC or f"{other}.{name}" in PUBLIC
        line = f"{module} -> {other}"
        if of_core or (top != "ensemble_core" and top in required):
            continue
        if package not in MORE or not MORE[package].fullmatch(line):
            bad.append(line)
    return bad


@pytest.mark.checkout
def test_plugins_import_public_names_and_the_plugins_that_they_require() -> None:
    bad: list[str] = []
    plugins = sorted(ROOT.glob("plugins/*/ensemble_*"))
    for package in plugins:
        text = (package.parent / "pyproject.toml").read_text()
        required = {
            name.replace("-", "_") for name in re.findall(r'"(ensemble-[a-z]+)>=', text)
        } - NOT_IMPORTED.get(package.name, set())
        for file in package.rglob("*.py"):
            module = ".".join(file.relative_to(package.parent).with_suffix("").parts)
            bad += forbidden(package.name, module, file.read_text(), required)
    assert len(plugins) > 20
    assert bad == []


def test_the_core_imports_no_plugin() -> None:
    assert [
        f"{file.relative_to(CORE)} -> {other}"
        for file in CORE.rglob("*.py")
        for other, _ in run_time_imports(ast.parse(file.read_text()))
        if re.match(r"ensemble_(?!core\b)", other)
    ] == []


@pytest.mark.parametrize(
    "line",
    [
        "from ensemble_core.engine import engine",
        "from ensemble_core.cli import options",
        "def f():\n    import ensemble_core.errors",
        "try:\n    from ensemble_slurm import job_names\nexcept ImportError: pass",
    ],
)
def test_a_forbidden_import_of_a_plugin_is_detected(line: str) -> None:
    assert len(forbidden("ensemble_flux", "ensemble_flux.x", line, {"ensemble_batch"})) == 1
    fine = "from ensemble_core import Job\nfrom ensemble_core.cli import toolkit\n"
    types = f"if TYPE_CHECKING:\n    {line.splitlines()[-1].strip()}\n" if "try" not in line else ""
    assert forbidden("ensemble_flux", "ensemble_flux.x", fine + types, ()) == []
    assert forbidden("ensemble_pbs", "m", "import ensemble_batch.x", {"ensemble_batch"}) == []


def test_the_core_ships_its_types_and_its_schema() -> None:
    assert (CORE / "py.typed").exists()
    assert (CORE / "config" / "ensemble.schema.json").exists()


ROOMS = sorted(path.parent for path in CORE.glob("*/__init__.py"))


def sources() -> list[Path]:
    """Return all modules of the core and the plugins, except generated ones."""
    packages = [ROOT / "ensemble_core", *ROOT.glob("plugins/*/ensemble_*")]
    return sorted(
        file
        for package in packages
        for file in package.rglob("*.py")
        if not file.stem.endswith("_pb2") and not file.stem.endswith("_pb2_grpc")
    )


def riddle(docstring: str | None) -> bool:
    """Return whether a docstring is missing or begins with a word such as "What" or "Whether"."""
    begins = ("What", "Who", "Whether", "Those", "That which", "So many", "How")
    return docstring is None or docstring.startswith(tuple(f"{word} " for word in begins))


def test_the_core_has_no_other_top_level_files() -> None:
    files = {path.name for path in CORE.iterdir() if path.is_file()}
    assert files == {
        "__init__.py",
        "errors.py",
        "late_pattern.py",
        "posix.py",
        "py.typed",
        "quick_dataclass.py",
    }


def test_the_core_uses_its_own_decorator_of_dataclasses() -> None:
    """That of the standard library compiles methods during the import."""
    line = re.compile(r"^from dataclasses import .*\bdataclass\b|@dataclasses\.", re.M)
    modules = [path for path in CORE.rglob("*.py") if line.search(path.read_text("utf-8"))]
    assert modules == []


@pytest.mark.parametrize("room", [room.name for room in ROOMS])
def test_each_package_has_a_folder_of_tests(room: str) -> None:
    assert list((TESTS / room).glob("test_*.py"))


@pytest.mark.checkout
def test_docstrings_do_not_begin_with_a_question_word() -> None:
    riddles = []
    for file in sources():
        tree = ast.parse(file.read_text())
        if riddle(ast.get_docstring(tree)):
            riddles.append(f"{file.relative_to(ROOT)}")
        for node in ast.walk(tree):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                if text and riddle(text) and text[:3] != "How":
                    riddles.append(f"{file.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert riddles == []


def test_a_docstring_that_begins_with_a_question_word_is_detected() -> None:
    assert riddle(None)
    assert riddle("What is said of what took too long.")
    assert not riddle("Error for a request that exceeded its deadline.")
