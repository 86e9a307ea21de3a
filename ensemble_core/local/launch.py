"""Launches the processes of a job: prepares environment, folder, command and output, then spawns.

A permanent error raises :class:`LaunchError`. A transient error (no process or file descriptor
available) raises :class:`SystemBusy`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from zlib import crc32

from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Run
from ensemble_core.quick_dataclass import dataclass

#: Environment variable that identifies the processes of a job. It lists the jobs from which a
#: process descends, as ``TAG:JOB``, separated by spaces, outermost first. (A run may itself be a
#: job.)
LINEAGE = b"ENSEMBLE_LINEAGE"

#: Attribute of an output file: the run that truncated it.
_WRITER = "user.ensemble.run"
#: By how many seconds the clock of a file server may be behind.
_SKEW = 60.0
#: Size of the cache of programs.
_MOST_FOUND = 1000
#: Errors that are transient.
_SHORT = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY})
#: Signals that Python handles; jobs must start with their default handling.
_RESET = frozenset({signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT})
#: Signals with a handling that no process can set.
_FIXED = frozenset({signal.SIGKILL, signal.SIGSTOP})
#: Prefixes of variables of an outer MPI launcher. If an MPI program found such variables, it would
#: look for the launcher's server.
_OUTER_LAUNCHER = ("PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_", "HYDI_", "FLUX_TASK_")


class LaunchError(Exception):
    """Error: a job cannot be started.

    ``note`` is a message for the user. ``kind`` is the type of the job's exception (``exec``,
    ``workdir`` or ``output``). ``code`` is the exit code of a shell for the same error.
    """

    def __init__(self, note: str, kind: str = "exec", code: int = 126) -> None:
        super().__init__(note)
        self.note = note
        self.kind = kind
        self.code = code


class SystemBusy(Exception):
    """Error: the machine lacks processes, memory or file descriptors; a retry may work."""


@dataclass(slots=True)
class Prepared:
    """Everything that the tasks of a job share when they are spawned."""

    path: bytes
    words: list[bytes]
    environment: dict[bytes, bytes]
    workdir: str
    stdout: str
    stderr: str
    kept: tuple[str, ...]  # output files that are removed if they are empty
    out: int
    err: int

    def close(self) -> None:
        """Close the file descriptors of the output files in this process."""
        if self.out >= 0:
            os.close(self.out)
        if self.err not in (-1, self.out):
            os.close(self.err)
        self.out = self.err = -1


def _move_above_standard(fd: int) -> int:
    """Return a file descriptor above 2: the given one, or a copy of it that replaces it.

    (If standard input or output was closed, a new descriptor can have a number from 0 to 2.)
    """

    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def _set_gpus(environment: dict[bytes, bytes], names: bytes, count: int) -> None:
    """Set the variables that list a task's GPUs; without GPUs, ``names`` is ``-1``."""
    for variable in (b"CUDA_VISIBLE_DEVICES", b"ROCR_VISIBLE_DEVICES", b"ZE_AFFINITY_MASK"):
        environment[variable] = names
    # HIP counts the GPUs that ROCR_VISIBLE_DEVICES leaves, from 0. Without this variable, it would
    # take that of CUDA.
    relative = b",".join(b"%d" % number for number in range(count))
    environment[b"HIP_VISIBLE_DEVICES"] = relative or names
    if count:
        environment.setdefault(b"CUDA_DEVICE_ORDER", b"PCI_BUS_ID")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


