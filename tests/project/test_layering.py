"""Laws of the architecture that contracts over imports cannot say; those are in .importlinter."""

from __future__ import annotations

import ast
from collections.abc import Collection
from configparser import ConfigParser
from pathlib import Path

import pytest

import ensemble_core

CORE = Path(ensemble_core.__file__).parent
TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
CONTRACTS = Path(__file__).parents[2] / ".importlinter"


def pure() -> list[str]:
    """Modules whose answers depend on nothing but what they are given, as the contract has them."""
    contracts = ConfigParser()
    contracts.read(CONTRACTS)
    modules = contracts["importlinter:contract:pure"]["source_modules"].split()
    rooms = [module.removeprefix("ensemble_core.") for module in modules]
    files = [f for room in rooms for f in (CORE / room).glob("*.py")] + [CORE / "errors.py"]
    return sorted(str(file.relative_to(CORE).with_suffix("")) for file in files)


PURE = pure()
#: Builtins that reach the world, or whose answer differs from one process to the next.
WORLD = {"breakpoint", "eval", "exec", "hash", "input", "open", "print", "__import__"}
#: The one that compiles formulas, from a tree that it builds itself of what is harmless; and the
#: one that makes a constructor of the names of a class's own fields.
MAY = {"model/compiler": {"eval"}, "model/codec": {"exec"}}


def world_calls(source: str, may: Collection[str] = ()) -> list[tuple[int, str]]:
    return [
        (node.lineno, node.func.id)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in WORLD.difference(may)
    ]


def unordered_loops(source: str) -> list[int]:
    """Lines that loop over a set display, a set comprehension or ``set(…)`` itself."""

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


def test_the_engine_reaches_nothing_but_what_it_is_given() -> None:
    found = {
        module: world_calls((CORE / f"{module}.py").read_text(), MAY.get(module, ()))
        for module in PURE
    }
    assert {module: calls for module, calls in found.items() if calls} == {}


def test_no_decision_hangs_on_the_order_of_a_set() -> None:
    found = {module: unordered_loops((CORE / f"{module}.py").read_text()) for module in PURE}
    assert {module: lines for module, lines in found.items() if lines} == {}


def test_these_checks_find_what_they_look_for() -> None:
    assert world_calls("def f(x):\n    print(hash(x))\n") == [(2, "print"), (2, "hash")]
    assert world_calls("eval(x), exec(x)", {"eval"}) == [(1, "exec")]
    assert unordered_loops("for x in {1, 2}:\n    pass\n[x for x in set(y)]") == [1, 3]


def test_the_engine_is_among_what_is_pure() -> None:
    assert {
        "engine/engine",
        "metrics/store",
        "model/conditions",
        "engine/job_table",
        "errors",
    } <= set(PURE)


def test_the_core_ships_its_types_and_its_schema() -> None:
    assert (CORE / "py.typed").exists()
    assert (CORE / "config" / "ensemble.schema.json").exists()


ROOMS = sorted(path.parent for path in CORE.glob("*/__init__.py"))


def sources() -> list[Path]:
    """Every module of the product, but those that are generated."""
    packages = [ROOT / "ensemble_core", *ROOT.glob("plugins/*/ensemble_*")]
    return sorted(
        file
        for package in packages
        for file in package.rglob("*.py")
        if not file.stem.endswith("_pb2") and not file.stem.endswith("_pb2_grpc")
    )


def riddle(docstring: str | None) -> bool:
    """True if a docstring does not begin with its thing."""
    begins = ("What", "Who", "Whether", "Those", "That which", "So many", "How")
    return docstring is None or docstring.startswith(tuple(f"{word} " for word in begins))


def test_nothing_lies_beside_the_rooms() -> None:
    files = {path.name for path in CORE.iterdir() if path.is_file()}
    assert files == {"__init__.py", "errors.py", "py.typed"}


@pytest.mark.parametrize("room", [room.name for room in ROOMS])
def test_a_room_has_a_folder_of_tests(room: str) -> None:
    assert list((TESTS / room).glob("test_*.py"))


@pytest.mark.checkout
def test_docstrings_name_their_thing_first() -> None:
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


def test_a_docstring_that_does_not_name_its_thing_is_found() -> None:
    assert riddle(None)
    assert riddle("What is said of what took too long.")
    assert not riddle("Error for a request that exceeded its deadline.")
