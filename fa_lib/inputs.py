"""Q, K, V: drawn from a seed by distribution, or read from a file."""

from pathlib import Path

import numpy as np
import torch


def _uniform(rng, shape):
    return rng.random(shape)


def _normal(rng, shape):
    return rng.standard_normal(shape)


def _outliers(rng, shape):
    return rng.standard_normal(shape) + 10.0 * rng.standard_normal(shape) * (rng.random(shape) < 0.001)


DISTRIBUTIONS = {
    "uniform": _uniform,  # on [0, 1)
    "normal": _normal,  # N(0, 1)
    "outliers": _outliers,  # N(0, 1) + N(0, 100) * Bernoulli(0.001), arXiv 2407.08608
}


def draw(distribution, seed, shape, kv_shape=None):
    """Q, K, V from a seed, the same values on every platform.

    Draws are rounded to the FP32 grid: what is left of the platform (the last bit of its log and exp in the
    tails of the normal distribution) is far below that, and captured tensors have no more bits either.

    Args:
        distribution: a name of DISTRIBUTIONS.
        seed: whole number >= 0.
        shape: of Q, (batch, heads, sequence, head_dim) or any leading dimensions.
        kv_shape: of K and V where it is another.

    Returns:
        q, k, v: float64 tensors.

    Raises:
        ValueError: unknown distribution, negative seed, a dimension below 1.
    """
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"distribution: got {distribution!r}; accepted are {', '.join(DISTRIBUTIONS)}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed: got {seed!r}; accepted is a whole number of at least 0")
    rng = np.random.Generator(np.random.PCG64(seed))
    tensors = []
    for each in (shape, kv_shape or shape, kv_shape or shape):
        if min(each) < 1:
            raise ValueError(f"shape: got {tuple(each)}; accepted are dimensions of at least 1")
        values = DISTRIBUTIONS[distribution](rng, tuple(each))
        tensors.append(torch.from_numpy(values.astype(np.float32).astype(np.float64)))
    return tuple(tensors)


def load(path):
    """Q, K, V from a file that holds tensors named q, k and v: .safetensors, .npz, or .pt without pickle.

    Returns:
        q, k, v: in the file's dtype, each (batch, heads, sequence, head_dim) or any leading dimensions.

    Raises:
        ValueError: the file's kind, content or a missing name, with the path.
    """
    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            tensors = load_file(path)
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                tensors = {name: torch.from_numpy(archive[name]) for name in archive.files}
        elif path.suffix == ".pt":
            tensors = torch.load(path, weights_only=True, map_location="cpu")
        else:
            raise ValueError("accepted are .safetensors, .npz and .pt")
        return tensors["q"], tensors["k"], tensors["v"]
    except FileNotFoundError:
        raise
    except KeyError as error:
        raise ValueError(f"{path}: holds no tensor named {error}; q, k and v are needed") from None
    except Exception as error:
        raise ValueError(f"{path}: cannot be read without pickle: {error}") from error
