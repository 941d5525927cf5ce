"""The paper's kernel inside the heads of trained models, two that packages of PyPI carry with their weights: `make
heads` writes data/heads, in half a minute. The two packages are fetched for it, 170 MB.

A model reads a text as its project feeds it. Each head's Q, K and V then go to Flash as the paper measured it (FA1,
every step in BF16), and to Baseline.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import yaml
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.tables import save_table
from fa_lib import kernels, sweep
from fa_lib.execution.lookup import lookup
from fa_lib.execution.paths import ROOT
from fa_lib.execution.pools import workers
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16
from fa_lib.numerics.metrics import deviation, over_baseline
from ptx_machine.sources import Package, unpacked

ATOMS = re.compile(r"\[[^\]]+]|Br|Cl|>>|[A-Za-z]|[0-9]|[-.=#()+\\/:@]")  # the words of SMILES


@dataclass(frozen=True)
class Pretrained:
    """A BERT whose weights lie in a package.

    Attributes:
        package: that carries them. folder: of config.json and pytorch_model.bin. vocabulary: file of words, one a line.
        words: splits a text into words. texts: that the model reads.
    """

    package: Package
    folder: str
    vocabulary: str
    words: Callable[[str], list[str]]
    texts: list[str]


WORDS = dict(AntiBERTy=list, rxnfp=ATOMS.findall)


def _pretrained(key, package, version, archive, sha256, keep, **own):
    return Pretrained(Package(package, version, archive, sha256, (keep,)), words=WORDS[key], **own)


LISTED = yaml.safe_load(Path(__file__).with_name("pretrained.yaml").read_text())
MODELS = {key: _pretrained(key, **model) for key, model in LISTED.items()}
ERRORS = {"times_rms": "rmse", "times_max": "max"}  # of a Deviation
DRAWN = ("uniform", "normal")  # inputs that stand beside them
GRID = dict(name=[*MODELS, *DRAWN], text=range(4), tiles=[2, 8, 32])


@cache
def model(name: str) -> Any:
    """Load a model with its own weights, a transformers.BertModel in FP32.

    Raises:
        ValueError: there is no such model. RuntimeError: its package cannot be had, or a weight is missing.
    """
    from transformers import BertConfig, BertModel

    of = lookup("model", name, MODELS)
    folder = unpacked(of.package) / of.folder
    config = json.loads((folder / "config.json").read_text())
    known = BertConfig().to_dict().keys() & config.keys() - {"transformers_version", "architectures", "torch_dtype"}
    bert = BertModel(BertConfig(**{key: config[key] for key in known}), add_pooling_layer=False).eval()
    weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    own = {key.removeprefix("bert."): x for key, x in weights.items() if key.startswith("bert.")}
    missing = bert.load_state_dict(own, strict=False).missing_keys
    if missing:
        raise RuntimeError(f"{name}: its package has no weights for {', '.join(missing)}")
    return bert


def tokens(name: str, text: str) -> Tensor:
    """Return a text's word numbers, int64 (1, n), between [CLS] and [SEP].

    Raises:
        ValueError: there is no such model, or it does not know a word.
    """
    of = lookup("model", name, MODELS)
    vocabulary = (unpacked(of.package) / of.vocabulary).read_text().split()
    words = ["[CLS]", *of.words(text), "[SEP]"]
    if unknown := {*words} - {*vocabulary}:
        raise ValueError(f"text: got {', '.join(sorted(unknown))}; {name} does not know these words")
    return torch.tensor([[vocabulary.index(word) for word in words]])


def attention_inputs(name: str, text: str) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return Q, K and V of every layer of a model that reads a text: FP32 (1, heads, n, head_dim) each."""
    calls = []

    def seen(q, k, v, **options):
        calls.append((q, k, v))
        return scaled_dot_product_attention(q, k, v, **options)

    with torch.no_grad(), patch("torch.nn.functional.scaled_dot_product_attention", seen):
        model(name)(input_ids=tokens(name, text))
    return calls


def heads_of(name: str, text: int, tiles: int = 32) -> list[dict]:
    """A cell: compare Flash with Baseline at every head of a model that reads one of its texts.

    Args:
        name: a key of MODELS, or of DRAWN: four heads of drawn inputs, 128 x 64, of seed `text`.
        text: which of its texts.
        tiles: into which Flash cuts the keys; the last may be smaller.

    Returns:
        rows of `measured`, with layer and n.
    """
    if name in DRAWN:
        calls = [draw(name, text, (1, 4, 128, 64))]
    else:
        calls = attention_inputs(name, lookup("model", name, MODELS).texts[text])
    rows = []
    for layer, (q, k, v) in enumerate(calls):
        rows += [dict(layer=layer, n=q.shape[2]) | row for row in measured(q, k, v, tiles)]
    return rows


def measured(q: Tensor, k: Tensor, v: Tensor, tiles: int) -> list[dict]:
    """Compare Flash, FA1 with every step in BF16, with Baseline in BF16.

    Args:
        q, k, v: (1, heads, n, head_dim). tiles: of keys.

    Returns:
        rows, one a head: one_sign, the share of V's columns whose values all have one sign; coherence, the median over
        outputs of |sum of P v| over the sum of P |v|, which is 1 where these terms have one sign; times_rms, times_max:
        Flash's error over Baseline's.
    """
    q, k, v = (BF16(x.double()) for x in (q, k, v))
    P = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)  # (1, heads, n, n)
    coherence = ((P @ v).abs() / (P @ v.abs())).flatten(2).median(-1).values[0]  # (heads,)
    one_sign = ((v > 0).all(2) | (v < 0).all(2)).double().mean(-1)[0]  # (heads,)
    golden = kernels.golden(q, k, v, inputs=BF16)
    baseline = kernels.baseline(*(x.bfloat16() for x in (q, k, v)))
    tiling = Tiling(64, -(-k.shape[2] // tiles))
    flash = kernels.tiled(q, k, v, tiling=tiling, precision=Precision.uniform(BF16), algorithm="fa1")
    rows = []
    for head in range(q.shape[1]):
        errors = [deviation(o[0, head], golden[0, head], BF16) for o in (flash, baseline)]
        times = {name: over_baseline(*(getattr(e, of) for e in errors)) for name, of in ERRORS.items()}
        rows.append(dict(head=head, one_sign=one_sign[head].item(), coherence=coherence[head].item()) | times)
    return rows


def main():
    with workers(os.cpu_count() or 1) as pool:
        table = sweep(heads_of, GRID, executor=pool)
    packages = {name: f"{of.package.name} {of.package.version}" for name, of in MODELS.items()}
    save_table(ROOT / "data" / "heads" / "heads", table, GRID, dict(packages=packages))


if __name__ == "__main__":
    main()
