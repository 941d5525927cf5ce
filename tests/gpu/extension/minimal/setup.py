from pathlib import Path

from setuptools import find_packages, setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CUDAExtension

if CUDA_HOME is None:
    raise RuntimeError("nvcc is needed")
sources = [str(path) for path in sorted(Path("csrc").iterdir())]
extension = CUDAExtension(
    "minimal_attention._C",
    sources,
    define_macros=[("SMALLEST", "1e-30f")],
    extra_compile_args={"cxx": ["-O2"], "nvcc": ["-O3", "-gencode", "arch=compute_80,code=sm_80"]},
)
setup(
    name="minimal_attention", packages=find_packages(), ext_modules=[extension], cmdclass={"build_ext": BuildExtension}
)
