"""A second set of kernels with one defect each, and of right ones, by authors who had seen neither the judge nor the
first set: they knew a kernel's signature, and public reports of defects. One wrote of numerics, one of edges. Their
code is split by theme. What several kernels of an author have alike stands once, with the bits of what they wrote.
kernels.csv lists them: the defect of each, or the style of a right one."""

from benchmarks.mutants.skeleton import listed

CONTROLS, MUTANTS = listed("second_mutants")
