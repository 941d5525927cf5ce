"""Small attention kernels with one defect each, and right ones as controls: `make mutants` judges the judge on them.
kernels.csv lists them: the defect of each, or the style of a right one."""

from benchmarks.mutants.skeleton import Mutant, listed

__all__ = ["CONTROLS", "MUTANTS", "Mutant"]

CONTROLS, MUTANTS = listed("mutants")
