"""Commands that contain a job's script, so that the job needs no shared folder.

Pass a jobspec's text as an argument. Never paste it into our own shell code, where it could inject
commands.
"""

from __future__ import annotations

import re
import shlex

from ensemble_jobspec.workload import Script

#: The option with which each interpreter takes a program as an argument.
_TAKES = (
    (re.compile(r"(ba|da|z|k|mk|a)?sh\Z"), "-c"),
    (re.compile(r"python[0-9.]*\Z|pypy[0-9.]*\Z"), "-c"),
    (re.compile(r"(perl|ruby|node|Rscript|lua)[0-9.]*\Z"), "-e"),
)
#: Maximum length of an argument in bytes, somewhat below Linux' limit of 128 KiB.
_MOST = 100_000
#: Command that writes a script to a file, runs the file, and removes it.
_CARRY = (
    'f=$(umask 077; mktemp "${TMPDIR:-/tmp}/jobspec.XXXXXX") || exit 126; '
    "trap 'rm -f \"$f\"' EXIT; trap 'exit 143' TERM; "
    'printf %s "$@" >"$f" && chmod 700 "$f" && "$f"'
)


def script_words(script: Script) -> tuple[str, ...]:
    """Return the command that runs a script: its interpreter, with the text as an argument.

    >>> script_words(Script("#!/usr/bin/env python3\\nprint(1)\\n"))
    ('/usr/bin/env', 'python3', '-c', '#!/usr/bin/env python3\\nprint(1)\\n')
    """
    first = script.text.split("\n", 1)[0]
    words = first[2:].split(None, 1) if first.startswith("#!") else []
    if not words:
        words = ["sh"]
    if len(words) > 1:
        # The kernel passes the rest of the interpreter line as one word; env splits it with -S.
        rest = words[1].strip()
        split = words[0].rpartition("/")[2] == "env" and rest.startswith("-S")
        words = [words[0], *(shlex.split(rest[2:]) if split else [rest])]
    small = len(script.text.encode(errors="surrogatepass")) <= _MOST
    program = words[-1] if words[0].rpartition("/")[2] == "env" else words[0]
    flag = next((flag for kind, flag in _TAKES if kind.match(program.rpartition("/")[2])), None)
    if small and flag is not None:
        name = [script.name] if _TAKES[0][0].match(program.rpartition("/")[2]) else []
        return (*words, flag, script.text, *name)
    text = script.text if first.startswith("#!") else f"#!/bin/sh\n{script.text}"
    step = _MOST // 4  # characters of UTF-8 have up to four bytes
    parts = [text[at : at + step] for at in range(0, len(text), step)]
    return ("sh", "-c", _CARRY, script.name, *parts)
