"""The same prompt alone, in a batch, padded and with a cache: which models answer it differently, and where first."""

import pytest
import torch
from torch import nn
from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from attention_check.judge.captured import judge_model
from attention_check.probe import replays
from attention_check.probe.probe import Probe
from attention_check.probe.replays import Runs, compared
from attention_check.report.sentences import judgement_text

SHAPE = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=100)


class Decoder(nn.Module):
    """Two layers. defect: "entry", no mask is used in other entries than the first; "dropout", it stays on."""

    def __init__(self, defect=""):
        super().__init__()
        torch.manual_seed(0)
        self.defect, self.embed, self.head = defect, nn.Embedding(100, 64), nn.Linear(64, 100)
        self.qkv = nn.ModuleList(nn.Linear(64, 192) for _ in range(2))

    def forward(self, ids, padding=None):
        n, x = ids.shape[1], self.embed(ids)
        at = torch.arange(n)
        mask = (at[:, None] >= at).expand(len(ids), 1, n, n).clone()
        if padding is not None:
            mask &= ((at >= padding[:, None])[:, None, None]) | torch.eye(n, dtype=torch.bool)
        if self.defect == "entry":
            mask[1:] = True
        p = 0.1 * (self.defect == "dropout")
        for layer in self.qkv:
            q, k, v = layer(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            x = x + nn.functional.scaled_dot_product_attention(q, k, v, mask, dropout_p=p).transpose(1, 2).flatten(2)
        return self.head(x)


def prompts(model):
    short, long = torch.tensor([[11, 5, 42, 7]]), torch.arange(12)[None] * 7 % 100
    model(short)
    model(torch.cat((long, nn.functional.pad(short, (8, 0)))), torch.tensor([0, 8]))


def llama(dtype=torch.float32):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, intermediate_size=128)).to(dtype).eval()


def batch(model):
    """A prompt of 9 tokens and one of 5, padded on the left."""
    ids, mask = torch.randint(1, 100, (2, 9), generator=torch.Generator().manual_seed(1)), torch.ones(2, 9).long()
    mask[1, :4] = ids[1, :4] = 0
    model(input_ids=ids, attention_mask=mask)


def ways(model, run):
    with Runs() as runs, torch.no_grad():
        run(model)
    return compared(runs.found)


@pytest.mark.parametrize("defect, way", [("entry", "alone"), ("dropout", "again"), ("", None)])
def test_attention_that_answers_differently_is_found_and_told_from_what_is_before_it(defect, way):
    rows = ways(Decoder(defect).eval(), prompts)
    differing = [row for row in rows if row["differs"]]
    assert not any(row["why"] for row in rows) and bool(differing) == bool(defect)
    judgement = judge_model("m", Probe().table, ways=rows)
    assert ("fails" in judgement_text(judgement).splitlines()[0]) == bool(defect)
    if defect:
        assert way in [row["way"] for row in differing] and {row["tensor"] for row in differing} == {"o"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_model_answers_alike_in_every_way(dtype):
    rows = ways(llama(dtype), batch)
    assert [row["way"] for row in rows] == ["again", "alone", "alone", "padding", "cache"]
    assert not any(row["differs"] or row["why"] for row in rows), rows


def test_what_may_differ_is_no_fault():
    """Dropout in training; a sequence that comes before the batch."""
    (row,) = ways(Decoder("dropout").train(), prompts)
    assert not row["differs"] and "random" in row["why"]
    layer = nn.TransformerEncoderLayer(16, 2, dropout=0.0)
    assert [row["way"] for row in ways(layer, lambda model: model(torch.randn(5, 2, 16)))] == ["again"]


def test_steps_of_generate_which_share_a_cache_are_not_run_again():
    rows = ways(llama(), lambda model: model.generate(torch.arange(1, 7)[None], max_new_tokens=2, do_sample=False))
    assert not any(row["differs"] for row in rows), rows


def test_positions_that_padding_shifts_are_no_fault_of_attention():
    """GPT-2 without position_ids counts places of padding."""
    torch.manual_seed(0)
    rows = ways(GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=100)).eval(), batch)
    differing = {(row["way"], row["entry"]): row["tensor"] for row in rows if row["differs"]}
    assert differing == {("alone", 1): "q"}
    judgement = judge_model("m", Probe().table, ways=rows)
    assert "first in q at transformer.h.0.attn" in judgement_text(judgement)
    assert "fails" not in judgement_text(judgement).splitlines()[0]


def test_a_cache_that_loses_a_key_is_found():
    def attention(module, query, key, value, mask, **options):
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        lost = query.shape[-2] == 1  # in decoding
        o = nn.functional.scaled_dot_product_attention(
            query, key[..., lost:, :], value[..., lost:, :], is_causal=not lost
        )
        return o.transpose(1, 2), None

    AttentionInterface.register("forgetful", attention)
    model = llama()
    model.set_attn_implementation("forgetful")
    *_, row = ways(model, lambda model: model(torch.arange(1, 10)[None]))
    assert (row["way"], row["differs"]) == ("cache", True)
    assert (row["tensor"], row["layer"]) == ("k", "model.layers.0.self_attn")


def test_a_model_that_cannot_run_again_says_why_and_one_that_a_run_changes_is_not_run_again():
    class Once(Decoder):
        def forward(self, ids):
            self.runs = getattr(self, "runs", 0) + 1
            if self.runs > 1:
                raise RuntimeError("once only")
            return super().forward(ids)

    rows = ways(Once().eval(), lambda model: model(torch.arange(6)[None]))
    assert rows and all("once only" in row["why"] for row in rows)
    normed = nn.Sequential(nn.BatchNorm1d(6), nn.TransformerEncoderLayer(8, 2, dropout=0.0, batch_first=True)).train()
    with Runs() as runs:
        normed(torch.randn(2, 6, 8))
    assert not runs.found and replays.compared([]) == []
