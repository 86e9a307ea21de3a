"""Fuzz tests: any file gives an ensemble or an EnsembleError, in limited time."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ensemble_core.config import load_text
from ensemble_core.config.file_text import decode
from ensemble_core.errors import EnsembleError
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import Registry

SETTINGS = settings(suppress_health_check=[HealthCheck.too_slow], print_blob=True)

VALID = """\
name: study
logging: {debug: false, heartbeat: 2}
x-here: &common {nodes: 1, tasks: 2}
jobs:
  - name: a
    <<: *common
    command: run {T} --out "{group}/{index}"
    count: 2
    duration: 1h30m
    environment: {N: 1.10}
    parameters: {T: [0.5, 1.0]}
  - {name: b, command: [sleep, 1e3], urgency: 3}
rules:
  - id: first
    trigger: start
    action: {name: submit, label: a}
  - trigger: metric
    name: p75.a-duration
    when: "> 5 and < 10"
    action:
      - {name: submit, label: b, with: {count: 3}}
      - {name: log, message: "now {value}"}
    repetitions: 3
    backoff: 30s
  - {trigger: job-fail, name: a, when: exit_code == 3, action: {name: terminate, exit_code: 2}}
  - {trigger: interval, seconds: 5, action: {name: custom, label: again}}
statistics:
  p75: {statistic: quantile, q: 0.75}
custom: |
  def again(**kwargs):
      return None
limits: {jobs: 100, chain: 5}
"""


@pytest.fixture(scope="module")
def registry() -> Registry:
    return discover()


def answer(text: str, registry: Registry) -> bool:
    """Return whether the file is valid; any error but an EnsembleError fails the test."""
    try:
        load_text(text, registry)
    except EnsembleError as error:
        print(error)  # must not raise either
        return False
    return True


def test_base_file_of_the_mutations_is_valid(registry: Registry) -> None:
    assert answer(VALID, registry)


@SETTINGS
@given(data=st.binary(max_size=400))
def test_random_bytes_give_a_file_or_an_error(registry: Registry, data: bytes) -> None:
    try:
        text = decode(data, "f.yaml")
    except EnsembleError:
        return
    answer(text, registry)


@SETTINGS
@given(
    start=st.integers(0, len(VALID)),
    length=st.integers(0, 30),
    insert=st.one_of(
        st.text(max_size=12),
        st.sampled_from(
            ["\t", "*common", "&x", "!!str ", "- ", "? ", ": ", "[", "{", "}", "|", "<<: ", "0",
             "-1", ".nan", ".inf", "1e999", "~", "\n", "\\", '"', "{T}", "metric(", "99" * 30,
             "null", "yes", "'", "---\n", "...\n", "\x00", "%", "@", "#"]
        ),
    ),
)  # fmt: skip
def test_damaged_file_gives_a_file_or_an_error(
    registry: Registry, start: int, length: int, insert: str
) -> None:
    answer(VALID[:start] + insert + VALID[start + length :], registry)


KEYS = st.sampled_from(
    ["name", "jobs", "rules", "command", "count", "trigger", "action", "label", "with", "when",
     "parameters", "environment", "observe", "options", "statistics", "statistic", "q", "window",
     "limits", "logging", "heartbeat", "custom", "id", "backoff", "repetitions", "seconds", "rules",
     "message", "value", "duration", "executor", "local", "lammps", "json-lines", "<<", "x-y", ""]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["start", "metric", "job-fail", "submit", "a", "grow", "set", "count.a.success", "> 5",
         "mean.a-x", "{T}", "'", "10m", "metric('x')", "observed", "log", "interval", "cancel",
         "enable", "custom", "def f(:", "quantile", "1:30", "quantile"]
    ),
)  # fmt: skip
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=25,
)


@SETTINGS
@given(tree=st.one_of(TREES, st.fixed_dictionaries({"jobs": TREES, "rules": TREES})))
def test_random_structure_gives_a_file_or_an_error(registry: Registry, tree: object) -> None:
    answer(yaml.safe_dump(tree, allow_unicode=True), registry)


@SETTINGS
@given(
    group=st.dictionaries(KEYS, TREES, max_size=5),
    rule=st.dictionaries(KEYS, TREES, max_size=5),
    action=st.dictionaries(KEYS, TREES, max_size=4),
    more=st.dictionaries(KEYS, TREES, max_size=3),
)
def test_random_values_in_a_valid_structure_give_a_file_or_an_error(
    registry: Registry,
    group: dict[str, object],
    rule: dict[str, object],
    action: dict[str, object],
    more: dict[str, object],
) -> None:
    tree = {
        **more,
        "jobs": [{"command": "true", "name": "a", **group}],
        "rules": [
            {"trigger": "start", "action": {"name": "submit", "label": "a", **action}, **rule}
        ],
    }
    answer(yaml.safe_dump(tree, allow_unicode=True), registry)


@SETTINGS
@given(spec=TREES, fields=TREES)
def test_random_return_values_give_a_decision_or_an_error(
    registry: Registry, spec: object, fields: object
) -> None:
    ensemble = load_text(VALID, registry)
    for check in (
        lambda: ensemble.binder.rule(spec, "late-1"),  # type: ignore[arg-type]  # on purpose
        lambda: ensemble.binder.action(spec),  # type: ignore[arg-type]  # on purpose
        lambda: ensemble.binder.group(ensemble.groups["a"], fields),  # type: ignore[arg-type]
    ):
        try:
            check()
        except EnsembleError as error:
            print(error)
