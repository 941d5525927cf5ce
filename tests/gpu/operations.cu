// Small operations, for both sides: nvcc compiles them for a GPU, gcc for this processor. Each takes and gives 64 bits.
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define SIDE __device__ __forceinline__
#else
#include <cfenv>
#define SIDE static inline
#endif

template <typename To, typename From> SIDE To bits(From x) {
    To y{};
    memcpy(&y, &x, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From));
    return y;
}
#ifdef FLUSHED // on this side of -ftz=true
SIDE uint32_t flush(uint32_t x) { return (x & 0x7F800000) == 0 ? x & 0x80000000 : x; }
#else
SIDE uint32_t flush(uint32_t x) { return x; }
#endif
SIDE float f(uint64_t x) { return bits<float>(flush(uint32_t(x))); }
SIDE double d(uint64_t x) { return bits<double>(x); }
SIDE uint64_t of(float x) { return flush(bits<uint32_t>(x)); }
SIDE uint64_t of(double x) { return bits<uint64_t>(x); }

// In a rounding mode: an intrinsic there, fesetround here.
#ifdef __CUDA_ARCH__
#define ROUNDED(name, mode, there, here) SIDE uint64_t name(uint64_t a, uint64_t b, uint64_t c) { return of(there); }
#else
#define ROUNDED(name, mode, there, here)                       \
    SIDE uint64_t name(uint64_t a, uint64_t b, uint64_t c) {   \
        fesetround(mode);                                      \
        volatile float x = f(a), y = f(b), z = f(c);           \
        volatile auto found = here;                            \
        fesetround(FE_TONEAREST);                              \
        return of(found);                                      \
    }
#endif
#define PLAIN(name, what) SIDE uint64_t name(uint64_t a, uint64_t b, uint64_t c) { return what; }

