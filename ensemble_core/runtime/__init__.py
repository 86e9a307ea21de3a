"""Runtime of a run: the inbox, the clock, the engine's thread and the threads around it.

The end of a job on this machine is processed as follows, up to a submit that it causes:

1. In the supervisor process, ``local/job_lifecycle`` notices that the job has ended, and
   ``event_log`` writes the event. In the controller, ``supervisor_client`` receives the event and
   emits it.
2. ``controller`` (``emit``) checks the event's content with ``event_check``. If the job is
   observed, ``output_tracking`` holds the event until the job's output has been read. Then the
   event is queued.
3. ``controller`` (``_handle``) takes the event from the queue, and ``event_order`` checks its time
   and order.
4. ``engine/engine`` handles the event: ``job_table`` (``take``) changes the job's state and drops
   duplicates, ``rule_evaluation`` (``react``, ``consider``) checks each rule that waits for the
   event, and ``job_completion`` decides about retries and ``idle``. ``agenda`` runs further steps.
5. The plan of a rule's action, such as ``submit`` in ``builtin/actions``, yields a decision.
   ``engine/firing`` creates the jobs with ``submission``, and ``effects`` applies the decision.
6. ``journal/writer`` writes the event and the decisions to disk. Only then, ``orders`` passes the
   jobs to the executor, through ``executor_guard``.
"""
