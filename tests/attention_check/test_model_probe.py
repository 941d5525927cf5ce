"""The probe: models keep their bits, every call is found in its place, and what is wrong is seen."""

import gc
import math
import random
import runpy
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

import fa_lib
from attention_check.commands import captured_reports
from attention_check.judge.captured import judge_model
from attention_check.judge.findings import Severity
from attention_check.probe.capture import captured
from attention_check.probe.probe import Probe
from attention_check.probe.skipped import Why
from attention_check.report.sentences import judgement_text
from fa_lib import BF16, kernels
from fa_lib.execution.paths import ROOT

pytestmark = pytest.mark.slow

IDS = torch.randint(64, (2, 48), generator=torch.Generator().manual_seed(0))
PADDED = torch.ones_like(IDS).masked_fill(torch.arange(48) < torch.tensor([[10], [0]]), 0)
BITS = torch.bfloat16


def decoder(attention="sdpa", **changes):
    torch.manual_seed(0)
    size = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4)
    config = LlamaConfig(**size, num_key_value_heads=2, attn_implementation=attention, **changes)
    return LlamaForCausalLM(config).to(BITS)


class Own(nn.Module):
    """Attention of its own, by whatever function."""

    def __init__(self, attend):
        super().__init__()
        self.project, self.attend = nn.Linear(16, 16), attend

    def forward(self, x):
        y = self.project(x)
        return self.attend(y, y.flip(-1), y + 1)


def x_of(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def mean_of_v(q, k, v, *, causal=False, scale=None, mask=None):
    return v.mean(-2, keepdim=True).repeat_interleave(q.shape[1] // v.shape[1], 1).expand_as(q)


def rude(q, k, v, **options):
    """Draws random numbers and writes over what it was given."""
    for x in (q, k, v):
        x.copy_(torch.randn_like(x))
    return q


def whole(q, k, v, **options):
    return kernels.as_shipped(q, k, v, **options)


def golden_rows(probe, kernel="ran"):
    return probe.table[lambda t: (t.against == "golden") & (t.kernel == kernel)]


def run(model, *args, **kwargs):
    """The output of a model, its gradients, and the next random number."""
    torch.manual_seed(1)
    model.zero_grad()
    out = model(*args, **kwargs)
    out = out if isinstance(out, torch.Tensor) else out[0]
    out.float().square().mean().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None), torch.rand(3)]


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


CALLED = []


def draws(q, k, v, **options):
    CALLED.append((np.random.rand(), random.random(), torch.rand(1)))
    return kernels.unfused(q, k, v, **options)


