"""What a probe saves of a call, what it says of calls that it did not compare, and what is read back."""

import math
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

from attention_check.commands import captured_reports
from attention_check.judge.captured import judge_model
from attention_check.probe.capture import captured
from attention_check.probe.named_tensors import Reading
from attention_check.probe.probe import Probe
from attention_check.probe.skipped import Why, reason_sentence
from attention_check.report.sentences import judgement_text
from fa_lib import draw, kernels
from tests.attention_check.test_model_probe import same

pytestmark = pytest.mark.slow
BITS = torch.bfloat16


class Layer(nn.Module):
    """Attention of its own, whose output is what the next layer begins with."""

    def __init__(self, d=16):
        super().__init__()
        self.project = nn.Linear(d, 3 * d)
        self.scale = 1.0
        self.dropout = 0.0

    def forward(self, x):
        q, k, v = (self.project(x) * self.scale).chunk(3, -1)
        return x + F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)


def model(layers=3):
    torch.manual_seed(0)
    return nn.Sequential(*[Layer() for _ in range(layers)])


def x_of(n=12, dtype=torch.float32):
    return draw("normal", 3, (2, 3, n, 16))[0].to(dtype)


def gradients(net, x):
    """The output of a model and all of its gradients."""
    net.zero_grad()
    x = x.clone().requires_grad_()
    out = net(x)
    out.float().square().mean().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in net.parameters())]


@pytest.mark.parametrize("dtype", [torch.float32, BITS])
def test_the_gradient_of_the_worst_call_is_saved_and_the_model_keeps_its_bits(tmp_path, dtype):
    net, x, path = model().to(dtype), x_of(dtype=dtype), tmp_path / "worst.safetensors"
    plain = gradients(net, x)
    with Probe(save=path) as probe:
        assert same(gradients(net, x), plain)
    assert probe.calls == 3 and not probe.skipped
    held = captured(path)
    assert held.dO.shape == held.o.shape == held.q.shape and held.dO.dtype == held.q.dtype == dtype
    heard, layer = [], net[int(held.about["layer"])]
    layer.register_forward_hook(lambda module, args, out: out.register_hook(heard.append) and None)
    net(x).float().square().mean().backward()
    assert torch.equal(held.dO, heard[0])  # out = x + o: the gradient of o is that of out
    assert held.about["step"] == "0" and held.about["kernel"] == "ran"
    o = F.scaled_dot_product_attention(held.q, held.k, held.v)
    assert torch.equal(held.o, o)


def test_a_call_without_a_backward_pass_has_no_gradient_and_a_second_pass_does_not_replace_the_first(tmp_path):
    net, path = model(1), tmp_path / "worst.safetensors"
    with Probe(save=path):
        net(x_of())
    assert captured(path).dO is None
    with torch.no_grad(), Probe(save=path):
        net(x_of())
    assert captured(path).dO is None
    with Probe(save=path):
        out = net(x_of())
        out.sum().backward(retain_graph=True)
        (5 * out.sum()).backward()
    assert (captured(path).dO == 1).all()


def test_the_first_call_that_is_not_finite_is_told_and_saved(tmp_path):
    net, path = model(3), tmp_path / "worst.safetensors"
    net[1].scale = math.inf
    words = r"step 0, layer 1, q; not compared: 2 \(NaN"
    with pytest.warns(UserWarning, match=words) as told, Probe(save=path) as probe:
        net(x_of())
    assert len(told) == 1
    assert set(probe.table.layer) == {"0"} and probe.skipped == {("all", Why.NONFINITE): 2}
    assert probe.nonfinite["tensor"] == "q" and (probe.nonfinite["step"], probe.nonfinite["layer"]) == (0, "1")
    with pytest.raises(ValueError, match=r"q: \d+ of \d+ values are NaN .*step 0, layer '1'"):
        captured(path)
    judgement = judge_model("mine", probe.table, skipped=probe.skipped, nonfinite=probe.nonfinite)
    (first,) = [f for f in judgement.findings if f.what == "nonfinite"]
    assert not judgement.passed and first.where.items() >= dict(step=0, layer="1", tensor="q").items()
    assert "step 0, layer 1, q: it came" in judgement_text(judgement)


