"""Contract suite for statistics."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from ensemble_core.cli.toolkit import option_defaults
from ensemble_core.metrics.statistic_state import put_state, state_of
from ensemble_core.model.codec import dumps
from ensemble_core.plugin.hookspecs import StatisticPlugin
from ensemble_core.plugin.option_schemas import required_options
from ensemble_testing.plugin_record import RecordContract

_SAMPLES = (3.0, 1.5, 4.0, 1.0, 5.0, 9.25, -2.0, 6.0, 0.0, 5.0, 3.5, 1e6, 1e-6)


class StatisticContract(RecordContract):
    """Tests of a statistic plugin. Subclass it in your own tests::

        class TestGeometricMean(StatisticContract):
            plugin = geometric_mean          # your StatisticPlugin
            expected = [([2.0, 8.0], 4.0)]   # values in, value out

    - ``samples``: values for checks without an expected result
    - ``expected``: pairs of values and their result, with a relative tolerance of 1e-9

    Timed statistics get one value per second, from second 0. They are read at the time of the last
    value.
    """

    plugin: ClassVar[StatisticPlugin]
    samples: ClassVar[Sequence[float]] = _SAMPLES
    expected: ClassVar[Sequence[tuple[Sequence[float], float | None]]] = ()

    def _build(self) -> Any:
        return self.plugin.build(self.options)

    @property
    def _is_timed(self) -> bool:
        return self.plugin.spec(self.options).timed

    def _feed(self, statistic: Any, values: Sequence[float], first: int = 0) -> list[float | None]:
        """Return the statistic's value after each input."""
        said: list[float | None] = []
        for second, value in enumerate(values, first):
            if self._is_timed:
                statistic.update(value, float(second))
                said.append(statistic.get(float(second)))
            else:
                statistic.update(value)
                said.append(statistic.get())
        return said

    def _get(self, statistic: Any, second: int) -> float | None:
        value: float | None = statistic.get(float(second)) if self._is_timed else statistic.get()
        return value

    def test_builds_without_options_unless_some_are_required(self) -> None:
        if not required_options(self.plugin.options):
            # A metric path, or a setting that keeps every statistic, cannot give options.
            self.plugin.build(option_defaults(self.plugin.options, {}))

    def test_value_is_a_number_or_none(self) -> None:
        said = self._feed(self._build(), self.samples)
        assert any(value is not None for value in said), "it never has a value"
        for value in said:
            assert value is None or isinstance(value, (int, float))
            assert value is None or math.isfinite(value)

    def test_value_is_as_expected(self) -> None:
        for values, expected in self.expected:
            statistic = self._build()
            said = [self._get(statistic, 0), *self._feed(statistic, values)][-1]
            if expected is None or said is None:
                assert said == expected, f"after {values!r}"
            else:
                assert math.isclose(said, expected, rel_tol=1e-9, abs_tol=1e-12), (
                    f"after {values!r}: {said!r}, expected {expected!r}"
                )

    def test_new_statistic_can_be_read(self) -> None:
        value = self._get(self._build(), 0)
        assert value is None or isinstance(value, (int, float))

    def test_same_values_give_the_same_result(self) -> None:
        assert self._feed(self._build(), self.samples) == self._feed(self._build(), self.samples)

    def test_update_all_equals_single_updates(self) -> None:
        at_once, one_by_one = self._build(), self._build()
        if hasattr(at_once, "update_all"):
            self._feed(one_by_one, self.samples)
            at_once.update_all(list(self.samples[:5]))
            at_once.update_all(list(self.samples[5:]))
            last = len(self.samples) - 1
            assert self._get(at_once, last) == self._get(one_by_one, last)

    def test_value_stays_in_the_declared_range(self) -> None:
        if self.plugin.within:
            for count, value in enumerate(self._feed(self._build(), self.samples), 1):
                seen = self.samples[:count]
                slack = 1e-9 * max(abs(sample) for sample in seen)
                assert value is None or min(seen) - slack <= value <= max(seen) + slack

    def test_each_build_returns_a_new_statistic(self) -> None:
        used, fresh = self._build(), self._build()
        self._feed(used, self.samples)
        assert self._feed(fresh, self.samples[:3]) == self._feed(self._build(), self.samples[:3])

    def test_reading_does_not_change_the_value(self) -> None:
        read, unread = self._build(), self._build()
        self._feed(read, self.samples)
        for second, value in enumerate(self.samples):
            if self._is_timed:
                unread.update(value, float(second))
            else:
                unread.update(value)
        last = len(self.samples) - 1
        if self._is_timed:
            read.get(1e9)  # read much later
        assert self._get(read, last) == self._get(unread, last)

    def test_copy_is_independent(self) -> None:
        statistic, expected = self._build(), self._build()
        half = len(self.samples) // 2
        self._feed(statistic, self.samples[:half])
        self._feed(expected, self.samples[:half])
        trial = copy.deepcopy(statistic)
        rest = self.samples[half:]
        went = self._feed(trial, rest, half)
        assert self._get(statistic, half - 1) == self._get(expected, half - 1)
        assert went == self._feed(statistic, rest, half), "a copy differs from the original"

    def _state(self, statistic: Any) -> Any:
        return state_of(statistic, self._build())

    def test_state_survives_a_resume(self) -> None:
        """A statistic's attributes are plain data, or it has ``__getstate__`` and
        ``__setstate__``.
        """
        statistic, again = self._build(), self._build()
        half = len(self.samples) // 2
        self._feed(statistic, self.samples[:half])
        put_state(again, copy.deepcopy(self._state(statistic)))
        rest = self.samples[half:]
        assert self._feed(again, rest, half) == self._feed(statistic, rest, half)

    def test_memory_is_bounded(self) -> None:
        statistic = self._build()
        self._feed(statistic, [float(n % 97) for n in range(12_000)])
        early = len(dumps(self._state(statistic)))
        self._feed(statistic, [float(n % 97) for n in range(6_000)], 12_000)
        assert len(dumps(self._state(statistic))) <= early * 1.2 + 1024
