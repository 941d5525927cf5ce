"""What docs/start quotes is what the check says, but for digits and the worst inputs in brackets: these differ between
processors, and lengths are drawn anew."""

import re
import subprocess
import sys

import pytest

from fa_lib.execution.paths import ROOT


def quoted(page):
    """Blocks of lines that begin with "> "."""
    blocks = re.findall(r"(?:^> .*\n)+", (ROOT / "docs" / "start" / page).read_text(), re.M)
    return [" ".join(block.replace("> ", " ").split()) for block in blocks]


def plain(text):
    return re.sub(r"[0-9][0-9.,]*[0-9]|[0-9]", "#", re.sub(r" \([^)]*\)", "", text))


@pytest.mark.parametrize("page, name", [("page.md", "my_kernel"), ("mend.md", "my_kernel_mended")])
def test_a_start_page_quotes_the_check(page, name, tmp_path):
    words = [sys.executable, "-m", "fa_lib", "check", "kernel", f"examples.{name}:attention", "--out", str(tmp_path)]
    said = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert said.returncode == 0, said.stderr
    found = plain(" ".join(said.stdout.split()))
    quotes = quoted(page)
    assert quotes
    for quote in quotes:
        assert plain(quote).rstrip(".") in found, quote


def test_the_mended_kernel_differs_as_the_page_says():
    page = (ROOT / "docs" / "start" / "mend.md").read_text()
    before, after = re.findall(r"```python\n(.*?)```", page, re.S)
    for code, name in ((before, "my_kernel"), (after, "my_kernel_mended")):
        file = (ROOT / "examples" / f"{name}.py").read_text()
        assert all(line.strip() in file for line in code.splitlines()), name
