"""Errors for users: what is wrong, where, why, and what to do.

Every error that Ensemble raises on purpose is an :class:`EnsembleError`; the command line prints it
without a traceback. ``docs/error-codes.md`` lists the error codes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, TypeVar


class Location(NamedTuple):
    """A position in a file. ``line`` and ``column`` count from 1; 0 means the whole file."""

    file: str
    line: int = 0
    column: int = 0
    #: Whether messages may quote the line. False for a confidential file.
    quoted: bool = True

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}"


class EnsembleError(Exception):
    """An error that the user can act on.

    Parameters
    ----------
    what:
        One sentence: what is wrong, with the offending value.
    where:
        The position in the ensemble file, if known.
    cause:
        Why it is wrong, or the message of the program that rejected it.
    hint:
        What to do about it, as an imperative sentence.
    code:
        A short stable name for programs (``unknown-key``, ``no-such-group`` …).
    transient:
        Whether the same request may succeed later without any change.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        where: Location | None = None,
        cause: str | None = None,
        hint: str | None = None,
        code: str = "error",
        transient: bool = False,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.cause = cause
        self.hint = hint
        self.code = code
        self.transient = transient

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.cause:
            parts.append(f"  because: {self.cause}")
        if self.hint:
            parts.append(f"  hint: {self.hint}")
        return "\n".join(parts)

    def unquote(self) -> None:
        """Prevent messages from quoting the line that this error is about."""
        if self.where is not None:
            self.where = self.where._replace(quoted=False)

    def to_dict(self) -> dict[str, object]:
        """Return the error as plain data, for ``--json``."""
        return {
            "type": "error",
            "code": self.code,
            "what": self.what,
            "file": self.where.file if self.where else None,
            "line": self.where.line if self.where else None,
            "column": self.where.column if self.where else None,
            "cause": self.cause,
            "hint": self.hint,
            "transient": self.transient,
        }


class UsageError(EnsembleError):
    """An invalid command line, option or file: exit code 2, and nothing was submitted."""

    exit_code = 2


class FileErrors(UsageError):
    """All errors of an ensemble file, ordered by position."""

    def __init__(self, errors: Iterable[EnsembleError]) -> None:
        self.errors: tuple[EnsembleError, ...] = tuple(
            sorted(errors, key=lambda e: (e.where or Location(""), e.what))
        )
        count = len(self.errors)
        super().__init__(
            f"{count} error{'s' if count != 1 else ''} in the ensemble file",
            where=Location(self.errors[0].where.file)
            if self.errors and self.errors[0].where
            else None,
            code="file",
        )

    def unquote(self) -> None:
        super().unquote()
        for error in self.errors:
            error.unquote()

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class PluginError(UsageError):
    """An error in a plugin, or a name that two plugins claim."""


class ExecutorError(EnsembleError):
    """An executor rejected a request, or lost its queue."""


def is_interrupt(error: BaseException | None) -> bool:
    """Return True if Ctrl-C caused this error, even if the error has another type.

    Before Python 3.12, a ``KeyboardInterrupt`` during the creation of a class becomes a
    ``RuntimeError``. Interrupted code may also raise another error while it cleans up.
    """
    passed: set[int] = set()  # the chain may be circular
    while error is not None and not isinstance(error, KeyboardInterrupt):
        if id(error) in passed:
            return False
        passed.add(id(error))
        error = error.__cause__ or error.__context__
    return error is not None


def raised_at(error: BaseException) -> str:
    """Return where a plugin's code raised an error: ``ensemble_anneal/actions.py:17``.

    The result is empty for an error that was never raised.
    """
    file, module, line = _culprit(error)
    return f"{_short(file, module)}:{line}" if file else ""


def written_at(function: object) -> str:
    """Return where a plugin's function is defined, in the form of :func:`raised_at`.

    If the function is not written in Python, return the name of its module.
    """
    file, module, line = _culprit(function)
    return f"{_short(file, module)}:{line}" if file else module


def author_hint(culprit: object) -> str:
    """Return a hint on whom to inform about a defect in a plugin.

    ``culprit`` is an error, a function or a class of the plugin. If the plugin is the user's own
    file or checkout, the hint has its position.
    """
    file, module, line = _culprit(culprit)
    theirs = module.partition(".")[0] != "ensemble_core" and "-packages/" not in file
    if theirs and file[:1] not in ("", "<"):
        return f"fix your plugin: {file}:{line}"
    return "report this to the plugin's author (see 'ensemble plugins list')"


