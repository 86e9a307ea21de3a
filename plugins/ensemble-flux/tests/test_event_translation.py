"""Tests of a run's events, derived from journals that were recorded in real Flux instances.

``journals/README.md`` describes the recordings.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence, Sized
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ensemble_flux.event_translation import EventTranslation
from ensemble_flux.ids_and_hostlists import f58
from ensemble_flux.jobspec import nodes_of
from ensemble_flux.node_usage import Nodes
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_core import JobEvent

JOURNALS = Path(__file__).parent / "journals"
END: dict[str, Any] = {"id": -1, "events": []}
Response = dict[str, Any]
#: Identity of an event: name (of a job of ours) or id of the job, name and time of the event.
Told = tuple[str, str, float]


def recorded(name: str) -> list[Response]:
    return [json.loads(line) for line in (JOURNALS / f"{name}.jsonl").read_text().splitlines()]


def live(name: str) -> list[Response]:
    """Return a recording of an instance that was idle at its start, without the end marker of the
    empty backlog.
    """
    first, *rest = recorded(name)
    assert first == END
    return rest


DAY = live("day")
RESTART = live("restart-before")


def tagged(responses: Iterable[Response], run: str = "night") -> dict[int, str]:
    """Return the names of our jobs in a recording, by Flux's id."""
    found = {}
    for response in responses:
        tag = response.get("jobspec", {}).get("attributes", {}).get("user", {}).get("ensemble", {})
        if tag.get("run") == run:
            found[response["id"]] = tag["job"]
    return found


def names(responses: Iterable[Response]) -> dict[int, str]:
    """Return the name of each job in a recording, as events have it."""
    return {r["id"]: f58(r["id"]) for r in responses if r != END} | tagged(responses)


def volatile(entry: dict[str, Any]) -> bool:
    """Return whether an entry is only streamed, and missing in backlogs."""
    return entry["name"] in ("annotations", "invalidate") or entry.get("context") == {
        "seen": "once"
    }


def backlog(responses: Sequence[Response], *, full: bool = True) -> list[Response]:
    """Return the backlog that the instance sends if a stream is opened after these responses."""
    jobs: dict[int, Response] = {}
    for response in responses:
        job = jobs.setdefault(response["id"], {"id": response["id"], "events": []})
        job.update({key: response[key] for key in ("jobspec", "R") if key in response})
        if response["events"][0]["name"] == "invalidate":
            del jobs[response["id"]]
        job["events"] += [entry for entry in response["events"] if not volatile(entry)]
    return [job for job in jobs.values() if full or job["events"][-1]["name"] != "clean"]


def opened(
    jobs: Iterable[str], first: Sequence[Response] = (), *, foreign: bool = True
) -> EventTranslation:
    """Return a journal of the run ``night``, after the backlog ``first``."""
    nodes = Nodes()
    nodes.status(json.loads((JOURNALS / "day-resources.json").read_text()))
    journal = EventTranslation("id-of-night", nodes, foreign=foreign)
    for response in (*first, END):
        assert not journal.take(response)
    for job in jobs:
        journal.expect(job)
    return journal


def hear(journal: EventTranslation, responses: Iterable[Response]) -> list[JobEvent]:
    return [event for response in responses for event in journal.take(response)]


def brief(events: Iterable[JobEvent]) -> list[Told]:
    return [(event.job, event.name, event.timestamp) for event in events]


def happened(responses: Iterable[Response]) -> list[Told]:
    """Return the expected events of a recording."""
    name = names(list(responses))
    return [
        (name[response["id"]], entry["name"], entry["timestamp"])
        for response in responses
        for entry in response["events"]
    ]


def by_job(told: Iterable[Told], leave_out: Iterable[float] = ()) -> dict[str, list[Told]]:
    jobs: dict[str, list[Told]] = defaultdict(list)
    out = set(leave_out)
    for each in told:
        if each[2] not in out:
            jobs[each[0]].append(each)
    return dict(jobs)


#: Times of entries that are missing in backlogs.
UNWRITTEN = [e["timestamp"] for r in DAY for e in r["events"] if volatile(e)]
ALL = by_job(happened(DAY), UNWRITTEN)
INVALID = next(f58(r["id"]) for r in DAY if r["events"][0]["name"] == "invalidate")


