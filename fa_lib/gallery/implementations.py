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


@dataclass(frozen=True)
class Counts:
    """How many call paths were judged, of how many implementations and projects; how many call paths fail, and by how
    many distinct defects."""

    paths: int
    implementations: int
    projects: int
    fail: int
    defects: int

    def __str__(self):
        return (f"{self.paths} call paths, {self.implementations} implementations, of {self.projects} projects; "
                f"{self.fail} call paths fail, by {self.defects} distinct defects")  # fmt: skip


def counted(rows: Iterable[Mapping]) -> Counts:
    """Count rows of `gallery_rows.row` that have a verdict. Two call paths of one implementation that fail for the
    same cause have one defect."""
    judged = [row for row in rows if row["verdict"] in ("passes", "fails")]
    failed = [row for row in judged if row["verdict"] == "fails"]
    implementation = {row["key"]: SHARED.get(row["key"], row["key"]) for row in judged}
    projects = {row["project"].split(" (")[0] for row in judged}
    defects = {(implementation[row["key"]], _cause(row)) for row in failed}
    return Counts(len(judged), len({*implementation.values()}), len(projects), len(failed), len(defects))


def _cause(row: Mapping) -> str:
    """The sums that a kernel carries in low precision, else the first of its causes."""
    carries = row.get("carries")
    if isinstance(carries, str) and carries:
        return "carries"
    causes = str(row.get("cause") or "problem").split()
    return causes[0]
