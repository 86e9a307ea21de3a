"""The observer ``table``: columns of numbers under a header, read by name."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from ensemble_core.builtin.observers import ensemble_observers
from ensemble_core.builtin.table_observer import Table
from ensemble_core.errors import EnsembleError
from ensemble_core.model.jobs import Job

JOB = Job(id="sim.3", group="sim", index=3, command=("x",))
(PLUGIN,) = (each for each in ensemble_observers() if each.name == "table")
NAN = "nan"


def observe(text: str, **options: Any) -> tuple[list[tuple[dict[str, Any], Any]], str | None]:
    """Return the rows, each with its clock, and the complaint. nan is shown as text."""
    observer = PLUGIN.build(JOB, options)
    rows = [row for at in range(len(text)) for row in observer.feed(text[at : at + 1].encode())]
    rows += observer.finish()
    shown = [
        ({k: NAN if math.isnan(v) else v for k, v in row.values.items()}, row.clock) for row in rows
    ]
    return shown, observer.complaint()


def values(text: str, **options: Any) -> list[Any]:
    """Return the values of the only field of each row."""
    return [value for row, _ in observe(text, **options)[0] for value in row.values()]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("step   loss\n  1    0.5\n 20    2.5e-1\n", {}),
        ("step,loss\n1,0.5\n20,2.5D-01\n", {}),
        ("step, loss\n1, 0.5\n20, .25\n", {}),
        ('"step","loss"\n"1","0.5"\n20,0.25\n', {}),
        ("step\tloss\n1\t0.5\n20\t0.25\n", {}),
        ("step;loss\n1;0,5\n20;0,25\n", {"decimal": ","}),
        ("step loss\n1 0,5\n20 0,25\n", {"decimal": ","}),
        ("| step | loss |\n|-----:|:-----|\n| 1 | 0.5 |\n| 20 | 0.25 |\n", {}),
        ("step | loss\n-----+-----\n1 | 0.5\n20 | 0.25\n", {}),
        ("┃ step ┃ loss ┃\n┡━━━━━━╇━━━━━━┩\n│ 1 │ 0.5 │\n│ 20 │ 0.25 │\n└──┴──┘\n", {}),
        ("# step loss\n1 0.5\n20 0.25\n", {}),
        ("#! FIELDS step loss\n 1 0.5\n 20 0.25\n", {}),
        ("% step loss\n1 0.5\n20 0.25\n", {}),
        ("begin of run 3\n\nstep (fs)  loss (kJ/mol)\n 1 0.5\n 20 0.25\nend of run\n", {}),
        ("step  loss\n(fs)  (eV)\n 1 0.5\n 20 0.25\n", {}),
        ("step  loss\nfs  eV\n 1 0.5\n 20 0.25\n", {"fields": ["loss", "step"]}),
        ("loss step\n0.5 1\nstep loss\n20 0.25\n", {}),
        ("step loss\r\n1 0.5\r\n20 0.25\r\n", {}),
        ("\x1b[1mstep loss\x1b[0m\n1 0.5\n20 0.25\n", {}),
        ("step name loss\n1 a 0.5\n20 b 0.25\n", {"fields": ["step", "loss"]}),
    ],
)
def test_columns_are_found_by_name_in_each_form(text: str, options: dict[str, Any]) -> None:
    rows, complaint = observe(text, clock="step", **options)
    assert [({k: row[k] for k in ("step", "loss")}, clock) for row, clock in rows] == [
        ({"step": 1, "loss": 0.5}, 1),
        ({"step": 20, "loss": 0.25}, 20),
    ]
    assert complaint is None


def test_legends_of_a_grace_file_are_names() -> None:
    text = (
        '# GROMACS\n@    title "Energies"\n@    xaxis  label "Time (ps)"\n'
        '@    yaxis  label "(kJ/mol), (K)"\n@TYPE xy\n@ view 0.15, 0.15, 0.75, 0.85\n'
        '@ s0 legend "Potential"\n@ s1 legend "Temperature"\n'
        "    0.000000  -8650.38  286.382\n    0.200000  -8759.55  297.237\n"
    )
    rows, complaint = observe(text, fields={"T": "Temperature"}, clock="Time")
    assert rows == [({"T": 286.382}, 0.0), ({"T": 297.237}, 0.2)]
    assert complaint is None
    assert observe(text)[0][0][0] == {"Time": 0, "Potential": -8650.38, "Temperature": 286.382}


def test_names_with_blanks_are_found_above_their_numbers() -> None:
    names = ("Total Energy", "Kinetic En.", "Pressure (bar)")
    right = "".join(f"{name:>15}" for name in names) + "\n"
    right += "".join(f"{number:15.3f}" for number in (-7132.42, 1517.96, -867.915)) + "\n"
    assert observe(right)[0] == [
        ({"Total_Energy": -7132.42, "Kinetic_En": 1517.96, "Pressure": -867.915}, None)
    ]
    left = "Total Energy Max Force\n-7132.420    1517.96\n"
    assert observe(left)[0] == [({"Total_Energy": -7132.42, "Max_Force": 1517.96}, None)]


def test_a_field_can_be_called_as_printed_or_without_its_unit() -> None:
    text = "Step  P (bar)  P (atm)\n 1  2  3\n"
    assert values(text, fields={"p": "P (atm)"}) == [3]
    assert observe(text)[0] == [({"Step": 1, "P_bar": 2, "P_atm": 3}, None)]
    assert values("Step  T [K]\n 1  300\n", fields=["T"]) == [300]


def test_a_second_table_with_other_columns_is_not_read_as_the_first() -> None:
    text = "Step Temp PE\n 1 300 -5\nStep Press Vol\n 2 900 -8\nStep PE Temp\n 3 -7 302\n"
    rows, complaint = observe(text, fields=["Temp"], clock="Step")
    assert rows == [({"Temp": 300}, 1), ({"Temp": 302}, 3)]
    assert complaint is None
    rows, complaint = observe(text, fields=["Temp"])
    assert rows == [({"Temp": 300}, None), ({"Temp": 302}, None)]
    assert complaint == "not read: 1 line of numbers below 'Step Press Vol'"


def test_text_between_rows_does_not_end_a_table() -> None:
    text = "Step Temp\n 1 300\nWARNING: something odd happened here\n 2 301\n"
    assert values(text, fields=["Temp"]) == [300, 301]


def test_text_with_as_many_words_as_columns_is_no_row() -> None:
    text = "Step Temp PE\n 1 300 -5\nLoop time 7\nTotal 3 4\nAverage 1.0 2.0\n"
    assert values(text, fields=["Temp"]) == [300]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ("2 ******** 3", NAN),
        ("2 0,253 3", NAN),
        ("2 word 3", NAN),
        ("2 1.#QNAN 3", NAN),
        ("2 -nan 3", NAN),
        ("2 1.5d+02 3", 150.0),
        ("2 -1.0-2.0", NAN),
        ("2 -1.0 -2.0 3", NAN),
        ("********* 7 3", 7),
    ],
)
def test_a_value_that_cannot_be_read_is_nan_and_never_another_number(
    cells: str, expected: object
) -> None:
    text = f"i x y\n1 5 6\n{cells}\n"
    rows, complaint = observe(text, fields=["x"], clock="i")
    assert [row["x"] for row, _ in rows] == [5, expected]
    unread = expected == NAN and "nan" not in cells and "QNAN" not in cells
    reason = "x could not be read in 1 of 3 lines" if unread else None
    if cells.startswith("*"):
        reason = "1 row counts without the clock 'i', in line 3"
    assert (complaint is not None) == (reason is not None)
    assert reason is None or reason in (complaint or "")


def test_numbers_that_touch_are_divided_only_where_all_rows_end_their_columns() -> None:
    head = "   i      x      y\n   1  -1.00  -2.00\n   2  -1.50  -2.50\n"
    rows = [*observe(head + "   3-101.00-202.00\n", fields=["x", "y"])[0]]
    assert rows[-1] == ({"x": -101.0, "y": -202.0}, None)
    for uncertain in ("   3-1010.00-202.00\n", " 3 -1.0-2.0\n", "   31101.001202.00\n"):
        assert observe(head + uncertain, fields=["x", "y"])[0][-1] == ({"x": NAN, "y": NAN}, None)


def test_an_empty_cell_has_no_value() -> None:
    text = "epoch,train,val\n0,0.5,\n0,,0.7\n1,0.4,\n"
    rows, complaint = observe(text, fields=["train", "val"], clock="epoch")
    assert rows == [({"train": 0.5}, 0), ({"val": 0.7}, 0), ({"train": 0.4}, 1)]
    assert complaint is None


def test_tabs_at_the_end_of_a_row_are_empty_cells() -> None:
    text = "a\tb\tc\n1\t2\t\n4\t5\t\n\t8\t\n7\t\t9\n10\t \t\n"
    rows, complaint = observe(text)
    assert [row for row, _ in rows] == [
        {"a": 1, "b": 2},
        {"a": 4, "b": 5},
        {"b": 8},
        {"a": 7, "c": 9},
        {"a": 10},
    ]
    assert complaint is None


def test_header_and_until_select_a_part_of_the_file() -> None:
    text = "Step Temp\n 1 99\nSCF Temp\n 1 5\n 2 6\nTotals\n 3 7\nSCF Temp\n 4 8\n"
    assert values(text, fields=["Temp"], header="^SCF", until="^Totals") == [5, 6, 8]


def test_of_two_columns_with_one_name_take_decides() -> None:
    assert values("a E E\n1 2 3\n", fields=["E"]) == [2]
    assert values("a E E\n1 2 3\n", fields=["E"], take="last") == [3]


GROMACS = """
           Step           Time
{step:>15}{time:>15.5f}

   Energies (kJ/mol)
        LJ (SR)   Coulomb (SR)      Potential    Kinetic En.   Total Energy
    1.60301e+03   -1.02534e+04   -8.65038e+03    1.51796e+03   -7.13242e+03
  Conserved En.    Temperature Pressure (bar)
   -7.13242e+03    {T:.5e}   -8.67915e+02

