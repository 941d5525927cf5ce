"""Probes of a GPU's arithmetic find in made-up hardware exactly what was put in; its kernels compile."""

from fractions import Fraction
from math import floor, log2

import numpy as np
import pytest
import torch

from fa_lib.experiments.hardware import cuda, instructions
from fa_lib.experiments.hardware.exponential import every_16_bit, ex2_table
from fa_lib.experiments.hardware.probes import facts, rule_of, survivors
from fa_lib.experiments.hardware.row_sum import flash_cpu, row_sum_groups, row_sum_pairs, row_sum_pairs_of_output
from fa_lib.experiments.hardware.tensor_cores import EXPECTED, Rule, correctly_rounded, vectors, verdict
from fa_lib.numerics.formats import Format


def sequential(a, b, c):
    """Products of FP16 or BF16, exact in FP32, added one by one."""
    d = c.astype(np.float32)
    for k in range(a.shape[1]):
        d = d + (a[:, k] * b[:, k]).astype(np.float32)
    return d


DROPPED = {"truncated": np.trunc, "floored": np.floor, "rounded": np.rint}  # what becomes of bits below F


def made_up(a, b, c, block, F, dropped="truncated", to_nearest=False):
    """Hardware with an FP32 result, block after block, that may do otherwise with what a tensor core truncates."""
    d = np.asarray(c, np.float64)
    for first in range(0, a.shape[1], block):
        x, y = (each[:, first : first + block] for each in (a, b))
        terms = np.column_stack([x * y, d])
        exponents = np.column_stack([np.frexp(x)[1] + np.frexp(y)[1] - 2, np.frexp(d)[1] - 1])
        scale = F - np.where(terms == 0, -2000, exponents).max(axis=1).clip(-1000)
        d = np.ldexp(DROPPED[dropped](np.ldexp(terms, scale[:, None])).sum(axis=1), -scale)
        near = d.astype(np.float32)
        inward = np.where(abs(near.astype(np.float64)) > abs(d), np.nextafter(near, np.float32(0)), near)
        d = (near if to_nearest else inward).astype(np.float64)
    return d.astype(np.float32)


def exponent(x):
    e = floor(log2(abs(x)))
    return e + (abs(x) >= Fraction(2) ** (e + 1)) - (abs(x) < Fraction(2) ** e)


def toward_zero(x, quantum):
    return int(x / quantum) * quantum  # int() of a Fraction truncates


def by_the_rule(a, b, c, block, F, bits):
    """One dot product in fractions, written from the rule alone; normal results only."""
    d = Fraction(c)
    for first in range(0, len(a), block):
        terms = [(d, exponent(d))] if d else []
        for x, y in zip(a[first : first + block], b[first : first + block]):
            if x * y:
                terms.append((Fraction(x) * Fraction(y), exponent(Fraction(x)) + exponent(Fraction(y))))
        largest = max((e for _, e in terms), default=0)
        d = sum((toward_zero(x, Fraction(2) ** (largest - F)) for x, _ in terms), Fraction(0))
        if d:
            d = toward_zero(d, Fraction(2) ** (exponent(d) - bits + 1))
    return float(d)


@pytest.mark.parametrize(
    ("fmt", "k", "block", "F", "result", "bits"),
    [("FP16", 16, 16, 25, "FP32", 24), ("BF16", 16, 8, 24, "FP32", 24), ("E4M3", 32, 32, 13, "E8M13", 14)],
)
def test_the_model_is_the_rule_in_fractions(fmt, k, block, F, result, bits):
    a, b, c = vectors(k, fmt, 300, seed=1)
    d = Rule(block, F, result)(a, b, c)
    expected = [by_the_rule(x, y, z, block, F, bits) for x, y, z in zip(a.tolist(), b.tolist(), c.tolist())]
    np.testing.assert_array_equal(d, np.array(expected, np.float32))


@pytest.mark.parametrize("fmt", ["FP16", "BF16", "TF32", "E4M3", "E5M2"])
def test_vectors_are_on_the_grid_and_cancel(fmt):
    a, b, c = vectors(8, fmt, 600, seed=0)
    for x in (a, b):
        np.testing.assert_array_equal(Format.of(fmt)(torch.from_numpy(x)).numpy(), x)
    np.testing.assert_array_equal(c.astype(np.float32), c)
    assert (c == 0).sum() == 300
    terms = np.column_stack([a * b, c])
    assert (abs(terms.sum(axis=1)) < abs(terms).max(axis=1) / 4)[c == 0].sum() > 20


