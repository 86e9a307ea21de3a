"""Runtime: the thread that runs the engine, with its inbox and clock, and the threads around it.

An example: a job on this machine ends, and a rule then submits another job. These modules are
involved:

1. In the supervisor process, ``local/job_lifecycle`` notices that the job has ended, and
   ``local/event_log`` writes the event. In the controller, ``local/supervisor_client`` receives the
   event and emits it.
2. ``controller`` (the method ``emit``) checks the content of the event with ``event_check``. If the
   job has observers, ``output_tracking`` holds the event until the job's output has been read. Then
   the event is queued.
3. ``controller`` (``_handle``) takes the event from the queue, and ``event_order`` checks its time
   and order.
4. ``engine/engine`` handles the event: ``engine/job_table`` (``take``) changes the job's state and
   drops duplicates, ``engine/rule_evaluation`` (``react``, ``consider``) checks each rule that
   waits for the event, and ``engine/job_completion`` decides about retries and ``idle``.
   ``engine/agenda`` runs the steps that follow.
5. The plan of a rule's action, such as ``submit`` in ``builtin/actions``, yields a decision.
   ``engine/firing`` and ``engine/submission`` create the jobs, and ``engine/effects`` applies the
   decision.
6. ``journal/writer`` writes the event and the decisions to disk. After that, ``orders`` passes the
   jobs to the executor, through ``executor_guard``.
"""
