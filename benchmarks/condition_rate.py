"""Cost of evaluating a condition, compared with ``eval`` of the same text as plain Python.

``eval`` is the lower limit: its names are in a dictionary, and it has no resource limits, no third
truth value and no missing names. Prints microseconds and the ratio, measured alternately. The last
conditions have an unknown value, which ``eval`` cannot express.

    python benchmarks/condition_rate.py [--number N]
"""

from __future__ import annotations

import argparse
import statistics
import timeit
from typing import Any

from ensemble_core.model.conditions import parse

FIELDS: dict[str, Any] = {"exit_code": 3, "Temp": 9.0, "T": 2.0, "Step": 200.0}
METRICS = {"mean.a-Temp": 2.0}
VALUE = 7.0
CONDITIONS = (
    "exit_code == 3",
    "value > 5 and value < 10",
    "Temp > 2 * T and Step > 100",
    "metric('mean.a-Temp') > 3 or isnan(Temp)",
    "sqrt(Temp) * 3 + 1 > T",
)
WITHOUT_VALUE = ("Gone > 3", "Gone > 3 or Temp > 1")


def main() -> None:
    """Measure alternately and print medians."""
    parser = argparse.ArgumentParser(description="conditions compared with bare eval")
    parser.add_argument("--number", type=int, default=20_000)
    number = parser.parse_args().number
    bare_functions = {"metric": METRICS.__getitem__, "isnan": lambda x: x != x, "sqrt": abs}
    for when in (*CONDITIONS, *WITHOUT_VALUE):
        condition = parse(when)
        code = compile(when, "bare", "eval")
        names = {**FIELDS, "value": VALUE, **bare_functions}

        def verdict(condition: Any = condition) -> object:
            return condition.verdict(VALUE, FIELDS, METRICS.get)

        def bare(code: Any = code, names: Any = names) -> object:
            return eval(code, names)  # noqa: S307  (the floor)

        ours, floors = [], []
        for _ in range(9):
            ours.append(timeit.timeit(verdict, number=number) / number * 1e6)
            if when not in WITHOUT_VALUE:
                floors.append(timeit.timeit(bare, number=number) / number * 1e6)
        said = f"{when:42s} {statistics.median(ours):6.2f} µs"
        if floors:
            ratio = statistics.median(a / b for a, b in zip(ours, floors, strict=True))
            said += f", {ratio:5.2f} × bare eval ({statistics.median(floors):.2f} µs)"
        print(said)


if __name__ == "__main__":
    main()