_S = TypeVar("_S", bound="str | None")

#: Synonyms from other tools and everyday language, each with the name that Ensemble uses.
_SYNONYMS = {
    "args": "parameters", "params": "parameters", "sweep": "parameters", "script": "command",
    "matrix": "parameters", "foreach": "parameters", "for_each": "parameters",
    "grid": "parameters", "variables": "parameters", "repetitions": "replicas",
    "repeats": "replicas repetitions", "start": "from", "stop": "terminate to", "end": "to",
    "num": "count", "retries": "retry", "json": "json-lines", "jsonl": "json-lines",
    "csv": "table", "tsv": "table", "regexp": "regex", "grep": "regex", "kv": "key-value",
    "run": "command", "exec": "command", "cores": "cores_per_task", "cpus": "cores_per_task",
    "mem": "memory_per_task", "memory": "memory_per_task", "mem_per_task": "memory_per_task",
    "cpus_per_task": "cores_per_task", "gpus": "gpus_per_task", "ntasks": "tasks",
    "time": "duration limit", "walltime": "duration limit", "timeout": "duration limit",
    "duration": "limit", "time_limit": "duration limit", "timelimit": "duration limit",
    "env": "environment",
    "cwd": "workdir", "dir": "workdir", "replicas": "count", "priority": "urgency",
    "mem_mb": "memory_per_task", "runtime": "duration limit", "threads": "cores_per_task",
    "max_forks": "at_once", "maxforks": "at_once", "exclude": "avoid",
    "shell": "command", "array": "count",
    "module": "within", "modules": "within", "envmodules": "within", "conda": "within",
    "load": "within", "setup": "within", "prologue": "within", "preamble": "within",
    "ncpus": "cores_per_task", "omp_threads": "cores_per_task", "pin": "cores_per_task",
    "bind": "cores_per_task", "affinity": "cores_per_task", "gpu": "gpus_per_task",
    "mpi": "tasks", "ranks": "tasks", "launcher": "tasks", "max_retries": "retry times",
    "signal": "warn", "checkpoint": "warn", "directory": "workdir", "env_vars": "environment",
    "clean": "discard", "cleanup": "discard", "temp": "discard", "temporary": "discard",
    "venv": "within", "container": "within", "image": "within", "apptainer": "within",
    "singularity": "within", "podman": "within", "docker": "within",
    "group": "label name", "job": "label name", "if": "when", "condition": "when",
    "on": "trigger", "event": "trigger", "do": "action", "then": "action",
    "repeat": "repetitions replicas", "limit": "repetitions times", "times": "repetitions",
    "count": "times", "attempts": "times", "delay": "wait",
    "succeeded": "job-success success", "success": "job-success", "done": "job-done",
    "failed": "job-fail failed", "failure": "job-fail", "fail": "job-fail",
    "finished": "job-finish finished", "submitted": "job-submit", "started": "job-start",
    "every": "interval", "timer": "interval", "cron": "interval", "row": "observed",
    "cpu_hours": "core_hours", "cpu-hours": "core_hours", "cpuh": "core_hours",
    "max_jobs": "jobs", "size": "value", "amount": "value",
    "abort": "terminate", "exit": "terminate", "quit": "terminate", "kill": "cancel",
    "scale-up": "grow", "scale_up": "grow", "scale-down": "shrink", "scale_down": "shrink",
}  # fmt: skip


