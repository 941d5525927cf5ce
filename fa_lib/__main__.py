"""`python -m fa_lib` is `fa-lib`."""

from fa_lib.commands.cli import main

if __name__ == "__main__":
    main()
