"""The spike study: attention's own gradients, what a spike is, and a record that resumes."""

import math

import pytest
import torch

from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiled import tiled
from fa_lib.kernels.tiling import Tiling
from fa_lib.training import spike_record, spikes
from fa_lib.training.decoder import Sizes, batch, text
from fa_lib.training.decoder_attention import BF16, FP32, Arithmetic, Attention
from tests.test_kernels import run

SMALL = Sizes(layers=1, heads=1, head_dim=16, tokens=64, batch=2)


def gradients(how, q, k, v, dO):
    return run(lambda *tensors: Attention.apply(*tensors, how), (q, k, v), dO)


@pytest.fixture
def tensors():
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, 128, 16, generator=draw).bfloat16().float() for _ in range(4)]


@pytest.mark.parametrize(
    "how, units",
    [(Arithmetic(tiled=False, inputs=FP32), 2e-6), (Arithmetic(inputs=FP32, delta_bits=24), 2e-6),
     (Arithmetic(tiled=False), 2.0**-7), (Arithmetic(), 2.0**-7), (Arithmetic(steps=BF16, sum_bits=8), 2.0**-5)],
)  # fmt: skip
def test_attention_and_its_gradients_are_right_to_the_arms_rounding(how, units, tensors):
    q, k, v, dO = tensors
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    S = (exact[0] @ exact[1].mT / 4).masked_fill(torch.ones(128, 128).triu(1) > 0, -math.inf)
    golden = torch.softmax(S, -1) @ exact[2]
    golden.backward(dO.double())
    for ours, true in zip(gradients(how, q, k, v, dO), (golden.detach(), *(x.grad for x in exact))):
        assert (ours - true).norm() <= units * true.norm()
    if how.inputs is BF16:
        assert all(torch.equal(x, x.bfloat16().float()) for x in gradients(how, q, k, v, dO))


def test_flash_as_shipped_is_the_emulators(tensors):
    q, k, v, dO = tensors
    how, options = Arithmetic(), dict(tiling=Tiling(128, 16), precision=Precision.kernel("BF16"), causal=True)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    o = tiled(*wide, **options)
    o.backward(dO.double())
    for ours, theirs in zip(gradients(how, q, k, v, dO), (o.detach(), *(x.grad for x in wide))):
        off = (ours - theirs).abs() > 2.0**-8 * theirs.abs()  # sums in FP32 of another order can change a rounding
        assert off.double().mean() < 0.02


@pytest.mark.parametrize("bits", [8, 5, 3])
def test_fewer_bits_are_a_larger_error(bits, tensors):
    q, k, v, dO = tensors
    golden = gradients(Arithmetic(tiled=False, inputs=FP32), q, k, v, dO)[0]
    error = [(gradients(Arithmetic(sum_bits=n), q, k, v, dO)[0] - golden).norm() for n in (bits, bits - 1)]
    assert error[0] < 0.75 * error[1]


def test_a_spike_is_a_rise_above_the_lowest_probe_shortly_before():
    calm = [3.0 - 0.01 * i for i in range(30)]
    assert spikes.spike_step(calm) is None
    assert spikes.spike_step([*calm, calm[-1] + 0.39]) is None
    assert spikes.spike_step([*calm, calm[-1] + 0.41]) == 31 * spikes.EVERY
    assert spikes.spike_step([*calm, math.nan]) == 31 * spikes.EVERY


def test_arms_share_weights_and_batches_and_a_run_repeats(monkeypatch):
    options = dict(steps=12, sizes=SMALL)
    first, probes = spikes.train(spikes.MAIN["flash"], 5, **options)
    again, same = spikes.train(spikes.MAIN["flash"], 5, **options)
    other, others = spikes.train(spikes.MAIN["baseline"], 5, **options)
    assert probes == same and all(map(torch.equal, first.parameters(), again.parameters()))
    assert probes != others and probes == pytest.approx(others, abs=0.05)
    changed = spikes.train(spikes.MAIN["baseline"], 5, spikes.REPLAYS["nudge_1e-3"], 8, **options)[1]
    assert changed[:2] == others[:2] and changed[2] != others[2]


def test_the_text_is_split_by_files_and_batches_are_drawn_from_seeds():
    train, held_out, digest = text()
    assert len(train) > 8 * len(held_out) > 0 and len(digest) == 16
    assert torch.equal(batch(train, SMALL, 1, 2), batch(train, SMALL, 1, 2)) and batch(train, SMALL, 1).shape == (2, 65)


def test_a_record_is_gone_on_with(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(spike_record, "ROUND", 1)
    monkeypatch.setattr(spikes, "ARMS", spikes.MAIN)
    monkeypatch.setattr(spikes, "run", lambda arm, seed, folder: calls.append((arm, seed)) or
                        dict(spike=60 * (arm == "baseline"), rise=1.0, held_out=3.0, probes="3 3"))  # fmt: skip
    monkeypatch.setattr(spikes, "distance", lambda arm, seed, folder: dict(relative_l2=0.0))
    monkeypatch.setattr(spikes, "replay", lambda seed, spike, change: dict(averted=True, rise=0.0))
    spike_record.record(tmp_path / "build", 1, out=tmp_path)
    spike_record.record(tmp_path / "build", 2, out=tmp_path)
    tables = spike_record.recorded(tmp_path)
    assert len(calls) == len(set(calls)) == len(tables["runs"]) == 2 * len(spikes.MAIN)
    assert set(tables["replays"].seed) == {100, 101} and set(tables["replays"].change) == set(spikes.REPLAYS)
