"""Folders of Flux instances in ``/tmp``: those whose process was killed are removed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ensemble_pilot import flux_start

PART = """
import sys
from importlib.machinery import SourceFileLoader
module = SourceFileLoader("flux_start", sys.argv[1]).load_module()
print(module.Part({"folder": "/"}).place, flush=True)
sys.stdin.read()
"""


def test_folder_of_a_killed_part_is_removed_at_the_next_start_and_no_other_one() -> None:
    words = [sys.executable, "-I", "-S", "-W", "ignore", "-c", PART, flux_start.__file__]
    parts: list[subprocess.Popen[bytes]] = []
    folders: list[Path] = []

    def start() -> None:
        part = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        parts.append(part)
        assert part.stdout is not None
        folders.append(Path(part.stdout.readline().decode().strip()))

    try:
        start()
        start()
        (folders[0] / "file").touch()
        parts[0].kill()
        parts[0].wait()
        assert folders[0].exists()
        start()
        assert [folder.exists() for folder in folders] == [False, True, True]
    finally:
        for part in parts:
            part.kill()
            part.communicate()
    flux_start.remove_leftovers()
    assert not any(folder.exists() for folder in folders)
