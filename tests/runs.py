"""What the tests of training share: small configurations, and the comparison of two runs' weights."""

from dataclasses import replace

import torch
from safetensors.torch import load_file

from fa_lib.training.config import Arm, Config, RunSpec
from fa_lib.training.run import train
from fa_lib.training.run_folder import weights

TINY = Config.load("tiny")
QUICK = replace(TINY, images=32, layers=1)


def run(folder, arm=None, seed=0, config=TINY, steps=4, every=2, watch=None, **more):
    """`train`, of Baseline where no arm is given."""
    return train(RunSpec(arm or Arm(), seed, config, steps, every, **more), folder, watch=watch)


def same_weights(a, b, step):
    """True where two runs have the same bits after a step."""
    a, b = (load_file(weights(folder, step)) for folder in (a, b))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
