"""A base for executors of queues that are asked rather than tell: PBS, LSF, Grid Engine …

:class:`~ensemble_core.plugin.polled.executor.PolledExecutor` is what a plugin inherits, and
:class:`~ensemble_core.plugin.polled.job_script.Batch` and ``QueueJob`` are what it is given and
answers. All three are public names of ``ensemble_core``. ``docs/executor-tutorial.md`` writes one.
"""
