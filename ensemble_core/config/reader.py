"""YAML text to plain data with positions, strictly.

Reads PyYAML's events (from libyaml where it is there) and composes them without recursion, so that
depth, size and expansion of aliases are limited as they are read. The scalars are YAML 1.1's,
without its traps: ``1e3`` is a number, ``1:30`` and ``010`` and dates are the strings they look
like, a key is always its own text, a key that stands twice is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ensemble_core.config.document import Document, Path
from ensemble_core.config.source import LARGEST, too_large
from ensemble_core.errors import EnsembleError, FileErrors, Location, UsageError

__all__ = ["read_text", "read_value"]

_DEEPEST = 64
#: Values of a document, each as often as aliases repeat it.
_MOST = 500_000
_CORE = "tag:yaml.org,2002:"

_TRUE = frozenset({"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
_FALSE = frozenset({"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z")
_BASED = re.compile(
    r"([-+]?)0(?:(b)([01][01_]*)|(o)([0-7][0-7_]*)|(x)([0-9a-fA-F][0-9a-fA-F_]*))\Z"
)
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?\Z")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+\Z")
_SPECIAL = re.compile(r"([-+]?)\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")


@dataclass(slots=True)
class _Node:
    kind: Literal["scalar", "list", "mapping"]
    line: int
    column: int
    start: int
    end: int = 0
    text: str = ""
    string: bool = False
    items: list[_Node] = field(default_factory=list)  # of a mapping: key, value, key, value
    done: bool = True


def read_text(text: str, file: str) -> Document:
    """The document in ``text``. Raises :class:`FileErrors` with every error that was found."""
    text = text.removeprefix("\ufeff")
    errors: list[EnsembleError] = []
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise FileErrors([_fault("the text has half a surrogate pair", Location(file))]) from error
    if size > LARGEST:
        raise FileErrors([too_large(file, size)])
    try:
        root = _compose(text, file)
        if root is None:
            raise UsageError(
                "the file is empty",
                where=Location(file, 1, 1),
                hint="an ensemble file has at least 'jobs' and 'rules'",
                code="empty-file",
            )
        document = Document(None, file, text)
        builder = _Builder(document, errors)
        document.data = builder.build(root, (), 0)
    except EnsembleError as error:
        raise FileErrors([*_distinct(errors), error]) from None
    if errors:
        raise FileErrors(_distinct(errors))
    return document


def _distinct(errors: list[EnsembleError]) -> list[EnsembleError]:
    """Each error once: a mapping that aliases repeat is read as often."""
    return list({(error.where, error.what): error for error in errors}.values())


def read_value(text: str, origin: str) -> tuple[Any, dict[Path, str]]:
    """One value, as ``--set KEY=VALUE`` has it, and how its plain scalars are spelled."""
    if not text.strip():
        return "", {}
    try:
        document = read_text(text, origin)
    except FileErrors as errors:
        first = errors.errors[0]
        raise UsageError(
            first.what, where=Location(origin), cause=first.cause, hint=first.hint, code=first.code
        ) from None
    return document.data, document.spelled


def _fault(
    what: str, where: Location, hint: str | None = None, code: str = "bad-yaml"
) -> UsageError:
    return UsageError(what, where=where, hint=hint, code=code)


def _compose(text: str, file: str) -> _Node | None:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _compose_events(yaml.parse(text, Loader=loader), file)
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, text, file) from None
    except yaml.reader.ReaderError as error:
        position = error.position if isinstance(error.position, int) else 0
        bad = next((i for i, c in enumerate(text) if _unprintable(c)), min(position, len(text)))
        start = text.rfind("\n", 0, bad) + 1
        where = Location(file, text.count("\n", 0, bad) + 1, bad - start + 1)
        raise _fault(
            "the file has a character that YAML does not allow",
            where,
            f"remove it, or write {text[bad : bad + 1]!a} as an escape in double quotes",
        ) from None
    except yaml.YAMLError as error:
        raise _fault(f"the file is not YAML: {error}", Location(file, 1, 1)) from None


def _unprintable(character: str) -> bool:
    code = ord(character)
    return (
        (code < 0x20 and character not in "\t\n\r")
        or 0x7F <= code < 0x85
        or 0x85 < code < 0xA0
        or code in (0xFEFF, 0xFFFE, 0xFFFF)
    )


def _compose_events(events: Iterator[Any], file: str) -> _Node | None:
    """The node tree. Own, because PyYAML's composer recurses and knows no limits."""
    import yaml

    root: _Node | None = None
    stack: list[_Node] = []
    anchors: dict[str, _Node] = {}
    documents = 0
    for event in events:
        mark = event.start_mark
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _fault(
                    "the file has a second document",
                    Location(file, mark.line + 1, mark.column + 1),
                    "write one ensemble per file; remove the '---'",
                    "several-documents",
                )
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop().done = True
            continue
        if not isinstance(event, yaml.NodeEvent):
            continue
        where = Location(file, mark.line + 1, mark.column + 1)
        if isinstance(event, yaml.AliasEvent):
            known = anchors.get(event.anchor or "")
            if known is None:
                raise _fault(f"the alias *{event.anchor} has no anchor before it", where)
            if not known.done:
                raise _fault(f"the alias *{event.anchor} stands within itself", where)
            node = known
        else:
            node = _node(event, where)
            if event.anchor:
                anchors[event.anchor] = node
        if stack:
            stack[-1].items.append(node)
        else:
            root = node
        if not node.done:
            stack.append(node)
            if len(stack) > _DEEPEST:
                raise _fault(
                    f"the file is nested more than {_DEEPEST} levels deep", where, code="too-deep"
                )
    if root is not None and root.kind == "scalar" and not root.string and root.text == "":
        return None
    return root


