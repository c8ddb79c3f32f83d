/* What the statistics and the hash of summary.c are written in: words at any address, and vectors. */
#ifndef PRECISION_ALIGN_VECTORS
#define PRECISION_ALIGN_VECTORS

#include <stdint.h>

/* Vectors of one register, and MULTIPLY: the products of the lower halves of 64-bit words. It is one instruction, which
 * GCC does not find: it makes three multiplications of what the last of these says. */
#if defined __AVX512F__
#include <immintrin.h>
#define BYTES 64
#define MULTIPLY(x, y) ((longs)_mm512_mul_epu32((__m512i)(x), (__m512i)(y)))
#elif defined __AVX2__
#include <immintrin.h>
#define BYTES 32
#define MULTIPLY(x, y) ((longs)_mm256_mul_epu32((__m256i)(x), (__m256i)(y)))
#else
#define BYTES 16
#define MULTIPLY(x, y) (((x) & UINT64_C(0xffffffff)) * ((y) & UINT64_C(0xffffffff)))
#endif
enum { WIDTH = BYTES / 8 };
typedef double __attribute__((vector_size(BYTES))) doubles;
typedef uint64_t __attribute__((vector_size(BYTES))) longs;

#define LOOSE __attribute__((aligned(1), may_alias))
typedef uint16_t LOOSE loose_u16;
typedef int32_t LOOSE loose_i32;
typedef int64_t LOOSE loose_i64;
typedef uint64_t LOOSE loose_u64;

#define INLINE static inline __attribute__((always_inline))

#endif
