"""HyperQueue: its Python package, with server and worker in this process."""

from __future__ import annotations

from pathlib import Path

from task import Peer, Task, main

PEER = Peer(
    name="hyperqueue",
    packages=("hyperqueue",),
    settings="LocalCluster with one worker of N cores; one Job of N programs, stdout and stderr "
    "None; in a chain deps=[previous task]",
    output="none (stdout=None, stderr=None)",
    durable="no: the program hq has a journal (hq server start --journal), the Python package "
    "does not",
    objection="With the program hq, the server runs in a separate process, and one description "
    "is sent for all tasks (hq submit --array).",
    answer="PyPI does not have the program hq, so the benchmark uses the Python package. With hq, "
    "too, the worker starts one process for each job.",
    cannot=(("e", "the package on PyPI has no journal"),),
)


def run(task: Task) -> None:
    from hyperqueue import Job, LocalCluster
    from hyperqueue.cluster import WorkerConfig

    server = Path(task.folder, "server")
    server.mkdir()
    with LocalCluster(str(server), worker_config=WorkerConfig(cores=task.slots)) as cluster:
        client = cluster.client()
        job = Job(default_workdir=task.folder, max_fails=1)
        last = None
        for number in range(task.count):
            deps = [last] if task.chain and last else []
            last = job.program(task.words(number), stdout=None, stderr=None, deps=deps)
        client.wait_for_jobs([client.submit(job)])


if __name__ == "__main__":
    main(run)
