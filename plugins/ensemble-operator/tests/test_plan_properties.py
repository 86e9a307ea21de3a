"""Property tests of ``plan`` with random Ensembles, objects and events."""

from __future__ import annotations

import copy
from typing import Any

from ensemble_operator.changes import Create, Delete, Disown, Patch
from ensemble_operator.resource import problems
from fake_namespace import FILE, World, ensemble, member, running
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

OTHER = FILE.replace("'true'", "'false'")
QUICK = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def members(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    for index in range(draw(st.integers(1, 3))):
        size = draw(st.none() | st.integers(1, 4))
        resize = draw(st.sampled_from(["Rules", "HPA", "External", "None"]))
        more: dict[str, Any] = {"resize": resize, "ensemble": draw(st.sampled_from([FILE, OTHER]))}
        if resize == "HPA":
            more["autoscaling"] = {"metrics": []}
        if draw(st.booleans()):
            more["name"] = f"m{index}"
        found.append(member(size, **more))
    return found


@st.composite
def ensembles(draw: st.DrawFn) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "updatePolicy": draw(st.sampled_from(["OnFinish", "Recreate"])),
        "onDelete": draw(st.sampled_from(["Cancel", "Orphan"])),
        "suspend": draw(st.booleans()),
        "state": draw(st.sampled_from([{}, {"claim": "c"}, {"size": "1Gi"}])),
        "install": {"method": draw(st.sampled_from(["View", "Image"]))},
        "sidecar": draw(st.sampled_from([{}, {"port": "6000"}, {"storage": {"size": "1Gi"}}])),
    }
    found = draw(members())
    if draw(st.booleans()):
        spec["ensemble"] = FILE
        for each in found:
            each.pop("ensemble")
    whole = ensemble(*found, **spec)
    assert problems(whole) == []
    return whole


#: Possible events of a world, by name.
EVENTS = (
    "run",
    "end",
    "fail",
    "kill",
    "lose",
    "drop",
    "edit",
    "suspend",
    "time",
    "resize",
    "secret",
)


def happens(world: World, what: str, pick: int) -> None:
    mains = [name for kind, name in world.children if kind in ("MiniCluster", "Job")]
    job = mains[pick % len(mains)] if mains else ""
    if what == "time":
        world.now += 100 * (pick + 1)
    elif what == "suspend":
        world.edit(lambda spec: spec.update(suspend=not spec["suspend"]))
    elif what == "edit":
        spec = world.found["spec"]
        holder = spec if "ensemble" in spec else spec["members"][pick % len(spec["members"])]
        holder["ensemble"] = OTHER if holder["ensemble"] == FILE else FILE
        world.found["metadata"]["generation"] += 1
    elif what == "secret" and world.secrets:
        world.secrets[sorted(world.secrets)[pick % len(world.secrets)]] = None
    elif what == "lose" and world.children:
        kind, name = sorted(world.children)[pick % len(world.children)]
        world.delete(kind, name)
    elif job and what == "resize" and ("MiniCluster", job) in world.children:
        world.children[("MiniCluster", job)]["spec"]["size"] = pick + 1
    elif job and what == "run":
        world.runs(job)
    elif job and what in ("end", "fail"):
        world.ends(job, int(what == "fail"))
    elif job and what == "kill":
        world.killed(job)
    elif job and what == "drop":
        world.pods.pop(f"{job}-0", None)


HISTORY = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 7)), max_size=8)


@QUICK
@given(ensembles(), HISTORY)
def test_after_any_events_it_settles_and_then_does_nothing(
    found: dict[str, Any], history: list[tuple[str, int]]
) -> None:
    world = World(found)
    world.settle(20)
    for what, pick in history:
        happens(world, what, pick)
        world.settle(20)
        assert world.plan().changes == ()
        assert world.plan().status == world.status


@QUICK
@given(ensembles(), HISTORY)
def test_a_plan_is_a_function_of_its_observations(
    found: dict[str, Any], history: list[tuple[str, int]]
) -> None:
    world = World(found)
    for what, pick in history:
        assert world.plan() == world.plan()
        happens(world, what, pick)
        world.step()
        world.kubernetes()


@QUICK
@given(ensembles(), st.sets(st.integers(0, 40)))
def test_any_missing_children_are_recreated(found: dict[str, Any], gone: set[int]) -> None:
    assume(not found["spec"]["suspend"])
    world = World(found)
    world.settle(20)
    whole = set(world.children), {name for name, each in world.secrets.items() if each}
    keys = sorted(world.children)
    for index in gone:
        if index < len(keys) and keys[index] in world.children:
            world.delete(*keys[index])
    world.settle(20)
    lost = {e["name"] for e in world.status["members"] if e.get("result") == "Lost"}
    if not lost:
        assert (set(world.children), {n for n, each in world.secrets.items() if each}) == whole


@QUICK
@given(ensembles(), HISTORY, st.sets(st.integers(0, 40)))
def test_foreign_objects_are_never_touched_and_sizes_never_written(
    found: dict[str, Any], history: list[tuple[str, int]], foreign: set[int]
) -> None:
    world = World(copy.deepcopy(found))
    world.settle(20)
    for index, key in enumerate(sorted(world.children)):
        if index in foreign:  # from here on it has another owner
            world.children[key]["metadata"]["ownerReferences"][0]["uid"] = "another"
    theirs = {
        key: copy.deepcopy(each)
        for key, each in world.children.items()
        if each["metadata"]["ownerReferences"][0]["uid"] == "another"
    }
    for what, pick in history:
        if what not in ("lose", "resize"):
            happens(world, what, pick)
        made = world.plan()
        for change in made.changes:
            if isinstance(change, (Patch, Disown)):
                kind = change.found["kind"]
                assert kind != "MiniCluster" or isinstance(change, Disown)
                assert (kind, change.found["metadata"]["name"]) not in theirs
            elif isinstance(change, (Create, Delete)):
                key = (
                    (change.kind, change.name)
                    if isinstance(change, Delete)
                    else (change.body["kind"], change.body["metadata"]["name"])
                )
                assert key not in theirs
        world.step()
        for key, each in theirs.items():
            now = {k: v for k, v in world.children[key].items() if k != "status"}
            assert now == {k: v for k, v in each.items() if k != "status"}


@QUICK
@given(ensembles(), HISTORY)
def test_a_finished_run_is_never_started_again(
    found: dict[str, Any], history: list[tuple[str, int]]
) -> None:
    world = running(found) if not found["spec"]["suspend"] else World(found)
    over: set[str] = set()
    for what, pick in history:
        happens(world, what, pick)
        for _ in range(4):
            made = world.plan()
            for change in made.changes:
                if isinstance(change, Create):
                    noted = change.body["metadata"]["annotations"]
                    assert noted.get("ensemble.flux-framework.org/run") not in over
            world.step()
            world.kubernetes()
        ended = [e for e in world.status["members"] if e.get("finishedAt")]
        over = {str(each["run"]) for each in ended}
