"""Is it the rescaling? What notebook 09's second question must show, at its own scale."""

import pytest

from fa_lib import sweep
from fa_lib.experiments.rescaling import ORDERS, rescaling

pytestmark = pytest.mark.slow


def mean(table, by, value):
    return table.groupby(by)[value].mean()


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_rows_that_never_rescale_are_as_far_off(distribution):
    table = sweep(rescaling, dict(order=[*ORDERS], tiles=[4, 32], distribution=distribution, seed=range(3), rows=16))
    rescales, rmse = (mean(table, ["order", "tiles"], column) for column in ("rescales", "rmse"))
    assert rescales["never", 32] == 0 < rescales["as_drawn", 32] < rescales["every_tile", 32] / 2
    for order in ORDERS:
        assert rmse[order, 32] > 1.3 * rmse[order, 4]  # more tiles do make it larger
        assert 0.8 < rmse[order, 32] / rmse["as_drawn", 32] < 1.25  # more rescales do not


def test_an_unknown_order_is_refused():
    with pytest.raises(ValueError, match="order: got 'sorted'; accepted are as_drawn, never, every_tile"):
        rescaling("sorted", 4, "normal", 0)