ROUNDED(add_rz, FE_TOWARDZERO, __fadd_rz(f(a), f(b)), x + y)
ROUNDED(add_rp, FE_UPWARD, __fadd_ru(f(a), f(b)), x + y)
ROUNDED(add_rm, FE_DOWNWARD, __fadd_rd(f(a), f(b)), x + y)
ROUNDED(mul_rz, FE_TOWARDZERO, __fmul_rz(f(a), f(b)), x * y)
ROUNDED(mul_rp, FE_UPWARD, __fmul_ru(f(a), f(b)), x * y)
ROUNDED(mul_rm, FE_DOWNWARD, __fmul_rd(f(a), f(b)), x * y)
ROUNDED(fma_rn, FE_TONEAREST, __fmaf_rn(f(a), f(b), f(c)), std::fma(float(x), float(y), float(z)))
ROUNDED(fma_rz, FE_TOWARDZERO, __fmaf_rz(f(a), f(b), f(c)), std::fma(float(x), float(y), float(z)))
ROUNDED(fma_rp, FE_UPWARD, __fmaf_ru(f(a), f(b), f(c)), std::fma(float(x), float(y), float(z)))
ROUNDED(fma_rm, FE_DOWNWARD, __fmaf_rd(f(a), f(b), f(c)), std::fma(float(x), float(y), float(z)))
ROUNDED(sub_rn, FE_TONEAREST, __fsub_rn(f(a), f(b)), x - y)
ROUNDED(add_rn, FE_TONEAREST, __fadd_rn(f(a), f(b)), x + y)
ROUNDED(mul_rn, FE_TONEAREST, __fmul_rn(f(a), f(b)), x * y)
ROUNDED(div_rn, FE_TONEAREST, __fdiv_rn(f(a), f(b)), x / y)
ROUNDED(sqrt_rn, FE_TONEAREST, __fsqrt_rn(f(a)), std::sqrt(float(x)))
ROUNDED(round_even, FE_TONEAREST, rintf(f(a)), std::rint(float(x)))
PLAIN(floor_, of(floorf(f(a))))
PLAIN(ceil_, of(ceilf(f(a))))
PLAIN(trunc_, of(truncf(f(a))))
PLAIN(less, (f(a) < f(b)) | (f(a) <= f(b)) << 1 | (f(a) == f(b)) << 2 | (f(a) != f(b)) << 3 | !(f(a) > f(b)) << 4)
PLAIN(size, of(fabsf(f(a))))
PLAIN(minus, of(-f(a)))
PLAIN(signed_as, of(copysignf(f(a), f(b))))
PLAIN(from_u32, of(float(uint32_t(a))))
PLAIN(from_s32, of(float(int32_t(a))))
PLAIN(from_u64, of(float(a)))
PLAIN(from_s64, of(float(int64_t(a))))
PLAIN(double_from_s64, of(double(int64_t(a))))
PLAIN(wide, of(double(f(a))))
PLAIN(narrow, of(float(d(a))))
PLAIN(add64, of(d(a) + d(b)))
PLAIN(mul64, of(d(a) * d(b)))
PLAIN(to_s32, fabsf(f(a)) < 2e9f ? uint32_t(int32_t(f(a))) : 7)
PLAIN(to_u32, f(a) > -0.5f && f(a) < 4e9f ? uint32_t(f(a)) : 7)
PLAIN(to_s64, fabsf(f(a)) < 9e18f ? uint64_t(int64_t(f(a))) : 7)
PLAIN(to_s16, fabsf(f(a)) < 3e4f ? uint16_t(int16_t(f(a))) : 7)
PLAIN(add32, uint32_t(a) + uint32_t(b))
PLAIN(sub32, uint32_t(a) - uint32_t(b))
PLAIN(mul32, uint32_t(a) * uint32_t(b))
PLAIN(mul_wide, int64_t(int32_t(a)) * int32_t(b))
PLAIN(mul_wide_u, uint64_t(uint32_t(a)) * uint32_t(b))
PLAIN(mul_high, uint32_t(int64_t(int32_t(a)) * int32_t(b) >> 32))
PLAIN(mul_high_u, uint32_t(uint64_t(uint32_t(a)) * uint32_t(b) >> 32))
PLAIN(mul_full, a *b)
PLAIN(mad, uint32_t(a) * uint32_t(b) + uint32_t(c))
PLAIN(quotient, uint32_t(int32_t(a) / (int32_t(b) % 1000 + 1001)))
PLAIN(remainder_, uint32_t(int32_t(a) % (int32_t(b) % 1000 + 1001)))
PLAIN(quotient_u, uint32_t(a) / (uint32_t(b) | 1))
PLAIN(remainder_u, uint32_t(a) % (uint32_t(b) | 1))
PLAIN(quotient64, a / (b | 1))
PLAIN(shift_left, uint32_t(a) << (b & 31))
PLAIN(shift_right, uint32_t(a) >> (b & 31))
PLAIN(shift_signed, uint32_t(int32_t(a) >> (b & 31)))
PLAIN(shift_64, uint64_t(int64_t(a) >> (b & 63)))
PLAIN(turned, uint32_t(a) << (b & 31) | uint32_t(a) >> (-b & 31))
PLAIN(logic, (uint32_t(a) & uint32_t(b)) ^ (~uint32_t(b) | uint32_t(c)))
PLAIN(logic3, (uint32_t(a) & uint32_t(b)) | (uint32_t(b) & uint32_t(c)) | (uint32_t(a) & uint32_t(c)))
PLAIN(field, (uint32_t(a) >> 7) & 0x7FF)
PLAIN(field_signed, uint32_t(int32_t(a << 9) >> 20))
PLAIN(put, (uint32_t(a) & ~0xFF0u) | (uint32_t(b) & 0xFF) << 4)
PLAIN(bytes, (uint32_t(a) & 0xFF00) << 16 | (uint32_t(b) >> 16 & 0xFF) << 8 | (uint32_t(a) >> 24))
PLAIN(smallest, uint32_t(int32_t(a) < int32_t(b) ? int32_t(a) : int32_t(b)))
PLAIN(largest_u, uint32_t(a) > uint32_t(b) ? uint32_t(a) : uint32_t(b))
PLAIN(distance, uint32_t(int32_t(a >> 33) < 0 ? -int32_t(a >> 33) : int32_t(a >> 33)))
PLAIN(narrow_s8, uint32_t(int32_t(int8_t(a))))
PLAIN(narrow_s16, uint64_t(int64_t(int16_t(a))))
#ifdef __CUDA_ARCH__
PLAIN(smaller, of(fminf(f(a), f(b))))
PLAIN(larger, of(fmaxf(f(a), f(b))))
PLAIN(ones, __popc(uint32_t(a)))
PLAIN(leading, __clzll(a))
PLAIN(reversed, __brev(uint32_t(a)))
#else // C leaves open which of +0 and -0 it is, and what a signalling NaN gives; PTX does not
PLAIN(smaller, flush(f(a) != f(a) ? b : f(b) != f(b) ? a : f(a) == f(b) ? a | b : f(a) < f(b) ? a : b))
PLAIN(larger, flush(f(a) != f(a) ? b : f(b) != f(b) ? a : f(a) == f(b) ? a & b : f(a) > f(b) ? a : b))
PLAIN(ones, __builtin_popcount(uint32_t(a)))
PLAIN(leading, a ? __builtin_clzll(a) : 64)
SIDE uint64_t reversed(uint64_t a, uint64_t, uint64_t) {
    uint32_t x = 0;
    for (int i = 0; i < 32; ++i) x |= uint32_t(a >> i & 1) << (31 - i);
    return x;
}
#endif