def recount(responses: Sequence[Response]) -> dict[str, float]:
    """Return the gauges after these responses, counted naively."""
    jobs: dict[int, list[dict[str, Any]]] = defaultdict(list)
    size: dict[int, int] = {}
    share: dict[int, list[dict[str, Any]]] = {}
    for response in responses:
        jobs[response["id"]] += response["events"]
        if "jobspec" in response:
            top = response["jobspec"]["resources"][0]
            # Nodes have two cores. Jobs without nodes have one core per slot in the recordings.
            size[response["id"]] = top["count"] if top["type"] == "node" else -(-top["count"] // 2)
        if "R" in response:
            share[response["id"]] = response["R"]["execution"]["R_lite"]
    gauges: dict[str, float] = dict.fromkeys(
        [f"queue.{s}" for s in ("depend", "priority", "sched", "run", "cleanup", "inactive")], 0
    )
    gauges["waiting.nodes"] = 0
    used: dict[int, int] = {}
    for job, entries in jobs.items():
        past = [entry["name"] for entry in entries]
        fatal = any(e["name"] == "exception" and e["context"]["severity"] == 0 for e in entries)
        if "invalidate" in past:
            continue
        if "clean" in past:
            state = "inactive"
        elif "finish" in past or fatal:
            state = "cleanup"
        elif "alloc" in past:
            state = "run"
        elif "priority" in past:
            state = "sched"
        elif "depend" in past:
            state = "priority"
        else:
            state = "depend" if "validate" in past else "new"
        if state in ("new", "depend", "priority", "sched"):
            gauges["waiting.nodes"] += size[job]
        if state != "new":
            gauges[f"queue.{state}"] += 1
        if "alloc" in past and not {"free", "release", "clean"} & set(past):
            for part in share[job]:
                low, _, high = part["rank"].partition("-")
                first, _, last = part["children"]["core"].partition("-")
                cores = int(last or first) - int(first) + 1
                for rank in range(int(low), int(high or low) + 1):
                    used[rank] = used.get(rank, 0) + cores
    gauges["nodes.free"] = 4 - len(used)
    gauges["cores.free"] = 8 - sum(used.values())
    return gauges


def gauges(journal: EventTranslation) -> dict[str, float]:
    both = {**journal.gauges(), **journal._nodes.gauges()}
    return {
        path: value
        for path, value in both.items()
        if not path.startswith(("gpus", "nodes.up", "cores.up"))
    }


def test_everything_is_reported_at_once_and_in_order() -> None:
    journal = opened(tagged(DAY).values())
    name = names(DAY)

    for response in DAY:
        (entry,) = response["events"]
        assert brief(journal.take(response)) == [
            (name[response["id"]], entry["name"], entry["timestamp"])
        ]


def test_a_job_is_reported_with_fluxs_context() -> None:
    journal = opened(["code.0", "signal.0", "missing.0", "large.0", "limit.0", "long.0"])
    journal.expect("good.0", extra={"stdout": "/run/good.0.out"})
    told = hear(journal, DAY)

    def context(job: str, name: str) -> list[Any]:
        return [dict(e.context) for e in told if (e.job, e.name) == (job, name)]

    assert [c["status"] for c in context("code.0", "finish")] == [3 << 8]
    # The job's shell reports signals as other shells do.
    assert [c["status"] for c in context("signal.0", "finish")] == [(128 + 11) << 8]
    assert "no-such-command: No such file" in context("missing.0", "exception")[0]["note"]
    assert "need 99 node(s)" in context("large.0", "exception")[0]["note"]
    assert context("large.0", "start") == []
    assert [c["type"] for c in context("limit.0", "exception")] == ["timeout"]
    assert [(c["type"], c["severity"]) for c in context("long.0", "exception")] == [
        ("note", 3),
        ("cancel", 0),
    ]
    assert context("long.0", "memo") == [{"mesh": "fine"}, {"seen": "once"}]
    (start,) = context("good.0", "start")
    assert start == {"stdout": "/run/good.0.out", "host": start["host"]}
    assert start["host"]
    (submit,) = context("good.0", "submit")
    assert submit["queue_id"] == next(f58(i) for i, job in tagged(DAY).items() if job == "good.0")


def test_foreign_jobs_are_distinguished_including_those_of_another_run() -> None:
    told = hear(opened(tagged(DAY).values()), DAY)
    (other,) = tagged(DAY, "other")

    assert {event.job for event in told if event.ours} == set(tagged(DAY).values())
    assert f58(other) in {event.job for event in told if not event.ours}
    assert not {event.job for event in told if not event.ours} & set(tagged(DAY).values())


def test_foreign_jobs_are_left_out_unless_requested() -> None:
    told = hear(opened(tagged(DAY).values(), foreign=False), DAY)
    assert told
    assert all(event.ours for event in told)


def test_unexpected_jobs_of_this_run_are_not_reported() -> None:
    told = hear(opened(["good.0"]), DAY)
    assert {event.job for event in told if event.ours} == {"good.0"}
    assert not {event.job for event in told if not event.ours} & set(tagged(DAY).values())


@pytest.mark.parametrize("recording", ["day", "failure", "restart-before"])
def test_the_gauges_are_right_after_every_event(recording: str) -> None:
    responses = live(recording)
    journal = opened(tagged(responses).values())

    for place, response in enumerate(responses, 1):
        journal.take(response)
        assert gauges(journal) == recount(responses[:place]), response


def test_after_a_complete_day_the_queue_is_empty() -> None:
    journal = opened(tagged(DAY).values())
    hear(journal, DAY)
    assert journal.gauges() == {
        "queue.depend": 0,
        "queue.priority": 0,
        "queue.sched": 0,
        "queue.run": 0,
        "queue.cleanup": 0,
        "queue.inactive": len(names(DAY)) - 1,  # one was rejected by the job manager
        "waiting.nodes": 0,
    }


def test_the_recorded_backlogs_are_those_that_these_tests_build() -> None:
    """The exhaustive tests below rely on built backlogs."""

    def content(responses: list[Response]) -> dict[int, Any]:
        end = responses.index(END)
        return {
            # Without contexts: Flux merges those of a job's memos.
            r["id"]: ([(e["name"], e["timestamp"]) for e in r["events"]], r.get("R"), r["jobspec"])
            for r in responses[:end]
        }

    middle = recorded("day-middle-full")
    cut = middle_of_day()
    assert content([*backlog(DAY[:cut]), END]) == content(middle)
    assert content([*backlog(DAY[:cut], full=False), END]) == content(recorded("day-middle-active"))
    assert content([*backlog(DAY), END]) == content(recorded("day-end-full"))
    assert recorded("day-end-active") == [END]


def test_a_stream_that_breaks_in_an_idle_instance_repeats_nothing() -> None:
    yesterday = backlog(DAY)
    nodes = Nodes()
    journal = EventTranslation(
        "today", nodes, foreign=True, begun=DAY[-1]["events"][0]["timestamp"] + 1
    )
    assert not hear(journal, [END])
    journal.reopen()
    assert hear(journal, [*yesterday, END]) == []


def middle_of_day() -> int:
    """Return the number of responses before the streams of ``day-middle-*`` were opened."""
    middle = recorded("day-middle-full")
    after = middle[middle.index(END) + 1 :]
    assert DAY[-len(after) :] == after
    return len(DAY) - len(after)


@pytest.mark.parametrize("kind", ["full", "active"])
def test_a_run_that_starts_in_the_middle_receives_no_past_events(kind: str) -> None:
    middle = recorded(f"day-middle-{kind}")
    end = middle.index(END)
    journal = opened(["last.0"], middle[:end])
    cut = middle_of_day()
    journal.inactive(int(recount(DAY[:cut])["queue.inactive"]))

    assert gauges(journal) == recount(DAY[:cut])
    told = hear(journal, DAY[cut:])

    ours = set(tagged(DAY).values()) - {"last.0"}
    assert brief(told) == [each for each in happened(DAY)[cut:] if each[0] not in ours]
    assert gauges(journal) == recount(DAY)


def heard_with_cuts(
    cuts: Iterable[tuple[int, int, Sequence[Response]]],
) -> tuple[EventTranslation, list[JobEvent]]:
    """Return the journal and events of a day whose stream ends and is reopened.

    Each of ``cuts`` has the numbers of responses before the end and before the reopening, and the
    backlog.
    """
    journal = opened(tagged(DAY).values())
    told: list[JobEvent] = []
    at = 0
    for cut, again, past in cuts:
        told += hear(journal, DAY[at:cut])
        journal.reopen()
        told += hear(journal, [*past, END])
        journal.inactive(int(recount(DAY[:again])["queue.inactive"]))
        at = again
    return journal, told + hear(journal, DAY[at:])


def check(told: Sequence[JobEvent]) -> None:
    heard = by_job(brief(told), UNWRITTEN)
    refused = heard.pop(INVALID, [])
    assert heard == {job: events for job, events in ALL.items() if job != INVALID}
    assert refused == ALL[INVALID][: len(refused)]
    assert len(set(brief(told))) == len(told)  # each event once, even if no eventlog has it


@pytest.mark.parametrize("away", [0, 1, 9, 1000])
def test_a_stream_that_ends_anywhere_and_is_reopened_loses_and_repeats_nothing(
    away: int,
) -> None:
    for cut in range(len(DAY) + 1):
        again = min(cut + away, len(DAY))
        journal, told = heard_with_cuts([(cut, again, backlog(DAY[:again]))])
        check(told)
        assert journal.missing() == []
        assert gauges(journal) == recount(DAY)


def test_the_recorded_middle_of_the_day_continues_any_stream_before_it() -> None:
    middle = recorded("day-middle-full")
    for cut in range(middle_of_day() + 1):
        journal = opened(tagged(DAY).values())
        told = hear(journal, DAY[:cut])
        journal.reopen()
        check(told + hear(journal, middle))


def test_a_stream_that_ends_within_its_backlog_loses_nothing() -> None:
    for cut in range(0, len(DAY), 11):
        past = backlog(DAY[: cut + 12])
        for read in range(len(past) + 1):
            journal = opened(tagged(DAY).values())
            told = hear(journal, DAY[:cut])
            journal.reopen()
            told += hear(journal, past[:read])
            journal.reopen()
            told += hear(journal, [*backlog(DAY[: cut + 24]), END, *DAY[cut + 24 :]])
            check(told)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_many_cuts_and_backlogs_in_any_order_lose_and_repeat_nothing(data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(DAY)), min_size=2, max_size=12)))
    cuts = []
    for cut, again in zip(places[::2], places[1::2], strict=False):
        cuts.append((cut, again, data.draw(st.permutations(backlog(DAY[:again])))))

    journal, told = heard_with_cuts(cuts)

    check(told)
    assert gauges(journal) == recount(DAY)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_interleaved_jobs_are_each_reported_in_their_own_order(
    data: st.DataObject,
) -> None:
    streams: dict[int, list[Response]] = defaultdict(list)
    for response in DAY:
        streams[response["id"]].append(response)
    order = data.draw(st.permutations([response["id"] for response in DAY]))
    mixed = [streams[job].pop(0) for job in order]
    journal = opened(tagged(DAY).values())

    told = hear(journal, mixed)

    assert by_job(brief(told)) == by_job(happened(DAY))
    assert gauges(journal) == recount(DAY)


