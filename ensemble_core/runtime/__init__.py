"""Runtime: the engine's thread with its inbox and clock, and the other threads of a run.

An example shows what each module does. A job on this machine ends, and a rule then submits another
job:

1. In the supervisor process, ``local/job_lifecycle`` notices that the job has ended, and
   ``local/event_recorder`` writes the event. In the controller, ``local/supervisor_client``
   receives the event.
2. ``event_check`` checks the event's content (``Admission``). If the job has observers,
   ``output_tracking`` holds the event until the job's output has been read. Then the event waits in
   the inbox of ``controller``.
3. ``controller`` takes the event from the inbox, and ``event_check`` checks its time and order
   (``OrderCheck``).
4. ``engine/engine`` handles the event: ``engine/job_events`` changes the job's state,
   ``engine/rule_evaluation`` checks each rule that waits for the event, and
   ``engine/job_completion`` decides about retries.
5. The rule's action is ``submit``: its function in ``builtin/actions`` yields a decision.
   ``engine/submission`` creates the jobs, and ``engine/decision_effects``
   applies the decision.
6. ``journal/writer`` writes the event and the decision, for an executor of this machine on the
   same thread. After that, ``orders`` passes the jobs to the executor on another thread, through
   ``executor_guard``.
"""
