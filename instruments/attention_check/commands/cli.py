"""The commands of this instrument, as `fa-lib` has them."""

import typer

from attention_check.commands import cli_check, cli_explain


def add_commands(app: typer.Typer, dev: typer.Typer) -> None:
    """Add check, explain, blame, compare and shrink to `fa-lib`."""
    app.add_typer(cli_check.app, name="check")
    app.add_typer(cli_explain.app)
