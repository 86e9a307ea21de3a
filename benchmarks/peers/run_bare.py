"""Bare loop of os.posix_spawn and os.waitpid: the limit of this machine, not a peer."""

from __future__ import annotations

import os

from task import Peer, Task, main

PEER = Peer(
    name="bare",
    packages=(),
    settings="os.posix_spawn and os.waitpid in a loop",
    objection="",
    answer="",
    cannot=(("e", "it stores no state, so it cannot resume"), ("g", "it has no rules")),
)


def run(task: Task) -> None:
    environment = dict(os.environ)
    slots = 1 if task.chain else task.slots
    started = ended = 0
    while ended < task.count:
        while started < task.count and started - ended < slots:
            words = task.words(started)
            os.posix_spawn(words[0], words, environment)
            started += 1
        _, status = os.waitpid(-1, 0)
        assert status == 0
        ended += 1


if __name__ == "__main__":
    main(run)
