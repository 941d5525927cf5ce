"""Captured tensors: what is read and refused, what is called risky, what is judged."""

import json
import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from attention_check.commands import captured_reports
from attention_check.isolation.worker import Outcome
from attention_check.judge.captured import flags, judge_tensors
from attention_check.judge.findings import Severity
from attention_check.measure import captured as capture
from attention_check.measure.measurements import TensorMeasurements
from attention_check.probe.capture import captured
from attention_check.probe.named_tensors import Reading
from attention_check.report.sentences import headline, judgement_text
from fa_lib import BF16, FP16, FP32, draw, kernels


def tensors(heads=2, kv_heads=2, n=40, d=16, dtype=torch.bfloat16):
    return [x.to(dtype) for x in draw("normal", 0, (1, heads, n, d), (1, kv_heads, n, d))]


def written(path, **held):
    if path.suffix == ".safetensors":
        save_file(held, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: x.numpy() for name, x in held.items()})
    else:
        torch.save(held, path)
    return path


def read(*given):
    held = captured(*given)
    return held.q, held.k, held.v, held.options


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "pt"])
def test_a_file_holds_tensors_and_how_they_were_used(tmp_path, suffix):
    q, k, v = tensors(dtype=torch.float32)
    held = dict(q=q, k=k, v=v, causal=torch.tensor(True), scale=torch.tensor(0.5), mask=torch.ones(40, 40).tril() > 0)
    got = read(written(tmp_path / f"a.{suffix}", **held))
    assert all(torch.equal(a, b) for a, b in zip(got[:3], (q, k, v)))
    assert got[3].keys() == {"causal", "scale", "mask"} and got[3]["causal"] is True and got[3]["scale"] == 0.5
    rounded = read(tmp_path / f"a.{suffix}", Reading("BF16"))
    assert rounded[0].dtype == torch.bfloat16 and torch.equal(rounded[0], q.bfloat16())


def test_files_that_will_not_do_are_refused_with_what_to_do(tmp_path):
    q, k, v = tensors()
    nan = v.clone()
    nan[0, 0, 0, 0] = math.nan
    cases = {
        "v.safetensors": (dict(q=q, k=k, v=v[:, :, :-1].contiguous()), "v: got shape .* accepted is k's"),
        "n.safetensors": (dict(q=q, k=k, v=nan), "v: 1 of 1280 values are NaN .* accepted are finite values"),
        "m.safetensors": (dict(q=q, k=k), r"no tensor named 'v', but k, q; "),
        "d.safetensors": (dict(q=q, k=k, v=v.float()), "v: got torch.float32"),
        "f.safetensors": (dict(q=q.double(), k=k.double(), v=v.double()), "check tensors --format"),
        "c.safetensors": (dict(q=q, k=k, v=v, causal=torch.tensor([True, True])), "causal: got 2 numbers"),
        "a.safetensors": (dict(q=q, k=k, v=v, mask=torch.full((40, 40), math.nan)), "mask: got NaN"),
        "h.safetensors": (dict(q=q[..., :8].contiguous(), k=k, v=v), "k: got head_dim 16; accepted is q's, 8"),
    }
    for name, (held, message) in cases.items():
        with pytest.raises(ValueError, match=message):
            read(written(tmp_path / name, **held))
    for name in ("a.pkl", "a.pt", "a.npz"):
        (tmp_path / name).write_bytes(pickle.dumps(dict(q=print)))
    np.savez(tmp_path / "of_objects.npz", q=np.array([print], dtype=object))
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "v.safetensors").read_bytes()[:-50])
    for name in ("a.pkl", "a.pt", "a.npz", "of_objects.npz", "cut.safetensors"):
        with pytest.raises(ValueError, match="without pickle.*safetensors.torch.save_file"):
            read(tmp_path / name)
    torch.save([q, k, v], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="holds list; accepted are named tensors"):
        read(tmp_path / "list.pt")
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nowhere.pt")


