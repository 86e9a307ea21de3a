"""Runtime of a run: the inbox, the clock, the engine's thread and the threads around it.

The end of a job on this machine is processed as follows, up to a submit that it causes:

1. In the supervisor process, ``local/job_lifecycle`` notices that the job has ended, and
   ``event_log`` writes the event. In the controller, ``supervisor_client`` receives the event, and
   ``executor`` emits it.
2. ``controller`` queues the event (``emit``) and takes it from the queue (``_handle``).
   ``event_check`` checks the event's content, and ``event_order`` checks its time and order.
3. ``engine/engine`` handles the event: ``job_table`` (``take``) changes the job's state and drops
   duplicates, ``agenda`` runs the steps that follow, ``job_completion`` decides about retries and
   ``idle``, and ``rule_evaluation`` (``consider``) checks each rule that waits for the event.
4. The plan of a rule's action, such as ``submit`` in ``builtin/actions``, yields a decision.
   ``engine/firing`` creates the jobs with ``submission``, and ``effects`` applies the decision.
5. ``journal/writer`` writes the event and the decisions to disk. Only then, ``orders`` passes the
   jobs to the executor, through ``executor_guard``.
"""
