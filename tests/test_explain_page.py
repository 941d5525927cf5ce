"""The files of `fa-lib explain --out`: the page, and text for an issue."""

import re

import pytest
import torch
from in_a_folder import command

from tests.test_explain import CASES

pytestmark = pytest.mark.slow  # half a minute


def written(case, folder, more=()):
    """Explain a case of `test_explain` from a file: the folder of what was written."""
    q, k, v, o, *options = case
    held = dict(q=q, k=k, v=v, o=o) | {
        name: x if isinstance(x, torch.Tensor) else torch.tensor(x) for each in options for name, x in each.items()
    }
    torch.save({name: x.contiguous() for name, x in held.items()}, folder / "call.pt")
    result = command("explain", f"{folder / 'call.pt'}", "--out", f"{folder / 'out'}", *more)
    assert result.exit_code == 0, result.output
    return folder / "out", result.output


def test_the_page_asks_the_network_for_nothing_and_escapes_what_it_shows(tmp_path):
    folder, output = written(CASES["the mask ignored"](), tmp_path)
    page = (folder / "call.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page) and "{{" not in page
    assert page.count("<img") == 1 and "\\n" not in re.search(r"<pre.*?</pre>", page, re.S)[0]
    assert f"{folder / 'call.html'}" in output
    (tmp_path / "call.pt").rename(tmp_path / "<b>.pt")
    result = command("explain", f"{tmp_path / '<b>.pt'}", "--out", f"{folder}")
    assert result.exit_code == 0 and "<b>.pt" not in (folder / "_b_.html").read_text()


def test_a_second_output_has_a_page_of_its_own(tmp_path):
    q, k, v, o, *_ = CASES["right"]()
    torch.save(dict(q=q, k=k, v=v, o=o, o_ref=2 * o), tmp_path / "two.pt")
    command("explain", f"{tmp_path / 'two.pt'}", "--out", f"{tmp_path}")
    assert "ROUNDING" in (tmp_path / "two.html").read_text() and "BUG" in (tmp_path / "two.o_ref.html").read_text()


def test_the_worst_of_what_came_stands_first(tmp_path):
    q, k, v, o, *_ = CASES["right"]()
    lse = torch.logsumexp(q.double() @ k.double().mT / 8, -1)
    folder, output = written((q, k, v, o, dict(lse=lse * 2)), tmp_path)
    page, text = (folder / "call.html").read_text(), (folder / "call_issue.md").read_text()
    assert output.startswith("ROUNDING") and "Nothing to fix" not in output
    assert "<title>BUG: lse" in page and text.startswith("**BUG: lse")
