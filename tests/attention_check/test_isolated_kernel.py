"""A kernel in a process of its own: whatever it does there, it is judged to the end, and told by name."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace

import pandas as pd
import pytest
import torch
from in_a_folder import command
from own_kernels import draw, found
from processes import lives, wait_until
from safetensors.torch import save_file

from attention_check.checks.conduct import judged as of_conduct
from attention_check.commands import reports
from attention_check.isolation import isolated_kernel
from attention_check.isolation.calls import KernelError, call_kernel, judged_by_one_thread, with_kernel_errors
from attention_check.isolation.isolated_kernel import MOST_ENDINGS, IsolatedKernel, all_isolated, conduct, isolated
from attention_check.isolation.worker import Outcome
from attention_check.judge.findings import Severity, Verdict
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.capability import masks_by_default
from attention_check.measure.examine import examine
from attention_check.measure.plan import CheckPlan
from attention_check.report.sentences import judgement_text
from attention_check.report.wordings import worded
from fa_lib import kernels
from fa_lib.execution.fingerprint import code_version
from fa_lib.execution.paths import CHECKOUT
from fa_lib.kernels.kernel_ref import KernelRef

TINY = CheckPlan(lengths=(64,), seeds=1, shapes=(), head_dims=(), troubled_n=64, bias_seeds=1, runs=3, square=16)

STRANGERS = {
    "hangs_and_crashes": "def f(q, k, v):\n    if q.shape[-1] == 80: time.sleep(60)\n"
                         "    if q.shape[-1] == 104: signal.raise_signal(signal.SIGSEGV)\n    return right(q, k, v)",
    "exits": "def f(q, k, v):\n    if q.shape[-1] == 80: os._exit(0)\n    if q.shape[-1] == 104: sys.exit(0)\n"
             "    return right(q, k, v)",
    "hangs_always": "def f(q, k, v):\n    while True: pass",
    "prints": "def f(q, k, v):\n    print('bad passes\\n\\n# [x](javascript:alert(1))')\n    return right(q, k, v)",
    "sets": "def f(q, k, v):\n    torch.set_flush_denormal(True)\n    return right(q, k, v)",
    "changes_k_in_backward": "from benchmarks.mutants.gradients import Altered\n"
                             "def f(q, k, v): return Altered.apply(right(q, k, v), lambda dO: k.data.add_(1) + dO)",
}  # fmt: skip


def right(q, k, v, **options):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def alone(name, *limit):
    """A kernel in a process of its own, until the end of a `with`."""
    return closing(IsolatedKernel(KernelRef.of(name), *limit))


def judged(name, limit=60.0):
    with isolated(KernelRef.of(name), limit) as kernel:
        tables = examine(kernel, TINY)
        return judge_kernel(kernel, replace(tables, conduct=conduct(kernel)))


def test_any_signal_is_a_crash_and_later_calls_are_made(stranger):
    """Python has no name for a real-time signal."""
    name = stranger("dies", "def f(q, k, v):\n    if q.shape[-1] == 80: os.kill(os.getpid(), 40)\n    "
                            "return right(q, k, v)")  # fmt: skip
    with alone(name) as fn:
        with pytest.raises(KernelError, match="ends its process by signal 40") as error:
            fn(*draw(d=80))
        assert error.value.outcome == Outcome.ENDED
        assert torch.equal(fn(*draw()), right(*draw()))
        (row,) = fn.conduct().itertuples()
    assert (row.what, row.detail) == ("crashes", "signal 40")


def test_a_process_that_cannot_begin_is_no_fault_of_the_kernels(monkeypatch):
    monkeypatch.setattr(isolated_kernel, "INSIDE", "import os; os._exit(3)")
    with pytest.raises(RuntimeError, match="^kernel: .* exit code 3, before it is imported"):
        IsolatedKernel(KernelRef.of("any:f")).wait()


def test_a_kernel_that_masks_by_default_is_known_as_one(stranger):
    name = stranger("by_default", """
def f(q, k, v, causal=True, scale=None, size=3):
    return right(q, k, v)
""")  # fmt: skip
    with alone(name) as fn:
        assert [each.default for each in inspect.signature(fn).parameters.values()][3:] == [True, None, None]
        assert masks_by_default(fn)


def test_what_crosses_has_the_same_bits_there_and_back(stranger):
    name = stranger("crossing", """
def f(q, k, v, *, sinks, window=None, return_lse=False):
    if return_lse:
        return right(q, k, v), q.sum(-1), "more"
    if window:
        raise ValueError(q.stride(), q.storage_offset(), q.data_ptr() - k.data_ptr(), window)
    return right(q, k, v) * sinks[:, None, None]
