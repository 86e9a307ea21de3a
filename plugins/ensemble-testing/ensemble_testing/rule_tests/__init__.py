"""Rule tests: what is given to an ensemble's rules, and what is expected of them, in YAML.

``test_file`` reads and checks a file of them; ``given_steps`` has the words of what happens (their
base is ``step_reader``) and ``expectations`` those of what is looked at; ``decision_words`` says
decisions. ``scripted_queue`` is the queue that does what a test says, and ``player`` runs a test on
it with the engine, on a virtual clock. ``recording`` makes a file of a kept run, ``junit`` is the
report. Used by ``ensemble test`` and by the pytest plugin of ``ensemble_testing``.
"""
