/* The statistics of one tensor, its hash and its sketch, each in one pass; and of many tensors in one call.
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

/* The vectors that sums are kept in, and MULTIPLY: the products of the lower halves of their 64-bit words, for which
 * compilers make three multiplications. */
#if defined __AVX512F__
#include <immintrin.h>
#define BYTES 64
#define MULTIPLY(x, y) ((words)_mm512_mul_epu32((__m512i)(x), (__m512i)(y)))
#elif defined __AVX2__
#include <immintrin.h>
#define BYTES 32
#define MULTIPLY(x, y) ((words)_mm256_mul_epu32((__m256i)(x), (__m256i)(y)))
#else
#define BYTES 16
#define MULTIPLY(x, y) (((x) & UINT64_C(0xffffffff)) * ((y) & UINT64_C(0xffffffff)))
#endif
enum { WIDTH = BYTES / 8 };
typedef double __attribute__((vector_size(BYTES))) doubles;
typedef uint64_t __attribute__((vector_size(BYTES))) words;

/* BLOCK: of the statistics; as float32 it fills a quarter of a first-level cache of 32 KiB. WAYS: sums of STEP values at a
 * time, enough that none waits for the one before. */
enum { VERSION = 3, BLOCK = 2048, WAYS = 4, STEP = WAYS * WIDTH };
enum { LANES = 128, ROWS = 256, ROW_BYTES = 8 * LANES, ROW_STEP = 4 };

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
static int scan32(const loose_i32 *words, int32_t size, int32_t smallest, struct summary *result, int32_t *low, int32_t *high) {
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
static void mask32(const loose_i32 *words, int32_t size, int32_t smallest, struct summary *result, int32_t *lowest, int32_t *highest) {
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

/* Adds a few rows of words to both sums; see folding.py for the formula. Several at a time: each sum is loaded and
 * stored once for all of them. */
INLINE void fold_rows(const loose_u64 *data, const uint64_t *keys, uint64_t *sums, int rows) {
    uint64_t keyed[ROW_STEP][LANES + 8] __attribute__((aligned(64)));
    for (int row = 0; row < rows; row++) {
        for (int lane = 0; lane < LANES; lane++) keyed[row][lane] = data[row * LANES + lane] ^ keys[row + lane];
        keyed[row][LANES] = keyed[row][0];
    }
    for (int lane = 0; lane < LANES; lane += WIDTH) {
        words first, second, own, next;
        memcpy(&first, sums + lane, BYTES), memcpy(&second, sums + LANES + lane, BYTES);
        for (int word = 0; word < rows * WIDTH; word += 8) /* of the rows to come: they are read in bursts */
            __builtin_prefetch(data + rows * (LANES + lane) + word);
        for (int row = 0; row < rows; row++) {
            memcpy(&own, &keyed[row][lane], BYTES), memcpy(&next, &keyed[row][lane + 1], BYTES);
            first += MULTIPLY(own, own >> 32);
            second += MULTIPLY(own, next >> 32);
        }
        memcpy(sums + lane, &first, BYTES), memcpy(sums + LANES + lane, &second, BYTES);
    }
}

/* At most ROWS rows, of little-endian words; keys: LANES + ROWS words; sums: 2 * LANES, zero at the start. */
static void fold_block(const uint8_t *data, int64_t nbytes, const uint64_t *keys, uint64_t *sums) {
    int64_t row = 0;
    for (; (row + ROW_STEP) * ROW_BYTES <= nbytes; row += ROW_STEP)
        fold_rows((const loose_u64 *)(data + row * ROW_BYTES), keys + row, sums, ROW_STEP);
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

/* BLAKE2b (RFC 7693) with digests of 16 bytes, no key, and 16 bytes of "person" that name the kind of data. */
struct blake2b { uint64_t state[8], count; uint8_t buffer[128]; int64_t used; };

static const uint64_t IV[8] = {
    UINT64_C(0x6a09e667f3bcc908), UINT64_C(0xbb67ae8584caa73b), UINT64_C(0x3c6ef372fe94f82b),
    UINT64_C(0xa54ff53a5f1d36f1), UINT64_C(0x510e527fade682d1), UINT64_C(0x9b05688c2b3e6c1f),
    UINT64_C(0x1f83d9abfb41bd6b), UINT64_C(0x5be0cd19137e2179),
};
static const uint8_t SIGMA[12][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
};

#define ROTATE(word, bits) ((word) >> (bits) | (word) << (64 - (bits)))
#define MIX(a, b, c, d, x, y)                                        \
    v[a] += v[b] + m[s[x]]; v[d] = ROTATE(v[d] ^ v[a], 32);          \
    v[c] += v[d];           v[b] = ROTATE(v[b] ^ v[c], 24);          \
    v[a] += v[b] + m[s[y]]; v[d] = ROTATE(v[d] ^ v[a], 16);          \
    v[c] += v[d];           v[b] = ROTATE(v[b] ^ v[c], 63);
/* Of the state v and the words m of one message, or of a vector of them. */
#define ROUNDS                                                       \
    _Pragma("GCC unroll 12")                                         \
    for (int round = 0; round < 12; round++) {                       \
        const uint8_t *s = SIGMA[round];                             \
        MIX(0, 4, 8, 12, 0, 1) MIX(1, 5, 9, 13, 2, 3)                \
        MIX(2, 6, 10, 14, 4, 5) MIX(3, 7, 11, 15, 6, 7)              \
        MIX(0, 5, 10, 15, 8, 9) MIX(1, 6, 11, 12, 10, 11)            \
        MIX(2, 7, 8, 13, 12, 13) MIX(3, 4, 9, 14, 14, 15)            \
    }

static void compress(struct blake2b *hash, const uint8_t *data, int last) {
    uint64_t v[16], m[16];
    memcpy(m, data, 128);
    for (int i = 0; i < 8; i++) { v[i] = hash->state[i]; v[i + 8] = IV[i]; }
    v[12] ^= hash->count;
    if (last) v[14] = ~v[14];
    ROUNDS
    for (int i = 0; i < 8; i++) hash->state[i] ^= v[i] ^ v[i + 8];
}

static void start_hash(struct blake2b *hash, const char *person) {
    uint64_t words[2] = {0, 0};
    memcpy(words, person, strlen(person));
    memcpy(hash->state, IV, sizeof IV);
    hash->state[0] ^= UINT64_C(0x01010010); /* depth 1, fanout 1, no key, 16 bytes */
    hash->state[6] ^= words[0];
    hash->state[7] ^= words[1];
    hash->count = 0;
    hash->used = 0;
}

/* A full buffer waits until more comes: the last one is compressed in another way. */
static void add_hash(struct blake2b *hash, const uint8_t *data, int64_t nbytes) {
    while (nbytes) {
        if (hash->used == 128) {
            hash->count += 128;
            compress(hash, hash->buffer, 0);
            hash->used = 0;
        }
        if (!hash->used)
            for (; nbytes > 128; data += 128, nbytes -= 128) {
                hash->count += 128;
                compress(hash, data, 0);
            }
        int64_t taken = nbytes < 128 - hash->used ? nbytes : 128 - hash->used;
        memcpy(hash->buffer + hash->used, data, (size_t)taken);
        hash->used += taken;
        data += taken;
        nbytes -= taken;
    }
}

static void finish_hash(struct blake2b *hash, uint8_t *digest) {
    hash->count += (uint64_t)hash->used;
    memset(hash->buffer + hash->used, 0, (size_t)(128 - hash->used));
    compress(hash, hash->buffer, 1);
    memcpy(digest, hash->state, 16);
}

/* The 16 bytes of precision_align.storage.hashing.digest_words of more than WHOLE_BYTES; keys: those of fold_blocks. */
void digest_payload(const uint8_t *data, int64_t nbytes, const uint64_t *keys, uint8_t *result) {
    struct blake2b hash;
    start_hash(&hash, "pa-folded");
    for (int64_t start = 0; start < nbytes; start += ROWS * ROW_BYTES) {
        uint64_t sums[2 * LANES] = {0};
        fold_block(data + start, nbytes - start < ROWS * ROW_BYTES ? nbytes - start : ROWS * ROW_BYTES, keys, sums);
        add_hash(&hash, (const uint8_t *)sums, sizeof sums);
    }
    add_hash(&hash, (const uint8_t *)&nbytes, 8);
    finish_hash(&hash, result);
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
