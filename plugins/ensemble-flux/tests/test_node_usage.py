"""Tests of the gauges of nodes, cores and GPUs, as jobs and nodes come and go."""

from __future__ import annotations

import random
from typing import Any

import pytest
from ensemble_flux.ids_and_hostlists import count_idset, f58, parse_f58, parse_idset
from ensemble_flux.node_usage import Nodes


def resources(ranks: str, cores: str = "0-3", gpus: str | None = None) -> dict[str, Any]:
    children = {"core": cores, **({"gpu": gpus} if gpus is not None else {})}
    return {"version": 1, "execution": {"R_lite": [{"rank": ranks, "children": children}]}}


def cluster(**status: Any) -> Nodes:
    nodes = Nodes()
    nodes.status({"R": resources("0-3", gpus="0-1"), "online": "0-3", **status})
    return nodes


def numbers(nodes: Nodes) -> tuple[float, ...]:
    found = nodes.gauges()
    return tuple(
        found[f"{what}.{how}"] for what in ("nodes", "cores", "gpus") for how in ("up", "free")
    )


def test_an_idle_instance_is_completely_free() -> None:
    assert numbers(cluster()) == (4, 4, 16, 16, 8, 8)
    assert numbers(Nodes()) == (0, 0, 0, 0, 0, 0)


def test_a_job_holds_its_resources_until_it_releases_them() -> None:
    nodes = cluster()
    nodes.alloc(1, resources("0-1", "0-1", "0"))
    nodes.alloc(2, resources("1", "2"))
    assert numbers(nodes) == (4, 2, 16, 11, 8, 6)
    nodes.release(1, "0")  # one of two nodes
    assert numbers(nodes) == (4, 3, 16, 13, 8, 7)
    nodes.release(1, "all")
    nodes.release(1, "all")  # `free` repeats what `release` said
    assert numbers(nodes) == (4, 3, 16, 15, 8, 8)
    nodes.release(2)
    nodes.release(99)
    assert numbers(nodes) == (4, 4, 16, 16, 8, 8)


def test_an_allocation_that_is_reported_twice_counts_once() -> None:
    nodes = cluster()
    nodes.alloc(1, resources("0"))
    nodes.alloc(1, resources("0"))
    assert numbers(nodes)[:4] == (4, 3, 16, 12)


@pytest.mark.parametrize(
    "status",
    [
        {"online": "0-2"},
        {"drain": {"3": {"reason": "disk", "timestamp": 1.0}}},
        {"exclude": "3"},
        {"online": "0-3", "offline": "", "drain": {"3": {}}, "exclude": "3"},
    ],
)
def test_a_node_that_accepts_no_jobs_is_neither_up_nor_free(status: dict[str, Any]) -> None:
    nodes = cluster(**status)
    assert numbers(nodes) == (3, 3, 12, 12, 6, 6)


@pytest.mark.parametrize(
    ("status", "lacking"),
    [
        ({"drain": {"2-3": {}}}, "2,3"),
        ({"online": "0-2", "drain": {"3": {}}}, ""),
        ({"exclude": "0", "drain": {"0": {}}}, ""),
        ({"drain": {"3": {}, "7": {}}}, "3"),
    ],
)
def test_only_drained_nodes_that_jobs_could_use_are_lacking(
    status: dict[str, Any], lacking: str
) -> None:
    """A drained node that is also offline or excluded starts no job when it is undrained."""
    assert cluster(**status).lacking(4) == lacking


def test_a_node_that_goes_down_under_a_job_is_not_free_when_the_job_ends() -> None:
    nodes = cluster()
    nodes.alloc(1, resources("2-3", "0-1"))
    nodes.status({"R": resources("0-3", gpus="0-1"), "online": "0-2"})
    assert numbers(nodes) == (3, 2, 12, 10, 6, 6)
    nodes.release(1)
    assert numbers(nodes) == (3, 3, 12, 12, 6, 6)
    nodes.status({"R": resources("0-3", gpus="0-1"), "online": "0-3"})
    assert numbers(nodes) == (4, 4, 16, 16, 8, 8)


def test_a_guest_uses_the_schedulers_report_of_allocations() -> None:
    nodes = cluster()
    nodes.allocated(resources("0-2", "0-1"))
    assert numbers(nodes)[:4] == (4, 1, 16, 10)
    nodes.allocated(None)
    assert numbers(nodes)[:4] == (4, 4, 16, 16)


def test_after_any_history_the_numbers_equal_a_count() -> None:
    chance = random.Random(7)
    nodes = cluster()
    held: dict[int, dict[int, int]] = {}
    up = {0, 1, 2, 3}
    for step in range(3000):
        kind = chance.random()
        if kind < 0.5:
            first, last = sorted(chance.choices(range(4), k=2))
            cores = chance.randint(1, 4)
            nodes.alloc(step, resources(f"{first}-{last}", f"0-{cores - 1}"))
            held[step] = dict.fromkeys(range(first, last + 1), cores)
        elif kind < 0.95 and held:
            job = chance.choice(list(held))
            rank = chance.choice([*held[job], None])
            nodes.release(job, "all" if rank is None else str(rank))
            held[job] = {} if rank is None else {r: c for r, c in held[job].items() if r != rank}
            if not held[job]:
                del held[job]
        else:
            up = {rank for rank in range(4) if chance.random() < 0.8}
            nodes.status({"R": resources("0-3"), "online": ",".join(map(str, sorted(up)))})
        used = {rank: sum(job.get(rank, 0) for job in held.values()) for rank in range(4)}
        free = {rank for rank in up if not any(rank in job for job in held.values())}
        assert numbers(nodes)[:4] == (
            len(up),
            len(free),
            4 * len(up),
            sum(4 - used[rank] for rank in up),
        )


def test_idsets_are_parsed_as_flux_writes_them() -> None:
    assert parse_idset("[0-2,7]") == {0, 1, 2, 7}
    assert parse_idset("") == set()
    assert count_idset("0-47,50") == 49
    for number in (0, 57, 58, 12901679104, 2**64 - 1):
        assert parse_f58(f58(number)) == number
    with pytest.raises(ValueError, match="not a Flux job id"):
        parse_f58("f0O")
