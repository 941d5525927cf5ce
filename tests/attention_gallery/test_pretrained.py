"""Trained models from packages: their weights are whole, and they read their texts."""

import pytest
import torch

from benchmarks.pretrained import DRAWN, MODELS, attention_inputs, heads_of, measured, model, tokens
from fa_lib.kernels.inputs import draw


@pytest.mark.parametrize("name", MODELS)
def test_a_model_knows_the_words_of_its_texts_and_they_differ_inside_it(name):
    """Weights that were not loaded would leave LayerNorm's at 1: a trained model has others."""
    for text in MODELS[name].texts:
        assert tokens(name, text).shape[1] > 60
    assert all((layer.output.LayerNorm.weight != 1).float().mean() > 0.99 for layer in model(name).encoder.layer)
    calls = attention_inputs(name, MODELS[name].texts[0])
    assert len(calls) == model(name).config.num_hidden_layers
    with torch.no_grad():
        out = model(name)(input_ids=tokens(name, MODELS[name].texts[0])).last_hidden_state
    assert out.std() > 0.1 and torch.isfinite(out).all()
    with pytest.raises(ValueError, match=r"^text: got \?; .* does not know these words"):
        tokens(name, MODELS[name].texts[0][:5] + "?") if MODELS[name].words is list else tokens("AntiBERTy", "EV?")


def test_a_head_is_measured():
    rows = heads_of("rxnfp", 0)
    assert len(rows) == 12 * 4 and all(0.5 < row["times_rms"] < 10 for row in rows)
    uniform, normal = (measured(*draw(kind, 0, (1, 2, 128, 64)), tiles=32)[0] for kind in DRAWN)
    assert uniform["one_sign"] == 1 and uniform["coherence"] == pytest.approx(1) and uniform["times_rms"] > 5
    assert normal["one_sign"] == 0 and normal["coherence"] < 0.2 and normal["times_rms"] < 3.5