def call_and_what_follows():
    """A call of attention, and whatever a model does after it."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    x = torch.randn(1, 2, 16, 8)
    return (
        F.scaled_dot_product_attention(x, x, x).sum().item(), np.random.rand(), random.random(), torch.rand(1).item(),
        F.scaled_dot_product_attention(x, x, x).sum().item(),
    )  # fmt: skip


def test_a_kernel_beside_a_model_draws_no_random_numbers_of_its():
    alone = call_and_what_follows()
    with Probe("test_model_probe:draws") as probe:
        watched = call_and_what_follows()
    assert CALLED and probe.rows and watched == alone


NAMES = ["as_shipped", "every_step", "test_model_probe:rude", "flash"]


@pytest.mark.parametrize("padded", [False, True])
def test_a_decoder_has_the_same_outputs_gradients_and_random_numbers(padded):
    model, mask = decoder(attention_dropout=0.0).train(), dict(attention_mask=PADDED) if padded else {}
    plain = run(model, IDS, **mask)
    with Probe(NAMES) as probe:
        assert same(run(model, IDS, **mask), plain) and same(run(model, IDS, **mask), plain)
    table, layers = probe.table, [f"model.layers.{i}.self_attn" for i in range(3)]
    assert probe.calls == 3 * 2 and not probe.skipped
    assert list(dict.fromkeys(table.layer)) == layers
    assert set(table.step) == {0, 1} and set(table["head"]) == {0, 1, 2, 3}
    assert len(table) == 3 * 2 * 4 * (2 * len(probe.kernels) + 1) and set(table.fmt) == {"BF16"}
    assert set(table.hidden) == ({4 * 10} if padded else {0})  # rows of padding see no key
    ran, twin = golden_rows(probe), golden_rows(probe, "flash")
    assert (ran["max"] < ran.scale * 0.1).all() and (ran.rmse < ran.scale * BF16.unit_roundoff).all()
    if not padded:  # torch's choice is its flash kernel
        assert (twin["max"].to_numpy() == ran["max"].to_numpy()).all()
    assert (golden_rows(probe, "as_shipped").ratio < 2).all() and (golden_rows(probe, "baseline").ratio == 1).all()
    bad = probe.summary()["test_model_probe:rude"]
    assert len(bad) == 3 and (bad > 20).all() and (probe.summary().ran < 2).all()


def test_keys_and_values_are_compared_and_saved_as_few_as_they_are(tmp_path):
    seen = []
    model = decoder()
    with Probe(save=tmp_path / "worst.safetensors", every=1) as probe:
        probe.kernels["spy"] = lambda q, k, v, **options: seen.append((q.shape, k.shape, options)) or q
        model(IDS)
    assert set((tuple(q), tuple(k)) for q, k, _ in seen) == {((2, 4, 48, 16), (2, 2, 48, 16))}
    assert all(options["causal"] and "mask" not in options for *_, options in seen)
    saved = captured(tmp_path / "worst.safetensors")
    q, k, v, options = saved.q, saved.k, saved.v, saved.options
    assert (q.shape, k.shape, v.shape) == ((2, 4, 48, 16), (2, 2, 48, 16), (2, 2, 48, 16)) and q.dtype == BITS
    with safe_open(tmp_path / "worst.safetensors", "pt") as held:
        about = held.metadata()
    ran = golden_rows(probe).assign(error=lambda t: t["max"] / t.scale)
    worst = ran.loc[ran.error.idxmax()]
    assert about["layer"] == worst.layer and int(about["head"]) == worst["head"] and about["kernel"] == "ran"
    assert options == dict(causal=True, scale=0.25)
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    golden = kernels.golden(q, k, v, inputs=BF16, **options)
    assert (o - golden)[:, worst["head"]].abs().max().item() == worst["max"] == float(about["deviation"])


def test_the_mask_of_the_worst_call_is_saved_and_nothing_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "worst.safetensors"
    with Probe(save=path) as probe:
        decoder()(IDS, attention_mask=PADDED)
    with safe_open(path, "pt") as held:
        assert set(held.keys()) == {"q", "k", "v", "o", "mask", "causal", "scale"}
        assert held.get_tensor("mask").shape[-2:] == (48, 48)
    before = path.read_bytes()
    monkeypatch.setattr(
        "attention_check.probe.capture.save_file", lambda tensors, at, metadata: at.write_bytes(b"half") and 1 / 0
    )
    with pytest.warns(UserWarning, match="worst.safetensors: division by zero"), probe:
        decoder()(IDS)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("padded", [False, True])
def test_every_token_that_is_generated_is_a_step(padded):
    model = decoder().eval()
    options = dict(max_new_tokens=5, do_sample=True, attention_mask=PADDED if padded else None)

    def tokens():
        torch.manual_seed(2)
        return model.generate(IDS, **options)

    plain = tokens()
    with Probe() as probe:
        assert torch.equal(tokens(), plain)
    steps = golden_rows(probe).groupby("step")[["n_kv", "hidden", "ratio"]].max()
    assert probe.calls == 3 * 5 and not probe.skipped and steps.n_kv.tolist() == [48, 49, 50, 51, 52]
    assert (steps.hidden[1:] == 0).all() and (golden_rows(probe).rmse < golden_rows(probe).scale * 2**-8).all()


def test_some_steps_are_compared_wholly_and_the_others_not_at_all():
    model = decoder()
    with Probe(every=3) as probe:
        for _ in range(7):
            model(IDS)
    assert probe.calls == 7 * 3
    assert probe.table.groupby("step").layer.nunique().to_dict() == {0: 3, 3: 3, 6: 3}


@pytest.mark.parametrize("causal", [False, True])
def test_the_rows_that_are_compared_are_those_of_the_whole_call(causal):
    q, k, v = (x_of(6, heads, 50, 8, seed=heads) for heads in (4, 2, 2))
    with Probe(["as_shipped", "test_model_probe:whole"], queries=20) as probe:
        F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    ours, theirs = (
        golden_rows(probe, name)[["max", "rmse"]].to_numpy() for name in ("as_shipped", "test_model_probe:whole")
    )
    assert (ours == theirs).all() and set(probe.table.rows) == {4 * 5} and not probe.skipped


@pytest.mark.parametrize("n_q, n_kv, mask", [(5, 9, False), (9, 5, False), (7, 7, True)])
def test_causal_is_aligned_as_torch_aligns_it(n_q, n_kv, mask):
    q, k, v = x_of(1, 2, n_q, 8), *(x_of(1, 2, n_kv, 8, seed=s) for s in (1, 2))
    for given in (None, x_of(n_q, n_kv), x_of(1, 1, n_q, n_kv) > -1) if mask else (None,):
        with Probe(baseline="unfused", queries=None) as probe:
            F.scaled_dot_product_attention(q, k, v, given, 0.0, True, scale=0.3)
        assert (golden_rows(probe)["max"] < 1e-6).all() and not probe.skipped


def test_under_autocast_the_inputs_are_those_of_the_kernel():
    model = decoder().float()
    with torch.autocast("cpu", dtype=BITS):
        plain = run(model, IDS)
        with Probe(["flash"]) as probe:
            assert same(run(model, IDS), plain)
    ran, twin = golden_rows(probe), golden_rows(probe, "flash")
    assert set(ran.fmt) == {"BF16"} and (ran["max"].to_numpy() == twin["max"].to_numpy()).all()
    assert (ran.rmse > ran.scale * 1e-4).all() and (probe.summary().ran < 2).all()


def test_under_autocast_a_mask_that_is_added_is_rounded_too():
    q, mask = x_of(1, 2, 6, 16), 20 + 0.06 * x_of(6, 6)  # whose spread is BF16's spacing there
    with torch.autocast("cpu", dtype=BITS), Probe() as probe:
        F.scaled_dot_product_attention(q, q, q, mask)
    assert (golden_rows(probe).rmse < golden_rows(probe).scale * BF16.unit_roundoff).all()


def test_calls_with_dropout_are_counted_and_not_compared():
    model = decoder(attention_dropout=0.25).train()
    plain = run(model, IDS)
    with Probe() as probe:
        assert same(run(model, IDS), plain)
        assert probe.table.empty and probe.summary().empty
        model.eval()(IDS)
    assert probe.skipped == {("all", Why.DROPOUT): 3}
    assert probe.calls == 6 and set(probe.table.step) == {1}
    with pytest.warns(UserWarning, match=r"^Probe: no scaled_dot_product"), Probe():  # which no Probe sees
        decoder("eager")(IDS)


def test_what_a_kernel_refuses_is_counted_and_the_rest_compared():
    with Probe("stepwise") as probe:
        decoder()(IDS)
    ((kernel, why),) = probe.skipped
    assert kernel == "stepwise" and "causal: got True" in why and probe.skipped[kernel, why] == 3
    assert set(probe.table.kernel) == {"ran", "baseline"}
    with Probe() as probe:
        probe.kernels["other shape"] = lambda q, k, v, **options: q[..., :1]
        out = Own(F.scaled_dot_product_attention)(x_of(1, 1, 4, 16).fill_(math.nan))
        F.scaled_dot_product_attention(*[x_of(1, 1, 4, 16)] * 3)
    assert out.isnan().all()
    reasons = [f"{kernel} {why}" for kernel, why in probe.skipped]
    assert reasons[0] == "all nonfinite" and "other shape returns torch.float#" in reasons[1]


def test_an_output_that_is_not_finite_is_infinitely_far():
    with Probe() as probe:
        probe.kernels["broken"] = lambda q, k, v, **options: torch.full_like(q, math.nan)
        Own(F.scaled_dot_product_attention)(x_of(1, 2, 4, 16))
    assert (golden_rows(probe, "broken")[["max", "ratio"]] == math.inf).all(axis=None)
    assert (probe.summary().broken == math.inf).all()


def test_places_without_names_several_models_and_several_calls():
    def twice(q, k, v):
        return early(early(q, k, v), k, v)  # a reference from before the probe

    early = F.scaled_dot_product_attention
    one, other, x = Own(twice), Own(early), x_of(1, 2, 4, 16)
    loose = [Own(early)]  # no submodule: its caller stands in for it
    outer = Own(lambda q, k, v: loose[0](q))
    with Probe(baseline=None) as probe:
        for module in (one, other, one, outer):
            nn.Identity()(module(x))
        torch._C._nn.scaled_dot_product_attention(query=x, key=x, value=x)
    places = probe.table[["model", "step", "layer", "call"]].drop_duplicates().to_numpy().tolist()
    assert places == [
        ["Own", 0, "", 0], ["Own", 0, "", 1], ["Own 2", 0, "", 0], ["Own", 1, "", 0], ["Own", 1, "", 1],
        ["Own 3", 0, "", 0], ["", 0, "", 0],
    ]  # fmt: skip
    assert "ratio" not in probe.table
    with pytest.raises(ValueError, match=r"^baseline: got None; "):
        probe.summary()


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_checkpointing_computes_again_is_no_step(reentrant):
    model, x = nn.Sequential(Own(F.scaled_dot_product_attention)), x_of(1, 2, 4, 16).requires_grad_()

    def gradients():
        y = checkpoint(model, x, use_reentrant=reentrant).sum()
        if reentrant:
            y.backward()
            return x.grad.clone()
        return torch.autograd.grad(y, x)[0]

    plain = gradients()
    x.grad = None
    with Probe() as probe:
        assert torch.equal(gradients(), plain)
    assert probe.calls == 1 and set(probe.table.step) == {0}
    assert not probe.skipped


@pytest.mark.parametrize("padded", [False, True])
def test_torchs_own_encoder_keeps_its_bits_on_its_fast_path_and_off_it(padded):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=64, batch_first=True, dropout=0.0)
    model, x = nn.TransformerEncoder(layer, 2), x_of(2, 9, 64)
    mask = dict(src_key_padding_mask=torch.arange(9) > torch.tensor([[5], [8]])) if padded else {}
    plain = run(model, x, **mask)
    with Probe(baseline="unfused") as probe:
        assert same(run(model, x, **mask), plain)
    assert set(probe.table.layer) == {"layers.0.self_attn", "layers.1.self_attn"} and (probe.summary().ran < 2).all()
    model.eval()
    with torch.no_grad():
        plain = model(x, **mask)
        with pytest.warns(UserWarning, match="was seen"), Probe() as probe:
            assert torch.equal(model(x, **mask), plain)
    assert [*probe.skipped] == [("all", Why.FUSED)]


def test_probes_within_a_probe_see_the_model_and_not_each_other():
    model, x = Own(F.scaled_dot_product_attention), x_of(1, 2, 4, 16)
    plain = run(model, x)
    with Probe(["flash"]) as outer, Probe(["flash", "as_shipped"]) as inner:
        assert same(run(model, x), plain)
    assert outer.calls == inner.calls == 1
    with outer, pytest.raises(RuntimeError, match=r"^probe: .*active already"), outer:
        pass
    with outer:
        model(x)
    assert outer.calls == 2 and set(outer.table.step) == {0, 1}


def test_an_error_of_the_model_is_its_own_and_leaves_nothing_behind():
    def interrupted(*_):
        raise KeyboardInterrupt

    model, hooks = Own(F.scaled_dot_product_attention), nn.modules.module._global_forward_hooks
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 1).eval()
    encoder.layers[0].register_forward_pre_hook(interrupted)
    probe = Probe()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), probe:
        model(x_of(1, 2, 4, 17))
    with pytest.raises(KeyboardInterrupt), probe:
        encoder(x_of(1, 3, 16))
    assert not hooks and not torch.overrides._get_current_function_mode_stack()
    with probe:
        model(x_of(1, 2, 4, 16))
    assert set(probe.table.layer) == {""} and probe.calls == 1


def test_nothing_of_the_model_is_kept_alive(tmp_path):
    model = Own(F.scaled_dot_product_attention)
    with Probe(save=tmp_path / "worst.safetensors") as probe:
        out = model(x_of(1, 2, 4, 16))
        held = [weakref.ref(out), weakref.ref(model)]
        del out, model
        gc.collect()
        assert [ref() for ref in held] == [None, None] and probe.calls == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(names="warp"), "kernel: got 'warp'; accepted are"),
        (dict(names=["tiled"]), r"^names: got 'tiled'; .*'as_shipped'"),
        (dict(every=0), r"^every: got 0; .* from 1$"),
        (dict(queries=1.5), r"^queries: got 1\.5; .* from 1, or None$"),
        (dict(save="worst.npz"), r"^save: got 'worst\.npz'; .*\.safetensors\b"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        Probe(**arguments)


def test_a_model_is_judged_by_the_largest_error_of_each_layer():
    """In FP32 too, where Baseline rounds its sums as the model's kernel does."""
    for dtype in (BITS, torch.float32):
        with Probe(["every_step", "test_model_probe:mean_of_v"]) as probe:
            decoder().to(dtype)(IDS)
        judgement = judge_model("mine", probe.table)
        text = judgement_text(judgement)
        assert judgement.passed and text.startswith("mine passes.") and "all of 3 layers" in text
        ran = [finding for finding in judgement.findings if finding.where.get("kernel") == "ran"]
        assert [finding.number for finding in ran] == probe.summary().ran.tolist()
        assert {f.severity for f in judgement.findings} == {Severity.PASSES, Severity.REPORTED}
    q, k, v = (x_of(1, 2, 8, 16, dtype=BITS, seed=seed) for seed in range(3))
    probe, right = Probe(), kernels.flash(q, k, v)
    for layer, o in (("a", right), ("b", right * 1.1), ("c", right * math.nan)):
        probe(q, k, v, o, dict(model="Own", layer=layer))
    judgement = judge_model("mine", probe.table)
    ran = {f.where["layer"]: f for f in judgement.findings if f.where.get("kernel") == "ran"}
    assert not judgement.passed
    assert {layer: f.severity for layer, f in ran.items()} == dict(a="passes", b="fails", c="fails")
    assert ran["c"].number is None and ran["c"].limit == 2
    text = judgement_text(judgement)
    assert text.startswith("mine fails: in 2 of 3 layers") and "Own c: not finite, limit 2 ×" in text