"""


def test_a_name_in_both_lines_of_a_header_is_reported() -> None:
    text = (  # Molcas
        "Iter     Tot. B3LYP      One-elec.     Energy      Max Dij or\n"
        "         Energy          Energy        Change      Delta Norm\n"
        "   1  -382.292528762 -1455.456542154   0.00E+00    0.35E-01\n"
        "   2  -382.300144224 -1455.491955411  -0.76E-02    0.11E-01\n"
    )
    read, said = observe(text, fields=["Energy"])
    assert [row["Energy"] for row, _ in read] == [0.0, -0.0076]
    assert said == (
        "the header has several lines with the name 'Energy', and the column below the first one "
        "was read: its name may go on in the next line"
    )
    assert observe(text, fields=["Tot. B3LYP"])[1] is None
    assert observe("t  E\nfs  eV\n1  2\n3  4\n", fields=["E"])[1] is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("t  E\n0,1  1,25\n", "if a comma is the decimal sign, use decimal: ','"),
        ("t;E\n1;0,5\n", "if a comma is the decimal sign, use decimal: ','"),
        ("t  n\n1  1,234,567\n", "'1,234,567' is no number: let the program print it without"),
        ('t,n\n1,"1,234.5"\n', "'1,234.5' is no number: let the program print it without commas"),
        ("  t      a      b\n  2-100.0-200.0\n  1   -1.0   -2.0\n", "not read: 1 line of numbers"),
    ],
)
def test_numbers_with_commas_and_a_first_row_without_blanks_are_reported(
    text: str, said: str
) -> None:
    assert said in (observe(text)[1] or "")


def test_names_in_one_line_and_numbers_in_the_next_form_one_row_for_each_block() -> None:
    text = "".join(GROMACS.format(step=s, time=s / 10, T=280 + s) for s in (0, 100))
    averages = GROMACS[GROMACS.index("   Energies") :].format(T=999)
    text += "\t<====  A V E R A G E S  ====>\n" + averages + "   Pressure (bar)\n  1 2 3\n  4 5 6\n"
    options = {"layout": "pairs-of-lines", "fields": {"T": "Temperature", "P": "Pressure (bar)"}}
    rows, complaint = observe(text, clock="Step", **options)
    assert rows == [({"T": 280, "P": -867.915}, 0), ({"T": 380, "P": -867.915}, 100)]
    assert complaint is None
    rows, _ = observe(text, layout="pairs-of-lines", until="A V E R A G E S")
    assert [row["Temperature"] for row, _ in rows] == [280, 380]
    assert rows[0][0].keys() >= {"Step", "Time", "LJ", "Coulomb", "Kinetic_En", "Total_Energy"}


def test_a_block_arrives_when_its_last_listed_field_was_read() -> None:
    observer = PLUGIN.build(
        JOB, {"layout": "pairs-of-lines", "fields": ["Temperature"], "clock": "Step"}
    )
    (row,) = observer.feed(GROMACS.format(step=7, time=0.7, T=300).encode())
    assert (dict(row.values), row.clock) == ({"Temperature": 300}, 7)


def test_a_value_that_did_not_fit_in_a_block_is_nan() -> None:
    text = GROMACS.format(step=7, time=0.7, T=300).replace("3.00000e+02", "***********")
    rows, complaint = observe(text, layout="pairs-of-lines", fields={"T": "Temperature"})
    assert rows == [({"T": NAN}, None)]
    assert complaint is not None


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        ("x y\n1 2\n", {"fields": ["E"]}, "no field 'E'; found 'x', 'y'"),
        ("hello\nworld\n", {}, "2 lines, none of them a row of numbers below a header"),
        ("a b\n1 2 3\n", {"header": "^a"}, "3 numbers do not fit the header 'a b'"),
        (
            "a b c\n1 2 x\n",
            {"header": "^z"},
            "2 lines, none of them a row of numbers below a header",
        ),
    ],
)
def test_a_table_that_is_not_found_is_explained(
    text: str, options: dict[str, Any], complaint: str
) -> None:
    assert observe(text, **options) == ([], complaint)


def test_an_invalid_pattern_is_an_error() -> None:
    with pytest.raises(EnsembleError, match="invalid pattern for 'until'"):
        PLUGIN.build(JOB, {"until": "("})


@pytest.mark.parametrize("line", ["\xa0", "\u2003\xa0", "\x1f", '3,"' + "x" * 200_000 + '"'])
def test_unusual_lines_do_not_end_the_observer(line: str) -> None:
    rows, _ = observe(f"a,b\n1,2\n{line}\n5,6\n", fields=["a"])
    assert rows[0] == ({"a": 1}, None)
    assert rows[-1] == ({"a": 5}, None)


def test_long_lines_of_dashes_and_words_take_linear_time() -> None:
    observer = PLUGIN.build(JOB, {"fields": ["E"]})
    for piece in (b"-" * 500_000 + b"x\n", b"(a " * 200_000 + b"\n", b"1 " * 300_000 + b"\n"):
        assert [*observer.feed(piece)] == []


def test_times_of_probes_are_named_below_the_names_of_the_others() -> None:
    text = """\