def test_an_output_that_is_not_finite_is_told_where_the_inputs_are():
    q, k, v = (x_of(dtype=torch.float16) for _ in range(3))
    o = kernels.flash(q, k, v)
    o[1, 2, 5, 0] = math.inf
    probe = Probe(queries=2)  # the row is none of those compared
    for step, out in enumerate((kernels.flash(q, k, v), o)):
        probe(q, k, v, out, dict(model="", step=step, layer="a", call=0))
    assert probe.nonfinite == dict(model="", step=1, layer="a", call=0, tensor="o")
    hidden = torch.ones(12, 12, dtype=torch.bool)
    hidden[5] = False
    probe = Probe()
    probe(q, k, v, o, dict(step=0), mask=hidden)  # a row that sees no key may hold anything
    assert probe.nonfinite is None and not probe.skipped
    with_nan = torch.zeros(12, 12).masked_fill(torch.eye(12) > 0, math.nan)
    probe(q, k, v, o, dict(step=0), mask=with_nan)
    assert probe.nonfinite["tensor"] == "mask"


def test_what_is_skipped_is_told_in_one_line_with_what_to_do():
    net = model(2)
    net[0].dropout = 0.5
    with pytest.warns(UserWarning) as told, Probe("stepwise"):
        net(x_of())
        F.scaled_dot_product_attention(*[x_of()] * 3, is_causal=True)
    (words,) = [str(each.message) for each in told]
    assert f"not compared: 1 ({reason_sentence(Why.DROPOUT)})" in words
    assert "refused: 1 by stepwise (raises ValueError: causal" in words and "\n" not in words
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Probe():
            model(1)(x_of())


def test_eager_and_compiled_models_are_told():
    class Config:
        _attn_implementation = "eager"

    class Strange:
        @property
        def _attn_implementation(self):
            raise KeyError("no")

    net = model(1)
    net.config = Strange()
    with Probe() as probe:
        net(x_of())
    assert not probe.skipped
    net[0].config = Config()
    with pytest.warns(UserWarning, match=r"not compared: 1 .*\bsdpa\b"), Probe() as probe:
        net(x_of())
    assert probe.skipped == {("all", Why.EAGER): 1}
    other = model(1)
    compiled = torch.compile(other, backend="aot_eager")
    with pytest.warns(UserWarning, match="set_stance"), Probe() as probe:
        compiled(x_of())
        kernels.flash(*[x_of()] * 3)
    assert probe.skipped[("all", Why.COMPILED)] == 1
    own = nn.Sequential(model(1))
    own.compile(backend="aot_eager")
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):  # as it says
        warnings.simplefilter("error")
        with Probe() as probe:
            own(x_of())
    assert probe.calls == 1 and len(probe.table)


def test_the_report_on_a_capture_judges_what_ran_and_says_where_it_was(tmp_path):
    path = tmp_path / "worst.safetensors"
    q, k, v = (x.to(BITS) for x in draw("normal", 0, (1, 2, 40, 16)))
    wrong = 1.2 * kernels.flash(q, k, v)
    for o, verdict in ((kernels.flash(q, k, v), "passes"), (wrong, "fails")):
        with Probe(save=path) as probe:
            probe(q, k, v, o, dict(model="Own", step=7, layer="blocks.3", call=0))
        report = captured_reports.check_tensors(path, out=tmp_path)
        told = judgement_text(report.judgement)
        assert report.judgement.verdict == verdict
        cause = "" if verdict == "passes" else r": it computes another attention: 1\.(2|199|201) times attention"
        assert re.match(rf"The kernel that ran {verdict} on these tensors{cause}", told)
        assert "captured at step 7, layer blocks.3 of Own" in told
        assert report.record["parameters"]["layer"] == "blocks.3" and "blocks.3" in report.page.read_text()
    assert captured_reports.check_tensors(path, out=tmp_path, names=("flash",)).judgement.passed


def test_a_rounded_capture_has_no_output_and_a_wrong_shape_is_refused(tmp_path):
    q, k, v = draw("normal", 0, (1, 2, 8, 16))
    path = tmp_path / "a.safetensors"
    probe = Probe(save=path)
    with probe:
        probe(*(x.float() for x in (q, k, v)), kernels.flash(*(x.float() for x in (q, k, v))))
    assert captured(path).o is not None and captured(path, Reading("BF16")).o is None
    with pytest.raises(ValueError, match=rf"^names: got 'ran'; {path} holds no o\b"):
        captured_reports.check_tensors(path, Reading("BF16"), tmp_path, names=("ran",))
    with safe_open(path, "pt") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    torch.save(held | dict(dO=held["o"][..., :4]), tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"dO: got shape \(1, 2, 8, 4\); .* \(1, 2, 8, 16\)"):
        captured(tmp_path / "a.pt")
