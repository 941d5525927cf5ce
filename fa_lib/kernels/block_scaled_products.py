"""Q Kᵀ and P V of operands that are quantised with block scales, as a GPU's matrix unit sums them."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fa_lib.kernels.quantization_schemes import Scheme
from fa_lib.numerics.dots import Dot
from fa_lib.numerics.tensor_cores import ScaledCore


@dataclass(frozen=True, eq=False)
class ScaledProducts(Dot):
    """A Dot that quantises its factors, and sums the elements with their scales as a `ScaledCore` does.

    The outer scales of a tensor or a row are no part of that sum: they multiply the unit's result. So O goes through
    the unit as its c (`Algorithm(accumulate_in_mma=True)`) where V and P have no outer scale, and is added afterwards
    where they have one.

    Attributes:
        core: the unit.
        schemes: "q", "k", "v" and "p" -> Scheme; their groups are those of the unit.
        outer: name -> the outer scale (1, 1) of a whole tensor, where its scheme has one.
    """

    core: ScaledCore
    schemes: Mapping[str, Scheme]
    outer: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, core: ScaledCore, schemes: Mapping[str, Scheme | None], tensors: Mapping[str, Tensor]
    ) -> "ScaledProducts":
        """Make the products of an attention call, whose tensors "q", "k" and "v" (..., sequence, features) are not
        quantised yet. A ValueError says that one of "q", "k", "v" and "p" has no Scheme, that a scheme's elements,
        groups or scales are not the unit's, or that V has a scale for each channel."""
        blocks, by_name = core.inputs, {}
        for name, scheme in schemes.items():
            expected = (blocks.element, "group", blocks.size, blocks.scale)
            if scheme is None or (scheme.element, scheme.per, scheme.size, scheme.scale) != expected:
                accepted = f"{blocks.element} in groups of {blocks.size} with scales in {blocks.scale}"
                got = f"{scheme} with products of {core.unit} in {blocks}"
                raise ValueError(f"{name}: got {got}; accepted is {accepted}")
            by_name[name] = scheme
        if by_name["v"].outer == "token":
            raise ValueError("v: got outer 'token' with products of a ScaledCore; accepted are None and 'tensor'")
        outer = {name: by_name[name].outer_scale(x) for name, x in tensors.items() if by_name[name].outer == "tensor"}
        return cls(core, by_name, outer)

    def scores(self, Q: Tensor, K: Tensor) -> Tensor:
        """Compute Q Kᵀ (n_q, n_kv) of Q (n_q, d) and K (n_kv, d), both quantised here."""
        q, q_scales, q_outer = self._groups("q", Q)
        k, k_scales, k_outer = self._groups("k", K)
        return self.core.matmul(q, k.mT, scales=(q_scales, k_scales.mT)) * q_outer * k_outer.mT

    def matmul(self, A: Tensor, B: Tensor, C: Tensor | None = None) -> Tensor:
        """Compute C + P V (n_q, d_v) of P (n_q, n_kv) and V (n_kv, d_v), both quantised here; C None is 0."""
        p, p_scales, p_outer = self._groups("p", A)
        v, v_scales, v_outer = self._groups("v", B, -2)
        scales = p_scales, v_scales
        if self.schemes["p"].outer is None and self.schemes["v"].outer is None:
            return self.core.matmul(p, v, C, scales)
        PV = self.core.matmul(p, v, None, scales) * p_outer * v_outer
        return PV if C is None else C + PV

    def _groups(self, name: str, x: Tensor, axis: int = -1) -> tuple[Tensor, Tensor, Tensor]:
        return self.schemes[name].groups(x, axis, self.outer.get(name))
