"""Units in another's order, and which steps leave weights."""

import pytest
import torch
from runs import TINY

from fa_lib import kernels
from fa_lib.training.alignment import aligned
from fa_lib.training.model import TextToImage, noised
from fa_lib.training.run_folder import checkpoints


@pytest.fixture(scope="module")
def model():
    return TextToImage(TINY, kernels.unfused, 0)


def shuffled(weights, places, count):
    """Weights with the units of one layer in another order."""
    order = torch.arange(count).roll(1)
    moved = {
        name: weights[name].unflatten(at, (count, -1)).index_select(at, order).flatten(at, at + 1)
        for name, at in places.items()
    }
    return {**weights, **moved}


BLOCK = "transformer.transformer_blocks.0."
TEXT = "text.encoder.block.0.layer.1.DenseReluDense."
LAYERS = {
    "units": ({BLOCK + "ff.net.0.proj.weight": 0, BLOCK + "ff.net.0.proj.bias": 0, BLOCK + "ff.net.2.weight": 1}, None),
    "text": ({TEXT + "wi_0.weight": 0, TEXT + "wi_1.weight": 0, TEXT + "wo.weight": 1}, None),
    "heads": (
        {**{f"{BLOCK}attn1.to_{x}.weight": 0 for x in "qkv"}, BLOCK + "attn1.to_out.0.weight": 1}, TINY.heads,
    ),
}  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS)
def test_units_in_another_order_compute_the_same_and_are_put_back(layer, model):
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    places, count = LAYERS[layer]
    other = shuffled(weights, places, count or weights[next(iter(places))].shape[0])
    assert not all(torch.equal(other[name], weights[name]) for name in places)

    def velocity(held):
        images = torch.randint(256, (2, 3, TINY.image_size, TINY.image_size), dtype=torch.uint8)
        noisy, timesteps, _ = noised(images, 0, 0)
        tokens = model.tokens(["small red circle", "large blue square"])
        with torch.no_grad():
            return torch.func.functional_call(model, held, (noisy, timesteps, tokens))

    torch.manual_seed(0)
    before = velocity(weights)
    torch.manual_seed(0)
    assert torch.allclose(velocity(other), before, atol=1e-5)
    back = aligned(other, weights, TINY.heads)
    assert back.keys() == weights.keys() and all(torch.equal(back[name], weights[name]) for name in weights)


def test_weights_that_are_near_stay_as_they_are(model):
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    near = {name: x * 1.001 for name, x in weights.items()}
    assert all(torch.equal(x, near[name]) for name, x in aligned(near, weights, TINY.heads).items())


def test_weights_are_left_at_first_and_then_every_so_many_steps():
    assert checkpoints(300, 100) == [0, 1, 2, 4, 8, 16, 32, 64, 100, 200, 300]
    assert checkpoints(5, 8) == [0, 1, 2, 4, 5] and checkpoints(4, 2) == [0, 1, 2, 4] and checkpoints(1, 1) == [0, 1]
    assert checkpoints(8, 8) == [0, 1, 2, 4, 8]