def decodes():
    decoder()(IDS)


def test_a_model_is_reported_on_in_one_page(tmp_path):
    report = captured_reports.check_model("test_model_probe:decodes", tmp_path, tmp_path / "worst.safetensors")
    html = (tmp_path / "test_model_probe_decodes.html").read_text()
    assert report.judgement.passed and html.count("data:image/png;base64") == 1
    assert "test_model_probe:decodes passes." in html and "model.layers.2.self_attn" in html
    assert report.record["passed"] and report.record["parameters"]["calls"] == 3
    assert fa_lib.load(tmp_path / "worst.safetensors")[0].shape == (2, 4, 48, 16)
    assert len(list((tmp_path / "test_model_probe_decodes").glob("probe.csv"))) == 1


@pytest.mark.parametrize(
    "function, message",
    [
        ("decodes", r"^function: got 'decodes'; .*package\.module:function"),
        ("no_such_module:f", "it cannot be had: ModuleNotFoundError"),
        ("test_model_probe:IDS", "a Tensor; accepted is"),
    ],
)
def test_a_function_that_is_none_is_refused(function, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        captured_reports.check_model(function, tmp_path)


def test_the_example_checks_a_model_and_draws_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fa_lib.execution.paths.CHECKOUT", tmp_path)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "check_a_model.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.startswith("This model passes. In all of 4 layers") and "\n12 calls" in printed
    assert all(f"model.layers.{i}.self_attn" in printed for i in range(4))
    assert (tmp_path / "build" / "figures" / "probe.png").stat().st_size > 10_000
    assert list(tmp_path.iterdir()) == [tmp_path / "build"]
    q, k, v = fa_lib.load(tmp_path / "build" / "worst.safetensors")
    assert q.shape == (1, 8, 512, 32) and k.shape == v.shape == (1, 2, 512, 32)
