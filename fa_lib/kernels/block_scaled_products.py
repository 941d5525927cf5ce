"""Q Kᵀ and P V of operands that are quantised with block scales, as a GPU's matrix unit sums them."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fa_lib.kernels.quantization_schemes import Scheme
from fa_lib.numerics.dots import Dot
from fa_lib.numerics.tensor_cores import ScaledCore


@dataclass(frozen=True, eq=False)
class ScaledProducts(Dot):
    """A Dot that quantises what it multiplies, and sums the elements with their scales as a `ScaledCore` does.

    The outer scales of a tensor or a row are no part of that sum: they multiply what the unit gives. So O goes through
    the unit as its c (`Algorithm(accumulate_in_mma=True)`) where V and P have no outer scale, and is added afterwards
    where they have one.

    Attributes:
        core: the unit. schemes: of "q", "k", "v" and "p"; their groups are those of the unit.
        outer: name -> the outer scale (1, 1) of a whole tensor, where its scheme has one.
    """

    core: ScaledCore
    schemes: Mapping[str, Scheme]
    outer: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, core: ScaledCore, schemes: Mapping[str, Scheme | None], tensors: Mapping[str, Tensor]
    ) -> "ScaledProducts":
        """The products of an attention.

        Args:
            core: as above. schemes: as above, each of "q", "k", "v" and "p".
            tensors: "q", "k" and "v" (..., sequence, features), before they are quantised.

        Raises:
            ValueError: a scheme's elements, groups or scales are not the unit's, or V has a scale for each channel.
        """
        due, found = core.inputs, {}
        for name, scheme in schemes.items():
            theirs = (due.element, "group", due.size, due.scale)
            if scheme is None or (scheme.element, scheme.per, scheme.size, scheme.scale) != theirs:
                accepted = f"{due.element} in groups of {due.size} with scales in {due.scale}"
                raise ValueError(f"{name}: got {scheme} with products of {core.unit} in {due}; accepted is {accepted}")
            found[name] = scheme
        if found["v"].outer == "token":
            raise ValueError("v: got outer 'token' with products of a ScaledCore; accepted are None and 'tensor'")
        whole = {name: found[name].outer_scale(x) for name, x in tensors.items() if found[name].outer == "tensor"}
        return cls(core, found, whole)

    def scores(self, Q: Tensor, K: Tensor) -> Tensor:
        q, q_scales, q_outer = self._groups("q", Q)
        k, k_scales, k_outer = self._groups("k", K)
        return self.core.matmul(q, k.mT, scales=(q_scales, k_scales.mT)) * q_outer * k_outer.mT

    def matmul(self, A: Tensor, B: Tensor, C: Tensor | None = None) -> Tensor:
        """C + P V."""
        p, p_scales, p_outer = self._groups("p", A)
        v, v_scales, v_outer = self._groups("v", B, -2)
        scales = p_scales, v_scales
        if self.schemes["p"].outer is None and self.schemes["v"].outer is None:
            return self.core.matmul(p, v, C, scales)
        PV = self.core.matmul(p, v, None, scales) * p_outer * v_outer
        return PV if C is None else C + PV

    def _groups(self, name: str, x: Tensor, axis: int = -1) -> tuple[Tensor, Tensor, Tensor]:
        return self.schemes[name].groups(x, axis, self.outer.get(name))