# Probe 0 (0.05 0.05 0.005)
# Probe 1 (0.06 0.05 0.005)
#       Probe             0             1
#        Time
        0.005      0.645768      0.745768
         0.01    -0.0216972      -0.02169
"""
    shown = observe(text, fields={"p1": "1"}, clock="Time")
    assert shown == ([({"p1": 0.745768}, 0.005), ({"p1": -0.02169}, 0.01)], None)


#: Tables as programs print them, the options, and the rows: the clock and the value of E.
PRINTED: dict[str, tuple[str, dict[str, Any], list[tuple[Any, float | None]]]] = {
    "NAMD: a label before each row, two lines of text between rows": (
        (
            "ETITLE:      TS       BOND       TOTAL\n\n"
            "ENERGY:       0    12.3034   -775.1234\n\n"
            "WRITING COORDINATES\nTIMING: 100  CPU: 1.23, 0.0123/step\n"
            "ENERGY:     100    14.3034   *********\n"
        ),
        {"fields": {"E": "TOTAL"}, "clock": "TS"},
        [(-775.1234, 0), (NAN, 100)],
    ),
    "NAMD: many lines of text between rows, of which none is a header": (
        (
            "ETITLE:      TS       BOND       TOTAL\n\n"
            "ENERGY:       0    12.3034   -775.1234\n\n"
            + "LDB: ====== START OF LOAD BALANCING ====== 8.62662\n"
            * 6
            + "Info: Benchmark time: 1 CPUs 0.013 s/step\nTIMING: 100  CPU: 1.23, 0.0123/step\n"
            "ENERGY:     100    14.3034  -1775.1234\n"
        ),
        {"fields": {"E": "TOTAL"}, "clock": "TS"},
        [(-775.1234, 0), (-1775.1234, 100)],
    ),
    "VASP: the last cell of some rows is empty": (
        (
            (
                names := "       N       E             dE           d eps      ncg     rms        "
                "  rms(c)\n"
            )
            + "DAV:   1     0.470439E+04   0.4704E+04  -0.1478E+05  9648   0.636E+02\n"
            "RMM:   2    -0.117203E+04  -0.2409E+01  -0.2398E+01 12636   0.466E+00    0.620E+01\n"
            "RMM:   3    -0.110842E+04   0.6361E+02  -0.2863E+02 11640   0.189E+01\n"
            "   1 F= -.11084226E+04 E0= -.11084226E+04  d E =0.000000E+00\n"
            + names
            + "RMM:   1    -0.107169E+04   0.3672E+02  -0.1102E+02 10908   0.135E+01    0.385E+01\n"
            "RMM:   2    -0.107207E+04  -0.3815E+00  -0.6514E+01 11508   0.876E+00\n"
        ),
        {"fields": {"E": "rms"}, "clock": "N"},
        [(63.6, 1), (0.466, 2), (1.89, 3), (1.35, 1), (0.876, 2)],
    ),
    "VASP: the label is left of the first name, and a name has a blank": (
        (
            "       N       E               dE             d eps       ncg     rms          rms(c)\n"
            "DAV:   1   0.123456789E+03   0.12346E+03   -0.12345E+04   512   0.123E+02\n"
            "RMM:   2  -0.123456789E+02  -0.13580E+03   -0.12345E+03   640   0.223E+01\n"
        ),
        {"fields": ["E"], "clock": "N"},
        [(123.456789, 1), (-12.3456789, 2)],
    ),
    "ABINIT: the label has no colon": (
        (
            "     iter   Etot(hartree)      deltaE(h)  residm     vres2\n"
            " ETOT  1  -8.8604027841568    -8.860E+00 1.233E-03 9.874E+00\n"
        ),
        {"fields": {"E": "Etot"}, "clock": "iter"},
        [(-8.8604027841568, 1)],
    ),
    "NWChem: the label is in all lines": (
        (
            "@ Step       Energy      Delta E   Gmax\n@ ---- ------------ -------- --------\n"
            "@    0     -76.43622273  0.0D+00  0.00123\n"
        ),
        {"fields": {"E": "Energy"}, "clock": "Step"},
        [(-76.43622273, 0)],
    ),
    "ORCA: text with as many words as columns below the header": (
        (
            "ITER   Energy         Delta-E   RMS-DP\n   ***  Starting  incremental ***\n"
            "  0    -76.3211234567   0.00    0.031\n"
        ),
        {"fields": {"E": "Energy"}, "clock": "ITER"},
        [(-76.3211234567, 0)],
    ),
    "Stan: comments between the header and the rows": (
        "E,theta\n# Adaptation terminated\n# Step size = 0.9\n# Diagonal elements:\n# 0.5\n-6.7,0.2\n",
        {"fields": ["E"]},
        [(-6.7, None)],
    ),
    "R: the first column has no name": (
        "            E        Std. Error t\nwt      -5.3445     0.5591 -9.559\n",
        {"fields": ["E"]},
        [(-5.3445, None)],
    ),
}


@pytest.mark.parametrize("case", PRINTED)
def test_tables_of_programs_are_read_or_left_out(case: str) -> None:
    text, options, right = PRINTED[case]
    assert [(row["E"], clock) for row, clock in observe(text, **options)[0]] == right


def test_rows_with_further_words_are_reported() -> None:
    text = "Step  Method      E\n   1  Diag     -32.2\n   2  OT DIIS  -31.1\n   3  Diag  -30.5 (best)\n"
    found, complaint = observe(text, fields=["E"], clock="Step")
    assert found == [({"E": -32.2}, 1)]
    assert complaint == "not read: 2 lines of numbers below 'Step Method E'"


def test_lines_of_text_are_no_names_without_fields() -> None:
    text = "IT  E  dE\n***  Starting  ***\n 0  -76.3  0.5\n"
    assert observe(text)[0] == [({"IT": 0, "E": -76.3, "dE": 0.5}, None)]


def test_a_first_row_with_empty_cells_is_reported() -> None:
    """scipy.optimize.least_squares(verbose=2)"""
    found, complaint = observe(
        """
   Iteration     Total nfev        Cost      Cost reduction    Step norm     Optimality
       0              1         1.4450e+02                                    1.20e+02
       1              2         7.7601e+00      1.37e+02       2.30e+00       1.49e+01
