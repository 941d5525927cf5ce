"""Which call paths of the gallery lead to one implementation, so that what is counted are kernels, and not calls."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SHARED = {  # key -> the key of the call path whose implementation it shares; others have their own
    **dict.fromkeys(("ggml_few", "ggml_decode_1_thread", "ggml_prefill", "whisper_decode", "whisper_few",
                     "whisper_prefill", "ggml_decode_v_fp32", "ggml_q8_0", "ggml_q4_0"), "ggml_decode"),
    **dict.fromkeys(("transformers_sdpa", "diffusers_native"), "torch_flash"), "torch_math_16_bit": "torch_math",
    "onnx_group_query_decode": "onnx_group_query", "openvino_sdpa_fp32_model": "openvino_sdpa",
    "ring_16_bit_logits": "ring_fp32_logits", "llama_cuda_mma_crowded": "llama_cuda_mma",
    **dict.fromkeys(("llama_cuda_q8_0", "llama_cuda_q4_0"), "llama_cuda_decode"),
    "flashinfer_cascade": "flashinfer_prefill", "vllm_unified_decode": "vllm_unified",
    "lmdeploy_decode_int4": "lmdeploy_decode_int8",
}  # fmt: skip


JUDGED = ("passes", "fails", "differs")  # verdicts of a call path that was judged; others say why it was not


@dataclass(frozen=True)
class Counts:
    """How many call paths were judged, of how many implementations and projects; how many fail, by how many distinct
    defects; how many differ."""

    paths: int
    implementations: int
    projects: int
    fail: int
    defects: int
    differ: int

    def __str__(self):
        return (f"{self.paths} call paths, {self.implementations} implementations, of {self.projects} projects; "
                f"{self.fail} call paths fail, by {self.defects} distinct defects; {self.differ} differ")  # fmt: skip


def counted(rows: Iterable[Mapping]) -> Counts:
    """Count rows of `causes.explained` that have a verdict. A failure whose source nobody has read is a defect of its
    own implementation."""
    judged = [row for row in rows if row["verdict"] in JUDGED]
    failed = [row for row in judged if row["verdict"] == "fails"]
    implementation = {row["key"]: SHARED.get(row["key"], row["key"]) for row in judged}
    defects = {row.get("defect") or implementation[row["key"]] for row in failed}
    return Counts(
        len(judged), len({*implementation.values()}), len({project(row) for row in judged}), len(failed), len(defects),
        sum(row["verdict"] == "differs" for row in judged),
    )  # fmt: skip


def project(row: Mapping) -> str:
    """Name the project of a row, without the library that it brings along."""
    return row["project"].split(" (")[0]
