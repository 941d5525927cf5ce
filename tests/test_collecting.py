"""Python's search for garbage while fa_lib is imported: put off, and afterwards as it was."""

import subprocess
import sys

import pytest

from fa_lib.execution.paths import ROOT

SEEN = "; import fa_lib; print(gc.isenabled(), gc.get_freeze_count() > 0)"


@pytest.mark.parametrize(
    "before, said",
    [
        ("import gc", "True False"),
        ("import gc; gc.disable()", "False False"),
        ("import gc, sys; sys.argv = ['/usr/bin/fa-lib']", "True True"),  # a command holds no garbage of others
    ],
)
def test_it_is_as_before_and_a_command_leaves_out_what_is_imported(before, said):
    words = [sys.executable, "-c", before + SEEN]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == said


def test_next_to_none_is_made_while_modules_are_imported():
    code = (
        "import gc; found = []; gc.callbacks.append(lambda *told: found.append(told)); import fa_lib; print(len(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100  # without: 764 for torch alone