class Launcher:
    """Launches the tasks of the jobs of a run. It changes the working directory of this process."""

    def __init__(
        self,
        run: Run,
        environment: Mapping[bytes, bytes],
        folder: str,
        began: float | None = None,
    ) -> None:
        #: An output file that was written later has output of this run: it is not truncated.
        self._began = began
        self._written: set[int] = set()
        self._found: dict[tuple[str, bytes], bytes] = {}
        #: Jobs start with the default handling of these signals: all that are not ignored here. If
        #: the C library is not told, it asks for each signal, which takes 10 µs for each job.
        self._reset = tuple(
            int(number)
            for number in signal.valid_signals() - _FIXED
            if number in _RESET or signal.getsignal(number) is not signal.SIG_IGN
        )
        #: The cores of this thread before it was bound, or ``None``; those to which it is bound.
        self._unbound: set[int] | None = None
        self._bound: Sequence[int] = ()
        self.serve(run, environment, folder)
        self._null = _move_above_standard(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def serve(self, run: Run, environment: Mapping[bytes, bytes], folder: str) -> None:
        """Use the run, environment and folder of a new controller."""
        self._run = run
        self._folder = folder
        self._base = {
            key: value
            for key, value in environment.items()
            if not key.decode("ascii", "replace").startswith(_OUTER_LAUNCHER)
        }
        self._base[b"ENSEMBLE_RUN"] = os.fsencode(run.tag)
        self._lineage = (self._base.get(LINEAGE, b"") + b" " + os.fsencode(run.id)).lstrip() + b":"
        self._kept: str | None = None
        self._here: str | None = None

    def close(self) -> None:
        os.close(self._null)

    def prepare(self, job: Job, gpus_configured: bool) -> Prepared:
        """Return a job's folder, command and environment, and its open output files.

        Raises :class:`LaunchError` or :class:`SystemBusy`, after which no file is open.
        """
        if not job.command or not job.command[0]:
            raise LaunchError("the command is empty", code=127)
        workdir = self._folder
        if job.workdir is not None:
            workdir = os.path.normpath(os.path.join(workdir, job.workdir))
        self._enter(workdir)
        try:
            environment = self._environment(job, gpus_configured)
            path = self._resolve(job.command[0], environment, workdir)
            words = [os.fsencode(word) for word in job.command]
        except ValueError as error:  # a character outside the file system's encoding
            raise LaunchError(f"the command or environment cannot be encoded: {error}") from None
        out_kept, err_kept = job.stdout is None, job.stderr is None
        out_path = self._output_path(job, job.stdout, "out", workdir)
        err_path = self._output_path(job, job.stderr, "err", workdir)
        out = self._open(out_path, out_kept)
        try:
            err = out if err_path == out_path else self._open(err_path, err_kept)
        except BaseException:
            os.close(out)
            raise
        kept = (out_path,) * out_kept + (err_path,) * err_kept
        return Prepared(path, words, environment, workdir, out_path, err_path, kept, out, err)

    def spawn(
        self,
        job: Job,
        prepared: Prepared,
        rank: int,
        gpus: Sequence[str],
        cores: Sequence[int] = (),
    ) -> int:
        """Start one task in its own session. Return its process id.

        ``gpus`` lists the GPUs of this task, ``cores`` the cores to which it is bound; empty: it is
        not bound. Raises :class:`LaunchError` or :class:`SystemBusy`.

        Call :meth:`unbind` at the end of the turn.
        """
        environment = prepared.environment
        environment[b"ENSEMBLE_TASK_RANK"] = b"%d" % rank
        if gpus:
            _set_gpus(environment, os.fsencode(",".join(gpus)), len(gpus))
        if not cores:
            self.unbind()
        if not cores or not self.bind(cores) or len(cores) > 1:
            # A program on one core counts one. With the variable, GROMACS 2022 starts a
            # rank for each core of the machine, and all share this one.
            environment.setdefault(b"OMP_NUM_THREADS", b"%d" % job.cores_per_task)
        try:
            try:
                return self._spawn(prepared.path, prepared.words, environment, prepared)
            except (FileNotFoundError, PermissionError):
                # The program in the cache may have been removed, so search the PATH again.
                self._found.clear()
                path = self._resolve(job.command[0], environment, prepared.workdir)
                if path == prepared.path:
                    raise
                prepared.path = path
                return self._spawn(path, prepared.words, environment, prepared)
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                # A script whose first line has no "#!": run it with the shell, as shells do.
                words = [b"/bin/sh", prepared.path, *prepared.words[1:]]
                return self._spawn(b"/bin/sh", words, environment, prepared)
        except OSError as error:
            raise self._spawn_error(error, job, prepared) from error
        except ValueError as error:
            raise LaunchError(f"invalid command or environment: {error}") from None

    def bind(self, cores: Sequence[int]) -> bool:
        """Bind this thread to the cores, because the next process inherits that.

        Return False if an administrator has taken these cores from this process.
        """
        if cores == self._bound:
            return True
        try:
            if self._unbound is None:
                self._unbound = os.sched_getaffinity(0)
            os.sched_setaffinity(0, cores)
        except OSError:
            self.unbind()
            return False
        self._bound = cores
        return True

    def unbind(self) -> None:
        """Let this thread run on all cores again."""
        if self._unbound is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._unbound)
            self._unbound, self._bound = None, ()

    def _spawn(
        self, path: bytes, words: list[bytes], environment: dict[bytes, bytes], prepared: Prepared
    ) -> int:
        self._enter(prepared.workdir)
        return os.posix_spawn(
            path,
            words,
            environment,
            file_actions=(
                (os.POSIX_SPAWN_DUP2, self._null, 0),
                (os.POSIX_SPAWN_DUP2, prepared.out, 1),
                (os.POSIX_SPAWN_DUP2, prepared.err, 2),
            ),
            setsid=True,
            setsigmask=(),
            setsigdef=self._reset,
        )

    def _spawn_error(self, error: OSError, job: Job, prepared: Prepared) -> Exception:
        name = job.command[0]
        if error.errno in _SHORT:
            return SystemBusy(_reason(error))
        if error.errno == errno.E2BIG:
            return LaunchError(
                f"{name}: arguments and environment are too long; put long lists into a file"
            )
        if isinstance(error, FileNotFoundError):
            if os.path.exists(os.path.join(prepared.workdir, os.fsdecode(prepared.path))):
                return LaunchError(
                    f"{name}: the program exists, but its interpreter or dynamic loader does not",
                    code=127,
                )
            return LaunchError(f"{name}: the program no longer exists", code=127)
        return LaunchError(f"{name} cannot be run: {_reason(error)}")

    def _enter(self, workdir: str) -> None:
        """Change the working directory of this process to the job's folder.

        Create it if necessary.
        """
        if workdir == self._here and workdir == self._folder:
            return
        doing = "enter"
        try:
            try:
                os.chdir(workdir)
            except FileNotFoundError:
                doing = "create"
                os.makedirs(workdir, exist_ok=True)
                doing = "enter"
                os.chdir(workdir)
        except OSError as error:
            self._here = None
            if error.errno in _SHORT:
                raise SystemBusy(_reason(error)) from error
            raise LaunchError(
                f"cannot {doing} the workdir {workdir}: {_reason(error)}", "workdir"
            ) from error
        except ValueError as error:
            raise LaunchError(f"invalid workdir {workdir!r}: {error}", "workdir") from error
        self._here = workdir

    def _environment(self, job: Job, gpus_configured: bool) -> dict[bytes, bytes]:
        environment = dict(self._base)
        if gpus_configured and not job.gpus_per_task:
            _set_gpus(environment, b"-1", 0)
        for key, value in job.environment.items():
            environment[os.fsencode(key)] = os.fsencode(value)
        environment[b"ENSEMBLE_JOB_ID"] = os.fsencode(job.label)
        environment[b"ENSEMBLE_GROUP"] = os.fsencode(job.group)
        environment[b"ENSEMBLE_INDEX"] = b"%d" % job.index
        environment[b"ENSEMBLE_ATTEMPT"] = b"%d" % job.attempt
        environment[b"ENSEMBLE_RUN"] = self._base[b"ENSEMBLE_RUN"]
        environment[b"ENSEMBLE_TASK_COUNT"] = b"%d" % job.tasks
        environment[b"ENSEMBLE_CORES"] = b"%d" % job.cores_per_task
        environment[LINEAGE] = self._lineage + os.fsencode(job.id)
        return environment

    def _resolve(self, name: str, environment: Mapping[bytes, bytes], workdir: str) -> bytes:
        """Search for a program on the job's ``PATH``, as a shell does, and return its path."""
        search = environment.get(b"PATH", os.fsencode(os.defpath))
        found = self._found.get((name, search))
        if found is not None:
            return found
        in_workdir = "/" in name
        folders = [""] if in_workdir else os.fsdecode(search).split(os.pathsep)
        refused: str | None = None
        for folder in folders:
            path = os.path.join(workdir, folder, name)
            try:
                mode = os.stat(path).st_mode
            except PermissionError:
                refused = refused or f"{path}: permission denied"
                continue
            except (OSError, ValueError):
                continue
            if stat.S_ISDIR(mode):
                refused = refused or f"{path} is a folder, not a program"
            elif not os.access(path, os.X_OK, effective_ids=os.access in os.supports_effective_ids):
                refused = refused or f"{path} is not executable; run chmod +x on it"
            else:
                encoded = os.fsencode(path)
                # Results that depend on the job's folder are not cached.
                if all(os.path.isabs(item) for item in ([name] if in_workdir else folders)):
                    if len(self._found) >= _MOST_FOUND:
                        self._found.clear()
                    self._found[name, search] = encoded
                return encoded
        if refused is not None:
            raise LaunchError(f"{name}: {refused}", code=126)
        if in_workdir:
            note = f"{name}: no such file: {os.path.join(workdir, name)}"
        else:
            note = f"{name}: command not found on the job's PATH"
            if os.path.exists(os.path.join(workdir, name)):
                note += f"; for the file in the job's folder, write ./{name}"
        raise LaunchError(note, code=127)

    def _output_path(self, job: Job, wanted: str | None, kind: str, workdir: str) -> str:
        if wanted is not None:
            return os.path.normpath(os.path.join(workdir, wanted))
        name = job.id.replace("/", "_").replace("\0", "_")
        return f"{self._kept or self._create_output_folder()}/{name}.{kind}"

    def _create_output_folder(self) -> str:
        """Create and return the run's folder for the output of jobs for which no file is given."""
        folder = os.path.join(self._folder, self._run.folder)
        if self._kept is None:
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                if error.errno in _SHORT:
                    raise SystemBusy(_reason(error)) from error
                raise LaunchError(
                    f"cannot create the run's folder {folder}: {_reason(error)}", "output"
                ) from error
            self._kept = folder
        return folder

    def _open(self, path: str, kept: bool) -> int:
        """Open an output file for appending. Truncate it if this run opens it for the first time.

        This removes the output of earlier runs, but lets jobs share a file. Devices and pipes are
        not truncated. A file to which a job of another run writes is an error, and unchanged.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY
        mark = hash(path)
        is_new = not kept and mark not in self._written and not self._was_written_by_run(path)
        if kept:
            flags |= os.O_TRUNC
        else:
            flags |= os.O_NONBLOCK  # a named pipe without a reader would block all jobs
        try:
            try:
                fd = os.open(path, flags, 0o666)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                fd = os.open(path, flags, 0o666)
            fd = _move_above_standard(fd)
            if not kept:
                fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
        except OSError as error:
            if error.errno in _SHORT:
                raise SystemBusy(_reason(error)) from error
            raise LaunchError(
                f"cannot open the output file {path}: {_reason(error)}", "output"
            ) from error
        except ValueError as error:
            raise LaunchError(
                f"invalid path of an output file {path!r}: {error}", "output"
            ) from error
        if kept:
            return fd
        if not claim_output(fd, self._run.id):
            os.close(fd)
            raise LaunchError(
                f"a job of another run writes to the output file {path}: give each run its own "
                "files, as with workdir: runs/{run}/{index}",
                "output",
            )
        if is_new:
            with contextlib.suppress(OSError):  # a device or a pipe
                os.ftruncate(fd, 0)
            with contextlib.suppress(OSError):  # not every file system has attributes
                os.setxattr(fd, _WRITER, self._run.id.encode())
        self._written.add(mark)
        return fd

    def _was_written_by_run(self, path: str) -> bool:
        """Return True if a file was written during this run, under another supervisor.

        That is an earlier one, or one of another node in a pilot.
        """
        with contextlib.suppress(OSError, ValueError):
            if os.getxattr(path, _WRITER) == self._run.id.encode():
                return True
        if self._began is None:
            return False
        try:
            return os.stat(path).st_mtime > self._began - _SKEW
        except (OSError, ValueError):
            return False


#: ``struct flock`` of Linux: type, whence, start, length (0: to the end of all files), process.
_FLOCK = "hhqqi"
#: Runs lock bytes behind this one.
_FIRST = 1 << 40


def claim_output(fd: int, run: str) -> bool:
    """Claim an open file for a job of this run. Return False if a job of another run has it open.

    Returns True if the file system has no such locks.
    """
    own = _FIRST + 1 + crc32(run.encode())
    with contextlib.suppress(OSError):  # another job of this run has locked it
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock(own, 1))
    try:
        for start, length in ((_FIRST, own - _FIRST), (own + 1, 0)):
            found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock(start, length))
            if struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK:
                return not stat.S_ISREG(os.fstat(fd).st_mode)  # not /dev/null
    except OSError:
        pass
    return True


def _lock(start: int, length: int) -> bytes:
    return struct.pack(_FLOCK, fcntl.F_WRLCK, 0, start, length, 0)
