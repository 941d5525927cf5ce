"""Calls that a Probe did not compare: why, and what to do about it."""

from collections.abc import Mapping
from enum import StrEnum

UNSEEN = ("eager", "flash_attention_2", "flash_attention_3", "flex_attention")  # of transformers' settings


class Why(StrEnum):
    """Why a call was not compared, where it is not that a kernel refused it."""

    DROPOUT = "dropout"
    COMPILED = "compiled"
    EAGER = "eager"
    FUSED = "fused"
    NONFINITE = "nonfinite"
    TRACED = "traced"
    WEIGHTS = "weights"


TOLD = {  # what it was, what to do
    Why.DROPOUT: ("dropout_p above 0: what was dropped is not known", "set dropout to 0, or model.eval()"),
    Why.COMPILED: (
        "forward passes of compiled modules, which hide their calls",
        "run them within torch.compiler.set_stance('force_eager')",
    ),
    Why.EAGER: (
        "forward passes of transformers with attention other than sdpa", "model.set_attn_implementation('sdpa')",
    ),
    Why.FUSED: (
        "nn.MultiheadAttention in eval mode on torch's fast path", "torch.backends.mha.set_fastpath_enabled(False)",
    ),
    Why.NONFINITE: ("NaN or infinite inputs", "look at what comes before the first of them"),
    Why.WEIGHTS: (
        "nn.MultiheadAttention with need_weights=True, which calls no scaled_dot_product_attention",
        "call it with need_weights=False",
    ),
    Why.TRACED: ("calls while torch.jit traces", "run the model untraced"),
}  # fmt: skip


def reason_sentence(why: str) -> str:
    """A reason in words, with what to do."""
    return f"{TOLD[Why(why)][0]}: {TOLD[Why(why)][1]}" if why in TOLD else why


def place(where: Mapping) -> str:
    """Of a call of a Probe: "step 0, layer model.layers.1.self_attn"."""
    named = [f"{name} {where[name]}" for name in ("step", "layer") if where.get(name, "") != ""]
    return ", ".join(named) or "an unnamed call"


def first_nonfinite(where: Mapping) -> str:
    """The first non-finite tensor in words: "first non-finite: step 0, layer 1, q"."""
    return f"first non-finite: {place(where)}, {where['tensor']}"


def line(skipped: Mapping[tuple[str, str], int], nonfinite: Mapping | None) -> str:
    """All that a Probe (skipped, nonfinite: its) did not compare, as one line; "" where there is nothing of that
    kind."""
    parts = [first_nonfinite(nonfinite)] if nonfinite else []
    every = [f"{count} ({reason_sentence(why)})" for (kernel, why), count in skipped.items() if kernel == "all"]
    parts += [f"not compared: {', '.join(every)}"] if every else []
    own = [f"{count} by {name} ({reason_sentence(why)})" for (name, why), count in skipped.items() if name != "all"]
    parts += [f"refused: {', '.join(own)}"] if own else []
    return f"Probe: {'; '.join(parts)}" if parts else ""