@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(scale=2.0), dict(mask=torch.ones(40, 40) > 0)])
def test_risks_are_what_a_few_lines_count(options):
    q, k, v = tensors(4, 2, dtype=torch.float16)
    k[..., 1, :] = k[..., 0, :]
    S = FP32((q.double() @ k.double().repeat_interleave(2, 1).mT) * options.get("scale", 0.25))
    visible = torch.ones(40, 40, dtype=torch.bool).tril() if options.get("causal") else torch.ones(40, 40) > 0
    rows = capture.risks(q, k, v, options, block_kv=16)
    for head, row in enumerate(rows):
        s = [S[0, head, i][visible[i]] for i in range(40)]
        P = [torch.exp(x - x.max()) for x in s]
        assert row["repeated"] == pytest.approx(sum((x == x.max()).sum() > 1 for x in s).item() / 40)
        assert row["ones"] == pytest.approx(sum((FP16(p) == 1).sum().item() for p in P) / 40)
        assert row["spread"] == pytest.approx(sum(x.std(correction=0).item() for x in s) / 40)
        assert row["lost"] == pytest.approx(sum((FP16(p) == 0).double().mean().item() for p in P) / 40)
        assert row["mass"] == pytest.approx(max((p[FP16(p) == 0].sum() / p.sum()).item() for p in P))
        side = v[0, head // 2].double()
        assert row["one_sided"] == pytest.approx((side.sum(0).abs() / side.abs().sum(0)).mean().item())


def test_what_was_drawn_risky_is_found_and_told():
    q, k, v = capture.example(n=128)
    risky = pd.DataFrame(capture.risks(q, k, v))
    kind = dict(zip(capture.KINDS, risky.itertuples()))
    assert {name for name, row in kind.items() if row.repeated > 0.5} == {"repeated maxima", capture.BIASED}
    assert {name for name, row in kind.items() if row.one_sided == 1} == {"uniform", "one-signed V", capture.BIASED}
    assert max(kind, key=lambda name: kind[name].spread) == "peaked" and kind["sink"].rescales == 0
    assert flags(risky) == dict(biased_output=[6], one_signed=[1, 4], underflow=[])
    steep = [x.half() for x in (30 * q.float(), k.float(), v.float())]
    assert capture.risks(*steep)[0]["lost"] > 0.5


def test_deviations_are_those_of_the_kernels_and_refusals_are_rows():
    q, k, v = tensors(2)
    kernels.register("no capture", lambda q, k, v: 1 / 0)
    mask = torch.ones(40, 40).tril() > 0
    answers = capture.answered(q, k, v, dict(mask=mask), ["flash", "stepwise", "every_step"])
    far = pd.DataFrame(capture.deviations(q, k, v, dict(mask=mask), answers))
    (refused,) = far[far.kernel == "stepwise"].itertuples()
    assert refused.outcome == "refused" and refused.problem.startswith("raises ValueError: mask: got")
    golden = kernels.golden(q, k, v, inputs=BF16, mask=mask)
    out = kernels.every_step(q, k, v, mask=mask).double()
    row = far[(far.kernel == "every_step") & (far["head"] == 1)].iloc[0]
    assert row["max"] == (out - golden)[0, 1].abs().max().item()
    best = far[far.kernel == capture.ROUNDED].set_index("head").rmse
    assert (far[far.kernel == "flash"].set_index("head").rmse >= best).all()


def test_a_kernel_that_misbehaves_is_a_row_and_harms_no_other():
    q, k, v = tensors(2)
    kernels.register("nan", lambda q, k, v: v * math.nan)
    kernels.register("changes", lambda q, k, v: kernels.flash(q.mul_(2), k, v))
    names = ["nan", "changes", "flash"]
    far = pd.DataFrame(capture.deviations(q, k, v, {}, capture.answered(q, k, v, {}, names)))
    assert far[far.kernel == "nan"].outcome.iloc[0] == Outcome.MALFORMED
    assert far[far.kernel == "changes"].problem.iloc[0] == "changes its inputs: q"
    assert (far[far.kernel == "flash"].times_max < 2).all()
    judgement = judge_tensors(names, TensorMeasurements(far, pd.DataFrame(capture.risks(q, k, v))))
    (refused,) = [f for f in judgement.findings if f.what == "refused" and f.where["kernel"] == "nan"]
    assert refused.severity == Severity.FAILS and refused.where["outcome"] == Outcome.MALFORMED
    assert not judgement.passed and "nan returns 1280 values" in judgement_text(judgement)
    assert judge_tensors(["flash", "nan"], TensorMeasurements(far, pd.DataFrame(capture.risks(q, k, v)))).passed


def test_fp32_is_held_against_sums_that_round_too():
    q, k, v = tensors(2, n=512, dtype=torch.float32)
    far = pd.DataFrame(capture.deviations(q, k, v, {}, capture.answered(q, k, v, {}, ["flash"])))
    assert (far[far.kernel == "flash"].times_rmse < 2).all()


def test_a_capture_is_reported_on_in_one_page(tmp_path):
    path = written(tmp_path / "mine.npz", **dict(zip("qkv", tensors(dtype=torch.float32))))
    report = captured_reports.check_tensors(path, Reading("BF16"), tmp_path)
    words, html = judgement_text(report.judgement), (tmp_path / "mine.html").read_text()
    (error,) = [f for f in report.judgement.findings if f.what == "head_error" and f.where["kernel"] == "flash"]
    assert error.severity == Severity.PASSES and error.where["heads"] == 2 and error.number < error.limit == 2
    assert words.startswith("flash passes on") and f"head {error.where['head']}" in words
    assert report.judgement.passed and "torch.bfloat16" not in words and report.page == tmp_path / "mine.html"
    assert headline(report.judgement) in html and html.count("data:image/png;base64") == 2
    assert len(pd.read_csv(tmp_path / "mine" / "risks.csv")) == 2
    assert json.loads(json.dumps(report.record, allow_nan=False))["passed"] is True
