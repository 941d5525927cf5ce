"""The weights of a kernel, read through rows of the identity: planted faults are named, right kernels have none."""

import json

import pytest
import torch
from in_a_folder import command

import fa_lib
from attention_check.measure.weights import weights
from fa_lib import E4M3, FP16

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


FAULTS = {  # what is wrong -> a kernel, and what is said
    "hidden keys": (kernel(hidden=0.0), "attention with the score 0 for keys that should be hidden."),
    "dropout": (kernel(columns=with_dropout), "attention with dropout left on, of about 20% of the weights."),
    "scale": (kernel(scale=1.2 * DIM**-0.5), "attention with 1.2 times its scale."),
    "softcap": (kernel(cap=3.0), "attention with scores capped at 3."),
    "window": (kernel(left=20), "attention with a window of 20 keys to the left and 0 keys to the right."),
    "ALiBi": (kernel(slopes=SLOPES), "There (head 0) it is attention with 1.999 times ALiBi's slopes."),
    "last key": (kernel(keys=KEYS - 1), "attention of keys 0 to 94 alone."),
    "lost page": (kernel(columns=without_page), "tiles of 16 keys are zeros: they count in the row sum"),
    "sink": (kernel(sink=2.0), "attention with one more score of 2.0"),
    "factor": (kernel(columns=lambda p: 2 * p), " is 1.999 times attention."),
    "pages": (kernel(columns=swapped), "in place of the values of keys 16 to 31 it reads those of keys 48 to 63"),
    "heads": (kernel(share=lambda x: x.repeat(1, HEADS // KV_HEADS, 1, 1)),
              "attention with query head h sharing key head h modulo their number."),
    "alignment": (kernel(top_left=True), "attention with a causal mask aligned top-left."),
    "a window and a scale": (kernel(left=20, scale=0.2), "Row 46 sees keys 58 to 78; expected keys 0 to 78.",
                             "With these keys the kernel's output is attention with 1.131 times"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_read(fault):
    planted, *sentences = FAULTS[fault]
    found = weights(planted, *drawn(), causal=True)
    assert found.differs and all(each in f"{found}" for each in sentences), f"{found}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", ["flash", "unfused", "as_shipped"])
@pytest.mark.parametrize("options", [dict(causal=True), dict(window=(20, 4)), dict(mask=SLOPES * torch.arange(KEYS))])
def test_right_kernels_have_no_difference(name, dtype, options):
    if name != "as_shipped" and "window" in options:  # the others take none
        options = dict(mask=torch.rand(ROWS, KEYS, generator=torch.Generator().manual_seed(1)) < 0.7)
    options = {key: x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype != torch.bool else x
               for key, x in options.items()}  # fmt: skip
    found = weights(name, *drawn(dtype), **options)
    assert not found.differs and not found.left_out and "are those of attention" in f"{found}", f"{found}"


def test_weights_that_a_large_scale_makes_0_are_of_no_mask():
    q, k = drawn()

    def divided(q, k, v):
        return torch.softmax(q @ k.repeat_interleave(2, 1).mT / DIM**-0.5, -1) @ v.repeat_interleave(2, 1)

    said = f"{weights(divided, q, k)}"
    assert "attention with scores times sqrt(head_dim)" in said and "sees" not in said, said


def test_what_is_due_is_what_is_believed():
    q, k = drawn()
    assert not weights(kernel(cap=3.0), q, k, causal=True, softcap=3.0).differs
    mask = SLOPES * (torch.arange(KEYS) - torch.arange(ROWS)[:, None] - KEYS + ROWS)
    for planted, believed, said in (
        (kernel(), dict(causal=True, softcap=3.0), "attention without the softcap."),
        (kernel(cap=3.0), dict(causal=True, softcap=6.0), "attention with scores capped at 3."),
        (kernel(), {}, "it is attention with a causal mask."),
        (kernel(slopes=SLOPES / 8), dict(causal=True, mask=mask), "attention with 0.1248 times its mask."),
    ):
        found = weights(planted, q, k, **believed)
        assert found.differs and said in f"{found}", f"{found}"


def test_a_coarser_format_of_p_is_named():
    for fmt, dtype in ((FP16, torch.float32), (E4M3, torch.bfloat16)):
        found = weights(kernel(probs=fmt), *drawn(dtype), causal=True).explained
        assert (found.verdict, found.arithmetic.key, found.arithmetic.fmt) == ("precision", "probs", fmt.name), found


def test_noise_has_no_cause():
    noise = torch.rand(1, HEADS, ROWS, KEYS, generator=torch.Generator().manual_seed(2))
    noise = (noise * torch.ones(ROWS, KEYS).tril(KEYS - ROWS)).bfloat16()
    found = weights(lambda q, k, v: noise @ v.repeat_interleave(2, 1), *drawn(), causal=True)
    assert "The furthest weight, of head" in f"{found}" and not found.explained.has_cause and not found.of_seen_keys


def test_values_come_in_blocks_of_any_width_and_from_a_kernel_of_its_own_names():
    q, k = drawn()
    seen = []

    def named(query, key, value, is_causal=False):
        seen.append(value.shape[-1])
        return kernel()(query, key, value)

    assert not fa_lib.weights(named, q, k, width=40, causal=True).differs and seen == [40] * 4


def test_the_command_says_it_and_draws_a_picture(tmp_path):
    (tmp_path / "other_scale.py").write_text(
        "from fa_lib.kernels import unfused\n"
        "def attention(q, k, v, causal=False):\n    return unfused(q, k, v, causal=causal, scale=0.15)\n"
    )
    asked = f"explain --kernel {tmp_path}/other_scale.py:attention --causal --exit-code --out {tmp_path}".split()
    result = command(*asked, "--json", f"{tmp_path}/found.json")
    assert result.exit_code == 1, result.output
    assert "the kernel's output is attention with 1.2 times its scale." in result.output
    assert (tmp_path / "other_scale_attention_weights.png").stat().st_size > 20_000
    assert json.loads((tmp_path / "found.json").read_text())["differs"]
    for refused in (["explain"], ["explain", "a.npz", "--gpu", "H100"], [*asked, "--layout", "bshd"]):
        assert command(*refused).exit_code == 2


def test_weights_that_change_from_call_to_call_are_told():
    calls = []

    def racing(q, k, v, causal=True):
        calls.append(1)
        return kernel(scale=DIM**-0.5 * (1 + 0.1 * len(calls)))(q, k, v)

    found = weights(racing, *drawn(), causal=True)
    assert found.changed > 1000 and "A second call gives " in f"{found}"
    assert not weights(kernel(), *drawn(), causal=True).changed
