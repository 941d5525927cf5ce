"""Elements of few bits with block scales: MXFP8 and MXFP4 (OCP Microscaling Formats, version 1.0) and NVFP4."""

from dataclasses import asdict, dataclass, field
from typing import Any

from fa_lib.formats import E2M1, E4M3, E5M2, Format

E8M0 = Format("E8M0", exponent_bits=8, precision=1, emin=-127, emax=127, max=2.0**127, has_inf=False)  # powers of two


@dataclass(frozen=True, repr=False)
class Blocks(Format):
    """A format of elements, of which `size` neighbours along the sum have one scale, in a format of its own."""

    element: Format = field(kw_only=True)
    size: int = field(kw_only=True)
    scale: Format = field(kw_only=True)


def _blocks(name: str, element: Format, size: int, scale: Format) -> Blocks:
    given: dict[str, Any] = asdict(element) | dict(name=name, element=element, size=size, scale=scale)
    return Blocks(**given)


MXFP8, MXFP8_E5M2 = _blocks("MXFP8", E4M3, 32, E8M0), _blocks("MXFP8_E5M2", E5M2, 32, E8M0)
MXFP4, NVFP4 = _blocks("MXFP4", E2M1, 32, E8M0), _blocks("NVFP4", E2M1, 16, E4M3)
BLOCKS = {each.name: each for each in (MXFP8, MXFP8_E5M2, MXFP4, NVFP4)}
