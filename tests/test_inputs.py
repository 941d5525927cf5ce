"""Inputs: the same everywhere, and what their names say."""

import hashlib

import pytest

from fa_lib import draw

DIGESTS = {"uniform": "84e56a574f5dcd73", "normal": "83e3ac8676b03226", "outliers": "72bdb2ea2ed4eeb5"}


def digest(tensors):
    return hashlib.sha256(b"".join(x.numpy().tobytes() for x in tensors)).hexdigest()[:16]


@pytest.mark.parametrize("distribution", DIGESTS)
def test_a_seed_gives_the_same_values_on_every_platform(distribution):
    assert digest(draw(distribution, 7, (2, 3, 500, 16))) == DIGESTS[distribution]


@pytest.mark.parametrize(
    "call, message",
    [
        (("gaussian", 0, (2, 2)), "distribution: got 'gaussian'; accepted are uniform, normal, outliers"),
        (("normal", -1, (2, 2)), "seed: got -1"),
        (("normal", 1.5, (2, 2)), "seed: got 1.5"),
        (("normal", 0, (2, 0)), "shape: got"),
    ],
)
def test_bad_draws_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        draw(*call)
