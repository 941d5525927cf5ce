"""The weights of a kernel, read through rows of the identity: planted faults are named, right kernels have none."""

import json

import pytest
import torch
from in_a_folder import command

import fa_lib
from attention_check.measure.weights import weights
from attention_check.report.weights_words import differences
from fa_lib import BF16, E4M3, FP16

HEADS, KV_HEADS, ROWS, KEYS, DIM = 4, 2, 64, 96, 32
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64)[:, None, None]


def drawn(dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    q = 2 * torch.randn(1, HEADS, ROWS, DIM, generator=generator)
    return q.to(dtype), torch.randn(1, KV_HEADS, KEYS, DIM, generator=generator).to(dtype)


def kernel(
    scale=DIM**-0.5, cap=None, left=None, slopes=0.0, sink=None, keys=KEYS, columns=lambda p: p, top_left=False,
    share=lambda x: x.repeat_interleave(HEADS // KV_HEADS, 1), probs=lambda p: p, hidden=-torch.inf,
):  # fmt: skip
    """Attention under a causal mask in float64, with a fault."""

    def attention(q, k, v, causal=True):
        S = q.double() @ share(k).double().mT * scale
        S = S if cap is None else cap * torch.tanh(S / cap)
        own = torch.arange(ROWS)[:, None] + (0 if top_left else KEYS - ROWS)
        distance = torch.arange(KEYS) - own
        S = (S + slopes * distance).masked_fill((distance > 0) | (torch.arange(KEYS) >= keys), hidden)
        S = S if left is None else S.masked_fill(distance < -left, -torch.inf)
        m = S.amax(-1, keepdim=True)
        p = probs(torch.exp(S - m))
        l = p.sum(-1, keepdim=True) + (0 if sink is None else torch.exp(sink - m))
        return (columns(p / l) @ share(v).double()).to(q.dtype)

    return attention


def swapped(p):
    """Two pages of 16 keys have each other's weights."""
    order = torch.arange(KEYS)
    order[16:32], order[48:64] = torch.arange(48, 64), torch.arange(16, 32)
    return p[..., order]


def without_page(p):
    """The values of a page are lost, after the softmax."""
    return p * ~((torch.arange(KEYS) >= 16) & (torch.arange(KEYS) < 32))


def with_dropout(p):
    return p * (torch.rand(p.shape, generator=torch.Generator().manual_seed(1)) > 0.2) / 0.8


FAULTS = {
    "hidden keys": (kernel(hidden=0.0), "Keys that should be hidden have the score 0, which is not -inf."),
    "dropout": (kernel(columns=with_dropout), "Each weight is 0 or 1.25 times what it should be: dropout of "),
    "scale": (kernel(scale=1.2 * DIM**-0.5), "Scores are multiplied by 0.2121, expected 0.1768 (1.2 times)."),
    "softcap": (kernel(cap=3.0), "Scores have a softcap of 3, expected no softcap."),
    "window": (kernel(left=20), "Row 63 sees keys 75 to 95; expected keys 0 to 95: a window of 20 keys to the left."),
    "ALiBi": (kernel(slopes=SLOPES), "Scores fall by 0.5, 0.25, 0.125, 0.0625 in the heads for each key of distance "
              "from their row, expected 0: ALiBi's slopes."),
    "last key": (kernel(keys=KEYS - 1), "Row 63 sees keys 0 to 94; expected keys 0 to 95: no key after 94."),
    "lost page": (kernel(columns=without_page), "keys 16 to 31 left out of every row."),
    "sink": (kernel(sink=2.0), "each has one more term, as of a sink with the logit 2."),
    "factor": (kernel(columns=lambda p: 2 * p), "Rows sum up to 2, expected 1: the output is multiplied by it."),
    "pages": (kernel(columns=swapped), "The values of keys 16 to 31 are multiplied by the weights of keys 48 to 63"),
    "heads": (kernel(share=lambda x: x.repeat(1, HEADS // KV_HEADS, 1, 1)),
              "Heads of q read the heads 0, 1, 0, 1 of k; expected 0, 0, 1, 1."),
    "alignment": (kernel(top_left=True), "Row 0 sees key 0; expected keys 0 to 32: a causal mask, aligned top-left"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_read(fault):
    planted, sentence = FAULTS[fault]
    found = differences(weights(planted, *drawn(), causal=True))
    assert sum(sentence in each for each in found) == 1, found
    assert len(found) == {"pages": 2, "lost page": 2}.get(fault, 1), found  # and nothing else is said


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", ["flash", "unfused", "as_shipped"])
@pytest.mark.parametrize("options", [dict(causal=True), dict(window=(20, 4)), dict(mask=SLOPES * torch.arange(KEYS))])
def test_right_kernels_have_no_difference(name, dtype, options):
    if name != "as_shipped" and "window" in options:  # the others take none
        options = dict(mask=torch.rand(ROWS, KEYS, generator=torch.Generator().manual_seed(1)) < 0.7)
    options = {key: x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype != torch.bool else x
               for key, x in options.items()}  # fmt: skip
    found = weights(name, *drawn(dtype), **options)
    assert not differences(found) and found.map.residual <= found.map.limit and not found.left_out
    assert (found.map.scale * DIM**0.5 - 1).abs().max() < 0.01
    assert "are those of attention" in str(found)


def test_weights_that_a_large_scale_makes_0_are_of_no_mask():
    q, k = drawn()

    def divided(q, k, v):
        return torch.softmax(q @ k.repeat_interleave(2, 1).mT / DIM**-0.5, -1) @ v.repeat_interleave(2, 1)

    (said,) = differences(weights(divided, q, k))
    assert said.startswith("Scores are multiplied by ") and said.endswith("expected 0.1768.")


def test_what_is_due_is_what_is_believed():
    assert not differences(weights(kernel(cap=3.0), *drawn(), causal=True, softcap=3.0))
    (said,) = differences(weights(kernel(), *drawn(), causal=True, softcap=3.0))
    assert said == "Scores have no softcap, expected a softcap of 3."
    (said,) = differences(weights(kernel(cap=3.0), *drawn(), causal=True, softcap=6.0))
    assert said == "Scores have a softcap of 3, expected a softcap of 6."
    (said,) = differences(weights(kernel(), *drawn()))
    assert said.endswith("a causal mask, aligned bottom-right.")
    mask = SLOPES * (torch.arange(KEYS) - torch.arange(ROWS)[:, None] - KEYS + ROWS)
    (said,) = differences(weights(kernel(slopes=SLOPES / 8), *drawn(), causal=True, mask=mask))
    assert said == "The mask that is added is multiplied by 0.125, expected 1."


def test_the_format_of_p_is_read_by_its_steps():
    for fmt, dtype in ((BF16, torch.float32), (FP16, torch.float32), (E4M3, torch.bfloat16)):
        found = weights(kernel(probs=fmt), *drawn(dtype), causal=True)
        assert found.fmt == fmt.name and not differences(found)
    assert weights(kernel(), *drawn(torch.float32), causal=True).fmt == ""


def test_noise_has_no_cause():
    noise = torch.rand(1, HEADS, ROWS, KEYS, generator=torch.Generator().manual_seed(2))
    noise = (noise * torch.ones(ROWS, KEYS).tril(KEYS - ROWS)).bfloat16()
    found = differences(weights(lambda q, k, v: noise @ v.repeat_interleave(2, 1), *drawn(), causal=True))
    assert found[0].startswith("log P is ") and found[0].endswith("and from every softcap's curve.")
    assert not any(word in each for each in found for word in ("multiplied", "sink", "ALiBi", "page", "window"))


def test_values_come_in_blocks_of_any_width_and_from_a_kernel_of_its_own_names():
    q, k = drawn()
    seen = []

    def named(query, key, value, is_causal=False):
        seen.append(value.shape[-1])
        return kernel()(query, key, value)

    assert not differences(fa_lib.weights(named, q, k, width=40, causal=True)) and seen == [40, 40, 40]


def test_the_command_says_it_and_draws_a_picture(tmp_path):
    (tmp_path / "other_scale.py").write_text(
        "from fa_lib.kernels import unfused\n"
        "def attention(q, k, v, causal=False):\n    return unfused(q, k, v, causal=causal, scale=0.15)\n"
    )
    asked = f"explain --kernel {tmp_path}/other_scale.py:attention --causal --exit-code --out {tmp_path}".split()
    result = command(*asked, "--json", f"{tmp_path}/found.json")
    assert result.exit_code == 1, result.output
    assert "Scores are multiplied by 0.15, expected 0.125 (1.2 times)." in result.output
    assert (tmp_path / "other_scale_attention_weights.png").stat().st_size > 20_000
    assert json.loads((tmp_path / "found.json").read_text())["differs"]
    for refused in (["explain"], ["explain", "a.npz", "--gpu", "H100"], [*asked, "--layout", "bshd"]):
        assert command(*refused).exit_code == 2
