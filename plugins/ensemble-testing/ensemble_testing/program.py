"""Contract suite for plugins of simulation programs that are made with ensemble-programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from ensemble_core import Action, Job, Row
from ensemble_core.plugin.hookspecs import CallContext
from ensemble_core.plugin.record_validation import check_record
from ensemble_testing.observer import are_equal

if TYPE_CHECKING:
    from ensemble_programs import Outcome, Program

    from ensemble_core.model.rules import Rule

#: A job is killed after each of so many neighbouring bytes in the middle of its log and at its end,
#: and after as many others. That no row depends on where pieces end is tested at every byte.
_CUTS = 8
_KILLED = 9


class ProgramContract:
    """Tests of a :class:`~ensemble_programs.Program`. Subclass it in your own tests::

        class TestGromacs(ProgramContract):
            program = GROMACS
            logs = Path(__file__).parent / "logs"
            ends = {
                "complete.log": ("complete", "Finished mdrun", 500),
                "killed.log": ("unfinished", "", 1250),
            }

    - ``logs``: folder with logs that the real program wrote: one for each way in which it can end.
      ``NAME.err`` is the standard error of the job that wrote ``NAME.log``, if it is needed
    - ``ends``: for each log the outcome, a part of the message that proves it, and the last step
      (``None`` if it has none)
    - ``rows``: for some logs, the number of rows and the last row
    - ``foreign``: a text of another program
    - ``commands``: commands that can be continued, as a user would write them
    - ``hidden``: commands in which the program cannot be found
    - ``checkpoint``: a file or folder in ``logs``, a checkpoint; without one, continuing is not
      tested
    - ``inputs``: files in ``logs`` that continuing changes
    - ``continued``: one of the logs, of an attempt that continued another one
    """

    program: ClassVar[Program]
    logs: ClassVar[Path]
    ends: ClassVar[Mapping[str, tuple[str, str, float | None]]]
    rows: ClassVar[Mapping[str, tuple[int, Row]]] = {}
    foreign: ClassVar[bytes] = b"Guten Tag\nEnergie = 3,5\n"
    commands: ClassVar[Sequence[str]] = ()
    hidden: ClassVar[Sequence[str]] = ("sh run.sh", "sh -c 'cd x && ./run'")
    checkpoint: ClassVar[str | None] = None
    inputs: ClassVar[Sequence[str]] = ()
    continued: ClassVar[str | None] = None

    # -- the log -----------------------------------------------------------------------------------

    def outcome(
        self, text: bytes, folder: Path, status: int | None = 0, *, name: str = ""
    ) -> Outcome:
        """Return the outcome of a job that left this log, and the errors of log ``name``."""
        log = folder / "contract.log"
        log.write_bytes(text)
        return self.outcome_of(log, status, name)

    def outcome_of(self, log: Path, status: int | None, name: str = "") -> Outcome:
        """Return the outcome of a job with this log."""
        from ensemble_programs.outcome import read

        if self.program.read is not None:
            return self.program.read(str(log), status, over=True)
        accounts = [str((self.logs / name).with_suffix(".err"))] if name else []
        return read(self.program, str(log), status, accounts=accounts)

    @classmethod
    def read(cls, pieces: Sequence[bytes], *, killed: bool = False, **options: Any) -> list[Row]:
        """Return the rows of a log that arrives in these pieces, with the observer's options."""
        (record,) = cls.program.observers()
        observer = record.build(Job(id="md.0", group="md", index=0, command=("true",)), options)
        rows = [row for piece in pieces for row in observer.feed(piece)]
        if killed:
            observer.interrupted()
        return [*rows, *observer.finish()]

    def text(self, name: str) -> bytes:
        """Return one of the logs."""
        return (self.logs / name).read_bytes()

    def test_each_record_is_valid(self) -> None:
        records: list[Any] = [*self.program.observers(), *self.program.triggers()]
        records += self.program.actions()
        for record in records:
            check_record(record)
            for name, schema in record.options["properties"].items():
                assert schema.get("description"), f"option {name!r} has no description"

    def test_each_log_has_its_outcome_and_the_line_that_proves_it(self, tmp_path: Path) -> None:
        for name, (kind, proof, step) in self.ends.items():
            found = self.outcome(self.text(name), tmp_path, name=name)
            assert (found.kind, found.step) == (kind, step), f"{name}: {found}"
            assert proof in found.message, f"{name}: {found}"

    def test_every_outcome_has_a_log(self) -> None:
        missing = {*self.program.kinds} - {kind for kind, *_ in self.ends.values()}
        assert not missing, f"no recorded log shows {', '.join(sorted(missing))}"

    def test_logs_have_the_expected_rows(self) -> None:
        for name, (count, last) in self.rows.items():
            rows = self.read([self.text(name)])
            assert len(rows) == count, name
            assert are_equal(rows[-1:], [last]), f"{name}: {rows[-1]}"

    def _shown(self) -> dict[str, str]:
        """Return a log of each kind, the first one in ``ends``, with the kind."""
        found: dict[str, str] = {}
        for name, (kind, *_) in self.ends.items():
            if kind not in found.values():
                found[name] = kind
        return found

    def test_rows_do_not_depend_on_the_size_of_pieces(self) -> None:
        for name in self._shown():
            text = self.text(name)
            whole = self.read([text])
            for size in (1, 2, 3, 7, 61, 4096):
                pieces = [text[at : at + size] for at in range(0, len(text), size)]
                assert are_equal(self.read(pieces), whole), f"{name} in pieces of {size} bytes"

    def test_a_log_that_is_cut_anywhere_gives_no_wrong_row_or_end(self, tmp_path: Path) -> None:
        for name, kind in self._shown().items():
            text = self.text(name)
            whole = self.read([text])
            for cut in self._cuts(text):
                rows = self.read([text[:cut]], killed=True)
                begun = [_part_of(a, b) for a, b in zip(rows, whole, strict=False)]
                assert len(rows) <= len(whole), f"{name} cut at byte {cut}"
                assert all(begun), f"{name} cut at byte {cut}"
                found = self.outcome(text[:cut], tmp_path, _KILLED)
                assert found.kind in ("unknown", "unfinished", "killed", kind), (
                    f"{name} cut at byte {cut}: {found}"
                )

    def test_an_attempt_that_appends_to_the_log_decides(self, tmp_path: Path) -> None:
        for first in self._shown():
            for name, kind in self._shown().items():
                text = self.text(name)
                if self._starts(text):
                    found = self.outcome(self.text(first) + b"\n" + text, tmp_path, name=name)
                    assert found.kind == kind, f"{name} after {first}: {found}"

    def test_an_overwritten_log_is_read_from_its_start(self) -> None:
        (record,) = self.program.observers()
        for name in self._shown():
            text = self.text(name)
            observer = record.build(Job(id="md.0", group="md", index=0, command=("true",)), {})
            list(observer.feed(text[: len(text) * 2 // 3]))
            observer.truncated()
            rows = [*observer.feed(text), *observer.finish()]
            assert are_equal(rows, self.read([text])), name

    def test_a_log_that_is_too_long_to_be_read_whole_has_the_same_outcome(
        self, tmp_path: Path
    ) -> None:
        for name, (kind, _, step) in self.ends.items():
            text = self.text(name)
            if not self._starts(text):
                continue
            at = text.find(b"\n", len(text) // 2) + 1
            log = tmp_path / "contract.log"
            with log.open("wb") as file:
                file.write(text[:at] + b"\n")
                file.truncate((1 << 25) + len(text))  # a hole needs no space
                file.seek(0, os.SEEK_END)
                file.write(b"\n" + text[at:])
            found = self.outcome_of(log, 0, name)
            assert (found.kind, found.step) == (kind, step), f"{name}: {found}"
            return

    def test_other_texts_give_no_outcome_and_no_exception(self, tmp_path: Path) -> None:
        for text in (self.foreign, b"\0" * 3000, b"\xff\xfe" * 500, b"\r\n" * 100):
            assert self.outcome(text, tmp_path).kind == "unknown"
        assert self.outcome(b"", tmp_path, 0).kind in ("unfinished", "unknown")
        assert self.outcome(b"", tmp_path, _KILLED).kind in ("unfinished", "killed")
        os.mkfifo(tmp_path / "pipe")
        for name in ("pipe", "missing", "."):
            (record, *_) = self.program.actions()
            told = self._run(record, tmp_path, "true", log=name)
            assert told, f"the check of a log that is {name!r} says nothing"

    def _starts(self, text: bytes) -> bool:
        import re

        return bool(re.search(self.program.began.encode(), text, re.MULTILINE))

    def _cuts(self, text: bytes) -> list[int]:
        middle, end = len(text) // 2, len(text)
        near = {*range(middle, middle + _CUTS), *range(end - _CUTS, end + 1)}
        spread = range(0, end, max(1, end // _CUTS))
        return sorted(cut for cut in {*near, *spread} if 0 <= cut <= end)

    # -- continuing --------------------------------------------------------------------------------

    def _run(self, record: Any, folder: Path, command: str, **options: Any) -> list[Action | Rule]:
        import shlex

        job = {
            "job": "md.0",
            "group": "md",
            "index": 0,
            "command": shlex.split(command),
            "workdir": str(folder),
            "stdout": str(folder / "contract.log"),
            "stderr": str(folder / "stderr"),
            "parameters": {},
            "started": 1e9,
            "status": 0,
            "outcome": "success",
        }
        spec = Action({"name": record.name, **options})
        return list(record.run(_context(options, spec, job)))

    def _continue(self, folder: Path, command: str, **options: Any) -> list[dict[str, Any]]:
        record = self.program.actions()[1]
        return [dict(action.spec) for action in self._run(record, folder, command, **options)]

    def _job(self, folder: Path, kind: str = "unfinished") -> None:
        """Write the log of a job, and its checkpoint."""
        if self.checkpoint is None:
            pytest.skip("the suite has no checkpoint")
        name = next(name for name, (each, *_) in self.ends.items() if each == kind)
        (folder / "contract.log").write_bytes(self.text(name))
        for each in (self.checkpoint, *self.inputs):
            self._copy(folder, each)

    def _copy(self, folder: Path, name: str) -> None:
        there, here = self.logs / name, folder / name
        here.parent.mkdir(parents=True, exist_ok=True)
        if there.is_dir():
            shutil.copytree(there, here, copy_function=shutil.copyfile)
            os.utime(here)
        else:
            shutil.copyfile(there, here)

    def test_a_job_continues_from_its_checkpoint(self, tmp_path: Path) -> None:
        self._job(tmp_path)
        before = self._files(tmp_path)
        for command in self.commands:
            *_, last = self._continue(tmp_path, command, log="contract.log")
            assert last["name"] == "retry", f"{command}: {last}"
            assert last["continue"], f"{command}: {last}"
            words, files = last["with"]["command"], self._files(tmp_path)
            assert (words, files) != (command.split(), before), f"{command}: nothing is changed"
            again = self._continue(tmp_path, " ".join(words), log="contract.log")[-1]
            assert again["with"]["command"] == words, f"{command}: each attempt adds words"
            assert self._files(tmp_path) == files, f"{command}: each attempt adds to its files"

    def _files(self, folder: Path) -> dict[str, bytes]:
        return {name: (folder / name).read_bytes() for name in self.inputs}

    def test_an_attempt_that_continues_counts_its_steps_on(self) -> None:
        if self.program.resume is None or not self.program.clock:
            return
        if self.continued is None:
            pytest.skip("the suite has no log of an attempt that continued")
        found = {name: self._first_clock(name) for name in {*self.ends, self.continued}}
        again = found.pop(self.continued)
        whole = [clock for name, clock in found.items() if clock is not None]
        assert again is not None, f"{self.continued}: no row has a clock"
        assert again > min(whole), (
            f"{self.continued}: its steps begin at {again:g}, as in other logs: then rows of "
            "attempts that continue would be skipped as repetitions. Leave out the clock"
        )

    def _first_clock(self, name: str) -> float | None:
        rows = self.read([self.text(name)])
        return next((row.clock for row in rows if row.clock is not None), None)

    def test_a_hidden_command_is_refused_with_the_way_out(self, tmp_path: Path) -> None:
        self._job(tmp_path)
        for command in self.hidden:
            (said,) = self._continue(tmp_path, command, log="contract.log")
            assert said["name"] == "log"
            assert said["level"] == "error"
            assert "does not name" in said["message"]

    def test_a_checkpoint_that_is_missing_or_empty_is_refused(self, tmp_path: Path) -> None:
        self._job(tmp_path)
        assert self.checkpoint is not None
        place = tmp_path / self.checkpoint
        os.utime(place, (0, 0))  # older than the job
        for spoil in (None, _empty, _remove):
            if spoil is not None:
                spoil(place)
            for command in self.commands:
                (said,) = self._continue(tmp_path, command, log="contract.log")
                assert said["level"] == "error"
                assert "cannot continue" in said["message"]
        self._copy(tmp_path, self.checkpoint)
        done = {"name": "log", "message": "over"}
        *_, last = self._continue(tmp_path, self.commands[0], log="contract.log", otherwise=done)
        assert last["name"] == "retry"

    def test_a_complete_job_is_not_continued(self, tmp_path: Path) -> None:
        self._job(tmp_path, next(iter(self.program.kinds)))
        (said,) = self._continue(tmp_path, self.commands[0], log="contract.log")
        assert "it is complete" in said["message"]


def _empty(checkpoint: Path) -> None:
    """Make the checkpoint's files empty, as after a crash of the machine."""
    for file in [each for each in (checkpoint, *checkpoint.rglob("*")) if each.is_file()]:
        file.write_bytes(b"")


def _remove(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()


def _context(options: Mapping[str, Any], spec: Action, job: Mapping[str, Any]) -> CallContext:
    from ensemble_core.model.rules import Rule

    rule = Rule({"id": "rule-1", "trigger": "job-finish", "action": spec.spec})
    return CallContext(dict(options), {"type": "job"}, rule, spec, {}, job)


def _part_of(row: Row, whole: Row) -> bool:
    """Return whether a row has no other values than the row of the whole log."""
    values = [
        name in whole.values and (value == whole.values[name] or value != value)
        for name, value in row.values.items()
    ]
    return row.clock == whole.clock and all(values)
