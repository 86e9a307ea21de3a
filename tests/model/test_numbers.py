"""Numbers as programs print them, and texts that only begin like one."""

from __future__ import annotations

import math

import pytest

from ensemble_core.model.numbers import read_number

NAN, INF = math.nan, math.inf

#: Each spelling, with its value by hand. ``None``: it is no number.
SPELLINGS: dict[str, float | None] = {
    "0": 0, "7": 7, "+7": 7, "-7": -7, "007": 7, "-0": 0, "1.": 1.0, ".5": 0.5, "-.5": -0.5,
    "1.50": 1.5, "+1.5": 1.5, "-1503.22": -1503.22, " 2.5 ": 2.5, "9007199254740992": 2**53,
    "9007199254740993": 9007199254740992.0, "-76543.1234567891": -76543.1234567891,
    "1e5": 1e5, "1E5": 1e5, "1e+05": 1e5, "1e-05": 1e-5, "1.5e3": 1500.0, "1.E+02": 100.0,
    "1e-400": 0.0, "1e999": None, "-1e999": None,
    "1.0D+03": 1000.0, "1.5d0": 1.5, "-0.25D-2": -0.0025, "1.0Q+03": 1000.0,
    "0.456-100": 0.456e-100, "0.123+100": 0.123e100, "-0.123-100": -0.123e-100, "-.5-101": -5e-102,
    "0x1.8p+1": 3.0, "-0x1p-1": -0.5, "0x1F": None,
    "nan": NAN, "NaN": NAN, "NAN": NAN, "-nan": NAN, "+nan": NAN, "nan(0x8000)": NAN,
    "-nan(ind)": NAN, "NaN(snan)": NAN, "NA": NAN, "1.#QNAN": NAN, "-1.#IND": NAN, "1.#SNAN": NAN,
    "-1.#IND00": NAN, "inf": INF, "Inf": INF, "INF": INF, "-inf": -INF, "+Inf": INF,
    "Infinity": INF, "-Infinity": -INF, "INFINITY": INF, "1.#INF": INF, "-1.#INF": -INF,
    "\u22125.5": -5.5, "\u221e": INF,
    "": None, "-": None, ".": None, "e5": None, "0,253": None, "1,234,567": None, "1'234": None,
    "1_000": None, "10ms": None, "12:30": None, "1.2.3": None, "1.5*10^3": None, "95.3%": None,
    "1.0+2.0j": None, "********": None, "-1.0-2.0": None, "1.0-2": None, "0.5+/-0.1": None,
    "1e": None, "1e+": None, "--1": None, "1 2": None, "nano": None, "info": None, "1.#": None,
    # Hashes: programs print an exponent after padded digits only with a point or a sign.
    "00123e45": None, "0012E3": None, "07d10": None, "0000e0": None, "-007e1": -70.0,
    "0012e+03": 12000.0, "001.2e3": 1200.0, "0e0": 0.0, "1234e56": 1234e56, "00123": 123,
    "\u0663": None, "\u00b2": None, "True": None, "None": None, "null": None,
}  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS)
def test_number_is_read_as_a_whole_or_not_at_all(text: str) -> None:
    found, right = read_number(text), SPELLINGS[text]
    if right is None or found is None:
        assert found is right
    else:
        assert repr(found) == repr(right)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("0,253", 0.253),
        ("-1,5e3", -1500.0),
        ("7", 7),
        ("1.5", None),
        ("1.234,5", None),
        ("1,2,3", None),
    ],
)
def test_decimal_comma_is_read_on_request(text: str, right: float | None) -> None:
    assert read_number(text, decimal=",") == right


def test_long_text_is_no_number() -> None:
    assert read_number("1" * 100_000) is None
