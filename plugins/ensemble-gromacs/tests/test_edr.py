"""The observer of ``.edr`` files, with files that GROMACS 2022.5 wrote in both precisions.

``ener.xvg`` has what ``gmx energy`` prints for them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from ensemble_gromacs import ensemble_observers
from ensemble_testing import ObserverContract

from ensemble_core import Job, Observer, Row

LOGS = Path(__file__).parent / "logs"
(PLUGIN,) = (each for each in ensemble_observers() if each.name == "gromacs-edr")


def observer(**options: object) -> Observer:
    return PLUGIN.build(Job(id="a.0", group="a", index=0, command=("true",)), options)


def read(pieces: Sequence[bytes], **options: object) -> list[Row]:
    made = observer(**options)
    return [row for piece in pieces for row in made.feed(piece)]


class TestEdr(ObserverContract):
    plugin = PLUGIN
    options: ClassVar = {"columns": ["Temperature"]}
    sample = (LOGS / "ener.edr").read_bytes()
    rows: ClassVar = read([(LOGS / "ener.edr").read_bytes()], columns=["Temperature"])
    bad_options: ClassVar = [{"path": ""}, {"columns": []}, {"columns": ["Temp"]}]


@pytest.mark.parametrize("name", ["ener", "ener-double"])
def test_rows_have_the_values_that_gmx_energy_prints(name: str) -> None:
    columns = ["Potential", "Temperature", "Pressure"]
    rows = read([(LOGS / f"{name}.edr").read_bytes()], columns=columns)
    table = [line.split() for line in (LOGS / f"{name}.xvg").read_text().splitlines()]
    assert [row.clock for row in rows] == [round(float(time) / 0.002) for time, *_ in table]
    for row, (_, *printed) in zip(rows, table, strict=True):
        values = [row.values[column] for column in columns]
        assert values == pytest.approx([float(each) for each in printed], abs=1e-6)


def test_the_parts_of_a_continued_run_follow_one_another() -> None:
    text = (LOGS / "ener.edr").read_bytes()
    both = read([text, text])
    assert both == read([text + text])
    assert len(both) == 2 * len(read([text]))


def test_a_column_that_the_file_lacks_is_reported_with_those_that_it_has() -> None:
    made = observer(columns={"T": "Temperature", "angle": "Angle"})
    rows = [*made.feed((LOGS / "ener.edr").read_bytes())]
    assert {*rows[-1].values} == {"T"}
    assert "it has no Angle; it has LJ (SR), Coulomb (SR)" in (made.complaint() or "")


def test_another_file_is_reported() -> None:
    for text in (b"Step Time Energy\n" * 20, b"\0" * 100):
        made = observer()
        assert not [*made.feed(text)]
        assert "no .edr file" in (made.complaint() or "")


def test_a_damaged_file_gives_no_exception() -> None:
    text, chance = (LOGS / "ener.edr").read_bytes(), random.Random(1)
    for _ in range(2000):
        damaged = bytearray(text)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(text))] = chance.randrange(256)
        made = observer()
        [*made.feed(bytes(damaged[: chance.randrange(len(text))]))]
        made.complaint()
