"""ensemble-python 0.0.16: only the cost of rules, because its jobs need Flux."""

from __future__ import annotations

from task import Peer

_FLUX = (
    "it submits only to Flux; `benchmarks/flux_rate.py --peer` compares it with Ensemble on Flux"
)
PEER = Peer(
    name="ensemble-python",
    packages=("ensemble-python==0.0.16", "river", "pyyaml"),
    settings="its record_event, called with the events of jobs; an empty module replaces Flux",
    output="not asked",
    objection="Most of the time is spent in Flux; real studies have ten rules, not a thousand.",
    answer="True: rules cost much time only if there are many (see “Rules”).",
    cannot=tuple((work, _FLUX) for work in "abcde"),
)
