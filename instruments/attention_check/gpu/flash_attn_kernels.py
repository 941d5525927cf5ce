"""FlashAttention-2's CUDA kernels: the one that its launch templates choose for a call, compiled from its source
package.

Everything here follows flash_fwd_launch_template.h and flash_bwd_launch_template.h of flash-attn 2.8.3. Compiling one
instance of a template takes 22 seconds, and three more each further one in the same text. So instances that differ in
`causal`, in `even` or in the number of parts alone are compiled together, once: compile_cuda stores them.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import torch

from ptx_machine.device import GPU
from ptx_machine.launch import Kernel, Structure
from ptx_machine.nvcc import compile_cuda
from ptx_machine.sources import FLASH_ATTN, unpacked

TYPES = {torch.bfloat16: "cutlass::bfloat16_t", torch.float16: "cutlass::half_t"}
WIDTHS = (32, 64, 96, 128, 192, 256)  # head_dims that there are kernels for; a call takes the first that it fits in
FORWARD_FIELDS = (  # of Flash_fwd_params, in flash.h
    *(f"{x}_{what}" for x in "qkvo" for what in ("ptr", "batch_stride", "row_stride", "head_stride")),
    *"oaccum_ptr softmax_lse_ptr softmax_lseaccum_ptr h h_k h_h_k_ratio b seqlen_q seqlen_k d".split(),
    *"seqlen_q_rounded seqlen_k_rounded d_rounded scale_softmax scale_softmax_log2 p_dropout rp_dropout".split(),
    *"scale_softmax_rp_dropout window_size_left window_size_right softcap is_bf16 is_causal num_splits".split(),
)
BACKWARD_FIELDS = (  # of Flash_bwd_params
    *FORWARD_FIELDS, "dq_accum_ptr", "dsoftmax_sum",
    *(f"d{x}_{what}" for x in "oqkv" for what in ("ptr", "batch_stride", "row_stride", "head_stride")),
)  # fmt: skip
FLAGS = (  # as in flash-attn's setup.py
    "--use_fast_math", "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__", "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
)  # fmt: skip
SOURCE = """#include "{header}"
#include <cstddef>

