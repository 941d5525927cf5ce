"""How every command reports an error: one line on standard error and an exit code, no traceback."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import typer

EXIT_CODES = (
    "Exit codes: 0 it is done; 1 it was judged and fails (with --exit-code); 2 it could not be done, and the "
    "message says why; 3 nothing of it could be judged (with --exit-code)."
)


@contextmanager
def exit_on_error(old: Path | None = None, kept: str = "nothing is kept") -> Iterator[None]:
    """End the command with code 2 and one line, no traceback, at an error of the reader's input or of the work, and
    with code 130 at Ctrl-C.

    Args:
        old: the file of an earlier judgement, which is removed first.
        kept: which results are kept at Ctrl-C, and how to go on, in words.

    Raises:
        typer.Exit: with the code.
    """
    try:
        if old is not None:
            old.unlink(missing_ok=True)
        yield
    except typer.Exit:  # a RuntimeError too
        raise
    except ModuleNotFoundError as error:
        extras = {
            "nbformat": "notebooks", "papermill": "notebooks", "diffusers": "train", "submitit": "cluster",
        }  # fmt: skip
        if error.name not in extras:
            raise
        _end(f"this needs {error.name}: pip install 'fa_lib[{extras[error.name]}]'")
    except BrokenPipeError:  # as of `fa-lib explain call.npz | head -1`: whoever reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes what is left when it ends
        raise typer.Exit(128 + signal.SIGPIPE) from None
    except (ValueError, OSError, RuntimeError) as error:
        _end(str(error))
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be closed
            typer.echo(f"\nfa-lib: interrupted; {kept}", err=True)
        raise typer.Exit(130) from None


def end_as_interrupted() -> None:
    """Treat a closed terminal and `kill` as Ctrl-C, so that the processes which this one started end with it. A signal
    that is ignored, as the closed terminal under `nohup`, stays ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _end(words):
    say(f"fa-lib: {words}", err=True)
    raise typer.Exit(2)


def colored(environ: Mapping[str, str] = os.environ) -> bool | None:
    """Say whether lines have colour: never with NO_COLOR, always with FORCE_COLOR; None where the terminal decides."""
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb" and not environ.get("FORCE_COLOR"):
        return False
    return True if environ.get("FORCE_COLOR") else None


def say(text: str, err: bool = False) -> None:
    """Print a text, as an error if so; escapes stand in place of characters that would move the cursor or hide text."""
    from fa_lib.execution.untrusted import Untrusted

    typer.echo("\n".join(map(Untrusted, text.split("\n"))), err=err)