def test_a_backlog_is_reported_in_the_order_of_time() -> None:
    _, told = heard_with_cuts([(0, len(DAY), backlog(DAY)[::-1])])
    assert [event.timestamp for event in told] == sorted(event.timestamp for event in told)


def test_a_clock_that_was_set_back_does_not_reorder_a_jobs_events() -> None:
    """Events keep the eventlog's order. ``clean`` comes last, whatever its time."""
    past = deepcopy(backlog(DAY))
    for job in past:
        late = len(job["events"]) // 2
        for entry in job["events"][late:]:
            entry["timestamp"] -= 3600.0
    expected = {
        names(DAY)[job["id"]]: [entry["name"] for entry in job["events"]]
        for job in past
        if job["id"] in tagged(DAY)
    }
    journal = opened(tagged(DAY).values())
    journal.reopen()
    told = hear(journal, [*past, END])
    assert {
        job: [name for _, name, _ in events]
        for job, events in by_job(brief(e for e in told if e.ours)).items()
    } == expected


def test_every_job_continues_after_the_job_manager_restarts() -> None:
    after = recorded("restart-after")
    journal = opened(tagged(RESTART).values())
    told = hear(journal, RESTART)
    journal.reopen()
    told += hear(journal, after)

    heard = by_job(brief(told))
    for response in after[: after.index(END)]:
        whole = [e["name"] for e in response["events"]]
        whole += [
            e["name"]
            for r in after[after.index(END) :]
            if r["id"] == response["id"]
            for e in r["events"]
        ]
        job = names(after)[response["id"]]
        assert [n for _, n, _ in heard[job] if n != "annotations"] == [
            n for n in whole if n != "annotations"
        ]
    assert heard["pending.0"][-1][1] == "clean"
    assert journal.gauges()["queue.sched"] == 1  # the held job
    assert journal.gauges()["waiting.nodes"] == 1