""")  # fmt: skip
    both = torch.randn(1, 8, 4, 16)
    q, k = both[..., 2:].transpose(1, 2), both[..., :14].transpose(1, 2)
    v = torch.randn(1, 4, 8, 1).expand(-1, -1, -1, 14)
    sinks = torch.tensor([2.0, 3.0, 4.0, 5.0], requires_grad=True)
    with alone(name) as fn:
        assert [*inspect.signature(fn).parameters] == ["q", "k", "v", "sinks", "window", "return_lse"]
        with pytest.raises(KernelError, match=r"raises ValueError: \(\(512, 16, 64, 1\), 2, 8, \(3, 0\)\)"):
            fn(q, k, v, sinks=sinks, window=(3, 0))
        o, sums = fn(q, k, v, sinks=sinks, return_lse=True)
        assert torch.equal(o, right(q, k, v)) and torch.equal(sums, q.sum(-1))
        given = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        dO = torch.randn(1, 4, 8, 14)
        ours, theirs = (kernel(*given, sinks=sinks) for kernel in (
            fn, lambda q, k, v, sinks: right(q, k, v) * sinks[:, None, None]))  # fmt: skip
        pairs = zip(*(torch.autograd.grad(o, (*given, sinks), dO) for o in (ours, theirs)))
        assert torch.equal(ours, theirs) and all(torch.equal(a, b) for a, b in pairs)
        o = fn(*given, sinks=sinks)
        assert fn.calls not in fn.processes[-1].forget
        del o
        assert fn.calls in fn.processes[-1].forget


ENDS = {  # finding -> its number, details, how many calls, and head_dim of the first
    "hangs_and_crashes": {"hangs": (1.0, [""], 1, 80), "crashes": (None, ["SIGSEGV"], 1, 104)},
    "exits": {"exits": (0.0, [""], 2, 80)},
}


@pytest.mark.parametrize("name", ENDS)
def test_a_kernel_that_does_not_always_come_back_is_judged_to_the_end(name, stranger):
    """The rest is judged: its errors are measured, and it carries nothing."""
    judgement = judged(stranger(name, STRANGERS[name]), limit=1.0)
    for what, (number, details, times, head_dim) in ENDS[name].items():
        (f,) = found(judgement, what)
        assert (f.severity, f.number, f.where["details"], f.where["times"]) == (Severity.FAILS, number, details, times)
        assert f.where["at"].startswith(f"call, (2, 2, 256, {head_dim})") and not f.where["on_import"]
        assert all(each in judgement_text(judgement) for each in (*details, f.where["at"]))
    assert judgement.verdict == Verdict.FAILS
    assert judgement.carries == () and found(judgement, "error")[0].severity == Severity.PASSES


def test_after_three_hangs_the_rest_is_not_asked(stranger):
    begun = time.monotonic()
    judgement = judged(stranger("hangs_always", STRANGERS["hangs_always"]), limit=0.2)
    assert time.monotonic() - begun < 60 and judgement.verdict == Verdict.FAILS
    assert found(judgement, "hangs")[0].where["times"] == MOST_ENDINGS and found(judgement, "unasked")
    (gate,) = found(judgement, "not_run")
    assert (gate.where["asked"], gate.where["outcome"]) == ("BF16", Outcome.ENDED)
    assert gate.where["problem"].endswith(" 1 s")  # five times the limit for a first call
    assert "fails: it could not be run: asked for BF16 it does not answer" in judgement_text(judgement)


HABITS = [  # what a call does beside its work; findings
    ("pass", []),
    ("torch.set_default_dtype(torch.float64)", [("state", Severity.FAILS, ["the default dtype"])]),
    ("torch.set_flush_denormal(True)", [("state", Severity.FAILS, ["flushing of denormal numbers"])]),
    ("torch.set_grad_enabled(False)", [("state", Severity.FAILS, ["grad mode"])]),
    ("torch.set_num_threads(7)", [("state", Severity.FAILS, ["the number of threads"])]),
    ("torch.use_deterministic_algorithms(True)", [("state", Severity.FAILS, ["deterministic algorithms"])]),
]  # fmt: skip


def test_what_a_kernel_does_beside_its_work_is_told_by_name(stranger):
    chosen = "".join(f"    if q.shape[-2] == {i + 1}: {text}\n" for i, (text, _) in enumerate(HABITS))
    threads = torch.get_num_threads()
    with alone(stranger("habits", f"def f(q, k, v):\n    o = right(q, k, v)\n{chosen}    return o")) as fn:
        for i, (text, due) in enumerate(HABITS):
            fn.acts.clear()
            assert call_kernel(fn, *draw(n=i + 1)).outcome == "answered"
            told = list(of_conduct(fn.told()))
            assert [(each.what, each.severity, each.where["details"]) for each in told] == due, text
            assert all(said.text for each in told for said in worded([each]))
    assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32
    assert torch.get_num_threads() == threads


def test_what_a_kernel_changes_counts_on_captured_tensors(stranger, tmp_path):
    file = tmp_path / "a.safetensors"
    save_file(dict(zip("qkv", (x.bfloat16() for x in draw(64, 32)))), file)
    for name, code in (("sets", 1), ("good", 0)):
        given = [STRANGERS[name]] if code else []
        kernel, record = stranger(name, *given), tmp_path / f"{name}.json"
        words = ("--kernel", kernel, "--exit-code", "--out", tmp_path, "--json", record)
        done = command("check", "tensors", file, *words)
        assert done.exit_code == code, done.output
        failed = {one["what"] for one in json.loads(record.read_text())["findings"] if one["severity"] == "fails"}
        assert failed == ({"state"} if code else set())


def test_inputs_that_are_changed_in_the_backward_pass_are_told(stranger):
    given = [x.requires_grad_() for x in draw()]
    with alone(stranger("changes_k_in_backward", STRANGERS["changes_k_in_backward"])) as fn:
        o = fn(*given)
        with pytest.raises(KernelError, match="changes k in its backward pass"):
            torch.autograd.grad(o.sum(), given)


def test_a_right_kernel_does_nothing_beside_its_work_and_its_tables_are_those_of_this_process(stranger):
    def f(q, k, v):
        if q.dtype in (torch.float16, torch.float64):
            raise NotImplementedError("in BF16 and FP32")
        return right(q, k, v)

    f.__qualname__ = "f"  # as it is in messages
    kernels.register("right one", f)
    with isolated(KernelRef.of(stranger("good"))) as kernel:
        there = examine(kernel, TINY)
        assert not len(conduct(kernel))
    here = examine("right one", TINY)
    for table in ("asked", "lengths", "inputs", "shapes", "sums"):
        ours, theirs = (getattr(each, table).drop(columns="kernel", errors="ignore") for each in (there, here))
        pd.testing.assert_frame_equal(ours, theirs)


ANSWERS = {
    "o.to_sparse()": "on cpu: Tensor, torch.sparse_coo,",
    "o.to('meta')": "on cpu: Tensor, torch.strided, torch.float32, on meta",
    "torch._neg_view(o)": "returns no plain tensor of its own numbers",
    "o.as_subclass(type('Own', (torch.Tensor,), {}))": "on cpu: Own,",
    "[]": "returns list,",
    "[object()]": "returns list,",
    "exec('raise ValueError(chr(0xd800) + chr(13) * 2 + chr(27))')": r"raises ValueError: \ud800\r\r\x1b",
}


def test_what_is_no_output_is_told_in_words(stranger):
    chosen = "".join(f"    if q.shape[-2] == {i + 1}: return {text}\n" for i, text in enumerate(ANSWERS))
    with alone(stranger("odd", f"def f(q, k, v):\n    o = right(q, k, v)\n{chosen}    return o")) as fn:
        for i, problem in enumerate(ANSWERS.values()):
            answer = call_kernel(fn, *draw(n=i + 1))
            assert answer.o is None and problem in answer.problem
        assert call_kernel(fn, *draw(n=64)).outcome == "answered" and not len(fn.conduct())


def test_a_graph_is_kept_as_long_as_its_output_and_ends_with_its_process(stranger, monkeypatch):
    monkeypatch.setattr(isolated_kernel, "MOST_QUICK_ENDINGS", MOST_ENDINGS + 2)
    ends = "print('a warning', 'Unsupported n=9', sep=chr(10), file=sys.stderr, flush=True), os._exit(1)"
    text = f"def f(q, k, v):\n    if q.shape[-2] == 9: {ends}\n    return right(q, k, v)"
    given = [x.requires_grad_() for x in draw()]
    with alone(stranger("graphs", text)) as fn:
        o = with_kernel_errors(fn)(*given)
        ended = call_kernel(fn, *draw(n=9))
        assert ended.outcome == Outcome.ENDED and ended.problem.endswith("after the line 'Unsupported n=9'")
        with pytest.raises(KernelError, match="its process ended before"):
            torch.autograd.grad(o.sum(), given)
        for outcome in [Outcome.ANSWERED] * MOST_ENDINGS + [Outcome.NOT_CALLED]:
            call_kernel(fn, *draw(n=9))
            assert call_kernel(fn, *draw()).outcome == outcome


def test_what_a_kernel_prints_is_not_on_the_page_and_an_old_page_goes_first(stranger, tmp_path, capfd):
    report = reports.check_kernel(stranger("prints", STRANGERS["prints"]), TINY, tmp_path)
    assert report.judgement.passed and "bytes on stdout" in judgement_text(report.judgement)
    assert "javascript" not in report.page.read_text() + capfd.readouterr().out
    stranger("prints", "def g(): pass")
    with pytest.raises(ValueError, match="cannot be had: AttributeError"):
        reports.check_kernel("prints:f", TINY, tmp_path)
    assert not report.page.exists()


def test_nothing_is_left_when_the_parent_is_killed_or_the_kernel_has_children(stranger, tmp_path):
    text = f"""
