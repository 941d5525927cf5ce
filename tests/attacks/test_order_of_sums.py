"""Figures 3 to 6 with the terms of every dot product and row sum added in another order: on another machine BLAS may do
that. What nbval compares, and every verdict of the ledger, must not notice."""

import io
from contextlib import contextmanager, redirect_stdout

import nbformat
import pytest
import torch

from fa_lib import draw, kernels
from fa_lib.execution import claims
from fa_lib.execution.paths import ROOT

pytestmark = pytest.mark.slow


def permutation(n):
    return torch.randperm(n, generator=torch.Generator().manual_seed(n))


@contextmanager
def another_order():
    """Products a @ b and sums over the last dimension, their terms permuted."""
    matmul, add = torch.Tensor.__matmul__, torch.Tensor.sum

    def permuted_matmul(a, b):
        order = permutation(a.shape[-1])
        return matmul(a[..., order], b[..., order, :])

    def permuted_sum(x, dim=None, **options):
        if dim is None:
            return add(x, **options)
        return add(x[..., permutation(x.shape[-1])] if dim == -1 else x, dim, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "__matmul__", permuted_matmul)
        patch.setattr(torch.Tensor, "sum", permuted_sum)
        yield


def run(name):
    """A notebook at its defaults, in this process.

    Returns:
        [(what a cell that nbval compares printed, what is committed)], (statement, setting) -> the ledger's verdict.
    """
    names, printed, published = {}, [], claims.published()
    for cell in nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells:
        if cell.cell_type != "code":
            continue
        with redirect_stdout(io.StringIO()) as out:
            exec(cell.source, names)
        if "nbval-check-output" in cell.metadata.get("tags", []):
            printed.append((out.getvalue(), cell.outputs[0].text))
    values = {(row["id"], row["setting"]): [float(x) for x in row["values"].split()] for row in names["ledger"]}
    return printed, {key: claims.verdict(x, *published.loc[key[0], ["low", "high"]]) for key, x in values.items()}


def test_the_other_order_changes_what_depends_on_it():
    q, k, v = draw("normal", 0, (1, 1, 256, 64))
    here = kernels.golden(q, k, v, inputs="BF16")
    with another_order():
        assert not torch.equal(here, kernels.golden(q, k, v, inputs="BF16"))
    assert torch.equal(here, kernels.golden(q, k, v, inputs="BF16"))


@pytest.mark.parametrize("name", ["02_precision", "03_golden_value", "04_sequence_length", "05_algorithm_changes"])
def test_no_text_and_no_verdict_depends_on_the_order(name, monkeypatch):
    monkeypatch.chdir(ROOT / "notebooks")
    _, verdicts = run(name)
    with another_order():
        printed, permuted = run(name)
    assert printed and all(text == committed for text, committed in printed)
    assert len(verdicts) >= 2 and permuted == verdicts
