"""The table of error codes in ``docs/error-codes.md`` has every code that the sources raise, and no
other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "error-codes.md"
SOURCES = [
    file
    for package in (ROOT / "ensemble_core", *ROOT.glob("plugins/*/ensemble_*"))
    for file in sorted(package.rglob("*.py"))
    if "_pb2" not in file.name
]

pytestmark = pytest.mark.checkout


def codes_in(value: ast.expr) -> Iterator[str]:
    """Yield a pattern for each code that an expression may return."""
    match value:
        case ast.Constant(value=str(code)):
            yield re.escape(code)
        case ast.IfExp():
            yield from codes_in(value.body)
            yield from codes_in(value.orelse)
        case ast.JoinedStr():
            yield "".join(
                re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"[a-z-]+"
                for part in value.values
            )
        case ast.BinOp(left=ast.Constant(value=str(begin)), op=ast.Add()):
            yield re.escape(begin) + "[a-z-]+"


@cache
def raised() -> set[str]:
    """Return a pattern for each ``code=`` argument in the sources."""
    return {
        code
        for file in SOURCES
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.keyword) and node.arg == "code"
        for code in codes_in(node.value)
    }


def listed() -> list[str]:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    return [code for row in rows for code in re.findall(r"`([a-z0-9-]+)`", row.split("|")[1])]


def test_every_raised_code_is_in_the_table() -> None:
    codes = listed()
    missing = [p for p in raised() if not any(re.fullmatch(p, code) for code in codes)]
    assert not missing, "document these in docs/error-codes.md"


def test_every_code_in_the_table_is_in_the_sources() -> None:
    patterns = [re.compile(pattern) for pattern in raised() if "[" in pattern]
    text = "\n".join(file.read_text("utf-8") for file in SOURCES)
    unknown = [
        code
        for code in listed()
        if f'"{code}"' not in text and not any(pattern.fullmatch(code) for pattern in patterns)
    ]
    assert not unknown, "no source has these any more"


def test_no_section_of_the_table_lists_a_code_twice() -> None:
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]:
        codes = re.findall(r"`([a-z0-9-]+)`", re.sub(r"(?m)^(?!\| `).*$", "", section))
        assert len(codes) == len(set(codes)), section.splitlines()[0]
