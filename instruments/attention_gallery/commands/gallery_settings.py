"""How kernels of the gallery are judged: how thoroughly, and which of them are slow."""

from dataclasses import dataclass, replace

from attention_check.measure.plan import QUICK, CheckPlan
from attention_check.measure.relations import RELATIONS
from attention_gallery.catalogue import CATALOGUES
from attention_gallery.entry import FEW_QUERIES, Entry
from fa_lib.execution.lookup import lookup

GALLERY = CheckPlan(
    lengths=(128, 1500, 4096, 16384), seeds=2, shapes=("97", "113 x 203", "causal 203", "GQA 384", "256"), head_dims=(),
    troubled_n=512, bias_seeds=3, runs=3, square=1500, relations=(*RELATIONS,),
)  # fmt: skip
ON_GPU = CheckPlan(  # a kernel in a minute or less, most of it Triton's compiler
    lengths=(128, 1024, 16384), seeds=2, shapes=("97", "causal 203", "GQA 384", "256"), head_dims=(), troubled_n=128,
    bias_seeds=3, runs=3, square=1024, relations=(*RELATIONS,),
)  # fmt: skip
MODELLED = CheckPlan(  # a GPU kernel on a CPU, in some minutes of one core
    lengths=(128, 512, 4096), seeds=1, shapes=("97", "causal 203", "GQA 384"), head_dims=(), troubled_n=128,
    bias_seeds=2, runs=2, square=512, relations=(*RELATIONS,), related_n=64, related_formats=1,
)  # fmt: skip
REHEARSED = CheckPlan((128,), 1, ("97",), (), 128, 2, 2, square=128)
PLANS = {"full": GALLERY, "quick": QUICK, "gpu": ON_GPU, "modelled": MODELLED, "rehearsal": REHEARSED}
SQUARE = ("113 x 203", "256")  # shapes that FEW_QUERIES are not asked for: they have others off and on the tiles
SLOW = ("pallas", "flash_jax")  # files whose kernels are interpreted, or compiled anew for every shape
COMPILED_ANEW = ("flex_triton", "flash_attn_triton_kernels", "xformers_kernels")  # for every shape, by Triton
BUILT = ("torch_flex_compiled", "cutlass_fmha", "fa2_cuda")  # anew for every shape or option
FIRST = (*BUILT, "flex_decode", "fa4_hopper", "flash_attn_triton_package")  # minutes each: else one is left at the end
FIVE = ("ggml_decode", "ggml_prefill", "ring_16_bit_logits", "onnx_attention", "transformers_eager")  # of a quick look
THREE = ("llama_cuda_decode", "sglang_extend", "conch_paged")  # of a quick look at GPU kernels
LIMIT_S = 600  # of one kernel


@dataclass(frozen=True)
class JudgingSettings:
    """How kernels of the gallery are judged.

    Attributes:
        folder: where the record of each is kept. depth: a key of PLANS.
        device: whose catalogue: "cpu", "cuda" or "modelled".
        cells: folder of finished cells and golden values; `folder`/cells where it is empty.
        limit_s: seconds of one kernel.
    """

    folder: str
    depth: str = "full"
    device: str = "cpu"
    cells: str = ""
    limit_s: float = LIMIT_S

    def entry(self, key: str) -> Entry:
        """The entry of a key, of the device's catalogue.

        Raises:
            ValueError: the key is unknown.
        """
        return lookup("kernel", key, CATALOGUES[self.device])

    def plan(self, entry: Entry) -> CheckPlan:
        """How thoroughly an entry's kernel is examined: less where it is compiled or interpreted anew at each call, or
        takes few queries."""
        plan = PLANS[self.depth]
        if self.depth == "full" and (entry.module in SLOW or entry.key in BUILT):
            plan = replace(plan, lengths=(128, 512, 4096), square=512, related_n=64, related_formats=1)
        if entry.project.startswith("whisper"):  # its encoder makes 1,500 keys, and its decoder sees no more
            plan = replace(plan, lengths=tuple(n for n in plan.lengths if n <= 1500))
        if self.device == "modelled":
            return _without_gpu(entry, replace(plan, asked_head_dims=None))  # each head_dim would be compiled
        if entry.key in FEW_QUERIES:
            shapes = tuple(shape for shape in plan.shapes if shape not in SQUARE)
            square = min(plan.square, 128)
            plan = replace(plan, square=square, troubled_n=128, related_n=64, asked_queries=16, shapes=shapes)
        return plan


def _without_gpu(entry, plan):
    """The plan for a GPU kernel that runs on a CPU: fewer calls where each shape is compiled, or each query takes some
    50 ms."""
    if entry.module in COMPILED_ANEW:
        plan = replace(plan, lengths=(128, 512), shapes=("97",), relations=QUICK.relations)
    if entry.key in FEW_QUERIES:
        few = dict(troubled_n=32, related_n=16, square=32, relations=QUICK.relations)
        plan = replace(plan, asked_queries=1, shapes=("97",), **few)
    return plan
