"""Tests of job ids and idsets, in Flux's notation."""

from __future__ import annotations

import subprocess

import pytest
from ensemble_flux.ids_and_hostlists import count_idset, f58, parse_f58, parse_idset
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(0, 2**64 - 1))
def test_an_id_is_parsed_as_it_was_written(jobid: int) -> None:
    assert parse_f58(f58(jobid)) == jobid


def test_a_negative_id_from_json_is_written() -> None:
    assert f58(-1) == f58(2**64 - 1)


@pytest.mark.parametrize("text", ["f0", "fO", "f 1", "fl"])
def test_an_invalid_id_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not a Flux job id"):
        parse_f58(text)


@given(st.sets(st.integers(0, 5000)))
def test_an_idset_has_the_numbers_that_it_lists(numbers: set[int]) -> None:
    text = ",".join(map(str, sorted(numbers)))
    assert parse_idset(text) == numbers
    assert count_idset(text) == len(numbers)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", set()), ("7", {7}), ("0-2,7", {0, 1, 2, 7}), ("[0-1]", {0, 1}), ("3,1-2", {1, 2, 3})],
)
def test_ranges_include_both_ends(text: str, numbers: set[int]) -> None:
    assert parse_idset(text) == numbers
    assert count_idset(text) == len(numbers)


def test_ids_equal_those_that_flux_prints(flux_command: str) -> None:
    for jobid in (0, 57, 58, 12901679104, 2**63):
        words = [flux_command, "job", "id", "--to=f58plain", str(jobid)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=True)
        assert done.stdout.strip() == f58(jobid)
