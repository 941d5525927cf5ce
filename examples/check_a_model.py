"""Is attention safe in my model? A tiny decoder with random weights, in BF16, each of its attention calls checked:
`python examples/check_a_model.py`. It needs no network; put your own model and inputs in its place."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fa_lib.check.model import Probe
from fa_lib.execution.files import replacing
from fa_lib.paths import ROOT
from fa_lib.plots.model_report import by_layer

torch.manual_seed(0)
shape = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, vocab_size=512)
model = LlamaForCausalLM(LlamaConfig(**shape, intermediate_size=512)).bfloat16().eval()
tokens = torch.randint(512, (3, 1, 512))  # 3 steps of a batch of 1

with torch.no_grad(), Probe(["as_shipped", "every_step"], save="build/worst.safetensors") as probe:
    for batch in tokens:
        model(batch)

print(f"{probe.calls} calls, the largest error of each kernel over Baseline's (more than 2 is worth a look):\n")
print(probe.summary().round(2).droplevel("model").to_string())
print("\nQ, K and V of the worst call: build/worst.safetensors")

caption = (
    "A decoder with random weights: 4 layers, 8 heads, 2 of them for keys and values, head_dim 32, 512 tokens, BF16, "
    "3 steps. Baseline: softmax inside in FP32. Golden: FP64 on the same BF16 inputs; 256 rows of each head."
)
with replacing(ROOT / "figures" / "probe.png") as path:
    by_layer(probe.table, caption).savefig(path)
