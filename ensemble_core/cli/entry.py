"""Entry point of the installed script ``ensemble``."""

import _signal  # type: ignore[import-not-found]  # ``signal`` imports ``enum``
import os
import sys

from ensemble_core.cli import end_at_ctrl_c


def _drop_current_folder() -> None:
    """Import nothing from the current folder, where others may be able to write.

    Python adds it for an empty entry of ``PYTHONPATH`` and for ``python -m``. It stays if
    ``PYTHONPATH`` names it, or if it is a place of installed packages.
    """
    try:
        here = os.getcwd()
    except OSError:
        return
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if any(place and os.path.realpath(place) == here for place in named):
        return
    library = os.path.dirname(os.__file__)
    ours = sys.path.index(library) if library in sys.path else len(sys.path)
    sys.path[:ours] = [place for place in sys.path[:ours] if place not in ("", here)]


class _QuickEnd:
    """End of the process without the teardown of all modules, which took 6 % of a run of one job.

    The teardown remains if it may have something to do: write the buffer of a file that is still
    open, call a function that was to be called after this one, or report an exception.

    A plugin that opens a second file object of the standard output or error has to flush it: to
    search for such objects takes 7 ms.
    """

    def __init__(self) -> None:
        import atexit

        self.code: object = ""
        self._files = self._open_files()
        if not atexit._ncallbacks():  # noqa: SLF001
            atexit.register(self._end)

    @staticmethod
    def _open_files() -> "set[str]":
        try:
            return {*os.listdir("/proc/self/fd")}
        except OSError:
            return set()

    def _end(self) -> None:
        files = self._open_files()
        if isinstance(self.code, int) and files and files <= self._files:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            except (OSError, ValueError, AttributeError):
                return
            os._exit(self.code)


def main(prog_name: "str | None" = None) -> None:
    """Run the command line."""
    # During the import of the command line, Python's own handler would print a traceback at Ctrl-C,
    # or ignore Ctrl-C where the interpreter discards exceptions.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, end_at_ctrl_c)
    _drop_current_folder()
    import gc

    gc.disable()  # what an import creates is no garbage
    from ensemble_core.cli.main import main as run

    gc.enable()
    # Only for the script, whose exit code is that of ``run``; other callers may go on.
    quick = _QuickEnd() if sys._getframe(1).f_back is None else None  # noqa: SLF001
    try:
        run(prog_name=prog_name)
    except SystemExit as end:
        if quick is not None:
            quick.code = end.code
        raise