using namespace FLASH_NAMESPACE;
using Traits = {traits};
{kernels}
extern "C" __device__ unsigned shared_bytes[] = {{{shared}}};
extern "C" __device__ unsigned layout[] = {{sizeof({parameters}), {fields}}};
"""
FORWARD = (
    "flash_fwd_kernel<Traits, false, {causal}, {local}, false, {even}, {whole}, {softcap}, false>"
    "(__grid_constant__ const Flash_fwd_params)"
)
SPLIT = (
    "flash_fwd_splitkv_kernel<Traits, {causal}, {local}, false, {even}, {whole}, {softcap}, true, false>"
    "(__grid_constant__ const Flash_fwd_params)"
)
COMBINE = "flash_fwd_splitkv_combine_kernel<Traits, {rows}, {power}, {whole}>(__grid_constant__ const Flash_fwd_params)"
BACKWARD = (
    "flash_bwd_dot_do_o_kernel<true, Traits>(const Flash_bwd_params)",
    "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Traits, false, {causal}, {local}, false, {even}, {whole}, {softcap}>"
    "(__grid_constant__ const Flash_bwd_params)",
    "flash_bwd_convert_dq_kernel<Traits>(const Flash_bwd_params, const int)",
)


@dataclass(frozen=True)
class Case:
    """The properties of a call by which a launch template chooses.

    Attributes:
        head_dim: a multiple of 8. dtype: of TYPES. n_q, n_kv: numbers of queries and of keys.
        causal, softcap: whether it has them. local: whether it has a window and is not causal.
    """

    head_dim: int
    dtype: torch.dtype
    gpu: GPU
    causal: bool
    local: bool
    softcap: bool
    n_q: int
    n_kv: int

    @property
    def width(self) -> int:
        """The head_dim of the kernel: the first of WIDTHS that is not below head_dim."""
        return next(width for width in WIDTHS if self.head_dim <= width)

    @property
    def may_be_even(self) -> bool:
        """Whether there is a kernel that checks no tile for its end."""
        return self.head_dim == self.width <= 128 and not self.local

    def even(self, block_q: int, block_kv: int) -> bool:
        """Whether all tiles of this size are full, so that the kernel checks none for its end."""
        return self.may_be_even and self.n_q % block_q == self.n_kv % block_kv == 0

    def words(self, block_q: int, block_kv: int) -> dict[str, str]:
        """Return the arguments of the templates, name -> word of C++, for this size of tiles."""
        switches = dict(causal=self.causal, local=self.local, softcap=self.softcap)
        switches |= dict(even=self.even(block_q, block_kv), whole=self.head_dim == self.width)
        return {name: str(value).lower() for name, value in switches.items()}

    def family(self, causal_too: bool) -> dict[str, Sequence[str]]:
        """Return name of a template's argument -> the values that are compiled together. causal_too: calls with and
        without a causal mask have the same tile."""
        both = ("false", "true")
        evens = both if self.may_be_even else both[:1]
        causals = both if causal_too and not self.local else (str(self.causal).lower(),)
        return dict(causal=causals, even=evens)


class Kernels:
    """The kernels of a call.

    Attributes:
        text: the PTX, in which there are kernels of other calls, too.
        block_q, block_kv: queries and keys of a tile.
        threads: of a block.
        even: whether all tiles are full.
        shared: bytes of shared memory, of the constants that SOURCE names.
    """

    def __init__(
        self, text: str, instances: Iterable[str], gpu: GPU, fields: Iterable[str], tile: tuple[int, int, int],
        even: bool,
    ):  # fmt: skip
        """instances: of templates, as C++ writes them."""
        (self.block_q, self.block_kv, warps), self.even = tile, even
        self.threads = 32 * warps
        self.text, self._gpu = text, gpu
        entries = re.findall(r"\.entry (\w+)", text)
        self._entries = [_mangled(instance, entries) for instance in instances]
        self._kernels: dict[str, Kernel] = {}
        variables = self._kernel(self._entries[0]).variables
        self._size, *pairs = variables["layout"].view(np.uint32).tolist()
        self._layout = {name: (pairs[2 * i], pairs[2 * i + 1]) for i, name in enumerate(fields)}
        self.shared = variables["shared_bytes"].view(np.uint32).tolist()

    def kernel(self, name: str) -> Kernel:
        """Return the kernel whose name contains `name`.

        Raises:
            KeyError: this call has none.
        """
        for entry in self._entries:
            if name in entry:
                return self._kernel(entry)
        raise KeyError(f"name: got {name!r}; accepted is a part of one of {', '.join(self._entries)}")

    def _kernel(self, entry: str) -> Kernel:
        if entry not in self._kernels:
            self._kernels[entry] = Kernel(self.text, entry, gpu=self._gpu)
        return self._kernels[entry]

    def parameters(self, values: dict) -> Structure:
        """The structure of the kernels' parameters, of field -> value."""
        return Structure(self._layout, self._size, values)


def _mangled(instance: str, entries: Sequence[str]) -> str:
    """Find the entry of an instance, "flash_fwd_kernel<Traits, false, true, 8>": its name, and its arguments behind
    Traits, are in the entry's own name as Itanium's C++ ABI writes them."""
    name, _, rest = instance.partition("<")
    words = rest.partition(">")[0].split(", ")
    behind = words[words.index("Traits") + 1 :]
    ends = "".join({"false": "Lb0E", "true": "Lb1E"}.get(word, f"Li{word}E") for word in behind)
    found = [each for each in entries if f"{len(name)}{name}I" in each and f"E{ends}EEv" in each]
    if len(found) != 1:
        raise ValueError(f"instance: got {instance!r}, which is {len(found)} of the entries {', '.join(entries)}")
    return found[0]


def forward_kernels(case: Case) -> Kernels:
    """Compile flash_fwd_kernel, without dropout."""
    tile = block_q, block_kv, warps = _forward_tile(case.width, case.gpu, case.causal)
    traits = f"Flash_fwd_kernel_traits<{case.width}, {block_q}, {block_kv}, {warps}, false, false, {TYPES[case.dtype]}>"
    alike = tile == _forward_tile(case.width, case.gpu, not case.causal)
    return _compiled((FORWARD,), traits, case, tile, case.family(alike))


def split_kernels(case: Case) -> Kernels:
    """Compile flash_fwd_splitkv_kernel, which works on parts of the keys."""
    return _of_parts(SPLIT, case, case.family(True))


def combining_kernels(case: Case, splits: int) -> Kernels:
    """Compile the kernel that combines `splits` parts, from 2. It is compiled separately, because only it depends on
    their number."""
    power = max((splits - 1).bit_length(), 1)
    template = COMBINE.replace("{rows}", f"{combined_rows(case.width)}")
    return _of_parts(template, case, dict(power=tuple("1234567")), power=f"{power}")


