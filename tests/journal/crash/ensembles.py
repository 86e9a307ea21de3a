"""Ensembles for crash tests: each uses a feature that a resume could break.

Submits and firings depend on the outcomes of jobs alone, not on times. So a killed run must equal an
undisturbed one. For the ensembles in ``LOOSE``, only general rules are checked.
"""

from __future__ import annotations

__all__ = ["ENSEMBLES", "LOOSE"]

ENSEMBLES: dict[str, str] = {
    "small": """
jobs:
  - {name: work, command: x, count: 2, options: {disk: {lasts: 0.01}}}
  - {name: server, command: x, options: {disk: {lasts: 3600}}}
  - {name: tail, command: x, options: {disk: {lasts: 0.01}}}
rules:
  - {id: begin, trigger: start, action: [{name: submit, label: server}, {name: submit, label: work}]}
  - {id: done, trigger: metric, name: count.work.success, when: 2,
     action: [{name: cancel, label: server}, {name: grow, value: 1}, {name: custom, label: more}]}
  - {id: raised, trigger: job-exception, repetitions: 9, action: {name: log, message: "{job}"}}
custom: |
  def more(**rest):
      return Action({"name": "submit", "label": "tail"})
""",
    "retry": """
jobs:
  - {name: work, command: x, count: 5, options: {disk: {fails: 0.4}}}
  - {name: again, command: x, options: {disk: {fails: 0.5}}}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: work}}
  - {id: retry, trigger: job-fail, name: work, repetitions: 4, action: {name: submit, label: again}}
  - {id: again, trigger: job-fail, name: again, repetitions: 3, action: {name: submit, label: again}}
  - {id: raised, trigger: job-exception, repetitions: 20, action: {name: log, message: "{job}"}}
""",
    "chain": """
jobs:
  - {name: first, command: x, count: 4, options: {disk: {lasts: 0.02}}}
  - {name: second, command: x, count: 2, options: {disk: {lasts: 0.02}}}
  - {name: third, command: x}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: first}}
  - {id: each, trigger: job-success, name: first, repetitions: 9, action: {name: submit, label: second}}
  - {id: some, trigger: metric, name: count.second.finished, when: ">= 3", repetitions: 2, backoff: 2,
     action: {name: submit, label: third}}
  - {id: mean, trigger: metric, name: mean.third-duration, when: "> 0", repetitions: 2,
     action: {name: log, message: "{value}"}}
  - {id: cascade, trigger: metric, name: count.third.submitted, when: 2, action: {name: submit, label: third}}
""",
    "join": """
jobs:
  - {name: work, command: x, count: 4, options: {disk: {fails: 0.2}}}
  - {name: refine, command: x}
  - {name: joined, command: x}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: work}}
  - {id: decide, trigger: job-finish, name: work, repetitions: 8, action: {name: custom, label: decide}}
  - {id: invent, trigger: metric, name: count.work.success, when: ">= 1", action: {name: custom, label: invent}}
  - {id: quiet, enabled: false, trigger: job-success, name: joined, action: {name: submit, label: refine}}
custom: |
  import json, os
  def note(name, event):
      line = json.dumps({"call": name, "job": event.get("job"), "attempt": event["attempt"]})
      with open("calls.jsonl", "a") as file:
          file.write(line + "\\n")
  def decide(event, job, **rest):
      note("decide", event)
      return Action({"name": "submit", "label": "refine", "with": {"tasks": 1 + job["index"] % 2}})
  def invent(event, **rest):
      note("invent", event)
      return [
          Rule({"trigger": "metric", "name": "count.refine.finished", "when": ">= 3",
                "action": [{"name": "submit", "label": "joined"}, {"name": "enable", "rules": ["quiet"]}]}),
          Rule({"trigger": "job-success", "name": "refine", "repetitions": 20,
                "action": {"name": "log", "message": "{job}"}}),
      ]
""",
    "paced": """
limits: {submits_per_second: 60}
jobs:
  - {name: sweep, command: "x {T}", count: 7, parameters: {T: [1, 2, 3, 4]}, options: {disk: {fails: 0.1}}}
  - {name: more, command: x, count: 30}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: sweep}}
  - {id: more, trigger: metric, name: count.sweep.finished, when: 20, action: {name: submit, label: more}}
  - {id: failed, trigger: job-fail, repetitions: 99, action: {name: log, message: "{job} {T}"}}
""",
    "cancel": """
jobs:
  - {name: work, command: x, count: 4}
  - {name: server, command: x, count: 3, options: {disk: {lasts: 3600}}}
  - {name: tail, command: x}
rules:
  - {id: begin, trigger: start, action: [{name: submit, label: server}, {name: submit, label: work}]}
  - {id: stop, trigger: metric, name: count.work.finished, when: 4, action: {name: cancel, label: server}}
  - {id: told, trigger: job-cancel, name: server, repetitions: 9, action: {name: submit, label: tail}}
  - {id: raised, trigger: job-exception, repetitions: 20, action: {name: log, message: "{job}"}}
""",
    "resize": """
logging: {heartbeat: 30}
jobs: [{name: work, command: x, count: 2}, {name: big, command: x}]
rules:
  - {id: begin, trigger: start, action: {name: submit, label: work}}
  - {id: grow, trigger: job-success, name: work, repetitions: 6,
     action: [{name: grow, value: 1}, {name: set, label: big, with: {tasks: 3}}]}
  - {id: granted, trigger: resize-granted, repetitions: 3, action: {name: submit, label: big}}
  - {id: denied, trigger: resize-denied, repetitions: 9, action: {name: log, message: denied}}
  - {id: back, trigger: metric, name: count.big.success, when: 2, action: {name: shrink, value: 1}}
  - {id: over, trigger: metric, name: count.big.success, when: 3, action: {name: terminate}}
""",
    "terminate": """
jobs:
  - {name: work, command: x, count: 3}
  - {name: server, command: x, count: 3, options: {disk: {lasts: 3600}}}
rules:
  - {id: begin, trigger: start, action: [{name: submit, label: server}, {name: submit, label: work}]}
  - {id: over, trigger: metric, name: count.work.finished, when: 3, action: {name: terminate, exit_code: 5}}
  - {id: never, trigger: job-cancel, repetitions: 9, action: {name: submit, label: work}}
""",
    "leave": """
jobs:
  - {name: work, command: x, count: 3}
  - {name: last, command: x, count: 3, options: {disk: {lasts: 3600}}}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: work}}
  - {id: over, trigger: metric, name: count.work.finished, when: 3,
     action: [{name: submit, label: last}, {name: terminate, exit_code: 5, cancel: false}]}
""",
    "timers": """
logging: {heartbeat: 0.05}
jobs: [{name: tick, command: x}, {name: beat, command: x, options: {disk: {fails: 0.3}}}]
rules:
  - {id: tick, trigger: interval, seconds: 0.04, repetitions: 5, action: {name: submit, label: tick}}
  - {id: beat, trigger: heartbeat, repetitions: 4, action: {name: submit, label: beat}}
  - {id: late, trigger: metric, name: count.tick.success, when: ">= 2", repetitions: 3,
     action: {name: log, message: "{value}"}}
  - {id: failed, trigger: job-fail, name: beat, repetitions: 9, action: {name: log, message: "{job}"}}
""",
    "observed": """
jobs:
  - {name: watched, command: x, count: 3, observe: {json-lines: {fields: [step, x]}}}
  - {name: tail, command: x}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: watched}}
  - {id: rows, trigger: observed, name: watched, when: step == 19, repetitions: 9,
     action: {name: log, message: "{job}"}}
  - {id: least, trigger: metric, name: min.watched-x, when: "< 0", action: {name: submit, label: tail}}
  - {id: all, trigger: metric, name: sum.watched-step, when: 570, action: {name: submit, label: tail}}
""",
    "wild": """
logging: {heartbeat: 0.03}
limits: {submits_per_second: 80}
jobs:
  - {name: work, command: x, count: 12, options: {disk: {fails: 0.3, lasts: 0.05}}}
  - {name: more, command: x, count: 2, options: {disk: {lasts: 0.02}}}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: work}}
  - {id: soon, trigger: job-finish, name: work, repetitions: 5, backoff: 0.02s, action: {name: submit, label: more}}
  - {id: one, trigger: job-start, name: more, repetitions: 3, action: {name: cancel}}
  - {id: some, trigger: metric, name: count.work.failed, when: ">= 2", action: {name: cancel, label: work}}
  - {id: tick, trigger: interval, seconds: 0.02, repetitions: 6, action: {name: submit, label: more}}
  - {id: slow, trigger: metric, name: mean.work-pending, when: "> 0", repetitions: 4, action: {name: log, message: "{value}"}}
  - {id: over, trigger: metric, name: count.more.finished, when: ">= 9", action: {name: terminate, exit_code: 7}}
""",
}

#: Ensembles whose decisions depend on times.
LOOSE = frozenset({"wild"})
