// n independent dot products d_i = c_i + sum_k a_ik b_ik, one tensor-core instruction each; and approximations.
//
// The vector a is row 0 of A, b column 0 of B, c is C[0][0], everything else is zero, and D[0][0] is stored as it
// comes. In each of the instructions a vector is 32 bytes: 16 of 16 bits, 8 of TF32 in 32 bits, 32 of 8 bits; so one
// kernel moves them as 8 words and only the instruction differs.
//
// Layouts: PTX ISA, sections "Warp-level matrix fragments" and "Asynchronous warpgroup-level matrix shared memory
// layout". Build: nvcc -gencode arch=compute_90a,code=sm_90a -shared -Xcompiler -fPIC instructions.cu

#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int WORDS = 8;  // of a vector, 4 bytes each
constexpr int WARP = 32, WARPGROUP = 128;

// ---- mma.sync: a warp for each dot product ------------------------------------------------------------------------

// Lane l of the first four holds words l and 4 + l of row 0 of A (registers 0 and 2) and of column 0 of B (0 and 1);
// lane 0 holds C[0][0] and D[0][0] in its first register. This is so for m16n8k16, m16n8k8 of TF32 and m16n8k32.
#define MMA(NAME, INSTRUCTION)                                                                                    \
    __global__ void NAME##_kernel(const uint32_t* a, const uint32_t* b, const float* c, float* d, int n) {        \
        int i = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;                        \
        if (i >= n) return;                                                                                       \
        bool holds = lane < 4;                                                                                    \
        uint32_t a0 = holds ? a[i * WORDS + lane] : 0, a2 = holds ? a[i * WORDS + 4 + lane] : 0;                  \
        uint32_t b0 = holds ? b[i * WORDS + lane] : 0, b1 = holds ? b[i * WORDS + 4 + lane] : 0;                  \
        float d0 = lane == 0 ? c[i] : 0.0f, d1 = 0.0f, d2 = 0.0f, d3 = 0.0f;                                      \
        asm volatile(INSTRUCTION " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                         \
                     : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)                                                     \
                     : "r"(a0), "r"(0), "r"(a2), "r"(0), "r"(b0), "r"(b1));                                       \
        if (lane == 0) d[i] = d0;                                                                                 \
    }                                                                                                             \
    extern "C" int NAME(const void* a, const void* b, const void* c, void* d, int n, void* stream) {              \
        NAME##_kernel<<<(n + 3) / 4, 4 * WARP, 0, (cudaStream_t)stream>>>((const uint32_t*)a, (const uint32_t*)b, \
                                                                          (const float*)c, (float*)d, n);         \
        return cudaGetLastError();                                                                                \
    }

MMA(mma_fp16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
MMA(mma_bf16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
MMA(mma_tf32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
MMA(mma_e4m3, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32")
MMA(mma_e5m2, "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32")

// The accumulator in FP16: C and D are two registers of two values each, C[0][0] the low half of lane 0's first.
__global__ void mma_fp16_fp16_kernel(const uint32_t* a, const uint32_t* b, const float* c, float* d, int n) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (i >= n) return;
    bool holds = lane < 4;
    uint32_t a0 = holds ? a[i * WORDS + lane] : 0, a2 = holds ? a[i * WORDS + 4 + lane] : 0;
    uint32_t b0 = holds ? b[i * WORDS + lane] : 0, b1 = holds ? b[i * WORDS + 4 + lane] : 0;
    uint32_t d0 = lane == 0 ? __half_as_ushort(__float2half_rn(c[i])) : 0, d1 = 0;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
                 : "+r"(d0), "+r"(d1)
                 : "r"(a0), "r"(0), "r"(a2), "r"(0), "r"(b0), "r"(b1));
    if (lane == 0) d[i] = __half2float(__ushort_as_half((unsigned short)(d0 & 0xFFFF)));
}
extern "C" int mma_fp16_fp16(const void* a, const void* b, const void* c, void* d, int n, void* stream) {
    mma_fp16_fp16_kernel<<<(n + 3) / 4, 4 * WARP, 0, (cudaStream_t)stream>>>(
        (const uint32_t*)a, (const uint32_t*)b, (const float*)c, (float*)d, n);
    return cudaGetLastError();
}

// ---- wgmma: a warpgroup for each dot product ----------------------------------------------------------------------

constexpr int TILE = 512;  // words of A, 64 rows of 32 bytes; B has 8 rows and as much room, for either order of offsets

// Word w of a tile without swizzle: core matrices of 8 rows x 16 bytes, row 0's first half in the first of them and
// its second half in the next, 128 bytes on.
__device__ uint32_t word_of_tile(const uint32_t* row, int w) {
    if (w < 4) return row[w];
    if (w >= 32 && w < 36) return row[4 + w - 32];
    return 0;
}

// Bits 0-13 address, 16-29 leading and 32-45 stride byte offset, each without its last four bits; no swizzle.
__device__ uint64_t descriptor(const uint32_t* tile, int leading, int stride) {
    uint64_t address = __cvta_generic_to_shared(tile);
    return ((address & 0x3FFFF) >> 4) | (uint64_t)((leading & 0x3FFFF) >> 4) << 16 |
           (uint64_t)((stride & 0x3FFFF) >> 4) << 32;
}

#define WGMMA(NAME, INSTRUCTION, LAYOUT)                                                                             \
    __global__ void NAME##_kernel(const uint32_t* a, const uint32_t* b, const float* c, float* d, int leading,       \
                                  int stride) {                                                                      \
        __shared__ __align__(128) uint32_t tile_a[TILE], tile_b[TILE];                                               \
        int i = blockIdx.x, t = threadIdx.x;                                                                         \
        for (int w = t; w < TILE; w += WARPGROUP) {                                                                  \
            tile_a[w] = word_of_tile(a + i * WORDS, w);                                                              \
            tile_b[w] = word_of_tile(b + i * WORDS, w);                                                              \
        }                                                                                                            \
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* what threads wrote, wgmma now sees */        \
        __syncthreads();                                                                                             \
        float d0 = t == 0 ? c[i] : 0.0f, d1 = 0.0f, d2 = 0.0f, d3 = 0.0f;                                            \
        asm volatile(                                                                                                \
            "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %6, 0;\n"                                            \
            "wgmma.fence.sync.aligned;\n" INSTRUCTION " {%0,%1,%2,%3}, %4, %5, accumulate, 1, 1" LAYOUT ";\n"        \
            "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}"                                  \
            : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)                                                                 \
            : "l"(descriptor(tile_a, leading, stride)), "l"(descriptor(tile_b, leading, stride)), "r"(1)             \
            : "memory");                                                                                             \
        if (t == 0) d[i] = d0;                                                                                       \
    }                                                                                                                \
    extern "C" int NAME(const void* a, const void* b, const void* c, void* d, int n, int leading, int stride,        \
                        void* stream) {                                                                              \
        NAME##_kernel<<<n, WARPGROUP, 0, (cudaStream_t)stream>>>((const uint32_t*)a, (const uint32_t*)b,             \
                                                                 (const float*)c, (float*)d, leading, stride);       \
        return cudaGetLastError();                                                                                   \
    }

