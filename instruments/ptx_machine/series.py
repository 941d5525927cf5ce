"""2**x, log2, tanh, sine and cosine in float64, by sums and products alone: the same bits on every machine.

Each is good to 1e-15 or so, relative to its value: rounded to FP32 it is the correctly rounded one, but for about one
argument in 10**7.
"""

from math import factorial, log, pi

EXP2 = [log(2) ** i / factorial(i) for i in range(15)]  # of 2**r, |r| <= 1/2
ATANH = [2 / (log(2) * (2 * i + 1)) for i in range(20)]  # of log2((1 + z) / (1 - z)) / z by z**2, |z| <= 0.172
TANH = [  # of tanh(x) / x by x**2, |x| <= 1/8
    1, -1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925, 21844 / 6081075, -929569 / 638512875,
    6404582 / 10854718875, -443861162 / 1856156927625, 18888466084 / 194896477400625,
]  # fmt: skip
SINE = [(-1) ** i / factorial(2 * i + 1) for i in range(12)]  # of sin(r) / r by r**2, |r| <= pi / 4
COSINE = [(-1) ** i / factorial(2 * i) for i in range(12)]  # of cos(r) by r**2
HALF_PI = (1.57079632673412561417e00, 6.07710050650619224932e-11)  # its first 33 bits, and what is left, of fdlibm
TWO_OVER_PI = 2 / pi
SQRT_HALF = 0.5**0.5


def polynomial(coefficients, x):
    """Evaluate a polynomial by Horner's rule, each product and sum rounded.

    Args:
        coefficients: the lowest power's first. x: float64, a number or an array.

    Returns:
        float64 of x's shape.
    """
    total = x * 0.0 + coefficients[-1]
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total
