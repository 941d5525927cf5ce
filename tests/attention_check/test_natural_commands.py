"""What people naturally write and type: right kernels and outputs pass, and what is given is used or refused."""

import math

import nbformat
import pandas as pd
import pytest
import torch
from in_a_folder import SDPA, command, normal, own_path, saved  # noqa: F401
from nbclient import NotebookClient
from own_kernels import own_name

from attention_check.checks.bounds import bounds
from attention_check.explain.compare import ComparisonInputs, compare
from attention_check.explain.compare import comparison_lines as compared_in_words
from attention_check.judge.captured import judge_model
from attention_check.judge.findings import Severity
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.capability import SINKS_GRADIENT, Capabilities
from attention_check.measure.closeness import closeness
from attention_check.measure.contract import contract
from attention_check.measure.examine import examine
from attention_check.measure.mistakes import ROUNDINGS
from attention_check.measure.plan import QUICK
from attention_check.probe.capture import captured
from attention_check.probe.named_tensors import Reading
from attention_check.probe.probe import Probe
from attention_check.report.sentences import judgement_text
from attention_check.testing.checks import result_of
from fa_lib import kernels
from fa_lib.execution.paths import NOTEBOOKS
from fa_lib.kernels.inputs import UNEVEN

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_path")]


def torchs_causal(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_a_kernel_that_masks_as_torch_does_and_only_so_is_right():
    name = own_name("torchs_causal", torchs_causal)
    found = examine(name, QUICK)
    judgement = judge_kernel(name, found)
    assert judgement.passed, judgement_text(judgement)
    assert UNEVEN not in set(found.inputs.distribution) and found.top_left
    (row,) = bounds(name, "BF16", 128, 0, 64, able=Capabilities(causal=True, top_left=True))
    (wrong,) = bounds(name, "BF16", 128, 0, 64, able=Capabilities(causal=True))
    assert row["times"] <= 1 and wrong["key"] == "causal_top_left"


def two_outputs(q, k, v, causal=False, scale=None, sinks=None):
    options = {} if sinks is None else dict(sinks=sinks)
    return kernels.as_shipped(q, k, v, causal=causal, scale=scale, **options), q[..., 0]


def test_sinks_of_a_kernel_that_returns_its_log_sum_exp_have_gradients():
    (row,) = [row for row in contract(own_name("two_outputs", two_outputs)) if row["asked"] == SINKS_GRADIENT]
    assert row["outcome"] == "answered", row


def test_the_bound_and_the_alignment_are_checks_by_name():
    def two_ways(q, k, v, causal=False, scale=None):
        if causal and q.shape[2] > 1 and q.shape[2] != k.shape[2]:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
            return kernels.as_shipped(q, k, v, scale=scale, mask=mask)
        return kernels.as_shipped(q, k, v, causal=causal, scale=scale)

    alignment = result_of("alignment", two_ways)
    assert alignment.passed is False and result_of("bound", two_ways).passed is True
    assert "top-left for several queries, bottom-right for one" in alignment.why
    assert result_of("alignment", "as_shipped").passed is True

    def steep(q, k, v, causal=False, scale=None):
        return kernels.as_shipped(q, k, v, causal=causal, scale=1.08 * (scale or q.shape[-1] ** -0.5))

    assert result_of("bound", steep).passed is False


def test_a_layout_turns_a_file_before_its_lengths_are_read(tmp_path):
    """In (batch, sequence, heads, head_dim) the last dimension but one counts heads."""
    q, k, v = (x.transpose(1, 2) for x in normal(1, 4, 24, 8, kv=(1, 2, 24, 8)))
    held = captured(saved(tmp_path, q=q, k=k, v=v, is_causal=torch.tensor(True)), Reading(layout="bshd"))
    assert held.options["causal"] and held.q.shape == (1, 4, 24, 8)
    q, k, v = (x.transpose(1, 2) for x in normal(1, 4, 24, 8, kv=(1, 4, 48, 8)))
    with pytest.raises(ValueError, match="call.safetensors: is_causal: got it"):
        captured(saved(tmp_path, q=q, k=k, v=v, Is_Causal=torch.tensor(True)), Reading(layout="bshd"))


@pytest.mark.parametrize("name", ["q", "k"])
def test_a_tensor_of_too_few_dimensions_is_named(tmp_path, name):
    held = dict(zip("qkv", normal(4, 8))) | {name: torch.zeros(8)}
    for layout in ("bhsd", "bshd"):
        with pytest.raises(ValueError, match=r"[qk]: got"):
            captured(saved(tmp_path, **held), Reading(layout=layout))
    held = dict(zip("qkv", normal(1, 2, 16, 8))) | dict(o=torch.zeros(1, 2, 16, 8).to(torch.float8_e4m3fn))
    with pytest.raises(ValueError, match="o: got torch.float8_e4m3fn"):
        captured(saved(tmp_path, **held))


def test_options_of_a_comparison_without_a_file_are_used_or_refused():
    done = command("compare", "flash", "unfused", "--n", "128", "--causal", "--scale", "0.3")
    assert done.exit_code == 0, done.output
    call = ComparisonInputs(reading=Reading(causal=True, scale=0.3, softcap=2.0), n=32).call()
    assert call.options == dict(causal=True, scale=0.3, softcap=2.0)
    for words in (("--layout", "bshd"), ("--allow-large",)):
        done = command("compare", "flash", "unfused", *words)
        assert done.exit_code == 2 and "layout, allow_large: got" in done.output


def test_a_window_without_limits_is_none(tmp_path):
    q, k, v = normal(1, 2, 16, 8)
    file = saved(tmp_path, q=q, k=k, v=v)
    assert captured(file, Reading(window=(None, None))).options == {}
    assert command("check", "tensors", file, "--window=-1,-1", "--kernel", "flash", "--out", tmp_path).exit_code == 0
    with pytest.raises(ValueError, match="window: got"):
        captured(saved(tmp_path, q=q, k=k, v=v, window=torch.tensor([4, 4])), Reading(window=(None, None)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_a_row_without_keys_gives_is_a_convention(tmp_path, dtype):
    q, k, v = normal(1, 2, 96, 32, dtype=dtype)
    mask = torch.ones(96, 96, dtype=torch.bool).tril()
    mask[:, :7] = False
    right = kernels.as_shipped(q, k, v, mask=mask)
    for given in (0.0, math.nan, v.mean(2, keepdim=True).expand(-1, -1, 7, -1)):
        o = right.clone()
        o[:, :, :7] = given
        file = saved(tmp_path, q=q, k=k, v=v, mask=mask, o=o)
        done = command("check", "tensors", file, "--out", tmp_path, "--exit-code")
        assert done.exit_code == 0 and "14 rows see no key" in done.output, done.output
    assert command("check", "tensors", file, "--kernel", "reference", "--out", tmp_path, "--exit-code").exit_code == 0
    o[:, :, 50] = math.nan  # it sees keys
    assert command("check", "tensors", saved(tmp_path, q=q, k=k, v=v, mask=mask, o=o), "--exit-code").exit_code == 1
    means = own_name("means", lambda q, k, v, mask=None: kernels.as_shipped(q, k, v, mask=mask).where(
        mask.any(-1, keepdim=True), v.mean(2, keepdim=True)))  # fmt: skip
    found = compare(means, "as_shipped", ComparisonInputs(saved(tmp_path, q=q, k=k, v=v, mask=mask)))
    assert found.blind == 14 and not found.apart["max"] and "14 rows see no key" in " ".join(compared_in_words(found))


def test_a_models_calls_are_computed_by_kernels_with_names_of_their_own():
    q, k, v = normal(1, 2, 32, 16, dtype=torch.bfloat16)
    sdpa = "torch.nn.functional:scaled_dot_product_attention"
    with Probe((sdpa,)) as probe:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    assert not probe.skipped and (probe.table[probe.table.kernel == sdpa]["max"] < 0.1).all()


def test_outputs_a_little_too_small_are_a_rounding_to_one_side():
    q, k, v = normal(1, 2, 256, 64, dtype=torch.bfloat16)
    exact = kernels.golden(q, k, v.abs(), inputs="BF16")
    (row,) = closeness((exact * (1 - 2.0**-8)).float(), q, k, v.abs(), {})
    assert row["key"] == "bias" and row["key"] in ROUNDINGS
    (row,) = closeness((exact * 1.02).float(), q, k, v.abs(), {})
    assert row["key"] == "factor=1.02"


def test_of_few_rows_the_bound_decides_where_the_rule_may_break_by_luck():
    row = dict(model="", step=0, layer="", call=0, head=0, fmt="FP32", n_q=16, n_kv=16, rows=16, hidden=0,
               later=0.0, own=1.0, against="golden", scale=1.0)  # fmt: skip
    table = pd.DataFrame([row | dict(kernel="ran", max=2.5), row | dict(kernel="baseline", max=1.0)])
    for rows, times, passed in ((32, 0.4, True), (640, 0.4, False), (32, 1.4, False)):
        close = [dict(times=times, rows=0, of=rows, key="", same=False, share=0.0, fmt="", tiles=0, factor=1.0)]
        judgement = judge_model("m", table.assign(rows=rows), close=close)
        assert judgement.passed == passed
        (ran,) = (f for f in judgement.findings if f.what == "layer_error" and f.where["kernel"] == "ran")
        assert ran.number == 2.5 and ran.severity == (Severity.REPORTED if passed else Severity.FAILS)


def test_a_decoder_whose_masks_could_not_be_read_is_told_so():
    q, k, v = normal(1, 2, 8, 16, kv=(1, 2, 32, 16))
    with Probe(()) as probe:
        torch.nn.functional.scaled_dot_product_attention(q, k, v)
    judgement, bidirectional = (judge_model("m", probe.table, causal=causal, close=()) for causal in (True, False))
    (unknown,) = (f for f in judgement.findings if f.what == "later_unknown")
    assert unknown.severity == Severity.REPORTED and unknown.where == dict(calls=1, of=1)
    assert "1 of 1 calls" in judgement_text(judgement)
    assert not [f for f in bidirectional.findings if f.what == "later_unknown"]


def test_notebook_12_judges_a_file_of_the_readers(tmp_path):
    notebook = nbformat.read(NOTEBOOKS / "tutorials" / "12_your_tensors.ipynb", 4)
    file = saved(tmp_path, **dict(zip("qkv", normal(1, 2, 64, 16))))
    (given,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    given.source = given.source.replace('qkv = ""', f"qkv = {str(file)!r}").replace('fmt = ""', 'fmt = "BF16"')
    NotebookClient(notebook, timeout=300, resources=dict(metadata=dict(path=str(NOTEBOOKS)))).execute()
    printed = "".join(out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", ()))
    assert "flash passes on these tensors" in printed and "nearest" not in printed
