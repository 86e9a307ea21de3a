"""Detection of a folder's file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ensemble_core import posix
from ensemble_core.journal.run_store import new_folder
from ensemble_core.posix import filesystem, private_folder, shared_storage

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
server:/home /home nfs4 rw 0 0
lustre@tcp:/x /scratch/big\\040one lustre rw 0 0
sshfs /home/ada/far fuse.sshfs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path: Path) -> str:
    file = tmp_path / "mounts"
    file.write_text(MOUNTS)
    return str(file)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home2/x", "ext4"),
        ("/home/ada/runs", "nfs4"),
        ("/home/ada/far/x", "fuse.sshfs"),
        ("/scratch/big one/run", "lustre"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(
    path: str, kind: str, mounts: str
) -> None:
    assert filesystem(path, mounts) == kind
    assert filesystem(path, "/there/is/none") == ""


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        ("ext4", None),
        ("tmpfs", None),
        ("", None),
        ("nfs4", "nfs4"),
        ("lustre", "lustre"),
        ("fuse.juicefs", "fuse.juicefs"),
    ],
)
def test_shared_file_systems_are_recognised(
    kind: str, shared: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posix, "filesystem", lambda path: kind)
    assert shared_storage("/any") == shared


def test_new_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        new_folder(tmp_path / "a" / "b" / "state", "run-1")
        private_folder(tmp_path / "a" / "c" / "d")
    finally:
        os.umask(before)
    made = [tmp_path / "a", *(path for path in (tmp_path / "a").rglob("*") if path.is_dir())]
    assert len(made) == 7
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        private_folder(tmp_path / "file" / "below")
