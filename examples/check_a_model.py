"""Is attention safe in my model? A tiny decoder with random weights, in BF16, with each of its attention calls checked:
`python examples/check_a_model.py`, or `fa-lib check model examples.check_a_model:run`. It needs no network; put your
own model and inputs in its place."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from attention_check.judge.captured import judge_model
from attention_check.plots.model_report import model_panels
from attention_check.probe.probe import Probe
from attention_check.report.sentences import judgement_text
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import build


def run():
    """The model, on 3 batches."""
    torch.manual_seed(0)
    shape = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, vocab_size=512)
    model = LlamaForCausalLM(LlamaConfig(**shape, intermediate_size=512)).bfloat16().eval()
    with torch.no_grad():
        for batch in torch.randint(512, (3, 1, 512)):
            model(batch)


def main():
    worst, drawn = build() / "worst.safetensors", build() / "figures" / "probe.png"
    with Probe(["as_shipped", "every_step"], save=worst) as probe:
        run()
    judgement = judge_model("This model", probe.table, skipped=probe.skipped, nonfinite=probe.nonfinite)
    print(f"{judgement_text(judgement)}\n\n{probe.calls} calls, the largest error of each kernel over Baseline's:\n")
    print(probe.summary().round(2).droplevel("model").to_string())
    print(f"\nTensors of the worst call: {worst}")
    with replacing(drawn) as path:
        model_panels(probe.table)[0].figure().savefig(path, bbox_inches="tight", dpi=200)
    print(f"The figure: {drawn}")


if __name__ == "__main__":
    main()
