"""Test the decisions of rules, without a queue, a clock or jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ensemble_core.cli.toolkit import (
    KeptRun,
    complete_runs,
    count_of,
    errors_as_json,
    json_option,
    plugin_option,
    print_line,
    print_warning,
    printable,
    state_option,
    style_of,
    to_json,
)
from ensemble_core.errors import UsageError

if TYPE_CHECKING:
    from ensemble_core.plugin.untrusted_code import Purpose
    from ensemble_testing.rule_tests.player import PlayedTest


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, type=click.Path())
@click.option(
    "--record",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Print a test file recorded from a kept run: its events and decisions.",
)
@click.option(
    "--run-code",
    is_flag=True,
    help="Run the code that the files name: functions, generator classes and plugins. Otherwise, "
    "the test must answer each call ('returned', 'suggested').",
)
@click.option(
    "--junit", metavar="REPORT", type=click.Path(), help="Write a JUnit report to this file."
)
@plugin_option
@state_option
@json_option
def test(
    files: tuple[str, ...],
    record: str | None,
    run_code: bool,
    junit: str | None,
    plugins: tuple[str, ...],
    state: str | None,
    as_json: bool,
) -> int:
    """Test the decisions of rules, without a queue, a clock or jobs.

    Each FILE has tests of one ensemble, with given events and expected decisions. A failure shows
    the expected and the actual decisions, and what 'ensemble why' says about the rule. The end of
    the output lists the rules that did not fire in any test.

    The exit code is 0 if all tests pass, 1 if a test fails, and 2 if a file is invalid. If a file
    is invalid, no test runs.
    """
    if bool(files) == (record is not None):
        raise UsageError(
            "give FILE or --record" + (", not both" if files else ""),
            hint="ensemble test study.ensemble-test.yaml",
            code="bad-option",
        )
    with errors_as_json(as_json):
        if record is not None:
            return _record(record, state)
        return _run(files, junit, plugins, "rehearse" if run_code else "check", as_json)


def _record(run: str, state: str | None) -> int:
    from ensemble_testing.rule_tests.recording import make_test

    with KeptRun(state, run) as kept:
        text, said = make_test(kept)
    click.echo(text, nl=False)
    if said:
        print_warning(said)
    return 0


def _run(
    files: Sequence[str],
    junit: str | None,
    plugins: tuple[str, ...],
    purpose: Purpose,
    as_json: bool,
) -> int:
    import sys

    from ensemble_core.errors import EnsembleError, FileErrors
    from ensemble_testing.rule_tests.player import play
    from ensemble_testing.rule_tests.test_file import read_tests

    look = style_of(sys.stdout)
    read, errors = [], list[EnsembleError]()
    for file in files:
        try:
            read.append(read_tests(file, plugins, purpose=purpose))
        except FileErrors as error:
            errors += error.errors
        except EnsembleError as error:
            errors.append(UsageError(error.what, where=error.where, cause=error.cause,
                                     hint=error.hint, code=error.code))  # fmt: skip
    if errors:
        raise FileErrors(errors)
    done: list[tuple[str, list[tuple[PlayedTest, float]]]] = []
    fired: dict[str, set[str]] = {}
    for tests in read:
        told: list[tuple[PlayedTest, float]] = []
        for one in tests.tests:
            began = time.perf_counter()
            played = play(tests, one)
            told.append((played, time.perf_counter() - began))
            fired.setdefault(tests.ensemble.file, set()).update(played.fired)
            if not as_json:
                for failure in played.failures:
                    print_line(printable(failure))
        done.append((tests.file, told))
        failed = sum(not played.passed for played, _ in told)
        if not as_json:
            count = count_of(len(told), "test")
            said = (
                look.paint(f", {failed} failed", "bad")
                if failed
                else f" {look.paint('passed', 'good')}"
            )
            print_line(f"{printable(tests.file)}: {count}{said}")
    rules = {tests.ensemble.file: [rule.id for rule in tests.ensemble.rules] for tests in read}
    unseen = {
        file: [rule for rule in ids if rule not in fired[file]] for file, ids in rules.items()
    }
    if as_json:
        print_line(to_json(_data(done, rules, unseen)))
    else:
        for file, ids in rules.items():
            lacking = unseen[file]
            tail = f"; never fired: {', '.join(lacking)}" if lacking else ""
            seen = f"{len(ids) - len(lacking)} of {count_of(len(ids), 'rule')}"
            print_line(printable(f"{file}: {seen} fired in the tests{tail}"))
    if junit is not None:
        _write(junit, _junit(done))
    return int(any(not played.passed for _, told in done for played, _ in told))


def _data(done: Any, rules: Any, unseen: Any) -> dict[str, Any]:
    return {
        "passed": all(played.passed for _, told in done for played, _ in told),
        "tests": [
            {"file": file, "name": played.test.name, "passed": played.passed,
             "failures": played.failures}
            for file, told in done
            for played, _ in told
        ],
        "coverage": [
            {"file": file, "rules": ids, "not_fired": unseen[file]} for file, ids in rules.items()
        ],
    }  # fmt: skip


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write the report {path}",
            cause=error.strerror,
            hint="choose a file in an existing folder",
            code="report-unwritable",
        ) from None


def _junit(files: Sequence[tuple[str, Sequence[tuple[PlayedTest, float]]]]) -> str:
    """Return the JUnit report as XML. Durations are in seconds."""
    import xml.etree.ElementTree as ET

    root = ET.Element("testsuites")
    for file, tests in files:
        suite = ET.SubElement(
            root,
            "testsuite",
            name=file,
            tests=str(len(tests)),
            failures=str(sum(not played.passed for played, _ in tests)),
            errors="0",
            skipped="0",
            time=f"{sum(seconds for _, seconds in tests):.3f}",
        )
        for played, seconds in tests:
            case = ET.SubElement(
                suite, "testcase", classname=file, name=played.test.name, time=f"{seconds:.3f}"
            )
            if not played.passed:
                failed = ET.SubElement(case, "failure", message=played.failures[0].split("\n")[1])
                failed.text = _xml_text("\n".join(played.failures))
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml_text(text: str) -> str:
    """Return text without characters that XML cannot represent."""
    return "".join(c if c in "\n\t" or c >= " " else "?" for c in text)