def _of_parts(template: str, case: Case, family: dict[str, Sequence[str]], **chosen: str) -> Kernels:
    tile = 64, 256 if case.width <= 64 else 128 if case.width <= 128 else 64, 4
    traits = f"Flash_fwd_kernel_traits<{case.width}, {tile[0]}, {tile[1]}, 4, false, false, {TYPES[case.dtype]}>"
    return _compiled((template,), traits, case, tile, family, **chosen)


def combined_rows(width: int) -> int:
    """Return how many rows of O a block of the combining kernel has."""
    return 4 if width % 128 == 0 else 8 if width % 64 == 0 else 16


def backward_kernels(case: Case) -> Kernels:
    """Compile three kernels: of the dot products of dO and O; of dK, dV and the sums of dQ; and of dQ."""
    tile, more = _backward_tile(case.width, case.gpu.shared_bytes)
    traits = f"Flash_bwd_kernel_traits<{case.width}, {', '.join(map(str, (*tile, *more)))}, {TYPES[case.dtype]}>"
    return _compiled(BACKWARD, traits, case, tile, case.family(True))


def _forward_tile(width: int, gpu: GPU, causal: bool) -> tuple[int, int, int]:
    """Queries, keys and warps: run_mha_fwd_hdim32 to run_mha_fwd_hdim256."""
    if width <= 64:
        return 128, 128, 4
    if width <= 128:
        if gpu.capability != 89:
            return 128, 64, 4
        return (64, 64, 4) if causal else (128, 64 if width == 96 else 32, 4)
    if width == 192 or gpu.capability == 80:
        return 128, 64, 8
    return 64, 64, 4


def _backward_tile(width: int, shared_bytes: int) -> tuple[tuple[int, int, int], tuple[int | str, ...]]:
    """Queries, keys and warps, and how warps share them: run_mha_bwd_hdim32 to run_mha_bwd_hdim256."""
    room = shared_bytes // 1024
    no, with_v, with_v_alone = ("false", "false"), ("true", "false"), ("true", "true")  # whether V stays in registers
    if width == 32:
        return (128, 128, 8), (4, 4, 4, *with_v)
    if width == 64:
        return ((128, 128, 8), (4, 4, 4, *no)) if room >= 144 else ((64, 128, 8), (2, 4, 4, *with_v))
    if width == 96:
        return (64, 128, 8), (2, 4, 4, *with_v)
    if width == 128:
        return ((64, 128, 8), (2, 4, 2, *no)) if room >= 144 else ((64, 64, 8), (4, 2, 2, *with_v))
    if width == 192:
        return (64, 64, 8), (4, 2, 2, *(no if room >= 136 else with_v_alone))
    if room < 144:
        return (64, 32, 8), (4, 1, 2, *with_v_alone)
    return (64, 64, 8), (4, 2, 2, "false", "false" if room >= 176 else "true")


def _compiled(
    templates: tuple[str, ...], traits: str, case: Case, tile: tuple[int, int, int], family: dict[str, Sequence[str]],
    **chosen: str,
) -> Kernels:  # fmt: skip
    """The kernels of a call, compiled with those of its family: name of a word -> its values."""
    words = case.words(*tile[:2]) | chosen
    all_words = [words | dict(zip(family, values)) for values in product(*family.values())]
    together = dict.fromkeys(template.format(**each) for template in templates for each in all_words)
    own = tuple(template.format(**words) for template in templates)
    return _kernels(tuple(together), own, traits, templates is BACKWARD, case.gpu, tile, case.even(*tile[:2]))


@cache
def _kernels(
    together: tuple[str, ...], own: tuple[str, ...], traits: str, backward: bool, gpu: GPU, tile: tuple[int, int, int],
    even: bool,
) -> Kernels:  # fmt: skip
    fields, way = (BACKWARD_FIELDS, "bwd") if backward else (FORWARD_FIELDS, "fwd")
    parameters = f"Flash_{way}_params"
    text = SOURCE.format(
        header=f"flash_{way}_launch_template.h", traits=traits, parameters=parameters,
        kernels="\n".join(f"template __global__ void FLASH_NAMESPACE::{instance};" for instance in together),
        shared="Traits::kSmemSize1colblock, Traits::kSmemdQSize" if backward else "Traits::kSmemSize",
        fields=", ".join(f"offsetof({parameters}, {field}), sizeof({parameters}::{field})" for field in fields),
    )  # fmt: skip
    folders = ("flash_attn", "flash_attn/src", "cutlass/include")
    include = [Path(__file__).with_name("headers"), *(unpacked(FLASH_ATTN) / "csrc" / name for name in folders)]
    return Kernels(compile_cuda(text, include=include, flags=FLAGS), own, gpu, fields, tile, even)