#define K_MAJOR ", 0, 0"  // only 16-bit operands can be transposed, so only they say that they are not
WGMMA(wgmma_fp16, "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", K_MAJOR)
WGMMA(wgmma_bf16, "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", K_MAJOR)
WGMMA(wgmma_tf32, "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", "")
WGMMA(wgmma_e4m3, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", "")
WGMMA(wgmma_e5m2, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e5m2", "")

// ---- y_i = f(x_i), approximations of the special function unit ----------------------------------------------------

#define ELEMENTWISE(NAME, INSTRUCTION)                                                                             \
    __global__ void NAME##_kernel(const float* x, float* y, long long n) {                                 \
        long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;                                    \
        if (i < n) asm volatile(INSTRUCTION " %0, %1;" : "=f"(y[i]) : "f"(x[i]));                          \
    }                                                                                                      \
    extern "C" int NAME(const void* x, void* y, long long n, void* stream) {                               \
        NAME##_kernel<<<(n + 255) / 256, 256, 0, (cudaStream_t)stream>>>((const float*)x, (float*)y, n);   \
        return cudaGetLastError();                                                                         \
    }

ELEMENTWISE(ex2_ftz, "ex2.approx.ftz.f32")
ELEMENTWISE(ex2, "ex2.approx.f32")
ELEMENTWISE(lg2_ftz, "lg2.approx.ftz.f32")
ELEMENTWISE(lg2_f32, "lg2.approx.f32")
ELEMENTWISE(rcp_ftz, "rcp.approx.ftz.f32")
ELEMENTWISE(rcp_f32, "rcp.approx.f32")
ELEMENTWISE(rsqrt_ftz, "rsqrt.approx.ftz.f32")
ELEMENTWISE(rsqrt_f32, "rsqrt.approx.f32")
ELEMENTWISE(sqrt_ftz, "sqrt.approx.ftz.f32")
ELEMENTWISE(sqrt_f32, "sqrt.approx.f32")
ELEMENTWISE(tanh_f32, "tanh.approx.f32")

// z_i = x_i / y_i
#define BINARY(NAME, INSTRUCTION)                                                                                  \
    __global__ void NAME##_kernel(const float* x, const float* y, float* z, long long n) {                          \
        long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;                                            \
        if (i < n) asm volatile(INSTRUCTION " %0, %1, %2;" : "=f"(z[i]) : "f"(x[i]), "f"(y[i]));                   \
    }                                                                                                              \
    extern "C" int NAME(const void* x, const void* y, void* z, long long n, void* stream) {                        \
        NAME##_kernel<<<(n + 255) / 256, 256, 0, (cudaStream_t)stream>>>((const float*)x, (const float*)y,         \
                                                                         (float*)z, n);                            \
        return cudaGetLastError();                                                                                 \
    }

BINARY(div_ftz, "div.approx.ftz.f32")
BINARY(div_f32, "div.approx.f32")
BINARY(div_full_ftz, "div.full.ftz.f32")
BINARY(div_full, "div.full.f32")

// y_i = f(x_i) of 16 bits
#define SHORT(NAME, INSTRUCTION)                                                                                   \
    __global__ void NAME##_kernel(const uint16_t* x, uint16_t* y, long long n) {                                    \
        long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;                                            \
        if (i < n) asm volatile(INSTRUCTION " %0, %1;" : "=h"(y[i]) : "h"(x[i]));                                  \
    }                                                                                                              \
    extern "C" int NAME(const void* x, void* y, long long n, void* stream) {                                       \
        NAME##_kernel<<<(n + 255) / 256, 256, 0, (cudaStream_t)stream>>>((const uint16_t*)x, (uint16_t*)y, n);     \
        return cudaGetLastError();                                                                                 \
    }

SHORT(ex2_f16, "ex2.approx.f16")
SHORT(ex2_ftz_bf16, "ex2.approx.ftz.bf16")
SHORT(tanh_f16, "tanh.approx.f16")
SHORT(tanh_bf16, "tanh.approx.bf16")
