"""Elements of few bits with block scales: MXFP8 and MXFP4 (OCP Microscaling Formats, version 1.0) and NVFP4."""

from dataclasses import dataclass

from fa_lib.numerics.formats import E2M1, E4M3, E5M2, Format

E8M0 = Format("E8M0", exponent_bits=8, precision=1, emin=-127, emax=127, max=2.0**127, has_inf=False)  # powers of two


@dataclass(frozen=True)
class Blocks:
    """Elements in one Format; each `size` neighbours along the sum share a scale in another Format. It is no Format: a
    single value cannot be rounded to it (`kernels.quantization_schemes.Scheme` quantises whole tensors).

    Attributes:
        name: as printed, "MXFP8".
        element, scale: the Formats of elements and of scales.
        size: number of elements that share a scale.
    """

    name: str
    element: Format
    size: int
    scale: Format

    def __str__(self):
        return self.name


MXFP8, MXFP8_E5M2 = Blocks("MXFP8", E4M3, 32, E8M0), Blocks("MXFP8_E5M2", E5M2, 32, E8M0)
MXFP4, NVFP4 = Blocks("MXFP4", E2M1, 32, E8M0), Blocks("NVFP4", E2M1, 16, E4M3)
BLOCKS = {blocks.name: blocks for blocks in (MXFP8, MXFP8_E5M2, MXFP4, NVFP4)}
