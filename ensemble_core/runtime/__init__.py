"""Runtime of a run: the inbox, the clock, the engine's thread and the threads around it.

The path of an event of a job on this machine, up to the submit that it causes:

1. ``local/job_lifecycle``, in the supervisor process, sees that the job has ended; ``event_log``
   writes it. In the controller, ``supervisor_client`` receives it and ``executor`` emits it.
2. ``controller`` queues it (``emit``) and takes it (``_handle``). ``event_check`` checks its
   content, ``event_order`` its time and order.
3. ``engine/engine`` handles it: ``job_table`` (``take``) changes the job's state and drops repeats,
   ``agenda`` runs what follows, ``job_completion`` decides about retries and ``idle``, and
   ``rule_evaluation`` (``consider``) looks at each rule that waits for it.
4. The action's plan, such as ``submit`` in ``builtin/actions``, yields a decision.
   ``engine/firing`` creates its jobs with ``submission``, and ``effects`` applies it.
5. ``journal/writer`` writes the event and its decisions to disk. Only then ``orders`` passes the
   jobs to the executor, through ``executor_guard``.
"""
