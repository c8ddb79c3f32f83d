/* The statistics of one tensor, its hash and its sketch, each in one pass; and of many tensors in one call.
 *
 * C99 in the manner of difference.c: minima and maxima are taken of integers, sums in vectors of one register each, and
 * "omp simd" allows the reassociation of the sums and of nothing else. A block of the types of up to 32 bits that turns
 * out to hold a NaN or an Inf is taken again by the loop that masks them; of float64 there is only this loop.
 *
 * A call goes on from what the struct holds, which starts with zeros, a minimum of Inf and a maximum of -Inf.
 *
 * The layouts of struct summary and of the folded sums are those of precision_align.numerics.summaries and folding.
 */
#include <stdint.h>
#include <string.h>

#include "digests.h"
#include "vectors.h"

/* BLOCK: as float32 it fills a quarter of a first-level cache of 32 KiB; half as much costs more for the blocks' ends.
 * WAYS: so many sums of vectors at once that none waits for the one before. */
enum { VERSION = 3, BLOCK = 2048, WAYS = 4, STEP = WAYS * WIDTH };

struct summary {
    int64_t nan, inf, zero, subnormal;
    double minimum, maximum, sum, sum_rest, square, square_rest;
};

int summary_version(void) { return VERSION; }

INLINE float as_float(int32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
INLINE int32_t bits_of_float(float value) { int32_t bits; memcpy(&bits, &value, 4); return bits; }
INLINE double as_double(int64_t bits) { double value; memcpy(&value, &bits, 8); return value; }
INLINE int64_t bits_of(double value) { int64_t bits; memcpy(&bits, &value, 8); return bits; }

#define SIZE32 INT32_C(0x7fffffff)
#define INF32 INT32_C(0x7f800000)
#define SIZE64 INT64_C(0x7fffffffffffffff)
#define INF64 INT64_C(0x7ff0000000000000)
#define SIGN32 UINT32_C(0x80000000)

INLINE int32_t order32(int32_t bits) { return bits ^ ((bits >> 31) & SIZE32); }
INLINE int64_t order64(int64_t bits) { return bits ^ (bits < 0 ? SIZE64 : 0); }

/* Raw words as the bits of the float32 of the same value: exact for the 16-bit types. */
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

/* What is compared as integers, of words that are all finite, or else 0. Of the bits of floats as they are the greatest
 * signed one is the maximum, and the greatest unsigned one the minimum, where there is one of that sign; where there is
 * none it is the least unsigned one. */
static int scan32(const loose_i32 *words, int32_t size, int32_t smallest, struct summary *result, int32_t *low,
                  int32_t *high) {
    int32_t positive = -SIZE32 - 1, zero = 0, tiny = 0;
    uint32_t least = ~UINT32_C(0), most = 0;
    _Pragma("omp simd reduction(+:zero,tiny) reduction(min:least) reduction(max:positive,most)")
    for (int32_t i = 0; i < size; i++) {
        int32_t bits = words[i], magnitude = bits & SIZE32;
        uint32_t word = (uint32_t)bits;
        positive = bits > positive ? bits : positive;
        most = word > most ? word : most;
        least = word < least ? word : least;
        zero += magnitude == 0;
        tiny += magnitude < smallest;
    }
    if (positive >= INF32 || most >= (uint32_t)INF32 + SIGN32) return 0;
    int32_t minimum = order32((int32_t)(most >= SIGN32 ? most : least));
    int32_t maximum = order32(positive >= 0 ? positive : (int32_t)least);
    *low = minimum < *low ? minimum : *low;
    *high = maximum > *high ? maximum : *high;
    result->zero += zero;
    result->subnormal += tiny - zero;
    return 1;
}

/* The sums of a multiple of STEP finite values. */
static void sum32(const loose_i32 *words, int32_t size, struct summary *result) {
    doubles sum[WAYS] = {{0}}, square[WAYS] = {{0}};
    for (int32_t i = 0; i < size; i += STEP) {
        double values[STEP];
        for (int lane = 0; lane < STEP; lane++) values[lane] = (double)as_float(words[i + lane]);
        for (int way = 0; way < WAYS; way++) {
            doubles value;
            memcpy(&value, values + way * WIDTH, BYTES);
            sum[way] += value, square[way] += value * value;
        }
    }
    for (int way = 1; way < WAYS; way++) sum[0] += sum[way], square[0] += square[way];
    double total = 0, total_square = 0;
    for (int lane = 0; lane < WIDTH; lane++) total += sum[0][lane], total_square += square[0][lane];
    add_to(&result->sum, &result->sum_rest, total);
    add_to(&result->square, &result->square_rest, total_square);
}

/* Both, of any words. */
static void mask32(const loose_i32 *words, int32_t size, int32_t smallest, struct summary *result, int32_t *lowest,
                   int32_t *highest) {
    int32_t low = *lowest, high = *highest, nan = 0, nonfinite = 0, zero = 0, tiny = 0;
    double sum = 0, square = 0;
    _Pragma("omp simd reduction(+:nan,nonfinite,zero,tiny,sum,square) reduction(min:low) reduction(max:high)")
    for (int32_t i = 0; i < size; i++) {
        int32_t bits = words[i], magnitude = bits & SIZE32;
        int32_t bad = magnitude >= INF32 ? -1 : 0;
        int32_t order = order32(bits), kept = bits & ~bad;
        int32_t least = bad ? SIZE32 : order, most = bad ? -SIZE32 - 1 : order;
        double value = (double)as_float(kept);
        nan += magnitude > INF32;
        nonfinite -= bad;
        zero += magnitude == 0;
        tiny += magnitude < smallest;
        low = least < low ? least : low;
        high = most > high ? most : high;
        sum += value;
        square += value * value;
    }
    *lowest = low;
    *highest = high;
    result->nan += nan;
    result->inf += nonfinite - nan;
    result->zero += zero;
    result->subnormal += tiny - zero;
    add_to(&result->sum, &result->sum_rest, sum);
    add_to(&result->square, &result->square_rest, square);
}

/* Words of other types are widened a block at a time. SMALLEST: the bits of the type's smallest normal number, as those
 * of a float32. */
#define SUMMARIZE32(NAME, WORD, SMALLEST)                                                                         \
    void summarize_##NAME(const WORD *words, int64_t count, struct summary *result) {                             \
        int32_t low = order32(bits_of_float((float)result->minimum));                                             \
        int32_t high = order32(bits_of_float((float)result->maximum));                                            \
        while (count) {                                                                                           \
            int32_t size = (int32_t)(count >= BLOCK ? BLOCK : count >= STEP ? count / STEP * STEP : count);       \
            int32_t wide[BLOCK];                                                                                  \
            const loose_i32 *block = NAME##_widen(words, size, wide);                                             \
            if (size % STEP == 0 && scan32(block, size, SMALLEST, result, &low, &high))                           \
                sum32(block, size, result);                                                                       \
            else                                                                                                  \
                mask32(block, size, SMALLEST, result, &low, &high);                                               \
            words += size, count -= size;                                                                         \
        }                                                                                                         \
        result->minimum = (double)as_float(order32(low));                                                         \
        result->maximum = (double)as_float(order32(high));                                                        \
    }

