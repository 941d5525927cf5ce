"""Small attention kernels with one defect each, and right ones as controls: `make mutants` judges the judge on them."""

from benchmarks.mutants import calls, carries, casts, gradients, layout, masks, scores, tiles
from benchmarks.mutants.controls import CONTROLS
from benchmarks.mutants.skeleton import Mutant

__all__ = ["CONTROLS", "MUTANTS", "Mutant"]

MUTANTS = tuple(m for theme in (carries, casts, scores, masks, tiles, layout, calls, gradients) for m in theme.MUTANTS)
