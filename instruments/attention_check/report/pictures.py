"""The pictures of a page: the question of each, and how it is read."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """A panel of a report's figure. title: the question that it answers; shows: how it is read."""

    title: str
    shows: str


PICTURES = {
    "sums": Picture(
        "Does it lose small terms of a large sum?",
        "One large term and many small ones are added up. Below the line the sum is right to the rounding of the "
        "output. A kernel that keeps the sum in BF16 or FP16 from tile to tile loses what each tile adds. The most "
        "that is lost for 1, 16 and 256 queries is shown.",
    ),
    "growth": Picture(
        "Does its error grow with N?",
        "The largest error over Baseline's on the same outputs (at least 1,024), for the format and the numbers of "
        "queries where it is largest. The line is the rule, at most 2.",
    ),
    "rule": Picture(
        "Is it within the rule, over shapes and masks?",
        "The largest error over Baseline's, a point for each shape. The lines are the rule: at most 2 for the output, "
        "3 for gradients, which are reported, and counted only where they are wrong by more than 20 %.",
    ),
    "sides": Picture(
        "Do its errors have a side?",
        "The mean signed difference to the golden value rounded to the format; hollow marks are Baseline's. Below 0.05 "
        "ulp nothing is called a bias: an output that is rounded once scatters by 0.29 ulp.",
    ),
    "risks": Picture(
        "How risky is each head?",
        "Rows with several maxima: more than one key attains the row's largest score; P is exactly 1 there, and with V "
        "of one sign rounding O to 16 bits is biased. V of one sign: |sum| over the sum of sizes; errors of a "
        "low-precision carry then add up. Rescales: how often a tile of 64 keys raises a row's maximum.",
    ),
    "errors": Picture(
        "How far is each kernel on it?",
        "The largest error over Baseline's; the line is the rule, at most 2. The bar is the golden value rounded to "
        "the output's format: no kernel does better.",
    ),
    "layers": Picture(
        "How far is attention, layer by layer?",
        "Small points: a head at a step; large ones: the layer's largest error over Baseline's largest.",
    ),
}
