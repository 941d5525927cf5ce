"""Several kernels at each attention call of a model, on the inputs of that call; the model itself is not touched."""

import torch

from fa_lib import kernels
from fa_lib.formats import Format
from fa_lib.metrics import deviation


class Probe:
    """Deviations of some kernels, per head, at the calls it is given. The golden value takes the inputs as they are.

    Args:
        names: kernels beside the one that ran, for `kernels.get`.

    Attributes:
        rows: dicts of what was given, head, kernel ("ran", or a name), against ("golden", and "ran" for the others),
            max, rmse, and scale: the root mean square of the golden value.
    """

    def __init__(self, names):
        self.kernels, self.rows = {name: kernels.get(name) for name in names}, []

    @torch.no_grad()
    def __call__(self, q, k, v, o, given=(), **options):
        """Compare at one call: q, k, v, its options, and o, the output the model goes on with."""
        outs = {"ran": o} | {name: fn(q, k, v, **options) for name, fn in self.kernels.items()}
        outs["golden"] = kernels.golden(q, k, v, inputs=Format.of(q.dtype), **options)  # (batch, heads, n_q, head_dim)
        pairs = [(name, "golden") for name in outs if name != "golden"] + [(name, "ran") for name in self.kernels]
        for head in range(q.shape[-3]):
            of = {name: out[..., head, :, :].double() for name, out in outs.items()}
            scale = of["golden"].square().mean().sqrt().item()
            for name, against in pairs:
                d = deviation(of[name], of[against], Format.of(q.dtype))
                row = dict(head=head, kernel=name, against=against, max=d.max, rmse=d.rmse, scale=scale)
                self.rows.append(dict(given) | row)
