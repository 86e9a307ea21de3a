"""Parsl: Python apps on its thread executor."""

from __future__ import annotations

from typing import Any

from task import Peer, Task, main

PEER = Peer(
    name="parsl",
    packages=("parsl",),
    settings="ThreadPoolExecutor(max_threads=N), python_app that calls subprocess.run; no usage "
    "tracking, no monitoring, no log; for resume cache=True and checkpoint_mode='task_exit'",
    output="none: jobs write to the terminal (bash_app with stdout= keeps files, and takes longer)",
    durable="no; results with checkpoint_mode='task_exit' (used with a killed controller)",
    objection="Threads are for a laptop; on a cluster, use HighThroughputExecutor, which scales.",
    answer="These benchmarks run on one machine, where threads start jobs fastest.",
)


def run(task: Task) -> None:
    import parsl
    from parsl.config import Config
    from parsl.dataflow.memoization import BasicMemoizer
    from parsl.executors import ThreadPoolExecutor
    from parsl.utils import get_all_checkpoints

    runs = f"{task.folder}/runinfo"
    config = Config(
        executors=[ThreadPoolExecutor(max_threads=task.slots)],
        run_dir=runs,
        strategy="none",
        usage_tracking=0,
        initialize_logging=False,
        memoizer=BasicMemoizer(
            checkpoint_mode="task_exit" if task.durable else None,
            checkpoint_files=get_all_checkpoints(runs) if task.resume else None,
        ),
    )

    def one(number: int, *_: Any) -> int:
        return task.run(number)

    with parsl.load(config):
        app = parsl.python_app(one, cache=task.durable)
        if task.chain:
            last = app(0)
            for number in range(1, task.count):
                last = app(number, last)
            last.result()
        else:
            for future in [app(number) for number in range(task.count)]:
                future.result()


if __name__ == "__main__":
    main(run)