@pytest.mark.parametrize("dropped", ["truncated", "floored", "rounded"])
@pytest.mark.parametrize("to_nearest", [False, True])
@pytest.mark.parametrize(("fmt", "k", "block", "F"), [("FP16", 16, 16, 25), ("BF16", 16, 8, 24), ("FP16", 8, 4, 23)])
def test_facts_are_what_was_put_in(fmt, k, block, F, dropped, to_nearest):
    found = facts(lambda a, b, c: made_up(a, b, c, block, F, dropped, to_nearest), k, fmt)
    steps = [list(range(first, first + block)) for first in range(0, k, block)]
    steps[0].append(k)
    expected = dict(steps=steps, block=block, ascending=True, c_with_products=True, nothing_lost=False)
    expected |= dict.fromkeys(("fraction_bits", "fraction_bits_1_from_c", "fraction_bits_tiny_from_c"), F)
    expected |= dict(dropped={"truncated": "toward_zero", "floored": "floored", "rounded": "to_nearest"}[dropped])
    expected |= dict(product_normalised=False, zero_product_aligns=False, fraction_bits_beside_subnormals=F)
    expected |= dict(result_bits=24, result_rounding="to_nearest_even" if to_nearest else "toward_zero")
    expected |= dict(subnormal_inputs=True, subnormal_results=True, c_alone_bits=24)
    assert {name: found[name] for name in expected} == expected


def test_facts_of_fp8_with_13_bits():
    found = facts(EXPECTED["wgmma_e4m3"], 32, "E4M3")
    assert (found["block"], found["fraction_bits"], found["fraction_bits_1_from_c"]) == (32, 13, 13)
    assert (found["result_bits"], found["result_rounding"], found["c_alone_bits"]) == (14, "toward_zero", 14)
    unseen = facts(Rule(32, 13, "FP32"), 32, "E4M3")  # 13 bits and the carries never fill FP32
    assert (unseen["fraction_bits"], unseen["result_bits"], unseen["result_rounding"]) == (13, None, None)


def test_facts_of_products_in_another_order_and_c_at_the_end():
    found = facts(EXPECTED["mma_e5m2"], 32, "E5M2")
    order = EXPECTED["mma_e5m2"].order
    assert found["steps"] == [list(order[:16]), list(order[16:]), [32]]
    assert (found["block"], found["ascending"], found["c_with_products"]) == (16, False, False)
    assert (found["fraction_bits"], found["fraction_bits_1_from_c"]) == (25, None)


@pytest.mark.parametrize("instruction", instructions.INSTRUCTIONS, ids=lambda instruction: instruction.key)
def test_a_rule_comes_back_from_its_facts(instruction):
    rule = EXPECTED[instruction.key]
    assert rule_of(facts(rule, instruction.k, instruction.format, instruction.result)) == rule


def test_facts_that_no_rule_has():
    def floored(a, b, c):
        return made_up(a, b, c, 8, 25, "floored")

    assert rule_of(facts(floored, 8, "FP16")) is None
    assert rule_of(facts(lambda a, b, c: made_up(a, b, c, 8, 25, to_nearest=True), 8, "FP16")) is None
    assert rule_of(facts(sequential, 8, "FP16")) is None


def test_facts_of_an_fp16_result():
    found = facts(EXPECTED["mma_fp16_fp16"], 16, "FP16", "FP16")
    assert (found["block"], found["fraction_bits"]) == (16, 25)
    assert (found["result_bits"], found["result_rounding"]) == (11, "to_nearest_even")


def test_facts_of_a_sum_one_by_one_and_of_an_exact_one():
    found = facts(sequential, 8, "FP16")
    assert (found["block"], found["fraction_bits"], found["dropped"]) == (1, None, None)
    assert found["steps"] == [[0, 8], *([k] for k in range(1, 8))]
    assert (found["result_bits"], found["result_rounding"]) == (24, "to_nearest_even")
    found = facts(correctly_rounded, 8, "BF16")
    assert (found["block"], found["nothing_lost"], found["fraction_bits"]) == (8, True, None)
    assert (found["result_bits"], found["result_rounding"]) == (24, "to_nearest_even")


def test_facts_of_a_tree_are_not_a_chain():
    def tree(a, b, c):
        p = (a * b).astype(np.float32)
        return ((p[:, 0] + p[:, 1]) + (p[:, 2] + p[:, 3])) + c.astype(np.float32)

    found = facts(tree, 4, "FP16")
    assert (found["steps"], found["block"], found["fraction_bits"], found["nothing_lost"]) == (None, None, None, False)
    met_first = survivors(tree, 4, "FP16")
    assert met_first[0, 1, 2] and met_first[2, 3, 0] and not met_first[0, 2, 1] and met_first[0, 2, 4]