def f(q, k, v):
    child = os.fork()
    with open({str(tmp_path / "pids")!r}, "a") as file:
        file.write(f"{{os.getpid()}} ")
    if q.shape[-2] == 8 or not child: time.sleep(100)
    return right(q, k, v)
"""
    pids = tmp_path / "pids"
    with alone(stranger("forks", text)) as fn:
        assert call_kernel(fn, *draw(n=7)).outcome == "answered"
    wait_until(lambda: len(pids.read_text().split()) == 2 and not any(map(lives, pids.read_text().split())))
    pids.unlink()
    script = "import torch; from fa_lib.kernels import KernelRef\n"
    script += "from attention_check.isolation.isolated_kernel import IsolatedKernel\n"
    script += "IsolatedKernel(KernelRef('forks', 'f'))(*torch.ones(3, 1, 2, 8, 16))"
    paths = os.pathsep.join([f"{tmp_path}", f"{CHECKOUT}", f"{CHECKOUT}/instruments"])
    parent = subprocess.Popen([sys.executable, "-c", script], env=os.environ | dict(PYTHONPATH=paths))
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not any(map(lives, pids.read_text().split())))


def test_a_strangers_source_counts_and_is_not_run_for_that(stranger, tmp_path):
    own = right
    (tmp_path / "inside").mkdir()
    for path in ("inside/__init__.py", "inside/deep.py"):
        (tmp_path / path).write_text("raise SystemExit(0)\n")
    names = "inside.deep:f", stranger("dies_on_import", "os._exit(0)")
    versions = [code_version(own, [dict(kernel=name)]) for name in names]
    (tmp_path / "inside" / "deep.py").write_text("raise SystemExit(1)\n")
    versions.append(code_version(own, [dict(kernel="inside.deep:f")]))
    assert len(set(versions)) == 3 and not {"inside", "inside.deep"} & set(sys.modules)
    with pytest.raises(ValueError, match="^kernel: got 'inside.nothing:f'; there is no file"):
        code_version(own, [dict(kernel="inside.nothing:f")])


def test_a_process_that_is_started_again_has_as_many_threads(stranger):
    name = stranger(
        "ends", "def f(q, k, v):\n    if q.shape[-1] == 80: os._exit(0)\n    return q * torch.get_num_threads()"
    )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with alone(name, 60.0) as fn, judged_by_one_thread():
            assert call_kernel(fn, *torch.ones(3, 1, 1, 4, 80)).outcome == Outcome.ENDED
            inspect.signature(fn)  # waits for the next process
            assert call_kernel(fn, *torch.ones(3, 1, 1, 4, 8)).o.unique().tolist() == [3.0]
    finally:
        torch.set_num_threads(before)


def test_built_in_kernels_stay_here_and_words_are_checked(stranger):
    with isolated(KernelRef.of("flash")) as kernel:
        assert kernel.fn is None
    with pytest.raises(ValueError, match="timeout: got 0; accepted are seconds"):
        IsolatedKernel(KernelRef.of("good:f"), 0)
    with all_isolated([KernelRef.of(stranger("good") + "@bshd"), KernelRef.of("good:f")]) as (kernel, same):
        q, k, v = draw()
        o = kernels.plain(kernel)(*(x.transpose(1, 2) for x in (q, k, v)))
        assert same.fn is kernel.fn and torch.equal(o.transpose(1, 2), right(*(x.contiguous() for x in (q, k, v))))
        assert "good" not in sys.modules
