"""The one command, `fa-lib` (also `python -m fa_lib`): a page of --help for each thing it does."""

import sys
from importlib.metadata import entry_points
from pathlib import Path

import typer

from fa_lib.commands import cli_dev
from fa_lib.commands.errors import EXIT_CODES, colored
from fa_lib.execution import process_settings, reader_modules
from fa_lib.execution.paths import PACKAGE, other_checkout, same_code

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help=f"Is my attention kernel numerically safe?\n\n{EXIT_CODES}",
)  # fmt: skip
for instrument in sorted(entry_points(group="fa_lib.commands")):  # add_commands of each instrument that is installed
    instrument.load()(app, cli_dev.app)
app.add_typer(cli_dev.app, name="dev")


def main() -> None:
    """Run the command `fa-lib`."""
    if (other := other_checkout(Path.cwd())) and not same_code(other):
        print(f"fa-lib: {PACKAGE} runs; {other} has other code, which `python -m fa_lib` runs", file=sys.stderr)
    process_settings.prepare()
    reader_modules.add_current_folder()  # kernels and models of the reader's
    app(prog_name="fa-lib", color=colored())
