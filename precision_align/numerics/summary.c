/* The statistics of one tensor and the inner half of its hash, each in one pass.
 *
 * Portable C99 without intrinsics, in the manner of difference.c: minima and maxima are taken of integers that order
 * like the floats, and "omp simd" allows the reassociation of the sums and of nothing else. NaN and Inf are taken out
 * by masks on the bits, so that the loops need no second form.
 *
 * A call goes on from what the struct holds, which starts with zeros, a minimum of Inf and a maximum of -Inf.
 *
 * The layouts of struct summary and of the folded sums are those of precision_align.numerics.summaries and folding.
 */
#include <stdint.h>
#include <string.h>

enum { VERSION = 1, BLOCK = 4096, LANES = 128, ROWS = 256, ROW_BYTES = 8 * LANES, STEP = 8 };

struct summary {
    int64_t nan, inf, zero, subnormal;
    double minimum, maximum, sum, sum_rest, square, square_rest;
};

#define LOOSE __attribute__((aligned(1), may_alias))
typedef uint16_t LOOSE loose_u16;
typedef int32_t LOOSE loose_i32;
typedef int64_t LOOSE loose_i64;
typedef uint64_t LOOSE loose_u64;

#define INLINE static inline __attribute__((always_inline))

int summary_version(void) { return VERSION; }

INLINE float as_float(int32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
INLINE int32_t bits_of_float(float value) { int32_t bits; memcpy(&bits, &value, 4); return bits; }
INLINE double as_double(int64_t bits) { double value; memcpy(&value, &bits, 8); return value; }
INLINE int64_t bits_of(double value) { int64_t bits; memcpy(&bits, &value, 8); return bits; }

#define SIZE32 INT32_C(0x7fffffff)
#define INF32 INT32_C(0x7f800000)
#define SIZE64 INT64_C(0x7fffffffffffffff)
#define INF64 INT64_C(0x7ff0000000000000)

INLINE int32_t order32(int32_t bits) { return bits ^ ((bits >> 31) & SIZE32); }
INLINE int64_t order64(int64_t bits) { return bits ^ (bits < 0 ? SIZE64 : 0); }

/* Raw words as the bits of the float32 of the same value: exact for the 16-bit types. */
INLINE int32_t float32_bits(const loose_i32 *words, int64_t i) { return words[i]; }
INLINE int32_t bfloat16_bits(const loose_u16 *words, int64_t i) { return (int32_t)((uint32_t)words[i] << 16); }
INLINE int32_t float16_bits(const loose_u16 *words, int64_t i) {
    int32_t word = words[i], size = (word & 0x7fff) << 13;
    int32_t bits = bits_of_float(as_float(size) * 0x1p112f);
    return (size >= 0x0f800000 ? size | INF32 : bits) | (int32_t)((uint32_t)(word & 0x8000) << 16);
}

/* Neumaier's compensated sum of the blocks' sums. */
INLINE void add_to(double *sum, double *rest, double value) {
    double total = *sum + value;
    double big = *sum < 0 ? -*sum : *sum, small = value < 0 ? -value : value;
    *rest += big >= small ? (*sum - total) + value : (value - total) + *sum;
    *sum = total;
}

/* SMALLEST: the bits of the type's smallest normal number, as those of a float32. */
#define SUMMARIZE32(NAME, WORD, SMALLEST)                                                                         \
    void summarize_##NAME(const WORD *words, int64_t count, struct summary *result) {                             \
        int32_t low = order32(bits_of_float((float)result->minimum));                                             \
        int32_t high = order32(bits_of_float((float)result->maximum));                                            \
        for (int64_t start = 0; start < count; start += BLOCK) {                                                  \
            const WORD *block = words + start;                                                                    \
            int32_t size = (int32_t)(count - start < BLOCK ? count - start : BLOCK);                              \
            int32_t nan = 0, nonfinite = 0, zero = 0, tiny = 0;                                                   \
            double sum = 0, square = 0;                                                                           \
            _Pragma("omp simd reduction(+:nan,nonfinite,zero,tiny,sum,square) reduction(min:low) reduction(max:high)") \
            for (int32_t i = 0; i < size; i++) {                                                                  \
                int32_t bits = NAME##_bits(block, i), magnitude = bits & SIZE32;                                  \
                int32_t bad = magnitude >= INF32 ? -1 : 0;                                                        \
                int32_t order = order32(bits), kept = bits & ~bad;                                                \
                int32_t least = bad ? SIZE32 : order, most = bad ? -SIZE32 - 1 : order;                           \
                double value = (double)as_float(kept);                                                            \
                nan += magnitude > INF32;                                                                         \
                nonfinite -= bad;                                                                                 \
                zero += magnitude == 0;                                                                           \
                tiny += magnitude < (SMALLEST);                                                                   \
                low = least < low ? least : low;                                                                  \
                high = most > high ? most : high;                                                                 \
                sum += value;                                                                                     \
                square += value * value;                                                                          \
            }                                                                                                     \
            result->nan += nan;                                                                                   \
            result->inf += nonfinite - nan;                                                                       \
            result->zero += zero;                                                                                 \
            result->subnormal += tiny - zero;                                                                     \
            add_to(&result->sum, &result->sum_rest, sum);                                                         \
            add_to(&result->square, &result->square_rest, square);                                                \
        }                                                                                                         \
        result->minimum = (double)as_float(order32(low));                                                         \
        result->maximum = (double)as_float(order32(high));                                                        \
    }

