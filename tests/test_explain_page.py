"""The files of `fa-lib explain --out`: the page, the worst rows with a script that reads them, text for an issue."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fa_lib.commands.cli import app
from tests.test_explain import CASES

pytestmark = pytest.mark.slow  # half a minute


def written(case, folder, more=()):
    """Explain a case of `test_explain` from a file: the folder of what was written."""
    q, k, v, o, *options = case
    held = dict(q=q, k=k, v=v, o=o) | {
        name: x if isinstance(x, torch.Tensor) else torch.tensor(x) for each in options for name, x in each.items()
    }
    torch.save({name: x.contiguous() for name, x in held.items()}, folder / "call.pt")
    result = CliRunner().invoke(app, ["explain", f"{folder / 'call.pt'}", "--out", f"{folder / 'out'}", *more])
    assert result.exit_code == 0, result.output
    return folder / "out", result.output


def readings(folder):
    """What the script prints, whose only import is numpy: reading -> how far o is off, the largest value."""
    script = folder / "call_rows.py"
    assert len(script.read_text().splitlines()) <= 15 and set(re.findall(r"^import (\w+)", script.read_text())) == {
        "numpy"
    }
    ran = subprocess.run([sys.executable, script.name], cwd=folder, capture_output=True, text=True, check=True)
    assert ran.stdout in (folder / "call_issue.md").read_text()
    found = re.findall(
        r"^(\w+): \|o - attention\| is up to (\S+), \|attention\| up to (\S+)$", ran.stdout, re.MULTILINE
    )
    assert len(found) == len(ran.stdout.splitlines())
    return {name: (float(off), float(most)) for name, off, most in found}


@pytest.mark.parametrize("name", ["the mask ignored", "softcap dropped", "first rows causal", "a window"])
def test_the_script_shows_that_it_is_wrong_as_believed_and_right_as_read(name, tmp_path):
    folder, _ = written(CASES[name](), tmp_path)
    found = readings(folder)
    assert found["as_believed"][0] > 0.3 * found["as_believed"][1]
    right = found["wrong_part" if name == "first rows causal" else "as_read"]
    assert right[0] < 0.01 * right[1]


def test_a_layout_that_does_not_fit_is_shown_as_read_and_a_right_output_as_believed(tmp_path):
    folder, _ = written(CASES["layout of the output"](), tmp_path)
    assert {*readings(folder)} == {"as_read"}
    folder, _ = written(CASES["right"](), tmp_path)
    assert {*readings(folder)} == {"as_believed"}


def test_sinks_and_hidden_keys_are_in_the_script(tmp_path):
    q, k, v, o, *_ = CASES["right"]()
    sinks, window = torch.linspace(0, 4, 8), torch.tensor([31, 0])
    folder, _ = written((q, k, v, o, dict(sinks=sinks, window=window)), tmp_path)
    off, _ = readings(folder)["as_believed"]
    rows = np.load(folder / "call_rows.npz")
    assert off > 0.1 and len(rows["as_believed_k"]) <= 8 * 32 and rows["as_believed_sink"] in sinks.numpy()


def test_the_page_asks_the_network_for_nothing_and_escapes_what_it_shows(tmp_path):
    folder, output = written(CASES["the mask ignored"](), tmp_path)
    page = (folder / "call.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page) and "{{" not in page
    assert page.count("<img") == 1 and "as_believed" in page and "\\n" not in re.search(r"<pre.*?</pre>", page, re.S)[0]
    assert f"{folder / 'call.html'}" in output
    (tmp_path / "call.pt").rename(tmp_path / "<b>.pt")
    result = CliRunner().invoke(app, ["explain", f"{tmp_path / '<b>.pt'}", "--out", f"{folder}"])
    assert result.exit_code == 0 and "<b>.pt" not in (folder / "_b_.html").read_text()


def test_a_second_output_has_a_page_of_its_own(tmp_path):
    q, k, v, o, *_ = CASES["right"]()
    torch.save(dict(q=q, k=k, v=v, o=o, o_ref=2 * o), tmp_path / "two.pt")
    CliRunner().invoke(app, ["explain", f"{tmp_path / 'two.pt'}", "--out", f"{tmp_path}"])
    assert "ROUNDING" in (tmp_path / "two.html").read_text() and "BUG" in (tmp_path / "two.o_ref.html").read_text()


def test_the_worst_of_what_came_stands_first(tmp_path):
    q, k, v, o, *_ = CASES["right"]()
    lse = torch.logsumexp(q.double() @ k.double().mT / 8, -1)
    folder, output = written((q, k, v, o, dict(lse=lse * 2)), tmp_path)
    page, text = (folder / "call.html").read_text(), (folder / "call_issue.md").read_text()
    assert output.startswith("ROUNDING") and "Nothing to fix" not in output
    assert "<title>BUG: lse" in page and text.startswith("**BUG: lse")
