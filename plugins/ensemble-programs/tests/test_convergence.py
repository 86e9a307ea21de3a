"""Tests of convergence with known errors, and with series that mislead simple criteria."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from typing import Any

import jsonschema_rs
import pytest
from ensemble_programs import convergence
from ensemble_programs.convergence import (
    FEWEST_BLOCKS,
    FEWEST_CHECKED,
    BlockedMean,
    Convergence,
    Unasked,
    variables,
)


def ar1(phi: float, count: int, seed: int) -> Iterator[float]:
    """Yield AR(1) noise of mean 0, variance 1 and lag-one correlation ``phi``."""
    source = random.Random(seed)
    value = source.gauss(0, 1)
    fresh = math.sqrt(1 - phi * phi)
    for _ in range(count):
        yield value
        value = phi * value + fresh * source.gauss(0, 1)


def true_error(phi: float, count: int) -> float:
    """Return the exact standard error of the mean of such a series."""
    total = sum((1 - k / count) * phi**k for k in range(1, count))
    return math.sqrt((1 + 2 * total) / count)


def blocked(series: Iterable[float]) -> BlockedMean:
    blocking = BlockedMean()
    for value in series:
        blocking.add(value)
    return blocking


def follow(
    options: dict[str, Any], series: Iterable[float], every: int = 10, column: str = "Temp"
) -> list[dict[str, float]]:
    found = Convergence({column: options})
    return [found.update(i * every, {column: value}) for i, value in enumerate(series)]


def marks(rows: list[dict[str, float]]) -> list[tuple[int, float]]:
    return [(i, row["Converged"]) for i, row in enumerate(rows) if "Converged" in row]


@pytest.mark.parametrize(("phi", "count"), [(0.0, 1024), (0.5, 2048), (0.9, 8192)])
def test_the_error_is_that_of_correlated_data(phi: float, count: int) -> None:
    truth = true_error(phi, count)
    ratios, covered = [], 0
    for seed in range(40):
        blocking = blocked(ar1(phi, count, seed))
        error = blocking.error()
        assert error is not None
        ratios.append(error / truth)
        covered += abs(blocking.mean) <= 2 * error
    # 95 % of means are within two errors of the truth; the probability of fewer than 33 of 40 is
    # 0.001. Without blocking, the ratio for 0.9 is 0.23.
    assert covered >= 33
    assert 0.95 < sum(ratios) / len(ratios) < 1.25


def test_waiting_for_an_error_does_not_make_it_too_small() -> None:
    # Optional stopping: the run stops where the estimate happens to be small.
    covered = 0
    for seed in range(60):
        blocking = BlockedMean()
        for value in ar1(0.8, 20_000, seed):
            blocking.add(value)
            error = blocking.error()
            if error is not None and error <= 0.1:
                break
        else:
            pytest.fail("it never converged")
        covered += abs(blocking.mean) <= 2 * 0.1
    assert covered >= 51


def test_a_slow_motion_under_fast_noise_is_detected() -> None:
    # The correlation time of a tenth of the variance is 200 times longer than that of the rest. The
    # first plateau is at two thirds of the true error.
    truth = math.hypot(0.1**0.5 * true_error(0.99, 8000), 0.9**0.5 * true_error(0, 8000))
    ratios = []
    for seed in range(20):
        slow, fast = ar1(0.99, 8000, seed), ar1(0, 8000, 1000 + seed)
        error = blocked(
            0.1**0.5 * a + 0.9**0.5 * b for a, b in zip(slow, fast, strict=True)
        ).error()
        assert error is not None
        ratios.append(error / truth)
    assert 0.8 < sum(ratios) / len(ratios) < 1.25


def test_a_relaxing_run_does_not_count_as_converged_at_once() -> None:
    # The mean relaxes as exp(-t / 300); the noise has its initial size.
    wrong = 0
    for seed in range(30):
        blocking = BlockedMean()
        for i, noise in enumerate(ar1(0, 12_000, seed)):
            blocking.add(math.exp(-i / 300) + noise)
            error = blocking.error()
            if error is not None and error <= 0.05:
                break
        wrong += blocking.mean > 0.1
    assert wrong <= 12


def test_mean_and_blocks_agree_with_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    series = numpy.array(list(ar1(0.7, 3000, 7))) + 1e6
    blocking = blocked(float(value) for value in series)
    assert blocking.mean == pytest.approx(series.mean(), rel=1e-12)
    candidates = []
    first = series.var(ddof=1) / len(series)
    for level in range(9):
        size = 2**level
        whole = series[: len(series) // size * size].reshape(-1, size).mean(axis=1)
        candidates.append((size, whole.var(ddof=1) / len(whole)))
    begin = next(
        level
        for level, (size, variance) in enumerate(candidates)
        if size**3 > 2 * len(series) * max(variance / first, 1) ** 2
    )
    assert len(series) // candidates[-1][0] >= FEWEST_CHECKED
    wanted = math.sqrt(max(variance for _, variance in candidates[begin:]))
    blocking._look = 0  # the cached value may lag by 1/64 of the rows
    assert blocking.error() == pytest.approx(wanted, rel=1e-6)


def test_the_error_of_few_rows_is_unknown() -> None:
    assert blocked([]).error() is None
    assert blocked(ar1(0, FEWEST_BLOCKS - 1, 1)).error() is None
    assert blocked(ar1(0.99, 500, 1)).error() is None


def test_memory_grows_with_the_logarithm_of_the_rows() -> None:
    blocking = blocked(float(i % 7) for i in range(100_000))
    assert len(blocking._levels) == 17
    found = Convergence({"Temp": {"within": 1, "window": 1000}})
    for i in range(50_000):
        found.update(i, {"Temp": float(i % 7)})
    drift = found._columns["Temp"]._drift
    assert drift is not None
    assert len(drift._pieces) < 40


def test_white_noise_converges_once_it_is_long_enough() -> None:
    rows = follow({"error": 0.05}, ar1(0, 2000, 3))
    ((row, mark),) = marks(rows)
    assert mark == 1
    assert 300 < row < 700  # 400 values of variance 1 have the error 0.05
    assert rows[row]["Temp.error"] <= 0.05 < rows[row - 40]["Temp.error"]
    assert abs(rows[-1]["Temp.mean"]) < 0.1


def test_a_trend_does_not_converge() -> None:
    noise = list(ar1(0.5, 5000, 4))
    options = {"error": 0.05, "within": 0.05, "window": 5000}
    assert marks(follow(options, noise))
    assert not marks(follow(options, (v + i / 1000 for i, v in enumerate(noise))))
    assert not marks(follow({"error": 0.05}, (v + i / 1000 for i, v in enumerate(noise))))
    assert not marks(follow({"error": 1e-3}, (i / 1000 for i in range(5000))))
    assert not marks(follow({"within": 0.1, "window": 5000}, (i / 1000 for i in range(5000))))


def test_a_step_revokes_convergence() -> None:
    noise = list(ar1(0, 4000, 5))
    options = {"error": 0.08, "within": 0.05, "window": 2000}
    rows = follow(options, (v + (3 if i >= 1500 else 0) for i, v in enumerate(noise)))
    before = [mark for i, mark in marks(rows) if i < 1500]
    assert sum(before) == 1
    assert [mark for i, mark in marks(rows) if 1500 <= i < 1600] == [-1]
    assert rows[1999]["Temp.mean"] == pytest.approx(0.75, abs=0.1)


def test_convergence_does_not_flicker_at_its_threshold() -> None:
    changes = [len(marks(follow({"error": 0.05}, ar1(0, 4000, seed)))) for seed in range(8)]
    assert sum(changes) <= 13  # ideally 8; 18 without hysteresis
    assert min(changes) == 1


def test_the_drift_is_the_change_of_the_running_mean_over_the_window() -> None:
    series = [v + i / 300 for i, v in enumerate(ar1(0.3, 600, 6))]
    rows = follow({"within": 1, "window": 1000}, series)
    means = [row["Temp.mean"] for row in rows]
    assert all("Temp.drift" not in row for row in rows[:100])
    for i in range(100, 600):
        exact = max(means[i - 100 : i + 1]) - min(means[i - 100 : i + 1])
        # The window may be longer by one piece (4 rows).
        wider = means[max(0, i - 108) : i + 1]
        assert exact - 1e-12 <= rows[i]["Temp.drift"] <= max(wider) - min(wider) + 1e-12


def test_rows_further_apart_than_the_window_still_show_a_drift() -> None:
    rows = follow({"within": 0.1, "window": 5}, (float(i) for i in range(50)), every=100)
    assert rows[10]["Temp.drift"] == pytest.approx(0.5)
    assert not marks(rows)


def test_a_constant_is_known_exactly() -> None:
    rows = follow({"error": 1e-9, "within": 1e-9, "window": 100}, [2.5] * 100)
    assert marks(rows) == [(FEWEST_BLOCKS - 1, 1.0)]
    assert rows[-1] == {"Temp.mean": 2.5, "Temp.error": 0.0, "Temp.drift": 0.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_never_converges(bad: float) -> None:
    series = [*ar1(0, 1000, 8), bad, *ar1(0, 1000, 9)]
    rows = follow({"error": 0.1}, series)
    assert [mark for _, mark in marks(rows)] == [1, -1]
    assert marks(rows)[1][0] == 1000
    assert all(not row for row in rows[1001:])
    assert not marks(follow({"error": 0.1}, [bad, *series[:1000]]))


def test_a_second_run_with_restarted_steps_converges_separately() -> None:
    found = Convergence({"Temp": {"error": 0.1}})
    first = [found.update(i, {"Temp": v}) for i, v in enumerate(ar1(0, 1000, 10))]
    second = [found.update(i, {"Temp": v + 9}) for i, v in enumerate(ar1(0, 1000, 11))]
    assert [mark for _, mark in marks(first)] == [1]
    assert [mark for _, mark in marks(second)] == [-1, 1]
    assert marks(second)[0][0] == 0
    assert second[-1]["Temp.mean"] == pytest.approx(9, abs=0.2)


def test_the_step_shared_by_two_runs_is_one_row() -> None:
    # LAMMPS prints the last step of a run again as the first one of the next run.
    found = Convergence({"Temp": {"error": 1}})
    assert found.update(10, {"Temp": 1.0}) == {"Temp.mean": 1.0}
    assert found.update(10, {"Temp": 1.0}) == {}
    assert found.update(20, {"Temp": 2.0}) == {"Temp.mean": 1.5}


def test_a_restarted_log_does_not_use_the_old_one() -> None:
    found = Convergence({"Temp": {"error": 0.1}})
    rows = [found.update(i, {"Temp": v}) for i, v in enumerate(ar1(0, 500, 10))]
    assert [mark for _, mark in marks(rows)] == [1]
    found.reset()
    assert rows == [found.update(i, {"Temp": v}) for i, v in enumerate(ar1(0, 500, 10))]


def test_rows_before_begin_do_not_count() -> None:
    rows = follow({"error": 0.1, "begin": 5000}, [*[100.0] * 500, *ar1(0, 1000, 12)])
    assert all(not row for row in rows[:500])
    assert rows[500]["Temp.mean"] < 5
    assert [mark for _, mark in marks(rows)] == [1]


def test_a_relative_tolerance_is_a_fraction_of_the_mean() -> None:
    series = [200 + v for v in ar1(0, 1000, 13)]
    ((row, _),) = marks(follow({"error": 0.0005, "relative": True}, series))
    ((same, _),) = marks(follow({"error": 0.1}, series))
    assert abs(row - same) < 20
    # The mean is 0, so no error is small enough relative to it.
    assert not marks(follow({"error": 0.01, "relative": True}, ar1(0, 2000, 13)))


def test_all_columns_must_converge() -> None:
    found = Convergence({"Temp": {"error": 0.1}, "Press": {"error": 0.1}})
    rows = []
    for i, (temp, press) in enumerate(zip(ar1(0, 3000, 14), ar1(0.8, 3000, 15), strict=True)):
        rows.append(found.update(i, {"Temp": temp, "Press": press, "Other": 1.0}))
    (row, mark), *_ = marks(rows)
    assert mark == 1
    assert rows[row]["Press.error"] <= 0.1
    assert rows[row]["Temp.error"] < rows[row]["Press.error"]
    alone = follow({"error": 0.1}, ar1(0, 3000, 14))
    assert marks(alone)[0][0] < row / 2


def test_rows_without_the_column_or_a_step_are_ignored() -> None:
    found = Convergence({"Temp": {"error": 0.1}})
    assert found.update(None, {"Temp": 1.0}) == {}
    assert found.update(5, {"LoopTime": 1.0}) == {}
    assert found.update(math.nan, {"Temp": 1.0}) == {}
    assert found.update(1, {"Temp": 1.0}) == {"Temp.mean": 1.0}


def test_an_underflowing_variance_counts_as_zero() -> None:
    assert blocked([0.0, 6e-162] * 20).error() == 0.0


def test_any_values_and_steps_are_accepted() -> None:
    source = random.Random(1)
    odd = [0.0, -0.0, 5e-324, 1e-300, -1e-160, 1.0, 1e160, -1e300, 1.7e308, -1.7e308, math.nan]
    for _ in range(300):
        found = Convergence({"Temp": {"error": 1e-9, "within": 1e-9, "window": 1}})
        values = source.sample(odd[:-1], 3) + source.sample(odd, 1)[: source.choice([0, 0, 1])]
        steps = [source.choice([float(i), i * 1e-3, i * 1e6, i * 8e305]) for i in range(60)]
        for step in sorted(steps) if source.random() < 0.8 else steps:
            row = found.update(step, {"Temp": source.choice(values)})
            assert all(math.isfinite(value) for value in row.values())


def test_the_possible_names_are_known() -> None:
    assert variables({}, ["Press"]) == {"Press"}
    assert variables({"converged": {"Temp": {"error": 1}}}, ["Press"]) == {
        "Press", "Temp", "Temp.mean", "Temp.error", "Converged",
    }  # fmt: skip
    assert variables({"converged": {"Temp": {"error": 1, "window": 9}}}, []) == {
        "Temp", "Temp.mean", "Temp.error", "Temp.drift", "Converged",
    }  # fmt: skip


def test_a_name_that_another_option_adds_has_a_hint() -> None:
    hints = Unasked({"converged": {"Temp": {"error": 1}}}, ["Temp"], ["Temp", "Press"])
    assert "Temp a window" in hints["Temp.drift"]
    assert "add Press to the observer's option 'converged'" in hints["Press.mean"]
    assert {*hints} == {"Press"}
    for name in ("Temp", "Temp.mean", "Converged", "Volume", ".mean"):
        assert hints.get(name) is None


@pytest.mark.parametrize(
    ("options", "right"),
    [
        ({"Temp": {"error": 0.1}}, True),
        ({"c_msd[4]": {"within": 0.1, "window": 1000, "relative": True, "begin": 10}}, True),
        ({}, False),
        ({"Temp": {}}, False),
        ({"Temp": {"window": 10}}, False),
        ({"Temp": {"within": 0.1}}, False),
        ({"Temp": {"error": 0}}, False),
        ({"Temp": {"error": 0.1, "windw": 3}}, False),
    ],
)
def test_options_of_converged_are_checked(options: dict[str, Any], right: bool) -> None:
    assert jsonschema_rs.Draft202012Validator(dict(convergence.OPTIONS)).is_valid(options) is right