def test_a_node_that_dies_under_a_job_is_reported_by_name() -> None:
    told = hear(opened(["wide.0"]), live("failure"))
    (exception,) = (event for event in told if event.name == "exception")
    assert exception.context["severity"] == 0
    assert "node failure on node3" in exception.context["note"]
    assert told[-1].name == "clean"


def test_a_reattached_job_continues_after_the_newest_known_event() -> None:
    past = backlog(DAY)
    for job_id, name in tagged(DAY).items():
        (entries,) = (job["events"] for job in past if job["id"] == job_id)
        for known in range(len(entries) + 1):
            journal = opened([], backlog(DAY, full=False))
            journal.expect(name, since=entries[known - 1]["timestamp"] if known else 0.0)
            journal.reopen()
            told = hear(journal, [*past, END])
            assert [e.name for e in told if e.ours] == [e["name"] for e in entries[known:]]
            assert name in journal.met


def test_reattached_jobs_in_the_queue_continue() -> None:
    """A run is resumed while its jobs wait and run, as in the recorded stream."""
    middle = recorded("day-middle-full")
    end = middle.index(END)
    waiting = {"long.0", "held.0", "pending.0"}
    journal = opened([], recorded("day-middle-active")[:-1][:5])
    for name in waiting:
        journal.expect(name)
    journal.expect("never.0")
    journal.reopen()
    told = hear(journal, middle)

    heard = by_job(brief(event for event in told if event.ours), UNWRITTEN)
    assert heard == {job: ALL[job] for job in waiting}
    assert journal.met >= waiting
    assert "never.0" not in journal.met
    assert end > 0


