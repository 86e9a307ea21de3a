"""JUnit report of rule tests, for CI systems."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from ensemble_testing.rule_tests.player import PlayedTest


def report(files: Sequence[tuple[str, Sequence[tuple[PlayedTest, float]]]]) -> str:
    """Return the report as XML. Durations are in seconds."""
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