@pytest.mark.parametrize("flush_at", ["inputs", "results"])
def test_facts_see_flushed_subnormals_and_exponents_of_zeros(flush_at):
    def flushing(a, b, c):
        if flush_at == "inputs":
            a, b = (np.where(abs(x) < 2.0**-14, 0.0, x) for x in (a, b))
        d = Rule(16, 25)(a, b, c)
        return np.where(abs(d) < 2.0**-126, np.float32(0), d) if flush_at == "results" else d

    found = facts(flushing, 16, "FP16")
    assert (found["subnormal_inputs"], found["subnormal_results"]) == (flush_at != "inputs", flush_at != "results")
    aligned = facts(lambda a, b, c: correctly_rounded(a, b, np.where(abs(c) < 2.0**-30, 0, c)), 4, "FP16")
    assert aligned["zero_product_aligns"]


def test_a_verdict_tells_the_model_from_the_right_sum():
    rule = EXPECTED["wgmma_bf16"]
    of_model, of_right = verdict(rule, 16, "BF16", rule, 1200), verdict(correctly_rounded, 16, "BF16", rule, 1200)
    assert of_model["model"] == 1 == of_right["correctly_rounded"]
    assert 0.5 < of_right["model"] == of_model["correctly_rounded"] < 0.9
    assert -0.6 < of_model["mean_ulp"] < -0.1 and of_right["mean_ulp"] == 0
    rule = EXPECTED["mma_fp16_fp16"]
    of_model = verdict(rule, 16, "FP16", rule, 1200)
    assert of_model["model"] == 1 and of_model["correctly_rounded"] > 0.99  # F = 25 beside 11 bits
    rule = EXPECTED["wgmma_bf16"]
    only_without_c = verdict(lambda a, b, c: rule(a, b, 0 * c), 16, "BF16", rule, 1200)
    assert only_without_c["model_c_zero"] == 1 and only_without_c["model_c_not_zero"] < 0.1


def test_the_right_sum_is_rounded_once():
    a, b = np.array([[1.0, 1.0, 1.0]]), np.array([[1.0, 2.0**-24, 2.0**-60]])
    assert correctly_rounded(a, b, np.zeros(1)) == np.float32(1 + 2.0**-23)  # FP64 alone makes a tie of it
    assert correctly_rounded(a, -b, np.zeros(1)) == -np.float32(1 + 2.0**-23)


def test_the_table_of_2_to_the_x_counts_what_is_off():
    table = ex2_table(torch.exp2, step=2.0**-16, halving_step=2.0**-8)
    assert (table["halving_checked"], table["halving_exceptions"], table["at_zero"]) == (63 * 2**8, 0, 1.0)
    assert table["largest_ulp"] <= 2 and len(table["ulp"]) == 2**16 == table["counts"].sum()

    def off(x):
        y = torch.exp2(x.double()).float()
        return torch.where(x == -0.5, torch.nextafter(y, torch.tensor(2.0)), y)

    table = ex2_table(off, step=2.0**-16, halving_step=2.0**-8)
    assert np.flatnonzero(table["ulp"]).tolist() == [2**15] and table["ulp"][2**15] == 1
    assert table["halving_exceptions"] == 1  # at x = -0.5: 2^-1.5 is right and not half of it
    assert (table["ulps"].tolist(), table["counts"].tolist()) == ([0, 1], [2**16 - 1, 1])
    assert table["mean_ulp"] == 2.0**-16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_exp_at_every_16_bit_value(dtype):
    table = every_16_bit(lambda x: x.double().exp().float(), dtype)
    assert table["x"][0] == 0 and table["x"][-1] == -64 and (np.diff(table["x"]) < 0).all()
    assert torch.equal(torch.from_numpy(table["x"]).to(dtype).float(), torch.from_numpy(table["x"]))
    assert len(table["x"]) == {torch.bfloat16: 0x4281, torch.float16: 0x5401}[dtype]
    assert table["largest_ulp"] == 0
    assert 0 < every_16_bit(torch.exp, dtype)["largest_ulp"] <= 2


def log_of_row_sum(add):
    """A log-sum-exp of FP32 scores on CPU whose row sum is `add` of the row's exponentials, float32 (rows, n)."""

    def logsumexp(q, k, v):
        return torch.from_numpy(add((q @ k.mT).exp()[0, 0].numpy())).double().log()

    return logsumexp