#define FLOATS(X) X(add_rz) X(add_rp) X(add_rm) X(mul_rz) X(mul_rp) X(mul_rm) X(fma_rn) X(fma_rz) X(fma_rp) X(fma_rm) X(sub_rn) X(add_rn) \
    X(mul_rn) X(div_rn) X(sqrt_rn) X(round_even) X(floor_) X(ceil_) X(trunc_) X(smaller) X(larger) X(size) X(minus) \
    X(signed_as) X(from_u32) X(from_s32) X(from_u64) X(from_s64) X(narrow)
#define DOUBLES(X) X(double_from_s64) X(wide) X(add64) X(mul64)
#define WHOLE(X) X(less) X(to_s32) X(to_u32) X(to_s64) X(to_s16) X(add32) X(sub32) X(mul32) X(mul_wide) X(mul_wide_u) \
    X(mul_high) X(mul_high_u) X(mul_full) X(mad) X(quotient) X(remainder_) X(quotient_u) X(remainder_u) X(quotient64) \
    X(shift_left) X(shift_right) X(shift_signed) X(shift_64) X(turned) X(logic) X(logic3) X(field) X(field_signed) \
    X(put) X(bytes) X(smallest) X(largest_u) X(distance) X(narrow_s8) X(narrow_s16) X(ones) X(leading) X(reversed)

#define RUN(name) out[at++ * count + i] = name(a[i], b[i], c[i]);
#ifdef __CUDACC__
extern "C" __global__ void operations(const uint64_t *a, const uint64_t *b, const uint64_t *c, uint64_t *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, at = 0;
    FLOATS(RUN) DOUBLES(RUN) WHOLE(RUN)
}
#else
#define NAME(name) #name "\n"
extern "C" const char *names() { return FLOATS(NAME) "|" DOUBLES(NAME) "|" WHOLE(NAME); }
extern "C" void operations(const uint64_t *a, const uint64_t *b, const uint64_t *c, uint64_t *out, int count) {
    for (int i = 0; i < count; ++i) {
        int at = 0;
        FLOATS(RUN) DOUBLES(RUN) WHOLE(RUN)
    }
}
#endif
