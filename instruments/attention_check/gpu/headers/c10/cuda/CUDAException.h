// What flash-attn's headers need of torch's, to compile kernels alone: nothing is launched from here.
#pragma once
#define C10_CUDA_CHECK(call) (call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK()