def test_the_order_of_a_row_sum_is_found():
    def strided(p):  # two lanes, even and odd keys, then the lanes
        lanes = [np.add.accumulate(p[:, lane::2], axis=1, dtype=np.float32)[:, -1] for lane in (0, 1)]
        return lanes[0] + lanes[1]

    pairs = row_sum_pairs(log_of_row_sum(strided), 8, torch.float32, "cpu", first=2)
    assert row_sum_groups(pairs) == [[0], [1, 3, 5, 7], [4], [6]]
    forward = log_of_row_sum(lambda p: np.add.accumulate(p, axis=1, dtype=np.float32)[:, -1])
    pairs = row_sum_pairs(forward, 8, torch.float32, "cpu", first=3)
    assert row_sum_groups(pairs) == [[0, 1, 2], [4], [5], [6], [7]]
    pairs[0, 4] = pairs[4, 0] = True
    assert row_sum_groups(pairs) is None


def test_the_order_of_a_row_sum_is_found_from_the_output():
    def attention(q, k, v):  # P rounded to BF16 after the row sum; odd keys are summed before even ones join
        p = (q.float() @ k.float().mT).exp()
        l = p[..., 0] + 0
        for key in range(2, p.shape[-1], 2):
            l = l + p[..., key]
        l = l + sum(p[..., key] for key in range(1, p.shape[-1], 2))
        return ((p.bfloat16().float() @ v.float()) / l[..., None]).bfloat16()

    pairs = row_sum_pairs_of_output(attention, 10, "cpu", first=4)
    assert not pairs[[4, 5]].any() and not pairs[:, [4, 5]].any()  # the two keys that the probe itself needs
    assert row_sum_groups(pairs) == [[0, 2], [1, 3, 7, 9], [6], [8]]


def test_a_log_sum_exp_that_cannot_tell_is_refused():
    with pytest.raises(RuntimeError, match="for l = 1"):
        row_sum_pairs(lambda q, k, v: torch.zeros(q.shape[2]), 4, torch.float32, "cpu")


def test_torchs_cpu_kernel_adds_in_vector_lanes():
    groups = row_sum_groups(row_sum_pairs(flash_cpu, 32, torch.float32, "cpu"))
    assert sorted(key for group in groups for key in group) == list(range(1, 32))
    lanes = {"AVX512": 16, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability())
    if lanes is None:
        pytest.skip("vector length known for AVX2 and AVX512 only")
    assert [lanes] in groups and list(range(1, 32, 2)) in groups


@pytest.mark.slow
def test_the_kernels_compile_for_hopper(tmp_path, monkeypatch):
    try:
        cuda.cuda_home()
    except RuntimeError as error:
        pytest.skip(f"{error}")
    library = instructions.compile(tmp_path)
    for instruction in instructions.INSTRUCTIONS:
        assert getattr(library, instruction.key) and instruction.key in EXPECTED
    assert all(getattr(library, key) for key in instructions.ELEMENTWISE)
    (tmp_path / "wrong.cu").write_text("no C++")
    monkeypatch.setattr(instructions, "SOURCE", tmp_path / "wrong.cu")
    with pytest.raises(RuntimeError, match="error"):
        instructions.compile(tmp_path)


def test_the_order_of_offsets_that_is_right_is_kept(monkeypatch):
    # in place of the launchers, a wgmma that is right under one order, under the other, and under none
    def launcher(right):
        def made(library, instruction, offsets):
            d = (lambda a, b, c: (a * b).sum(1) + c) if offsets == right else lambda a, b, c: c
            return lambda a, b, c: d(a.cpu(), b.cpu(), c.cpu()).float()

        return made

    monkeypatch.setattr(instructions.on_arrays, "__defaults__", ("cpu",))
    wgmma = next(x for x in instructions.INSTRUCTIONS if x.kind == "wgmma")
    a, b, c = (torch.ones(2, 16), torch.ones(2, 16), torch.ones(2))
    for right in instructions.OFFSETS:
        monkeypatch.setattr(instructions, "_launcher", launcher(right))
        assert instructions.product(None, wgmma)(a, b, c).tolist() == [17, 17]
    monkeypatch.setattr(instructions, "_launcher", launcher(None))
    with pytest.raises(RuntimeError, match="small integers"):
        instructions.product(None, wgmma)


def test_without_nvcc_and_without_cuda_the_reason_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda, "DEFAULT", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with pytest.raises(RuntimeError, match="nvcc"):
        instructions.compile(tmp_path)

    class Library:
        def __getattr__(self, name):
            return lambda *arguments: 0

    monkeypatch.setattr(instructions, "_exact", lambda function, k: True)
    mma = instructions.product(Library(), instructions.INSTRUCTIONS[0])
    with pytest.raises(ValueError, match="accepted are CUDA"):
        mma(torch.zeros(2, 16), torch.zeros(2, 16), torch.zeros(2))
    with pytest.raises(ValueError, match="accepted are \\(n, 16\\)"):
        mma(torch.zeros(2, 8), torch.zeros(2, 8), torch.zeros(2))
