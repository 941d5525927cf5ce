"""A problem: one draw of Q, K, V with its golden value, and the error that Baseline makes of it in BF16."""

from dataclasses import dataclass, replace

from torch import Tensor

from fa_lib import kernels
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import BF16, Format
from fa_lib.numerics.metrics import Deviation, deviation, over_baseline


@dataclass(frozen=True)
class Problem:
    """Inputs with the values that kernels are compared with. Each cell of a sweep draws it once and tries all of its
    kernels on it.

    Attributes:
        q: float64 (1, heads, n_q, head_dim). k, v: float64 (1, heads, n_kv, head_dim). None is rounded.
        golden: the exact result from inputs rounded to a format, float64 as q.
        baseline: Deviation of Baseline in BF16 (`Precision.materialized`) from the golden value it was drawn with.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    golden: Tensor
    baseline: Deviation

    @classmethod
    def drawn(
        cls,
        distribution: str,
        seed: int,
        n_q: int,
        n_kv: int,
        *,
        heads: int = 1,
        head_dim: int = 64,
        inputs: Format | str = BF16,
    ) -> "Problem":
        """Draw a problem.

        Args:
            distribution, seed: as of `inputs.draw`. n_q, n_kv, heads, head_dim: sizes of Q, K and V, in one batch.
            inputs: the format to which the golden value rounds its inputs; FP64: exact.
        """
        q, k, v = draw(distribution, seed, (1, heads, n_q, head_dim), (1, heads, n_kv, head_dim))
        golden = kernels.golden(q, k, v, inputs=inputs)
        baseline = kernels.reference(q, k, v, precision=Precision.materialized(BF16))
        return cls(q, k, v, golden, deviation(baseline, golden, BF16))

    def with_inputs(self, inputs: Format | str) -> "Problem":
        """Return the same draw with the golden value of a kernel that rounds its inputs to another format. Baseline's
        error stays that to its own golden value."""
        return replace(self, golden=kernels.golden(self.q, self.k, self.v, inputs=inputs))

    def errors(self, o: Tensor) -> dict[str, float]:
        """Compute the error of a kernel's output.

        Args:
            o: (1, heads, n_q, head_dim).

        Returns:
            dict: max, rmse, relative, of the Deviation; bias (mean signed difference) and its standard error bias_se,
            in ulp of BF16 at 1; times_max, times_rmse, over Baseline's.
        """
        d, ulp = deviation(o, self.golden, BF16), 2 * BF16.unit_roundoff
        return dict(
            max=d.max,
            rmse=d.rmse,
            relative=d.relative,
            bias=d.bias / ulp,
            bias_se=d.bias_se / ulp,
            times_max=over_baseline(d.max, self.baseline.max),
            times_rmse=over_baseline(d.rmse, self.baseline.rmse),
        )