def _node(event: Any, where: Location) -> _Node:
    import yaml

    mark, tag = event.start_mark, event.tag
    if isinstance(event, yaml.ScalarEvent):
        known = (None, "!", _CORE + "str")
        node = _Node(
            "scalar",
            where.line,
            where.column,
            mark.index,
            mark.index if event.end_mark is None else event.end_mark.index,
            event.value,
            string=not event.implicit[0] or tag in known[1:],
        )
    else:
        sequence = isinstance(event, yaml.SequenceStartEvent)
        known = (None, "!", _CORE + ("seq" if sequence else "map"))
        node = _Node(
            "list" if sequence else "mapping", where.line, where.column, mark.index, done=False
        )
    if tag not in known:
        short = tag.replace(_CORE, "!!")
        raise _fault(
            f"the tag {short} is not allowed",
            where,
            "remove it; to make a value a string, quote it",
            "yaml-tag",
        )
    return node


#: The name of a column with an index, as in ``c_msd[4]``.
_COLUMN = re.compile(r"[A-Za-z_]\w*\[\d+(?:\]\[\d+)*\]?")


def _syntax(error: Any, text: str, file: str) -> UsageError:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "it does not parse"
    if mark is None:
        return _fault(f"the file is not YAML: {problem}", Location(file, 1, 1))
    lines = text.split("\n")
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip(" \t"))]
    tab = indent.find("\t")
    if tab < 0 and line[mark.column : mark.column + 1] == "\t":
        tab = mark.column
    if tab >= 0:
        return _fault(
            "a tab where YAML wants spaces",
            Location(file, mark.line + 1, tab + 1),
            "indent with spaces",
            "tab",
        )
    context = f", {error.context}" if error.context and error.context != problem else ""
    begun = error.context_mark
    since = f" (begun in line {begun.line + 1})" if context and begun is not None else ""
    hint = None
    column = next((m for m in _COLUMN.finditer(line) if m.start() <= mark.column), None)
    if column is not None and ("token" in problem or "did not find expected" in problem):
        # Between { and } a bracket begins a list, also in the middle of a condition.
        hint = f'quote what has brackets in it: "{column[0]} …"'
    elif "mapping values are not allowed" in problem:
        hint = "quote text that has ': ' in it, and check the indentation"
    elif "could not find expected ':'" in problem:
        hint = "write 'key: value', with a space after the colon"
    elif "cannot start any token" in problem:
        hint = "quote text that begins with @, ` or %"
    elif "did not find expected" in problem:
        hint = "check the indentation and the quotes and brackets before this place"
    return _fault(
        f"the file is not YAML: {problem}{context}{since}",
        Location(file, mark.line + 1, mark.column + 1),
        hint,
    )


