"""The GPU whose arithmetic a machine has, and the matrix unit that sums each instruction's products."""

from dataclasses import dataclass
from functools import cache

from fa_lib.numerics.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format
from fa_lib.numerics.tensor_cores import TensorCore

INPUTS = {"f16": FP16, "bf16": BF16, "tf32": TF32, "e4m3": E4M3, "e5m2": E5M2}
RESULTS = {"f16": FP16, "f32": FP32}
NAMES = {  # compute capability, multiprocessors, KB of shared memory that a block may have, MB of memory, MB of L2:
    # as torch prints them of such cards, but for the A100's memory and the L40S's L2, which are as others list them
    "A100": (80, 108, 163, 81920, 40), "L40S": (89, 142, 99, 45589, 96), "H100": (90, 132, 227, 81090, 50),
    "H200": (90, 132, 227, 143156, 60), "B200": (100, 148, 227, 182642, 126),
}  # fmt: skip
EIGHT_BITS = ("L40S",)  # whose mma.sync has FP8: on Hopper it is no instruction of the hardware, and on Blackwell open
CAPABILITIES = {"wgmma": 90, "tcgen05.mma": 100}  # of the GPUs that have an instruction


@dataclass(frozen=True)
class GPU:
    """A GPU.

    Attributes:
        name: of NAMES. capability: 80 is sm_80.
        processors: number of multiprocessors, of a card for servers.
        shared_bytes: the most shared memory that a block may have.
        memory_bytes, cache_bytes: of all its memory, and of its L2 cache: they are reported, and not used.
        wobble: None: approximate instructions are rounded correctly. A number: they get errors within their documented
            bounds, drawn from this seed.
    """

    name: str
    capability: int
    processors: int
    shared_bytes: int
    memory_bytes: int
    cache_bytes: int
    wobble: int | None = None

    @classmethod
    def of(cls, name: "str | GPU") -> "GPU":
        """Return the GPU of a name; "H100~3" is an H100 with `wobble` 3.

        Raises:
            ValueError: there is no such name.
        """
        if isinstance(name, GPU):
            return name
        base, wobbles, number = name.partition("~")
        if base not in NAMES or wobbles and not number.isdecimal():
            accepted = f"{', '.join(NAMES)}, also with ~ and a number, as H100~3"
            raise ValueError(f"gpu: got {name!r}; accepted are {accepted}")
        capability, processors, shared, memory, cache = NAMES[base]
        wobble = int(number) if wobbles else None
        return cls(base, capability, processors, shared << 10, memory << 20, cache << 20, wobble)

    @cache  # noqa: B019 (there are few GPUs)
    def core(self, inputs: str, result: str, instruction: str = "mma.sync") -> TensorCore:
        """Return the matrix unit that sums the products of an instruction.

        Args:
            inputs, result: types of PTX: "bf16", "f32".
            instruction: "mma.sync", "wgmma" (Hopper's) or "tcgen05.mma" (Blackwell's).

        Raises:
            ValueError: this GPU has no such instruction, or its order of sums is not known.
        """
        if self.capability != CAPABILITIES.get(instruction, self.capability):
            raise ValueError(f"{self.name} has no {instruction}")
        if inputs not in INPUTS or result not in RESULTS:
            raise ValueError(f"products of {inputs} summed to {result} are not modelled")
        fmt: Format = INPUTS[inputs]
        if fmt in (E4M3, E5M2):
            if self.name not in EIGHT_BITS and instruction != "wgmma":
                raise ValueError(f"how {self.name} adds the products of {instruction} in {inputs} is not known")
            if result != "f32":
                raise ValueError(f"products of {inputs} summed to {result} are not modelled")
            return TensorCore.of(self.name, fmt)
        return TensorCore.of(self.name, fmt, result=RESULTS[result])