SUMMARIZE32(float32, loose_i32, INT32_C(0x00800000))
SUMMARIZE32(bfloat16, loose_u16, INT32_C(0x00800000))
SUMMARIZE32(float16, loose_u16, INT32_C(0x38800000))

void summarize_float64(const loose_i64 *words, int64_t count, struct summary *result) {
    int64_t low = order64(bits_of(result->minimum)), high = order64(bits_of(result->maximum));
    for (int64_t start = 0; start < count; start += BLOCK) {
        const loose_i64 *block = words + start;
        int64_t size = count - start < BLOCK ? count - start : BLOCK;
        int64_t nan = 0, nonfinite = 0, zero = 0, tiny = 0;
        double sum = 0, square = 0;
        _Pragma("omp simd reduction(+:nan,nonfinite,zero,tiny,sum,square) reduction(min:low) reduction(max:high)")
        for (int64_t i = 0; i < size; i++) {
            int64_t bits = block[i], magnitude = bits & SIZE64;
            int64_t bad = magnitude >= INF64 ? -1 : 0;
            int64_t order = order64(bits), kept = bits & ~bad;
            int64_t least = bad ? SIZE64 : order, most = bad ? -SIZE64 - 1 : order;
            double value = as_double(kept);
            nan += magnitude > INF64;
            nonfinite -= bad;
            zero += magnitude == 0;
            tiny += magnitude < INT64_C(0x0010000000000000);
            low = least < low ? least : low;
            high = most > high ? most : high;
            sum += value;
            square += value * value;
        }
        result->nan += nan;
        result->inf += nonfinite - nan;
        result->zero += zero;
        result->subnormal += tiny - zero;
        add_to(&result->sum, &result->sum_rest, sum);
        add_to(&result->square, &result->square_rest, square);
    }
    result->minimum = as_double(order64(low));
    result->maximum = as_double(order64(high));
}

/* Adds a few rows of words to both sums; see folding.py for the formula. Several at a time: each sum is loaded and
 * stored once for all of them. */
INLINE void fold_rows(const loose_u64 *words, const uint64_t *keys, uint64_t *sums, int rows) {
    uint64_t keyed[STEP][LANES + 1];
    for (int row = 0; row < rows; row++) {
        for (int lane = 0; lane < LANES; lane++) keyed[row][lane] = words[row * LANES + lane] ^ keys[row + lane];
        keyed[row][LANES] = keyed[row][0];
    }
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t first = 0, second = 0;
        for (int row = 0; row < rows; row++) {
            uint64_t low = keyed[row][lane] & UINT64_C(0xffffffff);
            first += low * (keyed[row][lane] >> 32);
            second += low * (keyed[row][lane + 1] >> 32);
        }
        sums[lane] += first;
        sums[LANES + lane] += second;
    }
}

/* At most ROWS rows, of little-endian words; keys: LANES + ROWS words; sums: 2 * LANES, zero at the start. */
static void fold_block(const uint8_t *data, int64_t nbytes, const uint64_t *keys, uint64_t *sums) {
    int64_t row = 0;
    for (; (row + STEP) * ROW_BYTES <= nbytes; row += STEP)
        fold_rows((const loose_u64 *)(data + row * ROW_BYTES), keys + row, sums, STEP);
    for (; (row + 1) * ROW_BYTES <= nbytes; row++)
        fold_rows((const loose_u64 *)(data + row * ROW_BYTES), keys + row, sums, 1);
    if (row * ROW_BYTES < nbytes) {
        uint8_t last[ROW_BYTES] = {0};
        memcpy(last, data + row * ROW_BYTES, (size_t)(nbytes - row * ROW_BYTES));
        fold_rows((const loose_u64 *)last, keys + row, sums, 1);
    }
}

/* One block after the other, the last may be shorter; sums: 2 * LANES for each, zero at the start. */
void fold_blocks(const uint8_t *data, int64_t nbytes, const uint64_t *keys, uint64_t *sums) {
    for (; nbytes > 0; data += ROWS * ROW_BYTES, nbytes -= ROWS * ROW_BYTES, sums += 2 * LANES)
        fold_block(data, nbytes < ROWS * ROW_BYTES ? nbytes : ROWS * ROW_BYTES, keys, sums);
}
