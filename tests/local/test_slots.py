"""Cores and GPUs of this machine, and how the local executor assigns them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ensemble_core.errors import UsageError
from ensemble_core.local.executor import OPTIONS, LocalExecutor, ensemble_executors
from ensemble_core.local.slots import Slots, machine_cores, visible_gpus
from ensemble_core.model.jobs import Job


def system(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


@pytest.mark.usefixtures("sixteen")
@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        ("0::/\n", {}, 16),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, 16),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000\n"}, 4),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        ("0::/a/b\n", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "nonsense\n"}, 16),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, 16),
        (
            "4:cpu,cpuacct:/x\n0::/\n",
            {
                "cpu,cpuacct/x/cpu.cfs_quota_us": "500000",
                "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            5,
        ),
        (
            "4:cpu:/gone\n",
            {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 16),
    ],
)
def test_cpu_quotas_of_containers_are_respected(
    tmp_path: Path, cgroup: str, files: dict[str, str], cores: int
) -> None:
    assert machine_cores(system(tmp_path, cgroup, files)) == cores


def test_affinity_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    assert machine_cores(tmp_path) == 3


def test_gpus_come_from_cuda_visible_devices() -> None:
    assert visible_gpus(None, {}) == ()
    assert visible_gpus(2, {}) == ("0", "1")
    assert visible_gpus(None, {"CUDA_VISIBLE_DEVICES": "GPU-a, 3"}) == ("GPU-a", "3")
    assert visible_gpus(1, {"CUDA_VISIBLE_DEVICES": "4,5"}) == ("4",)
    assert visible_gpus(None, {"CUDA_VISIBLE_DEVICES": "-1"}) == ()
    assert visible_gpus(None, {"CUDA_VISIBLE_DEVICES": ""}) == ()
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES lists only 4,5"):
        visible_gpus(3, {"CUDA_VISIBLE_DEVICES": "4,5"})


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 4, "max_slots": 2},
        {"slots": 2, "min_slots": 3},
        {"slots": 0},
        {"slots": 4, "min_slots": 0},
        {"min_slots": 8, "max_slots": 4},
    ],
)
def test_contradictory_slot_bounds_are_rejected(options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="are not in order"):
        LocalExecutor(**options)


def test_bounds_limit_the_default() -> None:
    assert LocalExecutor(max_slots=1).resources()["cores.up"] == 1
    assert LocalExecutor(min_slots=500).resources()["cores.up"] == 500


def test_the_plugin_describes_its_executor() -> None:
    (record,) = ensemble_executors()
    built = record.build({"slots": 3, "gpus": 1, "grace": 0.5})
    assert record.name == "local"
    assert record.capabilities == built.capabilities
    assert record.capabilities == {
        *("submit", "cancel", "avoid", "resize", "reattach", "detach", "signal")
    }
    assert built.resources() == {
        "nodes.up": 1,
        "nodes.free": 1,
        "cores.up": 3,
        "cores.free": 3,
        "gpus.up": 1,
        "gpus.free": 1,
    }
    assert record.available is not None
    assert record.available()[0] is True
    assert OPTIONS["additionalProperties"] is False


def job(**fields: Any) -> Job:
    return Job(id="g.0", group="g", index=0, command=("true",), **fields)


def test_gpus_are_disjoint_and_returned_in_order() -> None:
    slots = Slots(8, 1, 8, ("0", "1", "2"))
    first, second = slots.take(1, 1), slots.take(1, 2)
    assert (first, second) == (("0",), ("1", "2"))
    assert not slots.fits(1, 1)
    slots.give_back(1, second)
    slots.give_back(1, first)
    assert slots.take(1, 3) == ("0", "1", "2")


def test_shrink_removes_free_slots_first_and_others_when_jobs_end() -> None:
    slots = Slots(4, 1, 4)
    slots.take(3, 0)
    assert slots.resize(-2) == -2
    assert (slots.size, slots.free) == (2, 0)
    slots.give_back(1, ())
    assert not slots.fits(1, 0)
    slots.give_back(2, ())
    assert slots.free == 2


def test_resizing_stops_at_the_bounds() -> None:
    slots = Slots(4, 2, 6)
    assert [slots.resize(delta) for delta in (5, 1, -9, -1)] == [2, 0, -4, 0]


def test_a_job_that_never_fits_has_a_hint() -> None:
    assert Slots(2, 1, 2).never(job(tasks=2)) is None
    assert "--slots 4" in (Slots(2, 1, 2).never(job(tasks=4)) or "...")[2]
    assert Slots(2, 1, 4).never(job(tasks=4)) is None
    assert "--max-slots 6" in (Slots(2, 1, 4).never(job(tasks=3, cores_per_task=2)) or "...")[2]
    assert "gpus=1" in (Slots(2, 1, 2).never(job(gpus_per_task=1)) or "...")[2]
