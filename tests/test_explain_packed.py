"""`explain` of packed sequences: each is a call of its own, and none sees another."""

import pytest
import torch
from typer.testing import CliRunner

import fa_lib
from attention_check.explain.verdict import Verdict
from attention_check.public_reports import drawn
from fa_lib.commands.cli import app
from tests.test_explain import golden


def packed(lengths, key_lengths=None, causal=True, **options):
    """Sequences of these lengths in one: q, k, v, o, and where each begins."""
    key_lengths = key_lengths or lengths
    found = []
    for i, (n_q, n_kv) in enumerate(zip(lengths, key_lengths)):
        q, _, _ = drawn(1, 4, n_q, 64, seed=i)
        k, v, _ = drawn(1, 2, n_kv, 64, seed=i + 10)
        found.append((q, k, v, golden(q, k, v, causal=causal, **options)))
    starts = (torch.tensor([0, *each]).cumsum(0).int() for each in (lengths, key_lengths))
    return *(torch.cat([x[0].transpose(0, 1) for x in xs]) for xs in zip(*found)), *starts


def test_packed_sequences(tmp_path):
    q, k, v, o, starts, _ = packed((40, 100, 7))
    assert fa_lib.explain(q, k, v, o, cu_seqlens=starts, causal=True).verdict == Verdict.ROUNDING
    joined = golden(*(x.transpose(0, 1)[None] for x in (q, k, v)), causal=True)[0].transpose(0, 1)
    found = fa_lib.explain(q, k, v, joined, cu_seqlens=starts, causal=True)
    assert found.verdict == Verdict.BUG and found.dialect == dict(mask="ignored")
    q, k, v, o, starts, key_starts = packed((1, 1, 5), (40, 60, 20), window=(30, 0))
    options = dict(cu_seqlens_q=starts, cu_seqlens_k=key_starts, causal=True, window=(30, 0))
    assert fa_lib.explain(q, k, v, o, **options).verdict == Verdict.ROUNDING
    torch.save(dict(q=q, k=k, v=v, o=o, cu_seqlens_q=starts, cu_seqlens_k=key_starts), tmp_path / "call.pt")
    result = CliRunner().invoke(app, ["explain", f"{tmp_path / 'call.pt'}", "--causal", "--window", "30,0"])
    assert result.output.startswith("ROUNDING"), result.output
    with pytest.raises(ValueError, match=r"^cu_seqlens: got \[0, 1, 2, 8\]"):
        fa_lib.explain(q, k, v, o, cu_seqlens=torch.tensor([0, 1, 2, 8]))
