"""A second set of kernels with one defect each, and of right ones, by authors who had seen neither the judge nor the
first set: they knew a kernel's signature, and public reports of defects. One wrote of numerics, one of edges. Their
code stands as they wrote it, split by theme: what two of these files have alike is theirs."""

from benchmarks.second_mutants import (
    edges_backward,
    edges_forward,
    edges_masks,
    edges_right,
    numerics_backward,
    numerics_formats,
    numerics_maximum,
    numerics_right,
)

THEMES = (numerics_maximum, numerics_formats, numerics_backward, edges_masks, edges_forward, edges_backward)
MUTANTS = tuple(mutant for theme in THEMES for mutant in theme.MUTANTS)
CONTROLS = numerics_right.CONTROLS + edges_right.CONTROLS