class _Builder:
    """Makes data of nodes, and remembers their places."""

    def __init__(self, document: Document, errors: list[EnsembleError]) -> None:
        self._document = document
        self._errors = errors
        self._built = 0

    def build(self, node: _Node, path: Path, depth: int) -> Any:
        document = self._document
        where = Location(document.file, node.line, node.column)
        if depth > _DEEPEST:
            raise _fault(f"aliases nest more than {_DEEPEST} levels deep", where, code="too-deep")
        self._built += 1
        if self._built > _MOST:
            raise _fault(
                f"the file has more than {_MOST} values, with what its aliases repeat",
                where,
                "write the file without aliases that repeat one another",
                "alias-bomb",
            )
        document.values[path] = (node.line, node.column)
        if node.kind == "scalar":
            return self._scalar(node, path, where)
        if node.kind == "list":
            return [self.build(item, (*path, i), depth + 1) for i, item in enumerate(node.items)]
        return self._mapping(node, path, depth)

    def _scalar(self, node: _Node, path: Path, where: Location) -> Any:
        document = self._document
        document.spans[path] = (node.start, node.end)
        if node.string:
            return self._checked(node.text, where)
        value = _resolve(node.text)
        if isinstance(value, str):
            return self._checked(value, where)
        document.spelled[path] = node.text
        return value

    def _checked(self, text: str, where: Location) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            self._errors.append(_fault("the string has half a surrogate pair", where))
            return ""
        return text

    def _mapping(self, node: _Node, path: Path, depth: int) -> dict[str, Any]:
        document = self._document
        data: dict[str, Any] = {}
        merged: list[_Node] = []
        own: dict[str, _Node] = {}
        for key, value in zip(node.items[::2], node.items[1::2], strict=True):
            where = Location(document.file, key.line, key.column)
            if key.kind != "scalar":
                self._errors.append(
                    _fault("a key must be text, not a list or mapping", where, "quote the key")
                )
                continue
            if key.text == "<<" and not key.string:
                merged += self._merged(value)
                continue
            name = self._checked(key.text, where)
            if name in own:
                first = own[name]
                self._errors.append(
                    _fault(
                        f"the key {name!r} stands twice in one mapping, first in line "
                        f"{first.line}, column {first.column}",
                        where,
                        "keep one of them",
                        "duplicate-key",
                    )
                )
                continue
            own[name] = key
            inner = (*path, name)
            document.keys[inner] = (key.line, key.column)
            data[name] = self.build(value, inner, depth + 1)
        for source in merged:
            inherited = self._merge(source, path, depth, frozenset(data))
            for name, value in inherited.items():
                data.setdefault(name, value)
        return data

    def _merged(self, value: _Node) -> list[_Node]:
        sources = value.items if value.kind == "list" else [value]
        for source in sources:
            if source.kind != "mapping":
                where = Location(self._document.file, source.line, source.column)
                self._errors.append(_fault("'<<' needs a mapping or a list of mappings", where))
                return []
        return sources

    def _merge(
        self, source: _Node, path: Path, depth: int, taken: frozenset[str]
    ) -> dict[str, Any]:
        """The data of a merged mapping, without what is already there, so that the places of
        the mapping's own keys stay."""
        kept = _Node("mapping", source.line, source.column, source.start)
        for key, value in zip(source.items[::2], source.items[1::2], strict=True):
            if key.kind != "scalar" or key.text not in taken or key.text == "<<":
                kept.items += (key, value)
        place = self._document.values[path]
        data = self.build(kept, path, depth + 1)
        self._document.values[path] = place
        return {name: value for name, value in data.items() if name not in taken}


def _resolve(text: str) -> Any:
    """What a plain scalar means."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if len(text) > 400 or text[0] not in "+-.0123456789":
        return text
    based = _BASED.match(text)
    if based:
        base = 2 if based[2] else 8 if based[4] else 16
        digits = (based[3] or based[5] or based[7]).replace("_", "")
        return int(based[1] + digits, base) if digits else text
    if _DECIMAL.match(text):
        return int(text.replace("_", ""))
    if _LEADING_ZERO.match(text):
        return text
    if _FLOAT.match(text):
        return float(text.replace("_", ""))
    special = _SPECIAL.match(text)
    if special:
        if special[1] is None:
            return float("nan")
        return float(f"{special[1]}inf")
    return text
