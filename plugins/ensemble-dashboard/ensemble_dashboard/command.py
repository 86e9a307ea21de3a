"""Show runs in a browser."""

from __future__ import annotations

import contextlib
import errno
import getpass
import os
import secrets
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from ensemble_core import EnsembleError, UsageError, private_folder
from ensemble_core.cli.toolkit import (
    find_run,
    print_line,
    printable,
    run_folders,
    state_folder,
    state_option,
)

#: Maximum number of runs to offer if none is named, newest first.
_MOST_RUNS = 100


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port on this machine.  [default: a free one]"
)
@click.option(
    "--socket/--no-socket",
    "unix",
    default=None,
    help="Use a Unix socket instead of a port.  [default: in an ssh session]",
)
@click.option(
    "--open/--no-open", "opens", default=None, help="Open a browser.  [default: if one exists]"
)
@state_option
def dashboard(
    runs: tuple[str, ...],
    port: int | None,
    unix: bool | None,
    opens: bool | None,
    state: str | None,
) -> None:
    """Show runs in a browser.

    RUN is a run's tag, a unique beginning or end of it, or 'last'. Without RUN, the page lists all
    runs.

    The page is read-only. Its address contains a secret token, and only browsers on this machine
    can connect. In an ssh session, the dashboard uses a Unix socket and prints the ssh command that
    forwards it to your own machine. Ctrl-C ends the dashboard. Without a viewer, it ends after 8
    hours.
    """
    if unix and port:
        raise click.UsageError("--port cannot be combined with --socket")
    place = state_folder(state)
    named = [find_run(place, run).name for run in runs]

    def tags() -> Sequence[str]:
        if named:
            return named
        return [folder.name for folder in run_folders(place)[::-1][:_MOST_RUNS]]

    if not tags():
        raise UsageError(
            f"no runs in {place}",
            hint="start one: ensemble run FILE",
            code="no-such-run",
        )
    remote = "SSH_CONNECTION" in os.environ
    token = secrets.token_urlsafe(16)
    by_socket = (remote and port is None) if unix is None else unix
    with contextlib.ExitStack() as held:
        if by_socket:
            path = held.enter_context(_private_path(".sock"))
            listener = held.enter_context(_bound_to(path))
            print_line(_ssh_line(str(path)))
            address = f"http://localhost:8123/#token={token}"
        else:
            listener = held.enter_context(_listening(port or 0))
            own = listener.getsockname()[1]
            address = f"http://127.0.0.1:{own}/#token={token}"
            if not _has_browser():
                print_line(_ssh_line(f"127.0.0.1:{own}"))
        print_line(f"Dashboard: {address}")
        print_line(
            "Anyone with this address can read these runs. Press Ctrl-C to end the dashboard."
        )
        if not by_socket and (opens or (opens is None and _has_browser())):
            import webbrowser

            # Others can read the browser's command line, so the address is in a private file.
            webbrowser.open(held.enter_context(_private_page(address)).as_uri())
        from ensemble_dashboard.server import serve  # takes long to import

        serve(listener, state, tags, token)


def _has_browser() -> bool:
    return "SSH_CONNECTION" not in os.environ and bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def _ssh_line(place: str) -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = "USER"
    where = f"{user}@{socket.gethostname()}"
    return printable(f"On your own machine: ssh -N -L 8123:{place} {where}")


@contextlib.contextmanager
def _private_page(address: str) -> Iterator[Path]:
    """Yield a page that leads to the address, and that only the user can read."""
    with _private_path(".html") as path:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f'<meta http-equiv="refresh" content="0; url={address}">\n')
        yield path


@contextlib.contextmanager
def _private_path(ending: str) -> Iterator[Path]:
    """Yield an unused path in a folder that only the user can enter; remove the file at the end."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    parent = Path(base) if base and Path(base).is_dir() else state_folder(None)
    folder = parent / "ensemble-dashboard"
    try:
        private_folder(folder)
        status = folder.lstat()
    except OSError as error:
        raise _socket_error(folder, error.strerror or str(error)) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise _socket_error(folder, "it is not a folder, or it belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(folder, 0o700)
    path = folder / f"{os.getpid()}{ending}"
    with contextlib.suppress(FileNotFoundError):
        path.unlink()  # left by an earlier process with the same id
    try:
        yield path
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _socket_error(folder: Path, cause: str) -> EnsembleError:
    return EnsembleError(
        f"cannot create a socket in {folder}",
        cause=cause,
        hint="use a port with --no-socket, or another folder with --state",
        code="no-socket",
    )


def _bound_to(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    # Set the umask instead of calling chmod: others could connect between bind and chmod.
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise _socket_error(path.parent, error.strerror or str(error)) from error
    finally:
        os.umask(mask)
    return listener


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
    except OSError as error:
        listener.close()
        used = error.errno == errno.EADDRINUSE
        raise UsageError(
            f"port {port} is in use" if used else f"cannot listen on port {port}",
            cause=None if used else error.strerror,
            hint="omit --port to use a free port",
            code="port",
        ) from error
    return listener