def test_a_job_that_the_instance_forgot_is_missing_and_no_longer_counted() -> None:
    cut = middle_of_day()
    journal = opened(tagged(DAY).values())
    hear(journal, DAY[:cut])
    (long,) = (job for job, name in tagged(DAY).items() if name == "long.0")
    (held,) = (job for job, name in tagged(DAY).items() if name == "held.0")
    journal.reopen()
    hear(journal, [*(r for r in backlog(DAY[:cut]) if r["id"] not in (long, held)), END])

    assert sorted(journal.missing()) == ["held.0", "long.0"]
    left = [r for r in DAY[:cut] if r["id"] not in (long, held)]
    journal.inactive(int(recount(left)["queue.inactive"]))
    assert gauges(journal) == recount(left)


def test_a_job_that_was_not_accepted_yet_is_not_missing() -> None:
    journal = opened(["soon.0"])
    journal.reopen()
    hear(journal, [END])
    assert journal.missing() == []


def test_a_guest_gets_the_same_events_of_its_jobs_as_the_owner() -> None:
    owner = [e for e in hear(opened(tagged(DAY).values()), DAY) if e.ours]
    guest = EventTranslation("id-of-night", Nodes(), foreign=True)
    guest.no_backlog()
    for name in tagged(DAY).values():
        guest.expect(name)
    told: list[JobEvent] = []
    places: dict[int, int] = defaultdict(int)
    for job, name in tagged(DAY).items():
        guest.accepted(name, job)
    for response in DAY:
        (entry,) = response["events"]
        if response["id"] in tagged(DAY) and not volatile(entry):
            one = {"id": response["id"], "events": [entry]}
            told += guest.take(one, places[response["id"]])
            places[response["id"]] += 1

    # A job of an earlier controller has its output files in the jobspec, which guests do not get.
    heard = [
        replace(event, context={}) if event.name == "start" else event
        for event in owner
        if event.timestamp not in UNWRITTEN
    ]
    assert told == heard


