"""Quantum ESPRESSO plugin: reads the growing output of ``pw.x``.

Every run loads this module, so it only describes the program.
"""

from __future__ import annotations

import os
import re

from ensemble_programs import Kept, Program

from ensemble_core import EnsembleError

#: The options that name the input.
_INPUT = ("-in", "-i", "-inp", "-input", "--input")
_MODE = re.compile(r"restart_mode\s*=\s*(?:'[^']*'|\"[^\"]*\")")
#: The number of SCF cycles so far, also of earlier attempts: the step of a relaxation or dynamics.
_CYCLES = (
    r"^ +(?:number of scf cycles +=|bfgs converged in|Entering Dynamics[:;] +(?:iteration|it) +=) *"
    r"(\d+)"
)
_CONTROL = re.compile(r"^\s*&control\b", re.IGNORECASE | re.MULTILINE)


def _reject(path: str) -> str | None:
    """Return why a folder is not a checkpoint, or ``None``."""
    if not os.path.isdir(path):
        return "it is not a folder"
    file = os.path.join(path, "data-file-schema.xml")
    try:
        with open(file, "rb") as data:
            data.seek(max(0, os.fstat(data.fileno()).st_size - 100))
            whole = data.read().rstrip().endswith(b"</qes:espresso>")
    except OSError as error:
        return f"cannot read its data-file-schema.xml: {error.strerror}"
    return None if whole else "its data-file-schema.xml is truncated, or still being written"


def _resume(kept: Kept) -> list[str]:
    """Return the command with an input that has ``restart_mode = 'restart'``."""
    words = list(kept.words)
    at = next((at for at, word in enumerate(words[:-1]) if word in _INPUT), None)
    if at is None:
        raise EnsembleError(
            "the command names no input, so 'restart_mode' cannot be set",
            hint="write 'pw.x -in FILE' instead of 'pw.x < FILE'",
            code="no-input",
        )
    given = os.path.join(kept.workdir, words[at + 1])
    try:
        with open(given, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise EnsembleError(
            f"cannot read the input {given}: {error.strerror}", code="no-input"
        ) from None
    mode = "restart_mode = 'restart'"
    changed, count = _MODE.subn(mode, text)
    if not count:
        changed, count = _CONTROL.subn(rf"\g<0>\n  {mode}", text, count=1)
    if not count:
        raise EnsembleError(f"the input {given} has no &control", code="no-input")
    name = os.path.basename(given).removesuffix(".restart") + ".restart"
    words[at + 1] = os.path.join(kept.workdir, name)
    with open(words[at + 1], "w", encoding="utf-8") as file:
        file.write(changed)
    return words


ESPRESSO = Program(
    name="espresso",
    title="Quantum ESPRESSO",
    reader="regex",
    columns={
        # The energy of a hybrid functional has two marks, those of its inner cycles have one.
        "energy": r"^!!? +total energy +=\s*(\S+)",
        "accuracy": r"^ +estimated scf accuracy +<\s*(\S+)",
        "estimate": r"^ +total energy +=\s*(\S+) Ry",
        "force": r"^ +Total force =\s*(\S+)",
        "pressure": r"\(kbar\) +P=\s*(\S+)",
        "fermi": r"(?:the Fermi energy is|highest occupied.* level \(ev\):)\s*(\S+)",
        # Without collinear spins, it has three components.
        "magnetization": r"^ +total magnetization +=\s*(\S+) +Bohr",
        "iterations": r"convergence has been achieved in +(\d+) iterations",
        # A hybrid functional has several of these lines before the number.
        "step": r"^ +(?:Self-consistent|Band Structure) Calculation",
    },
    block="step",
    number=_CYCLES,
    live=("accuracy", "estimate"),
    began=r"^ +Program PWSCF v",
    complete=[r"^ +bfgs converged in .*", r"^ +End of molecular dynamics calculation"],
    ended=r"^ +JOB DONE\.",
    other=r"^ +Program \S+ v\.",
    unfinished=[
        r"^ +Maximum CPU time exceeded",
        r"^ +The maximum number of steps has been reached\.",
        r"^ +Program stopped by user request",
    ],
    diverged=[
        r"^!? +total energy +=\s*(?:\*+|[-+]?nan|[-+]?inf).*",
        r"^ +estimated scf accuracy +<\s*(?:\*+|[-+]?nan).*",
        r"^ +charge is wrong.*",
    ],
    failed=[
        r"^ +convergence NOT achieved.*",
        r"^ +Error in routine .*\n.*",
        r"^ +(?:Error condition|SCF NOT).*",
    ],
    step=_CYCLES,
    executables=("pw.x",),
    checkpoint=("*.save", "*/*.save"),
    reject=_reject,
    resume=_resume,
)

ensemble_observers, ensemble_triggers, ensemble_actions = ESPRESSO.hooks()