def closest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the name that means the same as ``name``, or else the most similar name, or ``None``.

    >>> closest("walltime", ["command", "duration"])
    'duration'
    """
    from difflib import get_close_matches

    known = list(names)
    ours = [word for word in _SYNONYMS.get(name.lower(), "").split() if word in known]
    return next(iter(ours or get_close_matches(name, known, 1, cutoff)), None)


def did_you_mean(
    name: str,
    names: Iterable[str],
    otherwise: _S,
    *,
    cutoff: float = 0.6,
    form: str = "did you mean {!r}?",
) -> str | _S:
    """Return the hint for an unknown name: the closest of ``names``, or else ``otherwise``.

    ``form`` is the format of the closest name.

    >>> did_you_mean("sumbit", ["submit", "cancel"], "known: submit, cancel")
    "did you mean 'submit'?"
    """
    near = closest(name, names, cutoff)
    return otherwise if near is None else form.format(near)


def no_such(whose: str, noun: str, name: str, known: Collection[str], if_empty: str) -> UsageError:
    """Return the error ``{whose} has no {noun} {name}``, with the ``known`` names in its hint.

    If no name is known, ``if_empty`` is the hint.
    """
    listed = f"it has {', '.join(known)}" if known else if_empty
    hint = did_you_mean(name, known, listed, cutoff=0.5)
    return UsageError(f"{whose} has no {noun} {name!r}", hint=hint, code=f"no-such-{noun}")


def call_plugin(
    function: Callable[..., object],
    *arguments: object,
    returns: type | tuple[type, ...],
    method: str = "build",
    whose: str = "",
    failed: str = "",
    expected: str = "",
) -> Any:
    """Call a function in a plugin's record, and check the type of the result.

    Raises :class:`PluginError` if the result is not an instance of ``returns`` (with several types,
    give ``expected``). Unexpected exceptions become a :class:`PluginError` with the message
    ``failed``, or propagate if ``failed`` is empty.

    In messages, ``expected`` describes the type, and ``whose`` names the plugin. Leave ``whose``
    empty if the surrounding message names the plugin.
    """
    try:
        returned = function(*arguments)
    except EnsembleError:
        raise
    except Exception as error:
        if not failed:
            raise
        raise plugin_raised(failed, error) from error
    if not isinstance(returned, returns):
        expected = expected or _with_article(getattr(returns, "__name__", ""))
        raise returned_wrong(whose, method, returned, expected, function)
    return returned


def plugin_raised(what: str, error: BaseException) -> PluginError:
    """Return the error for an unexpected exception in a plugin's function."""
    place = raised_at(error)
    cause = f"{type(error).__name__}: {error}"[:300] + (f" ({place})" if place else "")
    return PluginError(what, cause=cause, hint=author_hint(error), code="plugin-failed")


def returned_wrong(
    whose: str, method: str, given: object, expected: str, function: object
) -> PluginError:
    """Return the error for a wrong return value of a plugin's function.

    Leave ``whose`` empty if the surrounding message names the plugin.
    """
    begin = f"{whose}: its" if whose else "its"
    return PluginError(
        f"{begin} {method} returned {kind_of(given)}, expected {expected} ({written_at(function)})",
        hint=author_hint(function),
        code="broken-plugin",
    )


def kind_of(value: object) -> str:
    """Return the type of a value in words, for messages.

    >>> kind_of(None), kind_of(3), kind_of("x")
    ('None', 'an int', 'a str')
    """
    return "None" if value is None else _with_article(type(value).__name__)


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _culprit(culprit: object) -> tuple[str, str, int]:
    """Return the file, the module and the line of an error, a function or a class.

    For an error, these come from the last frame of the first package outside Ensemble, because
    later frames may belong to libraries that the plugin has called.
    """
    if isinstance(culprit, BaseException):
        frames = []
        trace = culprit.__traceback__
        while trace is not None:
            name = str(trace.tb_frame.f_globals.get("__name__", ""))
            frames.append((trace.tb_frame.f_code.co_filename, name, trace.tb_lineno))
            trace = trace.tb_next
        theirs = [frame for frame in frames if frame[1].partition(".")[0] != "ensemble_core"]
        packages = [frame[1].partition(".")[0] for frame in theirs]
        found = [f for f, name in zip(theirs, packages, strict=True) if name == packages[0]]
        return (found or frames or [("", "", 0)])[-1]
    module = str(getattr(culprit, "__module__", ""))
    culprit = getattr(culprit, "func", culprit)  # the function of a functools.partial
    code = getattr(culprit, "__code__", None)
    if code is None and isinstance(culprit, type):  # use its first method
        made = (getattr(each, "__code__", None) for each in vars(culprit).values())
        code = next((each for each in made if each is not None), None)
    return ("", module, 0) if code is None else (code.co_filename, module, code.co_firstlineno)


def _short(file: str, module: str) -> str:
    """Return the path of a file from its package on, or only the file's name if it has no
    package.
    """
    for tail in (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py"):
        if file.endswith(f"/{tail}"):
            return tail
    head, _, name = file.rpartition("/")
    return f"{head.rpartition(' ')[0]} {name}" if file[:1] == "<" and head else name