def test_a_guest_whose_watch_restarts_gets_no_event_twice() -> None:
    for name in tagged(DAY).values():
        (job,) = (each for each, of in tagged(DAY).items() if of == name)
        (entries,) = (each["events"] for each in backlog(DAY) if each["id"] == job)
        for cut in range(len(entries)):  # after the last entry, no watch is left
            guest = EventTranslation("id-of-night", Nodes())
            guest.no_backlog()
            guest.expect(name)
            guest.accepted(name, job)
            told: list[JobEvent] = []
            for place, entry in [*enumerate(entries[:cut]), *enumerate(entries)]:
                told += guest.take({"id": job, "events": [entry]}, place)
            assert [e.name for e in told] == [e["name"] for e in entries]


def test_two_jobs_with_the_same_name_are_reported_once() -> None:
    """After a crash, a run may have submitted a job twice."""
    good = [r for r in DAY if tagged(DAY).get(r["id"]) == "good.0"]
    twin = [{**r, "id": r["id"] + 1} for r in good]
    journal = opened(["good.0"])
    told = hear(journal, [each for pair in zip(good, twin, strict=True) for each in pair])
    assert brief(event for event in told if event.ours) == happened(good)


def test_several_entries_in_one_response_are_reported_one_by_one() -> None:
    streams: dict[int, Response] = {}
    for response in DAY:
        whole = streams.setdefault(response["id"], {"id": response["id"], "events": []})
        whole["events"] += response["events"]
        whole.update({key: response[key] for key in ("jobspec", "R") if key in response})
    journal = opened(tagged(DAY).values())
    assert by_job(brief(hear(journal, streams.values()))) == by_job(happened(DAY))


def test_nothing_is_kept_of_finished_jobs() -> None:
    journal = opened([])
    job = next(job for job, name in tagged(DAY).items() if name == "good.0")
    text = json.dumps([r for r in DAY if r["id"] == job])
    for number in range(10_000):
        journal.expect(f"good.{number}")
        responses = json.loads(text)
        responses[0]["jobspec"]["attributes"]["user"]["ensemble"]["job"] = f"good.{number}"
        told = hear(journal, ({**r, "id": job + number} for r in responses))
        assert len(told) == len(responses)
    kept: list[Sized] = [journal._ours, journal._names, journal._active, journal.met]
    kept += [journal._nodes._held, journal._nodes._used]
    assert [len(each) for each in kept] == [0] * 6


@pytest.mark.parametrize(
    ("resources", "nodes"),
    [
        ([{"type": "node", "count": 3, "with": [{"type": "slot", "count": 4}]}], 3),
        ([{"type": "slot", "count": 9, "with": [{"type": "core", "count": 1}]}], 3),
        ([{"type": "slot", "count": 2, "with": [{"type": "node", "count": 2}]}], 4),
        ([{"type": "node", "count": {"min": 2, "max": 9, "operator": "+", "operand": 1}}], 2),
        ([{"type": "slot", "count": 1, "with": [{"type": "gpu", "count": 1}]}], 1),
        ([], 1),
    ],
)
def test_a_waiting_job_counts_the_nodes_it_would_fill(resources: list[Any], nodes: int) -> None:
    assert nodes_of({"resources": resources}, cores_per_node=4) == nodes


def test_a_waiting_job_counts_as_held_from_urgency_0_until_it_is_released() -> None:
    queue_id, job = 1, "sim.0"
    journal = opened([job])
    journal.accepted(job, queue_id)

    def happen(name: str, **context: object) -> str:
        entry = {"timestamp": 1.0 + len(past), "name": name, "context": context}
        past.append(entry)
        hear(journal, [{"id": queue_id, "events": [entry]}])
        return journal.held(job)

    past: list[dict[str, Any]] = []
    assert happen("submit", urgency=0) == ""  # as the file says
    for name in ("validate", "depend", "priority"):
        assert happen(name) == ""
    released = "'flux job urgency f2 default' lets it start"
    assert happen("urgency", userid=0, urgency=0) == f"root holds it: {released}"
    assert happen("priority", priority=0) == f"root holds it: {released}"
    assert happen("urgency", userid=0, urgency=16) == ""
    assert happen("urgency", urgency=0) == f"somebody holds it: {released}"

    # A reopened stream repeats all entries.
    journal.reopen()
    hear(journal, [{"id": queue_id, "events": past}, END])
    assert journal.held(job) == f"somebody holds it: {released}"
    happen("urgency", urgency=16)
    for name in ("alloc", "start"):
        happen(name)
    assert happen("urgency", urgency=0) == ""  # it runs already
