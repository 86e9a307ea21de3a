"""libEnsemble: predefined points for workers in threads."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

from task import Peer, Task, main

PEER = Peer(
    name="libensemble",
    packages=("libensemble", "gest-api"),
    settings="comms='threads', N workers, safe_mode off, no log files; H0 of N points with "
    "give_pregenerated_sim_work; in a chain a generator on the manager, one point at a time; "
    "for resume save_every_k_sims=1",
    output="none: jobs write to the terminal",
    durable="no; the history with save_every_k_sims=1 (used with a killed controller)",
    objection="libEnsemble scales over nodes by MPI with many workers, and simulations take "
    "minutes. The manager's loop was not designed for jobs of 1 ms.",
    answer="True: what a tool adds to each job does not matter for jobs of minutes.",
)


def run(task: Task) -> None:
    import numpy as np
    from libensemble import Ensemble
    from libensemble.alloc_funcs.give_pregenerated_work import give_pregenerated_sim_work
    from libensemble.alloc_funcs.start_only_persistent import only_persistent_gens
    from libensemble.specs import AllocSpecs, ExitCriteria, GenSpecs, LibeSpecs, SimSpecs

    os.chdir(task.folder)
    counter = iter(range(task.count))

    def simulate(asked: Any, persis_info: Any, specs: Any, _: Any) -> tuple[Any, Any]:
        task.run(next(counter) if task.chain else int(asked["x"][0]))
        found = np.zeros(1, dtype=specs["out"])
        found["f"] = 0.0
        return found, persis_info

    specs = LibeSpecs(
        comms="threads",
        nworkers=1 if task.chain else task.slots,
        gen_on_manager=True,
        safe_mode=False,
        disable_log_files=True,
        save_H_and_persis_on_abort=False,
        **({"save_every_k_sims": 1} if task.durable else {}),
    )
    study = Ensemble(libE_specs=specs, exit_criteria=ExitCriteria(sim_max=task.count))
    if task.chain:
        from gest_api.vocs import VOCS
        from libensemble.gen_classes import UniformSample

        vocs = VOCS(variables={"x0": [0.0, 1.0]}, objectives={"f": "MINIMIZE"})
        study.alloc_specs = AllocSpecs(alloc_f=only_persistent_gens, user={"async_return": True})
        study.gen_specs = GenSpecs(
            generator=UniformSample(vocs, random_seed=0),
            persis_in=["x", "f", "sim_id"],
            outputs=[("x", float, (1,))],
            batch_size=1,
            initial_batch_size=1,
        )
        study.sim_specs = SimSpecs(sim_f=simulate, inputs=["x"], outputs=[("f", float)])
    else:
        todo = np.arange(task.count)
        if task.resume:
            saved = glob.glob("libE_history_*.npy")
            if saved:
                kept = np.load(max(saved, key=lambda name: Path(name).stat().st_mtime))
                todo = np.setdiff1d(todo, kept["x"][kept["sim_ended"]])
        fields = [("x", int), ("sim_id", int), ("sim_started", bool), ("sim_ended", bool)]
        points = np.zeros(len(todo), dtype=fields)
        points["x"], points["sim_id"] = todo, np.arange(len(todo))
        study.H0 = points
        study.exit_criteria = ExitCriteria(sim_max=len(todo))
        study.alloc_specs = AllocSpecs(alloc_f=give_pregenerated_sim_work)
        study.sim_specs = SimSpecs(sim_f=simulate, inputs=["x"], outputs=[("f", float)])
    study.run()


if __name__ == "__main__":
    main(run)
