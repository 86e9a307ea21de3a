"""Expressions that are evaluated when a rule fires: their checks and values."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from ensemble_testing import Story

from ensemble_core import FileErrors
from ensemble_core.config import load_text
from ensemble_core.model.decisions import Log, Resize, Retry, Submit
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover

JOBS = """
jobs:
  - name: sim
    command: "sim {T} {d} {tag}"
    parameters: {T: [1.0, 2.0], d: 0.5, tag: a}
    workdir: runs/{index}
    duration: 60
    observe: {json-lines: {fields: [E]}}
    result: {E: last.E, cost: duration}
  - {name: post, command: "post {T}", parameters: {T: null}, replicas: 2}
"""


def story(*rules: str, jobs: str = JOBS) -> Story:
    begin = "{trigger: start, action: {name: submit, label: sim}}"
    told = Story(jobs + "rules:\n" + "".join(f"  - {rule}\n" for rule in (begin, *rules)))
    told.start()
    return told


def jobs(decisions: Sequence[object]) -> list[Job]:
    return [job for one in decisions if isinstance(one, Submit) for job in one.jobs]


def errors(decisions: Sequence[object]) -> list[str]:
    return [one.message for one in decisions if isinstance(one, Log) and one.level == "error"]


def success(action: str, **more: str) -> str:
    rest = "".join(f", {key}: {value}" for key, value in more.items())
    return f"{{trigger: job-success, name: sim, action: {action}{rest}}}"


def refused(rule: str, jobs: str = JOBS) -> str:
    with pytest.raises(FileErrors) as raised:
        load_text(jobs + f"rules:\n  - {rule}\n", discover())
    return str(raised.value)


# -- vary --------------------------------------------------------------------------------------


def test_vary_submits_each_combination_once() -> None:
    told = story(
        success(
            "{name: vary, parameters: {T: ['= T - d', '= T + d'], d: '= d / 2'}}", repetitions="9"
        )
    )

    first, second = jobs(told.play("sim.0")), jobs(told.play("sim.1"))

    assert [(job.id, job.parameters["T"], job.parameters["d"]) for job in first + second] == [
        ("sim.2", 0.5, 0.25),
        ("sim.3", 1.5, 0.25),
        ("sim.4", 2.5, 0.25),  # 1.5 existed already
    ]
    assert all(job.parameters["tag"] == "a" for job in first + second)


def test_vary_of_another_group_uses_shared_parameters() -> None:
    told = story(success("{name: vary, label: post}", repetitions="9"))

    assert [job.parameters for job in jobs(told.play("sim.1"))] == [{"T": 2.0}]
    assert jobs(told.play("sim.0"))[0].command == ("post", "1")


def test_vary_again_repeats_combinations() -> None:
    again = story(success("{name: vary, again: true}", repetitions="9"))
    once = story(success("{name: vary}", repetitions="9"))

    assert [job.parameters["T"] for job in jobs(again.play("sim.0"))] == [1.0]
    assert jobs(once.play("sim.0")) == []
    assert once.fired()[-1] == "rule-2"
    assert once.exit_code is None


def test_vary_again_adds_the_requested_number_of_replicas() -> None:
    told = story(
        "{trigger: job-success, name: sim, action: {name: vary, label: post}}",
        "{trigger: job-fail, name: sim, action: {name: submit, label: post, rows: all, again: true}}",
        jobs=JOBS.replace("T: [1.0, 2.0]", "T: 1.0").replace(
            "    result:", "    replicas: 3\n    result:"
        )
        + "results:\n  all: {of: sim, top: 1}\n",
    )
    (first,) = jobs(told.play("sim.1"))
    assert (first.parameters, first.replica) == ({"T": 1.0}, 1)

    further = jobs(told.play("sim.2", status=256))

    assert [job.replica for job in further] == [0, 2], "post has two replicas for each submit"


def test_function_may_return_a_vary_action() -> None:
    told = story(
        "{trigger: job-success, name: sim, action: {name: custom, label: f}}",
        jobs="custom: |\n  def f(): return Action(name='vary', parameters={'T': '= T + 5'})\n"
        + JOBS,
    )
    from ensemble_core.model.events import CallReturned

    call = next(one for one in told.play("sim.0") if one.type == "call")
    returned = ({"action": {"name": "vary", "parameters": {"T": "= T + 5"}}},)
    decided = told.tell(CallReturned(told.now, call.call, returned))  # type: ignore[attr-defined]

    assert [job.parameters["T"] for job in jobs(decided)] == [6.0]


# -- retry -------------------------------------------------------------------------------------


def test_each_job_is_retried_up_to_its_repetitions() -> None:
    told = story("{trigger: job-fail, name: sim, repetitions: 2, action: {name: retry}}")

    first = jobs(told.play("sim.0", status=256)) + jobs(told.play("sim.1", status=256))
    second = jobs(told.play("sim.0-1", status=256)) + jobs(told.play("sim.1-1", status=256))
    third = jobs(told.play("sim.0-2", status=256)) + jobs(told.play("sim.1-2"))

    assert [job.id for job in first + second] == ["sim.0-1", "sim.1-1", "sim.0-2", "sim.1-2"]
    assert [(job.index, job.attempt) for job in second] == [(0, 2), (1, 2)]
    assert third == []
    assert told.metric("count.sim.lost") == 1
    assert told.metric("count.sim.done") == 1
    assert told.metric("count.sim.submitted") == 6


def test_changes_of_a_retry_apply_to_later_attempts() -> None:
    told = story(
        "{trigger: job-fail, name: sim, repetitions: 9, action: {name: retry, "
        "with: {parameters: {d: '= d / 2'}, duration: '= min(2 * limit, 200)', "
        "environment: {FROM: '{job.workdir}'}}}}"
    )

    (first,) = jobs(told.play("sim.1", status=256))
    (second,) = jobs(told.play("sim.1-1", status=256))

    assert (first.parameters["d"], first.duration) == (0.25, 120)
    assert (second.parameters["d"], second.duration) == (0.125, 200)
    assert first.parameters["T"] == second.parameters["T"] == 2.0
    assert first.environment["FROM"] == "/story/runs/1"


@pytest.mark.parametrize("name", ["my study", "it's", 'a"b', "c\\d", "{id}", "{{T}}", "{", ""])
def test_value_of_the_events_job_is_one_word_and_is_not_filled_in_again(name: str) -> None:
    told = Story(
        f"""
        jobs:
          - {{name: sim, command: "x {{n}}", parameters: {{n: {json.dumps(name)}}}}}
          - {{name: post, command: y, workdir: w}}
        rules:
          - {{trigger: start, action: {{name: submit, label: sim}}}}
          - trigger: job-success
            name: sim
            action:
              name: submit
              label: post
              with:
                command: sh -c "ls 1" - {{job.n}} p{{job.n}} {{index}}
                workdir: "w{{job.n}}/{{index}}"
                environment: {{NAME: "{{job.n}}"}}
        """
    )
    told.start()
    (job,) = jobs(told.play("sim.0"))
    assert job.command == ("sh", "-c", "ls 1", "-", name, f"p{name}", "0")
    assert (job.workdir, job.environment["NAME"]) == (f"w{name}/0", name)


def test_wait_of_a_retry_may_be_an_expression() -> None:
    told = story(
        "{trigger: job-fail, name: sim, repetitions: 9, "
        "action: {name: retry, wait: '= 30 * 2 ** attempt'}}"
    )
    told.play("sim.1")

    assert jobs(told.play("sim.0", status=256)) == []
    assert jobs(told.wait(29)) == []
    assert [job.id for job in jobs(told.wait(2))] == ["sim.0-1"]
    told.play("sim.0-1", status=256)
    assert jobs(told.wait(59)) == []
    assert [job.id for job in jobs(told.wait(2))] == ["sim.0-2"]


def test_groups_retry_policy_retries_failed_attempts() -> None:
    grouped = JOBS.replace(
        "    result:",
        "    retry: {times: 2, when: 'cause == \"signal\" and max.E > 1', with: {nodes: '= 2 * T'}}\n"
        "    result:",
    )
    told = story(jobs=grouped)

    told.begin("sim.1")
    told.observe("sim.1", E=3)
    (again,) = jobs(told.end("sim.1", status=9))

    assert (again.id, again.nodes) == ("sim.1-1", 4)
    assert jobs(told.play("sim.1-1", status=9)) == []  # the attempt had no row
    assert jobs(told.play("sim.0", status=256)) == []
    assert told.exit_code == 1


@pytest.mark.parametrize("by", ["rule", "group"])
def test_statistics_of_an_attempt_restart_unless_it_continues(by: str) -> None:
    for word, expected in (("false", "5"), ("true", "2")):
        rules = [success("{name: log, message: '{min.E}'}")]
        grouped = f"    retry: {{times: 1, continue: {word}}}\n    result:"
        if by == "rule":
            retry = f"{{name: retry, continue: {word}}}"
            rules.insert(0, f"{{trigger: job-fail, name: sim, action: {retry}}}")
        told = story(*rules, jobs=JOBS.replace("    result:", grouped) if by == "group" else JOBS)
        told.begin("sim.0")
        told.observe("sim.0", E=2.0)
        told.end("sim.0", status=256)
        told.begin("sim.0-1")
        told.observe("sim.0-1", E=5.0)
        said = [one.message for one in told.end("sim.0-1") if isinstance(one, Log)]
        assert said == [expected]


# -- scoped statistics -------------------------------------------------------------------------


@pytest.mark.parametrize("each", ["", ", each: [T]"])
def test_variance_of_one_value_is_none_but_the_metric_is_zero(each: str) -> None:
    told = story(
        "{trigger: job-done, name: sim, repetitions: 9, when: variance.E < 1 or variance.E >= 1,"
        " action: {name: log, message: 'v = {variance.E}'}}".replace(", rep", f"{each}, rep")
        if each
        else "{trigger: idle, name: sim, when: variance.E < 1 or variance.E >= 1,"
        " action: {name: log, message: 'v = {variance.E}'}}",
        "{trigger: metric, name: variance.sim-rows.E, when: '== 0', action: {name: log, message: zero}}",
        jobs=JOBS.replace("T: [1.0, 2.0]", "T: [1.0], seed: [1, 2]").replace(
            "{tag}", "{tag} {seed}"
        ),
    )
    told.begin("sim.0")
    told.observe("sim.0", E=2.0)
    said = [one.message for one in told.end("sim.0") if isinstance(one, Log)]
    assert said == []
    assert "rule-3" in told.fired()
    told.begin("sim.1")
    told.observe("sim.1", E=4.0)
    said = [one.message for one in told.end("sim.1") if isinstance(one, Log)]
    assert said == ["v = 2"]


# -- expressions -------------------------------------------------------------------------------


def test_value_of_a_single_placeholder_keeps_its_type() -> None:
    told = story(
        success(
            "{name: submit, label: sim, with: {parameters: "
            "{T: '{T}', d: '= last.E', tag: 'after {job.id} at {T:.2f}'}}}"
        )
    )
    told.begin("sim.1")
    told.observe("sim.1", E=0.1 + 0.2)

    (job,) = jobs(told.end("sim.1"))

    assert job.parameters == {"T": 2.0, "d": 0.3, "tag": "after sim.1 at 2.00"}


def test_calculated_count_of_zero_submits_nothing() -> None:
    told = story(
        success(
            "{name: submit, label: post, with: {parameters: {T: '= T'}, replicas: '= 2 * T - 2'}}",
            repetitions="9",
        )
    )

    assert jobs(told.play("sim.0")) == []
    assert errors(told.decisions) == []
    assert [job.replica for job in jobs(told.play("sim.1"))] == [0, 1]


def test_number_of_requested_nodes_may_be_an_expression() -> None:
    told = story(success("[{name: grow, value: '= T'}, {name: shrink, value: '= 1 - T'}]"))

    assert [one.delta for one in told.play("sim.1") if isinstance(one, Resize)] == [2]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("= 1 / (T - 1)", "not a finite number"),
        ("= 0 * (1e308 * 10 * T)", "not a finite number"),
        ("= last.E", "last.E has no value yet"),
        ('= metric("mean.sim-E")', "mean.sim-E has no value yet"),
        ("{last.E}", "last.E has no value yet"),
    ],
)
def test_missing_value_is_reported_with_rule_and_job(text: str, why: str) -> None:
    for action in ("vary", "submit, label: post"):
        fields = "parameters" if action == "vary" else "with: {parameters"
        close = "}" if action != "vary" else ""
        told = story(
            f"{{id: next, trigger: job-success, name: sim, action: {{name: {action}, "
            f"{fields}: {{T: '{text}'}}{close}}}}}"
        )

        decided = told.play("sim.0")

        assert jobs(decided) == []
        (error,) = errors(decided)
        assert "'next'" in error
        assert "sim.0" in error
        assert why in error


def test_fields_of_the_group_are_not_evaluated() -> None:
    told = story(jobs="jobs: [{name: sim, command: [echo, '= 2 * 2'], environment: {A: '=1'}}]\n")

    (job,) = jobs(told.decisions)
    assert (job.command, job.environment) == (("echo", "= 2 * 2"), {"A": "=1"})


def test_results_are_variables_and_fields() -> None:
    told = story(
        success("{name: log, message: 'E={E} cost={cost}'}", repetitions="9", when="E > 2.5"),
        "{trigger: job-done, name: sim, repetitions: 9, action: {name: log, message: 'done {E}'}}",
    )
    told.begin("sim.0")
    told.observe("sim.0", E=1)
    told.observe("sim.0", E=3)

    said = [one.message for one in told.end("sim.0", duration=4) if isinstance(one, Log)]

    assert said == ["E=3 cost=4", "done 3"]
    assert told.metric("mean.sim-cost") is None  # nothing uses it


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (success("{name: vary, parameters: {TT: 1}}"), ["no parameter 'TT'", "'T'", ":12:73"]),
        (success("{name: vary, label: post, parameters: {d: 1}}"), ["'post' has no parameter 'd'"]),
        (success("{name: vary, parameters: {T: '= 2 * TT'}}"), ["'TT'", "did you mean 'T'"]),
        (success("{name: vary, parameters: {T: '{TT}'}}"), ["no field 'TT'", "{T}"]),
        (success("{name: vary, parameters: {T: '= last.EE'}}"), ["last.EE", "last.E"]),
        (success("{name: vary, with: {points: x.csv}}"), ["'points'"]),
        ("{trigger: start, action: {name: vary}}", ["'vary'", "has no job"]),
        (success("{name: retry, with: {parameters: {T: [1, 2]}}}"), ["several values"]),
        (success("{name: retry, with: {parameters: {TT: 1}}}"), ["no parameter 'TT'"]),
        (success("{name: retry, with: {count: 2}}"), ["'count'"]),
        (success("{name: retry, wait: soon}"), ["'soon'"]),
        (success("{name: retry, wait: '= now'}"), ["'now'"]),
        (success("{name: retry, with: {nodes: two}}"), ["'two'", "a whole number"]),
        (success("{name: retry, with: {workdir: '{job.wrkdir}'}}"), ["wrkdir", "{job.workdir}"]),
        (success("{name: retry, with: {result: {E: '1'}}}"), ["unknown key 'result'"]),
        ("{trigger: start, action: {name: retry}}", ["'retry'", "has no job"]),
        ("{trigger: job-start, action: {name: retry}}", ["'job-start'", "job-fail"]),
        ("{trigger: observed, action: {name: retry}}", ["'observed'", "job-fail"]),
        ("{trigger: job-lost, action: {name: retry}}", ["'job-lost'", "job-fail"]),
        (
            "{trigger: start, action: {name: submit, label: sim, with: {workdir: '{job.workdir}'}}}",
            ["{job.workdir}", "'start' has no job"],
        ),
        (success("{name: grow, value: '= TT'}"), ["'TT'"]),
        (success("{name: grow, value: many}"), ["'value'"]),
    ],
)
def test_impossible_expression_is_rejected_with_a_suggestion(rule: str, words: list[str]) -> None:
    told = refused(rule)
    assert all(word in told for word in words), told


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("result: {T: last.E}", ["'T'", "a parameter"]),
        ("result: {cause: last.E}", ["'cause'", "field of events"]),
        ("result: {e: last.EE}", ["last.EE", "last.E"]),
        ("result: {e: E}", ["many values", "last.E"]),
        ("result: {e: meann.E}", ["meann", "mean.E"]),
        ("result: {e: '1 +'}", ["does not parse"]),
        ("retry: {when: 'x > 1', times: 1}", ["'x'"]),
        ("retry: {when: 'max.F > 1', times: 1}", ["'F'", "fields of json-lines"]),
        ("retry: {wait: 30s}", ["'times'"]),
        ("retry: {times: 0}", ["at least 1"]),
        ("retry: {times: 1, wait: soon}", ["'soon'"]),
        ("retry: {times: 1, with: {parameters: {TT: 1}}}", ["no parameter 'TT'"]),
        ("retry: {times: 1, with: {nodes: '= TT'}}", ["'TT'"]),
    ],
)
def test_wrong_result_or_retry_is_rejected_at_its_place(key: str, words: list[str]) -> None:
    jobs = JOBS.replace("result: {E: last.E, cost: duration}", key)
    told = refused("{trigger: start, action: {name: submit, label: sim}}", jobs)
    assert all(word in told for word in words), told


def test_retry_decision_names_its_rule() -> None:
    told = story("{trigger: job-fail, name: sim, action: {name: retry, wait: 5}}")

    (decision,) = [one for one in told.play("sim.0", status=256) if isinstance(one, Retry)]

    assert (decision.job, decision.wait, decision.rule) == ("sim.0", 5, "rule-2")


def test_vary_of_a_slice_uses_the_groups_replicas() -> None:
    told = story(
        "{trigger: idle, name: sim, each: [T], when: mean.E > 1, "
        "action: {name: vary, parameters: {T: '= T / 4'}}}",
        jobs=JOBS.replace("    workdir", "    replicas: 2\n    workdir"),
    )
    for job, energy in (("sim.0", 1), ("sim.1", 2), ("sim.2", 0), ("sim.3", 1)):
        told.begin(job)
        told.observe(job, E=energy)
        decided = told.end(job)
        if job == "sim.1":
            assert [(one.parameters["T"], one.replica) for one in jobs(decided)] == [
                (0.25, 0),
                (0.25, 1),
            ]

    assert told.submitted()[4:] == ["sim.4", "sim.5"]