INLINE const loose_i32 *float32_widen(const loose_i32 *words, int32_t size, int32_t *wide) {
    (void)size, (void)wide;
    return words;
}
INLINE const loose_i32 *bfloat16_widen(const loose_u16 *words, int32_t size, int32_t *wide) {
    for (int32_t i = 0; i < size; i++) wide[i] = bfloat16_bits(words, i);
    return wide;
}
INLINE const loose_i32 *float16_widen(const loose_u16 *words, int32_t size, int32_t *wide) {
    for (int32_t i = 0; i < size; i++) wide[i] = float16_bits(words, i);
    return wide;
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

INLINE double float32_value(const loose_i32 *words, int64_t i) {
    int32_t bits = words[i];
    return (double)as_float((bits & SIZE32) >= INF32 ? 0 : bits);
}
INLINE double bfloat16_value(const loose_u16 *words, int64_t i) {
    int32_t bits = bfloat16_bits(words, i);
    return (double)as_float((bits & SIZE32) >= INF32 ? 0 : bits);
}
INLINE double float16_value(const loose_u16 *words, int64_t i) {
    int32_t bits = float16_bits(words, i);
    return (double)as_float((bits & SIZE32) >= INF32 ? 0 : bits);
}
INLINE double float64_value(const loose_i64 *words, int64_t i) {
    int64_t bits = words[i];
    return as_double((bits & SIZE64) >= INF64 ? 0 : bits);
}

enum { PERIOD_P = 8191, PERIOD_Q = 8179, MAX_BUCKETS = 1016, SKETCH_BLOCK = 64 * MAX_BUCKETS };

/* The sums of precision_align.numerics.sketches in the same order: rows of buckets within blocks. signs: p and then q,
 * each repeated to SKETCH_BLOCK + its period. */
#define SKETCH(NAME, WORD)                                                                                        \
    static void sketch_##NAME(const WORD *words, int64_t count, const float *signs, int64_t buckets, double *result) { \
        double sums[MAX_BUCKETS];                                                                                 \
        for (int64_t i = 0; i < buckets; i++) result[i] = 0;                                                      \
        for (int64_t start = 0; start < count; start += SKETCH_BLOCK) {                                           \
            int64_t size = count - start < SKETCH_BLOCK ? count - start : SKETCH_BLOCK;                           \
            const WORD *block = words + start;                                                                    \
            const float *p = signs + start % PERIOD_P;                                                            \
            const float *q = signs + SKETCH_BLOCK + PERIOD_P + start % PERIOD_Q;                                  \
            for (int64_t i = 0; i < buckets; i++) sums[i] = 0;                                                    \
            for (int64_t row = 0; row < size; row += buckets) {                                                   \
                int64_t width = size - row < buckets ? size - row : buckets;                                      \
                for (int64_t i = 0; i < width; i++)                                                               \
                    sums[i] += NAME##_value(block, row + i) * (double)(p[row + i] * q[row + i]);                  \
            }                                                                                                     \
            for (int64_t i = 0; i < buckets; i++) result[i] += sums[i];                                           \
        }                                                                                                         \
    }

