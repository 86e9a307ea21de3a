"""Dask: futures of ``dask.distributed`` on a LocalCluster."""

from __future__ import annotations

from task import Peer, Task, main

PEER = Peer(
    name="dask",
    packages=("distributed",),
    settings="LocalCluster(processes=False, n_workers=1, threads_per_worker=N), no dashboard; "
    "client.map, in a chain client.submit with the previous future as argument",
    output="none: jobs write to the terminal of the worker",
    durable="no: the scheduler keeps its state in memory",
    objection="Tasks are Python functions. Dask is not made for starting a process in each, and "
    "its documentation advises against tasks of less than 100 ms.",
    answer="In HPC, jobs are programs. Dask starts programs fastest from threads of one process "
    "(worker processes took longer). For functions in one process, use Dask.",
)


def run(task: Task) -> None:
    from distributed import Client, LocalCluster

    cluster = LocalCluster(
        processes=False,
        n_workers=1,
        threads_per_worker=task.slots,
        dashboard_address=None,
        silence_logs=50,
    )
    with cluster, Client(cluster) as client:
        if task.chain:
            last = client.submit(task.run, 0, pure=False)
            kept = [last]  # Dask forgets futures without references
            for number in range(1, task.count):
                last = client.submit(task.run, number, last, pure=False)
                kept.append(last)
            last.result()
        else:
            client.gather(client.map(task.run, range(task.count), pure=False))


if __name__ == "__main__":
    main(run)
