"""Optuna: a study whose objective runs the command."""

from __future__ import annotations

from task import Peer, Task, main

PEER = Peer(
    name="optuna",
    packages=("optuna",),
    settings="optimize(n_trials=N, n_jobs=SLOTS), RandomSampler, storage in memory; "
    "for resume JournalStorage with a file, and n_trials minus the complete ones",
    output="none: jobs write to the terminal",
    durable="no; trials with a storage on disk (used with a killed controller)",
    objection="Optuna chooses parameters; it is no job runner. It does not say where a trial runs.",
    answer="True: it is included because, without Ensemble, many adaptive studies are run by "
    "Optuna's own loop. Ensemble can also use Optuna as a generator (ensemble-optuna).",
)


def run(task: Task) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import Trial, TrialState

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = JournalStorage(JournalFileBackend(f"{task.folder}/journal")) if task.durable else None
    study = optuna.create_study(
        storage=storage,
        study_name="study",
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(),
    )
    done = len(study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]))

    def objective(trial: Trial) -> float:
        task.run(trial.number)
        return trial.suggest_float("x", 0, 1)

    study.optimize(objective, n_trials=task.count - done, n_jobs=1 if task.chain else task.slots)


if __name__ == "__main__":
    main(run)
