"""Command group with Ensemble's error messages and exit codes.

The exit code of an error is 2 for an invalid command line or file, 70 for an internal error in
Ensemble or a plugin, and 1 for any other error. If signal N ends a command, it is 128 + N.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

import click

from ensemble_core.cli import end_at_ctrl_c
from ensemble_core.errors import EnsembleError, did_you_mean, is_interrupt

#: Exit code for an internal error (``EX_SOFTWARE`` in sysexits.h).
FAULT = 70
#: Errors of a full disk, for example that of the file to which stdout is redirected.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CommandGroup(click.Group):
    """A click group with Ensemble's error messages, suggestions and exit codes."""

    #: Commands that install their own signal handlers.
    handle_signals: frozenset[str] = frozenset()
    #: Whether this process runs a single command, so that its garbage collector may be tuned.
    is_program = False

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.handle_signals:
            _end_at_ctrl_c(ctx)
        command = self.get_command(ctx, name)
        if command is not None:
            return name, command, args[1:]
        if not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}. {self.hint(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def hint(self, name: str, known: Sequence[str]) -> str:
        """Return the hint for an unknown command."""
        listed = f"Commands are {', '.join(known)}."
        return did_you_mean(name, known, listed, form="Did you mean {!r}?")

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command. By default, exit with its exit code."""
        run = super().main
        if not standalone_mode:
            return run(args, prog_name, complete_var, standalone_mode=False, **extra)
        _open_closed_streams()
        fault: Exception | None = None
        # Most objects that are created at the start, such as modules, live until the end.
        gc.set_threshold(50_000, 20, 20)
        CommandGroup.is_program = True
        try:
            if signal.getsignal(signal.SIGINT) is end_at_ctrl_c:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            code = run(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except (KeyboardInterrupt, EOFError, click.Abort):
            code = 130
        except EnsembleError as error:
            from ensemble_core.cli.error_format import print_error

            print_error(error)
            code = error.exit_code
        except OSError as error:
            from ensemble_core.display.text_style import close_quietly

            if error.errno == errno.EPIPE:
                close_quietly(sys.stdout)
                code = 141
            elif error.errno in _FULL:
                close_quietly(sys.stdout)
                where = error.filename or "the output"
                click.echo(f"error: cannot write {where}\n  because: {error.strerror}", err=True)
                code = 1
            else:
                fault = error
        except Exception as error:  # as a last resort: a message instead of a traceback
            fault = error
        finally:
            CommandGroup.is_program = False
        if fault is not None:
            code = 130 if is_interrupt(fault) else FAULT
        if code == 130 and threading.current_thread() is threading.main_thread():
            # The command is done, so a late Ctrl-C must not change its exit code.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if fault is not None:
            _report_fault(fault, silent=code == 130)
        sys.exit(code if isinstance(code, int) else 0)


def _end_at_ctrl_c(ctx: click.Context) -> None:
    """Make Ctrl-C end the process immediately while the context ``ctx`` is open.

    Otherwise, Python may drop a ``KeyboardInterrupt`` that is raised during an import, and leave
    the import lock held. The command would then continue, and its first thread that imports a
    module would block forever.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        ctx.call_on_close(lambda: signal.signal(signal.SIGINT, before))


def _open_closed_streams() -> None:
    """Open standard streams that were closed (``>&-``).

    Otherwise, the files that are opened next, such as the output of a job, would get their file
    descriptors.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            stream = open(descriptor, mode, closefd=False, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)


def _report_fault(error: Exception, *, silent: bool) -> None:
    """Report an internal error, and save its traceback to a file. With ``silent``, only save it."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    lines = [f"error: internal error in Ensemble or a plugin: {type(error).__name__}: {error}"]
    if not silent and (os.environ.get("ENSEMBLE_DEBUG") or "--debug" in sys.argv):
        lines.append(text.rstrip())
    else:
        try:
            with tempfile.NamedTemporaryFile(
                "w", prefix="ensemble-fault-", suffix=".txt", delete=False, errors="replace"
            ) as file:
                file.write(f"{' '.join(sys.argv)}\npython {sys.version}\n{text}")
            lines.append(f"  hint: please report it with the traceback in {file.name}")
        except OSError:
            lines.append(text.rstrip())
    if not silent:
        click.echo("\n".join(lines), err=True)