SKETCH(float32, loose_i32)
SKETCH(bfloat16, loose_u16)
SKETCH(float16, loose_u16)
SKETCH(float64, loose_i64)

/* One tensor of many. form: 1 float32, 2 bfloat16, 3 float16, 4 float64, 0 any other, which gets no summary;
 * sketch: where to put so many buckets, or 0. The layout is that of precision_align.numerics.summaries. */
struct job {
    const void *data;
    int64_t count, nbytes, form, buckets;
    double *sketch;
    uint8_t digest[16];
    struct summary summary;
};

enum { WHOLE_BYTES = 8192, MESSAGES = 4, AT_ONCE = 32 };
typedef uint64_t messages __attribute__((vector_size(8 * MESSAGES)));

/* The hashes of all tensors of up to WHOLE_BYTES, several at a time: each lane of the vectors goes on with the next
 * tensor when its own is done. One alone waits for each result of its long chain of additions. */
static void digest_small(struct job *next, struct job *end) {
    struct job *own[MESSAGES] = {0};
    int64_t done[MESSAGES] = {0};
    messages state[8], count, last, v[16], m[16];
    struct blake2b start;
    start_hash(&start, "pa-whole");
    for (;;) {
        uint8_t tails[MESSAGES][128];
        int busy = 0;
        for (int lane = 0; lane < MESSAGES; lane++) {
            if (!own[lane]) {
                while (next < end && next->nbytes > WHOLE_BYTES) next++;
                if (next < end) own[lane] = next++;
                done[lane] = 0;
                for (int i = 0; i < 8; i++) state[i][lane] = start.state[i];
            }
            int64_t left = own[lane] ? own[lane]->nbytes - done[lane] : 0;
            const uint8_t *block = left ? (const uint8_t *)own[lane]->data + done[lane] : 0;
            last[lane] = left > 128 ? 0 : ~UINT64_C(0);
            if (left < 128) { /* or nothing: an empty tensor, or no more of them */
                memset(tails[lane], 0, 128);
                if (left) memcpy(tails[lane], block, (size_t)left);
                block = tails[lane];
            }
            count[lane] = (uint64_t)(done[lane] += left > 128 ? 128 : left);
            for (int i = 0; i < 16; i++) m[i][lane] = ((const loose_u64 *)block)[i];
            busy |= own[lane] != 0;
        }
        if (!busy) return;
        for (int i = 0; i < 8; i++) {
            v[i] = state[i];
            for (int lane = 0; lane < MESSAGES; lane++) v[i + 8][lane] = IV[i];
        }
        v[12] ^= count;
        v[14] ^= last;
        ROUNDS
        for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[i + 8];
        for (int lane = 0; lane < MESSAGES; lane++)
            if (last[lane] && own[lane]) {
                uint64_t found[2] = {state[0][lane], state[1][lane]};
                memcpy(own[lane]->digest, found, 16);
                own[lane] = 0;
            }
    }
}

#define RUN(FORM, NAME)                                                                                           \
    if (job->form == FORM) {                                                                                      \
        summarize_##NAME(job->data, job->count, &job->summary);                                                   \
        if (job->sketch) sketch_##NAME(job->data, job->count, signs, job->buckets, job->sketch);                  \
    }

void summarize_many(struct job *job, int64_t count, const uint64_t *keys, const float *signs) {
    for (struct job *end = job + count, *part = job; job < end; job++) {
        if (job == part) { /* few enough that the cache still holds them afterwards */
            part = end - job < AT_ONCE ? end : job + AT_ONCE;
            digest_small(job, part);
        }
        if (job->nbytes > WHOLE_BYTES) digest_payload(job->data, job->nbytes, keys, job->digest);
        RUN(1, float32)
        RUN(2, bfloat16)
        RUN(3, float16)
        RUN(4, float64)
    }
}
