"""The reference pages have every command, option and column that there is."""

import re

import pandas as pd
import pytest
import typer

from fa_lib.commands.cli import app
from fa_lib.execution.paths import ROOT

PAGES = ROOT / "docs" / "reference"
TABLES = sorted(path for folder in ("results", "gallery", "gpu", "heads", "blame", "recorded") for path in
                (ROOT / "data" / folder).rglob("*.csv"))  # fmt: skip


def commands(group, words):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{words} {name}")
        else:
            yield f"{words} {name}", command


COMMANDS = dict(commands(typer.main.get_command(app), "fa-lib"))


def test_every_command_has_a_section_and_no_other():
    assert {*re.findall(r"^## `(fa-lib [^`]+)`", (PAGES / "command_line.md").read_text(), re.M)} == {*COMMANDS}


@pytest.mark.parametrize("words", COMMANDS)
def test_the_site_inserts_every_option_with_its_meaning(words):
    section = (PAGES / "command_line.md").read_text().split(f"\n## `{words}`\n")[1].split("\n## ")[0]
    options = [each for each in COMMANDS[words].params if "--help" not in each.opts]
    assert (f"<!-- the site inserts: options {words} -->" in section) == bool(options)
    assert all(each.help for each in options)


def test_every_column_of_every_table_is_explained():
    explained = pd.read_csv(ROOT / "data" / "columns.csv", keep_default_na=False)
    known = {*re.findall(r"`([^`]+)`", " ".join(explained.column))}
    columns = {column for path in (*TABLES, ROOT / "data" / "published.csv") for column in pd.read_csv(path, nrows=0)}
    assert len(TABLES) > 90 and columns - known == set()
