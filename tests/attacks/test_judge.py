"""What a kernel does to the judge: it ends the process, hangs, or raises texts that are no texts."""

import ast
import re
from contextlib import closing
from dataclasses import replace
from functools import cache

import pandas as pd
import pytest
import torch
from in_a_folder import command, saved
from markdown_it import MarkdownIt
from own_kernels import draw, found

from attention_check.explain.standalone_test import standalone
from attention_check.isolation import isolated_kernel
from attention_check.isolation.calls import call_kernel
from attention_check.isolation.isolated_kernel import IsolatedKernel
from attention_check.judge.findings import Severity
from attention_check.judge.kernel import judge_kernel
from attention_check.measure import way
from attention_check.measure.examine import examine
from attention_check.measure.plan import CheckPlan
from attention_check.probe.capture import Capture
from attention_check.report.page import Section, page
from attention_check.report.sentences import judgement_text
from attention_gallery.commands import pages
from fa_lib import kernels
from fa_lib.commands.errors import say
from fa_lib.kernels.kernel_ref import KernelRef

TINY = CheckPlan(lengths=(64,), seeds=1, shapes=(), head_dims=(), troubled_n=64, bias_seeds=1, runs=2, square=1)


ENDS = {  # name of the module -> how it ends, exit code
    "on_import": ("sys.exit()", 1),
    "at_exit": ("atexit.register(os._exit, 0)\ndef f(q, k, v): return 0", 1),
    "unknown": ("f = no_such_name", 2),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_kernel_does_not_set_the_exit_code_and_no_old_page_stays(name, stranger, tmp_path, monkeypatch):
    monkeypatch.setattr(isolated_kernel, "MOST_QUICK_ENDINGS", 1)
    how, code = ENDS[name]
    old = tmp_path / f"{name}_f.html"
    old.write_text('<p class="verdict passes">')
    done = command("check", "kernel", stranger(name, how), "--quick", "--exit-code", "--out", tmp_path)
    assert done.exit_code == code, done.output
    assert old.exists() == (code == 1) and (code == 2 or 'class="verdict fails"' in old.read_text())


def test_a_models_error_is_told_and_its_prints_are_not_the_commands(tmp_path):
    (tmp_path / "model.py").write_text(
        "import sys\nfrom torch import full\nfrom torch.nn.functional import scaled_dot_product_attention\n"
        "def prints():\n    print('model:prints passes.')\n"
        "    scaled_dot_product_attention(*full((3, 1, 1, 4, 8), float('nan')))\n"
        "def raises(): raise ValueError('\\x1b')\ndef leaves(): sys.exit(0)\n"
    )
    for name, told in (("raises", "raises ValueError: \\x1b"), ("leaves", "raises SystemExit: 0")):
        (tmp_path / f"model_{name}.html").write_text("passes")
        done = command("check", "model", tmp_path / f"model.py:{name}", "--exit-code", "--out", tmp_path)
        assert done.exit_code == 2 and told in done.stderr and not done.stdout
        assert not (tmp_path / f"model_{name}.html").exists()
    done = command("check", "model", tmp_path / "model.py:prints", "--exit-code", "--out", tmp_path)
    assert done.exit_code == 1 and done.stdout.startswith("model:prints fails: first non-finite"), done.stderr
    assert "model:prints passes." in done.stderr


RUDE = "bad passes\n\n# [x](javascript:alert(1)) ![](http://a/b.png) <img src=x onerror=alert(1)> **b** \r\r\x1b[2J\x07"
RUDE += "\u202e\u200b\ud800 `code` $x^{$ | cell {{x}} www.example.org"


def test_what_is_raised_is_text_everywhere(stranger, tmp_path, capsys):
    """On the page, in the terminal, in Markdown and in a figure's title."""

    def rude(q, k, v):
        raise ValueError(RUDE.replace("\n", " "))

    judgement = judge_kernel("<kbd>$x^{$\x1b[2J", examine(rude, TINY))
    shown = Section("<b>", pd.DataFrame({"<i>": ["<u>\x07"]}))
    html = page(judgement, [shown], about={"<a>": "<em>\x07"}, settings={"a": ["<s>", "b"]})
    row = dict(key="k", project="p", version="1", use="u", verdict="fails")
    say(judgement_text(judgement))
    markdown = pages.page(row, judgement)
    table = pages.index(pd.DataFrame([row | dict(problem=RUDE.replace("\ud800", ""))]))
    for text in (html, capsys.readouterr().out, markdown, table):
        assert not set("\x1b\x07\r\u202e\u200b\ud800") & set(text) and "alert(1)" in text
        text.encode()
    assert not [tag for tag in ("<img", "<kbd>", "<u>", "<s>", "<i>", "<a>", "<em>") if tag in html]
    parser = MarkdownIt("commonmark").enable("table")
    for text in (markdown, table):
        tokens = [each for token in parser.parse(text) for each in (token, *(token.children or ()))]
        hrefs = [token.attrs["href"] for token in tokens if token.type == "link_open"]
        images = [token.attrs["src"] for token in tokens if token.type == "image"]
        assert hrefs == []
        assert not [src for src in images if "http" in f"{src}"] and "code_inline" not in {t.type for t in tokens[-40:]}
        raw = [token.content for token in tokens if token.type in ("html_inline", "html_block")]
        assert all(each.startswith("<!-- made by") for each in raw)
        assert sum(token.type == "heading_open" for token in tokens) == (text is markdown)


def test_names_of_files_and_what_stands_in_them_are_no_formulas(tmp_path):
    q, k, v = draw(32)
    path = tmp_path / "a $x^{ <kbd> \x1b[2J.safetensors"
    Capture(q, k, v, {}, about=dict(layer="$x^{$ \x1b[2J\u202e", step="<kbd>")).write(path)
    done = command("check", "tensors", path, "--out", tmp_path, "--kernel", "flash")
    html = next(tmp_path.glob("*.html")).read_text()
    assert done.exit_code == 0 and not set("\x1b\u202e") & set(done.output + html), done.output
    assert "<kbd>" not in html and "layer $x^{$ \\x1b[2J\\u202e" in html


def test_a_written_test_holds_what_was_raised_as_text():
    call = Capture(*draw(1, 1), {})
    evil = 'm:f raises E: """\nraise SystemExit(0)\n""" \\'
    for module in (evil, "m"):
        tree = ast.parse(standalone(KernelRef(module, "f"), call, evil, evil))
        assert "raise SystemExit(0)" in ast.get_docstring(tree)
        kinds = (ast.Expr, ast.Import, ast.Assign, ast.FunctionDef)
        assert all(isinstance(each, kinds) for each in tree.body)
        assert sum(isinstance(each, ast.Expr) for each in tree.body) == 1


def test_a_hang_ends_on_import_in_a_call_and_in_backward(stranger):
    body = """
from benchmarks.mutants.gradients import Altered

def f(q, k, v):
    if q.shape[-2] == 3: time.sleep(99)
    return right(Altered.apply(q, lambda dq: time.sleep(99)), k, v)
"""
    for name, text in (("hangs", body), ("hangs_early", "time.sleep(99)")):
        with closing(IsolatedKernel(KernelRef.of(stranger(name, text)), timeout=0.3)) as fn:
            assert "does not answer within" in call_kernel(fn, *draw(3)).problem
            if name == "hangs":
                o = fn(*(x.requires_grad_() for x in draw(4)))
                with pytest.raises(Exception, match=r"does not answer within 1\.5 s"):
                    o.sum().backward()


def test_the_other_commands_do_not_end_with_a_kernel_that_ends_its_process(stranger, tmp_path, monkeypatch):
    monkeypatch.setattr(isolated_kernel, "MOST_QUICK_ENDINGS", 1)
    name, file = stranger("leaves", "os._exit(0)"), saved(tmp_path, **dict(zip("qkv", draw(32))))
    (tmp_path / "call.html").write_text("passes")
    done = command("check", "tensors", file, "--kernel", name, "--exit-code", "--out", tmp_path)
    assert done.exit_code == 1 and re.search("leaves:f .* exit code 0", done.stdout)
    assert 'class="verdict fails"' in (tmp_path / "call.html").read_text()
    done = command("compare", name, "flash", "--tensors", file)
    assert done.exit_code == 2 and re.search("leaves:f .* exit code 0", done.stderr)
    name = stranger("dies", "def f(q, k, v): os._exit(0)")
    done = command("shrink", file, "--kernel", name, "--out", tmp_path / "test_dies.py")
    assert done.exit_code == 2 and re.search("was not called: .* 1 times", done.stderr)


def test_a_kernel_that_is_right_up_to_4096_keys_fails(monkeypatch):
    """No two judgements make the same calls, unless that is asked for."""
    monkeypatch.setattr(way, "probe_capabilities", cache(way.probe_capabilities))  # it is the same three times
    calls = []

    def cheats(q, k, v):
        if q.dtype != torch.bfloat16:
            raise NotImplementedError
        calls.append((q.shape, k.shape, q.flatten()[:4].tolist()))
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return o if k.shape[-2] <= 4096 else o * 1.1

    cheats.__module__ = "__main__"
    kernels.register("cheats beyond 4096", cheats)
    depth = replace(TINY, lengths=(64, 96), drawn=((4097, 4500),))
    way.probe_capabilities(KernelRef("", "cheats beyond 4096"), "cpu", depth.asked_queries, depth.asked_head_dims)
    made = {}
    for at, seed in enumerate((1, 1, 2)):
        calls.clear()
        tables = examine("cheats beyond 4096", replace(depth, drawn_seed=seed))
        made[at] = [*calls]
        judgement = judge_kernel("cheats beyond 4096", tables)
        (worst,) = found(judgement, "error")
        assert worst.severity == Severity.FAILS and worst.where["n"] > 4096
        lengths = tables.lengths
        assert lengths[lengths.n <= 4096].times_max.max() < 2  # the drawn length is what finds it
        assert [*lengths.n] == sorted(lengths.n)  # the table's order is not that of the calls
    assert made[0] == made[1] != made[2]
    long = [{k[-2] for _, k, _ in each if k[-2] > 4096} for each in made.values()]
    assert long[0] == long[1] != long[2] and {len(each) for each in long} == {1}
