"""Rule tests in YAML: given events, and the expected decisions of an ensemble's rules.

``test_file`` reads and checks a file. ``given_steps`` (based on ``step_reader``) and
``expectations`` define the file's keywords, and ``decision_words`` those of decisions. ``player``
runs a test with the engine on ``scripted_queue``, with a virtual clock. ``recording`` creates a
file from a kept run, and ``junit`` writes the report. Used by ``ensemble test`` and by the pytest
plugin.
"""