"""
    )
    assert [row["Cost"] for row, _ in found] == [7.7601]
    assert str(complaint).startswith("not read: 1 line of numbers below 'Iteration Total")
    found, complaint = observe("# step E\n# 1 2\n0 1.5\n")
    assert len(found) == 1
    assert complaint is None


def test_numbers_are_no_header() -> None:
    text = """[[ 0.12573022 -0.13210486  0.64042265  0.10490012 -0.53566937]
 [-0.62327446  0.04132598 -2.32503077 -0.21879166 -1.24591095]]
-0.04802827676298692 0.9767529623571052
"""
    assert observe(text)[0] == []


def test_names_and_numbers_that_alternate_are_reported() -> None:
    block = "  Step  Time\n  {0}  0.{0}\n\n  LJ  Potential\n  -1.5  -2.5\n"
    text = "".join(block.format(step) for step in range(3))
    assert "layout: pairs-of-lines" in str(observe(text)[1])
    assert observe(text, layout="pairs-of-lines")[1] is None
    assert observe("".join(f"Step E\n{n} 2.5\n" for n in range(9)))[1] is None


def test_rows_with_a_longer_text_at_the_end_are_reported() -> None:
    text = "USER PID RSS COMMAND\nroot 1 17964 sh\nroot 2 0 [a b]\nyou have new mail now\n"
    found, complaint = observe(text, fields=["RSS"])
    assert [row for row, _ in found] == [{"RSS": 17964}]
    assert complaint == "not read: 1 line of numbers below 'USER PID RSS COMMAND'"


def test_words_in_a_row_do_not_shift_its_columns() -> None:
    """The header has as many words as the row has cells, but not the same columns."""
    text = (
        "  Step     Update method    Time    Convergence     Total energy    Change\n"
        "  ----------------------------------------------------------------------\n"
        "     1 OT SD       0.80E-01  0.2     0.01437240     -16.57210338 -1.66E+01\n"
    )
    found, complaint = observe(text, fields={"conv": "Convergence"})
    assert found == []
    assert "words in '1 OT SD " in str(complaint)


def test_rows_of_processes_are_read_or_counted() -> None:
    head = "USER PID  RSS COMMAND\n"
    long, short = "root   1 1796 init splash\n", "root   2    0 sh\n"
    found, complaint = observe(head + short + long + short, fields=["RSS"])
    assert [row["RSS"] for row, _ in found] == [0, 0]
    assert complaint == "not read: 1 line of numbers below 'USER PID RSS COMMAND'"
    # Also above the first row that can be read.
    found, complaint = observe(head + long + short + long + short, fields=["RSS"])
    assert [row["RSS"] for row, _ in found] == [0, 0]
    assert complaint == "not read: 2 lines of numbers below 'USER PID RSS COMMAND'"


@pytest.mark.parametrize("fields", [None, ["a"]])
def test_an_empty_comment_is_no_header(fields: list[str] | None) -> None:
    options = {} if fields is None else {"fields": fields}
    assert observe("#\n1 2\n# \n3\n", **options)[0] == []
    assert len(observe("#\n1 2\n# a b\n3 4\n", **options)[0]) == 1


def test_text_is_not_compared_with_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    fit = Table._fit
    monkeypatch.setattr(
        Table, "_fit", lambda table, text, header: compared.append(text) or fit(table, text, header)
    )
    noise = "node042: rcu: INFO: self-detected stall on CPU at 12\n"
    assert values(noise * 200 + "step E\n1 2.5\n" + noise * 200, fields=["E"]) == [2.5]
    assert len(compared) < 10


def test_rows_do_not_depend_on_the_first_glance(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(7)
    words = ["step", "E", "Total Energy", "T (K)", "a", "b:", "1", "2.5", "-3", "nan", "***",
             "1.0-2.0", "x,", "|", "\u2502", "12:30", "inf", "5.", "=", "(eV)", "#", "@"]  # fmt: skip
    for _ in range(300):
        lines = [choose.choices(words, k=choose.randint(1, 6)) for _ in range(5)]
        text = "".join(f"{' '.join(line)}\n" for line in lines)
        for options in ({}, {"fields": ["E"]}, {"fields": {"e": "Total_Energy"}}):
            found = observe(text, **options)
            with monkeypatch.context() as patched:
                patched.setattr(Table, "_may_begin", lambda *_: True)
                assert observe(text, **options) == found, text


def test_averages_below_the_names_of_the_steps_are_reported() -> None:
    step = "  Step  Time\n  {0}  0.{0}\n\n  LJ  Temperature\n  -1.5  30{0}\n  Box  X\n  1 2\n"
    steps = "  Date  Host\n  1 2\n" + "".join(step.format(number) for number in range(3))
    averages = "<== A V E R A G E S ==>\n  LJ  Temperature\n  -1.5  500\n"
    options: dict[str, Any] = {"layout": "pairs-of-lines", "fields": ["Temperature"]}
    assert observe(steps, **options)[1] is None
    assert observe(steps + averages, **options)[1] == (
        "1 row was read without the line 'Step Time' above, which other rows have: if these are "
        "averages, use clock: Step, or until"
    )
    for better in ({"clock": "Step"}, {"until": "A V E R A G E S"}):
        assert values(steps + averages, **options, **better) == [300, 301, 302]
        assert observe(steps + averages, **options, **better)[1] is None


def test_averages_are_reported_if_no_fields_are_listed() -> None:
    step = "  Step  Time\n  {0}  0.{0}\n\n  LJ  Temperature\n  -1.5  30{0}\n"
    text = "  Date  Host\n  1 2\n" + "".join(step.format(number) for number in range(3))
    assert observe(text, layout="pairs-of-lines")[1] is None
    averages = "<== A V E R A G E S ==>\n  LJ  Temperature\n  -1.5  500\n"
    assert observe(text + averages, layout="pairs-of-lines")[1] == (
        "1 row was read without the line 'Step' above, which other rows have: if these are "
        "averages, use clock: Step, or until"
    )


def test_a_label_does_not_continue_a_table_below_the_header_of_another() -> None:
    text = (
        "INFO: step loss acc\nINFO: 1 0.5 0.9\nINFO: epoch val_loss val_acc\n"
        + "INFO: loading\n" * 3
        + "INFO: 1 0.6 0.8\n"
    )
    rows, complaint = observe(text, fields=["loss"])
    assert rows == [({"loss": 0.5}, None)]
    assert complaint == "not read: 1 line of numbers below 'INFO: loading'"
    text = text.replace("INFO: epoch val_loss val_acc\n", "")
    assert values(text, fields=["loss"]) == [0.5, 0.6]


def test_the_last_column_is_read_if_only_some_rows_have_it() -> None:
    text = PRINTED["VASP: the last cell of some rows is empty"][0]
    rows, _ = observe(text)
    assert [row.get("rms_c") for row, _ in rows] == [None, 6.2, None, 3.85, None]
    assert [row["d_eps"] for row, _ in rows] == [-14780, -2.398, -28.63, -11.02, -6.514]


def test_a_row_of_another_block_is_no_row_of_a_header_above() -> None:
    """Ultralytics prints bars between two headers with as many columns as the other has words."""
    text = (
        "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
        "        1/3      2.61G      1.153      1.398      1.192         81        640: 100%|██| 4/4\n"
        "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|\n"
        "                   all        128        929      0.668       0.54      0.624       0.46\n"
    )
    found, complaint = observe(text, fields=["box_loss"])
    assert found == []
    assert "the names are in line 1, 'Epoch " in str(complaint)


def test_a_unit_is_no_column_even_if_the_words_are_as_many_as_the_numbers() -> None:
    """xtb prints a step in a column without a name."""
    text = "   time (ps)    <Epot>   T\n   0   0.00   0.00000   0.5\n 200   0.20  -7.28431   0.6\n"
    found, complaint = observe(text, fields=["T"], clock="time")
    assert found == []
    assert "'time (ps)    <Epot>   T'" in str(complaint)


def test_data_frames_of_pandas_and_r_are_read() -> None:
    for text in (
        "   step  loss\n0     1  0.50\n10    2  0.25\n",
        "  step loss\n1    1 0.50\n2    2 0.25\n",
        "     step  loss\nrun             \n7       1  0.50\n8       2  0.25\n",
    ):
        for fields in (["loss"], None):
            found, _ = observe(text, clock="step", **({"fields": fields} if fields else {}))
            assert [(row["loss"], clock) for row, clock in found] == [(0.5, 1), (0.25, 2)], text
    # Rows that begin with words may be rows of different kinds.
    found, complaint = observe("   step  loss\na     1  0.50\nb     2  0.25\n", fields=["loss"])
    assert found == [({"loss": 0.5}, None)]
    assert complaint == "not read: 1 line of numbers below 'step loss'"
    # The names do not stand above the numbers.
    assert observe("  loss acc\n1 0.5 0.25\n", fields=["loss"])[0] == []


def test_rows_with_words_at_their_end_are_read_where_their_numbers_are_in_line() -> None:
    """Q-Chem marks the last row of a calculation."""
    head = "  Cycle       Energy      Error\n ----------------------------\n"
    rows = "    1    -389.43456    6.01E-02  \n    2    -378.44243    1.27E-06  Convergence met\n"
    found, complaint = observe(head + rows, fields=["Energy"], clock="Cycle")
    assert found == [({"Energy": -389.43456}, 1), ({"Energy": -378.44243}, 2)]
    assert complaint is None
    for other in (" 3 -1.0 0.5 met\n", "    3    -378.44243    1.27E-06  after 5 steps\n"):
        found, complaint = observe(head + rows + other, fields=["Energy"])
        assert len(found) == 2
        assert "not read: 1 line of numbers below 'Cycle Energy Error'" in str(complaint)


def test_rows_whose_step_has_a_mark_are_read_without_the_clock() -> None:
    text = "iter  objective  inf_pr\n   1  1.5e+01  0.5\n   2r 1.2e+01  0.4\n"
    found, complaint = observe(text, fields=["objective"], clock="iter")
    assert found == [({"objective": 15.0}, 1), ({"objective": 12.0}, None)]
    assert complaint == "1 row counts without the clock 'iter', in line 3"


def test_rows_after_text_that_are_not_in_line_are_reported() -> None:
    text = "Iter  Value\n   0  1.5\n * time: 0.1\n 1  22.25\n * time: 0.2\n"
    found, complaint = observe(text, fields=["Value"])
    assert found == [({"Value": 1.5}, None)]
    assert "not read: 1 line of numbers below" in str(complaint)


def test_a_comment_between_rows_is_no_header() -> None:
    assert values("step E\n1 0.5\n! note 7\n2 0.25\n# restart\n3 0.1\n", fields=["E"]) == [
        0.5, 0.25, 0.1,
    ]  # fmt: skip


def test_touching_numbers_make_all_columns_unknown() -> None:
    """A row with a further number has as many cells as others."""
    found, _ = observe("step E V T\n1 0.5 0.25 300\n2 0.5-0.25 300 1\n", fields=["E", "V"])
    assert found[1][0] == {"E": NAN, "V": NAN}
    # Dates are no numbers that touch each other.
    assert values("date E\n2026-11-29 0.5\n2026-11-30 0.25\n", fields=["E"]) == [0.5, 0.25]


def test_several_columns_with_a_wanted_name_are_reported() -> None:
    text = "E,T,E\n1,2,3\n"
    found, complaint = observe(text, fields=["E"])
    assert found == [({"E": 1}, None)]
    assert "several columns have the name 'E', and the first one was read" in str(complaint)
    assert observe(text, fields=["E"], take="last") == ([({"E": 3}, None)], None)
    assert observe(text, fields=["T"]) == ([({"T": 2}, None)], None)


def test_a_decimal_comma_is_proposed() -> None:
    for text in ("t;E\n0,1;300,5\n", "t E\n1 300,5\n2 300,5\n"):
        assert "use decimal: ','" in str(observe(text, fields=["E"])[1])


def test_tables_that_polars_draws_are_read() -> None:
    text = (
        "shape: (2, 2)\n┌──────┬──────┐\n│ step ┆ loss │\n│ ---  ┆ ---  │\n│ i64  ┆ f64  │\n"
        "╞══════╪══════╡\n│ 1    ┆ 0.5  │\n│ 2    ┆ 0.25 │\n└──────┴──────┘\n"
    )
    assert values(text, fields=["loss"]) == [0.5, 0.25]


def test_lines_of_other_words_are_no_names_without_fields() -> None:
    assert observe("  Patterson group :   P m m m\n  8.84   0.0   0.0\n")[0] == []


def test_numbers_below_other_names_are_not_read() -> None:
    """GAMESS-UK has as many words in its header as numbers in a row, by chance."""
    text = (
        "   cycle         total       e conv.        tester   virtual damping\n"
        "   1   1  -74.92312952  -83.81013643    0.13956078     1.000   1.000\n"
        "   2   1  -74.95512952   -0.01013643    0.03956078     1.000   1.000\n"
    )
    found, complaint = observe(text, fields=["total"])
    assert found == []
    assert "numbers in '2   1  -74.95" in str(complaint)
    assert observe(text)[0] == []
