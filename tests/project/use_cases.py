"""Runs the use cases of ``examples/``, undisturbed and killed, and compares each with its figures.

A program as ``studies.py`` is, which it is built on, for the tests beside it and ``make soak``:

    python use_cases.py --seed 7 --rounds 1 branches
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping

from studies import Ran, Study, main, near


def fired(ran: Ran) -> dict[str, int]:
    """How often each rule fired."""
    return dict(Counter(line["rule"] for line in ran.lines if line["type"] == "fired"))


def branches(ran: Ran, short: bool) -> None:
    counts = fired(ran)
    ways = ("gains-energy", "still-moving", "busy", "given-up", "at-rest")
    assert [counts[way] for way in ways] == [1, 2, 1, 1, 5], counts
    swings = {job["damping"]: job for job in ran.of("swing")}  # the last of each
    assert {damping: (job["dt"], job["until"]) for damping, job in swings.items()} == {
        3.0: (0.01, 30),
        0.4: (0.02, 30),
        0.05: (0.02, 240),
        0.1: (0.02, 60),
        0.5: (0.02, 30),
    }
    assert all(job["energy"] < 0.01 for job in swings.values())
    (creeps,) = ran.of("decay")
    assert creeps["of"] == 0
    near(creeps["rate"], (3 - 5**0.5) / 2, 0.005)
    assert len(ran.of("frequency")) == 4
    for job in ran.of("frequency"):
        near(job["omega"], 1, 0.07)


USE_CASES: Mapping[str, Study] = {
    "branches": Study(branches, file="branches/ensemble.yaml"),
}

if __name__ == "__main__":
    sys.exit(main(USE_CASES))
