"""YAML parser that records the position of every value and limits depth and size, and writer.

Scalars are read as in YAML 1.1, with these exceptions: ``1e3`` is a number; ``1:30``, ``010`` and
dates are strings. Keys are always strings. A duplicate key is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ensemble_core.config.document import Document, Path
from ensemble_core.config.file_text import LARGEST, too_large
from ensemble_core.errors import EnsembleError, FileErrors, Location, UsageError
from ensemble_core.late_pattern import late_pattern

_DEEPEST = 64
#: Maximum number of values in a document. Content that an alias repeats counts each time.
_MOST = 500_000
_CORE = "tag:yaml.org,2002:"

_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
_INTEGER = late_pattern(
    r"[-+]?(?:0|[1-9][0-9_]*|0b[01][01_]*|0o[0-7][0-7_]*|0x[0-9a-fA-F][0-9a-fA-F_]*)\Z"
)
_FLOAT = late_pattern(
    r"(?![-+]?0[0-9_]+\Z)"  # 010 is text
    r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?\Z"
)
_SPECIAL = late_pattern(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")


def read_document(text: str, file: str) -> Document:
    """Parse the text of an ensemble file. Raises :class:`FileErrors` with all errors."""
    document = Document(None, file, text.removeprefix("\ufeff"))
    parser = _Parser(document)
    try:
        parser.read()
    except EnsembleError as error:
        parser.errors.append(error)
    if parser.errors:
        # Report each error once, although a mapping with aliases is read several times.
        raise FileErrors({(error.where, error.what): error for error in parser.errors}.values())
    return document


def read_yaml(text: str, file: str) -> Document:
    """Parse YAML as strictly as ensemble files. For plugins that read their own files.

    In the returned document, ``data`` is the content; the methods ``at`` and ``at_key`` return
    positions by path. ``file`` is the file's name in messages. Raises :class:`FileErrors` with all
    errors.
    """
    return read_document(text, file)


_NOT_YAML = "the file is not YAML"


def read_value(text: str, origin: str) -> tuple[Any, dict[Path, str]]:
    """Parse VALUE in ``--set KEY=VALUE``.

    Return the value, and the source text of each unquoted scalar in it.
    """
    if not text.strip():
        return "", {}
    try:
        document = read_document(text, origin)
    except FileErrors as errors:
        first = errors.errors[0]
        what, hint = first.what, first.hint
        if what.startswith(_NOT_YAML):
            what = "the value is not YAML" + what[len(_NOT_YAML) :]
            if hint is None or "indentation" in hint:
                hint = "quote a value with braces, brackets or other YAML characters: "
                hint += "KEY='\"{here}/x\"'"
        raise UsageError(
            what, where=Location(origin), cause=first.cause, hint=hint, code=first.code
        ) from None
    return document.data, document.spelled


def _fault(
    what: str, where: Location, hint: str | None = None, code: str = "bad-yaml"
) -> UsageError:
    return UsageError(what, where=where, hint=hint, code=code)


#: A column's name with an index, as in ``c_msd[4]``.
_COLUMN = late_pattern(r"[A-Za-z_]\w*\[\d+(?:\]\[\d+)*\]?")


#: Common mistakes on the line where parsing stops, each with a hint.
_MISTAKES = (
    (late_pattern(r"\bwhen:\s*[<>!=]"), 'quote the condition: when: "> 5"'),
    (
        late_pattern(r":\s*\{[A-Za-z_][\w.:]*\}\s*[^\s,}]"),
        'quote text that begins with a placeholder: "{job} failed"',
    ),
)


def _syntax(error: Any, text: str, file: str) -> UsageError:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "it does not parse"
    if mark is None:
        return _fault(f"{_NOT_YAML}: {problem}", Location(file, 1, 1))
    lines = text.split("\n")
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip(" \t"))]
    tab = indent.find("\t")
    if tab < 0 and line[mark.column : mark.column + 1] == "\t":
        tab = mark.column
    if tab >= 0:
        return _fault(
            "a tab where YAML needs spaces",
            Location(file, mark.line + 1, tab + 1),
            "indent with spaces",
            "tab",
        )
    context = f", {error.context}" if error.context and error.context != problem else ""
    begun = error.context_mark
    since = f" (begun in line {begun.line + 1})" if context and begun is not None else ""
    hint = None
    mistake = next((say for pattern, say in _MISTAKES if pattern.search(line)), None)
    column = next((m for m in _COLUMN.finditer(line) if m.start() <= mark.column), None)
    if mistake is not None:
        hint = mistake
    elif column is not None and ("token" in problem or "did not find expected" in problem):
        # Between { and }, a bracket starts a list, even within a condition.
        hint = f'quote text that contains brackets: "{column[0]} …"'
    elif "mapping values are not allowed" in problem:
        hint = "quote text that contains ': ', and check the indentation"
    elif "could not find expected ':'" in problem:
        hint = "write 'key: value', with a space after the colon"
    elif "cannot start any token" in problem:
        hint = "quote text that begins with @, ` or %"
    elif "unknown escape character" in problem:
        hint = "write the text in single quotes: in them, a backslash is only a backslash"
    elif "did not find expected" in problem:
        hint = "check the indentation and the quotes and brackets before this place"
    return _fault(
        f"{_NOT_YAML}: {problem}{context}{since}",
        Location(file, mark.line + 1, mark.column + 1),
        hint,
    )


class _Parser:
    """Builds data from PyYAML's parsing events, and records the position of each part."""

    def __init__(self, document: Document) -> None:
        self.errors: list[EnsembleError] = []
        self._document = document
        self._events: list[Any] = []
        # A value is identified by the index of its first event.
        #: The value of its anchor, for each alias.
        self._targets: dict[int, int] = {}
        #: The event after the end of each list or mapping, by its start.
        self._after: dict[int, int] = {}
        self._built = 0

    def read(self) -> None:
        """Parse the document.

        Raises :class:`UsageError` for an error after which parsing cannot continue.
        """
        document = self._document
        size = len(document.text.encode(errors="surrogatepass"))
        if size > LARGEST:
            raise too_large(document.file, size)
        self._scan()
        first = self._events[0] if self._events else None
        if first is None or (getattr(first, "value", None) == "" and first.implicit[0]):
            raise UsageError(
                "the file is empty",
                where=Location(document.file, 1, 1),
                hint="add at least 'jobs' and 'rules'",
                code="empty-file",
            )
        document.data = self._value(0, (), 0)

    # -- events --------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Collect the events of the document, and check depth, tags and aliases."""
        import yaml

        text, file = self._document.text, self._document.file
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
        if bad is not None:
            raise _fault(
                "the file has a character that YAML does not allow",
                self._document.at_index(bad.start()),
                f"remove it, or write {bad[0]!a} as an escape in double quotes",
            )
        anchors: dict[str, int] = {}
        open_: list[int] = []
        documents = 0
        try:
            for event in yaml.parse(text, Loader=loader):
                here = len(self._events)
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        raise _fault(
                            "the file has a second document",
                            self._place(event),
                            "write one ensemble per file; remove the '---'",
                            "several-documents",
                        )
                    continue
                if isinstance(event, yaml.CollectionEndEvent):
                    self._after[open_.pop()] = here + 1
                elif not isinstance(event, yaml.NodeEvent):
                    continue
                elif isinstance(event, yaml.AliasEvent):
                    target = anchors.get(event.anchor or "")
                    if target is None or target in open_:
                        why = "has no anchor before it" if target is None else "refers to itself"
                        raise _fault(f"the alias *{event.anchor} {why}", self._place(event))
                    self._targets[here] = target
                else:
                    self._check_tag(event)
                    if event.anchor:
                        anchors[event.anchor] = here
                    if isinstance(event, yaml.CollectionStartEvent):
                        open_.append(here)
                        self._check_depth(len(open_) - 1, event)
                self._events.append(event)
        except yaml.MarkedYAMLError as error:
            raise _syntax(error, text, file) from None
        except yaml.YAMLError as error:
            raise _fault(f"{_NOT_YAML}: {error}", Location(file, 1, 1)) from None

    def _place(self, event: Any) -> Location:
        mark = event.start_mark
        return Location(self._document.file, mark.line + 1, mark.column + 1)

    def _check_tag(self, event: Any) -> None:
        if event.tag not in (None, "!", f"{_CORE}{_kind(event)}"):
            short = event.tag.replace(_CORE, "!!")
            raise _fault(
                f"the tag {short} is not allowed",
                self._place(event),
                "remove it; to make a value a string, quote it",
                "yaml-tag",
            )

    def _check_depth(self, depth: int, event: Any) -> None:
        if depth >= _DEEPEST:
            raise _fault(
                f"the file is nested more than {_DEEPEST} levels deep",
                self._place(event),
                code="too-deep",
            )

    def _count(self, event: Any) -> None:
        self._built += 1
        if self._built > _MOST:
            raise _fault(
                f"the file has more than {_MOST} values, counting repetitions by aliases",
                self._place(event),
                "avoid nested aliases",
                "alias-bomb",
            )

    # -- values --------------------------------------------------------------------------------

    def _value(self, at: int, path: Path, depth: int) -> Any:
        at = self._targets.get(at, at)
        event, document = self._events[at], self._document
        # Content that an alias repeats is counted each time, so that nested aliases cannot exhaust
        # the memory.
        self._count(event)
        document.values[path] = (event.start_mark.line + 1, event.start_mark.column + 1)
        kind = _kind(event)
        if kind == "str":
            return self._scalar(event, path)
        self._check_depth(depth, event)
        if kind == "seq":
            items = enumerate(self._items(at))
            return [self._value(item, (*path, i), depth + 1) for i, item in items]
        data: dict[str, Any] = {}
        self._fill(data, at, path, depth)
        return data

    def _items(self, at: int) -> Iterator[int]:
        """Yield the values in a list. For a mapping, yield keys and values in turn."""
        end = self._after[at] - 1
        at += 1
        while at < end:
            yield at
            at = self._after.get(at, at + 1)

    def _scalar(self, event: Any, path: Path) -> Any:
        document = self._document
        document.spans[path] = (event.start_mark.index, event.end_mark.index)
        value = _resolve(event.value) if event.implicit[0] else event.value
        if isinstance(value, str):
            return self._check_scalar(event)
        document.spelled[path] = event.value
        return value

    def _check_scalar(self, event: Any) -> str:
        text: str = event.value
        try:
            text.encode()
        except UnicodeEncodeError:  # libyaml rejects such an escape
            self._report("the string contains an unpaired surrogate", event)
            return ""
        return text

    def _report(
        self, what: str, event: Any, hint: str | None = None, code: str = "bad-yaml"
    ) -> None:
        self.errors.append(_fault(what, self._place(event), hint, code))

    def _fill(self, data: dict[str, Any], mapping: int, path: Path, depth: int) -> None:
        """Add the entries of a mapping to ``data``, without replacing existing entries."""
        items = list(self._items(mapping))
        inherited, merged = frozenset(data), list[int]()
        own: dict[str, Any] = {}
        for at, value in zip(items[::2], items[1::2], strict=True):
            key = self._events[self._targets.get(at, at)]
            if _kind(key) != "str":
                self._report("a key must be text, not a list or mapping", key, "quote the key")
                continue
            if key.value == "<<" and key.implicit[0]:
                merged.append(value)
                continue
            name = self._check_scalar(key)
            if name in own:
                line, column = own[name].start_mark.line + 1, own[name].start_mark.column + 1
                self._report(
                    f"duplicate key {name!r}, first in line {line}, column {column}",
                    key,
                    "keep one of them",
                    "duplicate-key",
                )
                continue
            own[name] = key
            if name not in inherited:
                inner = (*path, name)
                self._document.keys[inner] = (key.start_mark.line + 1, key.start_mark.column + 1)
                data[name] = self._value(value, inner, depth + 1)
        for value in merged:
            self._merge(data, value, path, depth)

    def _merge(self, data: dict[str, Any], value: int, path: Path, depth: int) -> None:
        """Add the entries that ``<<`` inherits from a mapping or from a list of mappings."""
        value = self._targets.get(value, value)
        sources = self._items(value) if _kind(self._events[value]) == "seq" else [value]
        for source in (self._targets.get(at, at) for at in sources):
            event = self._events[source]
            if _kind(event) != "map":
                self._report("'<<' needs a mapping or a list of mappings", event)
                return
            self._count(event)
            self._check_depth(depth, event)
            self._fill(data, source, path, depth + 1)


def _kind(event: Any) -> str:
    """Return the kind of a value as in YAML's tags: ``str``, ``seq`` or ``map``."""
    if hasattr(event, "value"):
        return "str"
    return "seq" if type(event).__name__.startswith("Sequence") else "map"


def _resolve(text: str) -> Any:
    """Return the value of an unquoted scalar."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) > 400 or text[0] not in "+-.0123456789":
        return text
    if _INTEGER.match(text):
        return int(text.replace("_", ""), 0)
    if _FLOAT.match(text):
        return float(text.replace("_", ""))
    if _SPECIAL.match(text):
        return float(text.replace(".", "", 1))
    return text


def write_yaml(data: Any) -> str:
    """Return the data as YAML text that the reader converts back to the same data."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Dumper that keeps the order of keys, uses no aliases, and quotes text for our reader."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        plain = dumper.represent_scalar("tag:yaml.org,2002:str", value)
        if "\n" not in value and isinstance(_read(value), str):
            return plain
        style = "|" if "\n" in value else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    dumped: str = yaml.dump(
        data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
    )
    return dumped


def _read(value: str) -> Any:
    try:
        return read_value(value, "")[0]
    except Exception:  # not an unquoted scalar, so it is quoted anyway
        return value
