"""Contract suite for observers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import ClassVar

from ensemble_core.model.jobs import Job
from ensemble_core.plugin.hookspecs import ObserverPlugin
from ensemble_core.plugin.observer import Observer, Row
from ensemble_testing.plugin_record import RecordContract

_EVERY_BYTE = 4096


def are_equal(rows: Sequence[Row], others: Sequence[Row]) -> bool:
    """Return whether the rows are equal, where nan equals nan."""

    def told(row: Row) -> tuple[list[tuple[str, float | None]], float | None]:
        values = [(n, None if v != v else v) for n, v in sorted(row.values.items())]
        return values, row.clock

    return [told(row) for row in rows] == [told(row) for row in others]


class ObserverContract(RecordContract):
    """Tests of an observer plugin. Subclass it in your own tests::

        class TestEnergies(ObserverContract):
            plugin = energies                       # your ObserverPlugin
            sample = b"energy -1.5\\nenergy -1.75\\n"  # a whole output
            rows = [Row({"energy": -1.5}), Row({"energy": -1.75})]

    - ``sample``: a complete output
    - ``rows``: the rows of this output, including those that ``finish`` returns
    - ``samples``: more outputs, for checks that need no expected rows
    - ``job``: the observed job
    """

    plugin: ClassVar[ObserverPlugin]
    sample: ClassVar[bytes]
    rows: ClassVar[Sequence[Row]]
    samples: ClassVar[Sequence[bytes]] = ()
    job: ClassVar[Job] = Job(id="group.0", group="group", index=0, command=("true",))

    def _build(self) -> Observer:
        return self.plugin.build(self.job, self.options)

    def _read(self, pieces: Iterable[bytes], observer: Observer | None = None) -> list[Row]:
        observer = observer or self._build()
        rows = [row for piece in pieces for row in observer.feed(piece)]
        return [*rows, *observer.finish()]

    def _all(self) -> tuple[bytes, ...]:
        return (self.sample, *self.samples)

    def test_reads_the_sample(self) -> None:
        assert are_equal(self._read([self.sample]), self.rows)

    def test_path_is_text_or_none(self) -> None:
        path: object = self._build().path
        assert path is None or isinstance(path, str)
        assert path != ""

    def test_complaint_is_text_or_none(self) -> None:
        for sample in (b"", b"nothing of the kind\n", self.sample):
            observer = self._build()
            self._read([sample], observer)
            said: object = observer.complaint()
            assert said is None or (isinstance(said, str) and said)

    def test_rows_do_not_depend_on_where_input_is_split(self) -> None:
        for sample in self._all():
            whole = self._read([sample])
            step = max(1, len(sample) // _EVERY_BYTE)
            for cut in range(0, len(sample) + 1, step):
                rows = self._read([sample[:cut], sample[cut:]])
                assert are_equal(rows, whole), f"cut at byte {cut}"

    def test_rows_are_the_same_byte_by_byte(self) -> None:
        for sample in self._all():
            pieces = [sample[n : n + 1] for n in range(len(sample))]
            assert are_equal(self._read(pieces), self._read([sample]))

    def test_empty_input_changes_nothing(self) -> None:
        half = len(self.sample) // 2
        pieces = [b"", self.sample[:half], b"", b"", self.sample[half:], b""]
        assert are_equal(self._read(pieces), self._read([self.sample]))

    def test_empty_file_has_no_rows(self) -> None:
        assert self._read([]) == []

    def test_values_are_numbers_and_the_clock_is_finite(self) -> None:
        for sample in self._all():
            self._check(self._read([sample]))

    def test_only_declared_variables_are_yielded(self) -> None:
        if self.plugin.variables is None:
            return
        variables = self.plugin.variables(self.options)
        if variables is not None:
            assert not isinstance(variables, str), f"{variables!r}, expected a set of names"
            yielded = {name for row in self._read([self.sample]) for name in row.values}
            assert yielded <= set(variables)

    def test_columns_declared_absent_are_not_yielded(self) -> None:
        if self.plugin.unasked is None:
            return
        unasked = self.plugin.unasked(self.options)
        for name in {name for row in self._read([self.sample]) for name in row.values}:
            assert unasked.get(name) is None, f"it yields {name!r}, which its record excludes"

    def test_damaged_input_raises_no_exception(self) -> None:
        chance = random.Random(0)
        for sample in self._all():
            for _ in range(200):
                damaged = bytearray(sample)
                for _ in range(chance.randint(1, 8)):
                    place = chance.randrange(len(damaged) + 1)
                    damaged[place : place + chance.randint(0, 8)] = chance.randbytes(
                        chance.randint(0, 8)
                    )
                self._check(self._read([bytes(damaged)]))
        for garbage in (b"\0" * 5000, b"\xff\xfe" * 500, b"\r\n" * 100, b"nan inf -inf 1e999\n"):
            self._check(self._read([garbage, self.sample]))

    def _check(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for name, value in row.values.items():
                assert isinstance(name, str)
                # nan and infinity are allowed if the output contains them
                found: object = value
                number = isinstance(found, (int, float)) and not isinstance(found, bool)
                assert number, f"{name} is {value!r}, expected a number"
            assert row.clock is None or math.isfinite(row.clock), f"the clock is {row.clock}"

    def test_endless_line_uses_bounded_memory(self) -> None:
        import tracemalloc

        observer = self._build()
        piece = b"0123456789abcdef" * 4096
        tracemalloc.start()
        try:
            for _ in range(160):
                list(observer.feed(piece))
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert held < 8 << 20, f"{held} bytes of an endless line are kept"
        list(observer.feed(b"\n"))
        assert are_equal(self._read([self.sample], observer), self.rows)

    def test_truncated_file_is_read_from_the_start(self) -> None:
        for cut in range(0, len(self.sample) + 1, max(1, len(self.sample) // 50)):
            observer = self._build()
            list(observer.feed(self.sample[:cut]))
            observer.truncated()
            assert are_equal(self._read([self.sample], observer), self.rows), f"cut at byte {cut}"

    def test_observers_share_no_state(self) -> None:
        first, second = self._build(), self._build()
        list(first.feed(self.sample[: len(self.sample) // 2]))
        assert are_equal(self._read([self.sample], second), self.rows)
