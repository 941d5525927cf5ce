"""`python -m fa_lib`: the command `fa-lib`."""

from fa_lib.cli import app

if __name__ == "__main__":
    app()
