/* One pass over two buffers for every raw metric, and the histograms of their distances.
 *
 * Portable C99 with no intrinsics: the loops are written so that GCC and Clang turn them into SIMD code for whatever
 * CPU they are told. Two things make that possible. Maxima are taken of integers, since the bits of non-negative floats
 * order like the floats, while a float maximum must keep IEEE's rules for NaN. And "omp simd" (-fopenmp-simd, no OpenMP
 * run time) allows the reassociation of these sums, and of nothing else: no fast-math, which would break NaN and Inf.
 *
 * A block that turns out to hold a NaN or an Inf is thrown away and taken again by the masked version of the loop.
 *
 * The layout of struct tally is that of precision_align.numerics.tallies.Tally; VERSION guards it.
 */
#include <stdint.h>
#include <string.h>

enum { VERSION = 1, BLOCK = 4096, BINS = 2048, BUCKETS = 33 };

struct tally {
    int64_t count, unequal, nonfinite, nan_actual, nan_expected, inf_actual, inf_expected, worst;
    double max_abs, max_rel, low, high, absolute, square, signed_sum, actual, expected, cross;
};

/* Buffers come from files and views: no alignment is promised, and one is read under several types. */
#define LOOSE __attribute__((aligned(1), may_alias))
typedef double LOOSE loose_f64;
typedef int8_t LOOSE loose_i8;
typedef uint8_t LOOSE loose_u8;
typedef int16_t LOOSE loose_i16;
typedef uint16_t LOOSE loose_u16;
typedef int32_t LOOSE loose_i32;
typedef uint32_t LOOSE loose_u32;

#define INLINE static inline __attribute__((always_inline))

INLINE float as_float(int32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
INLINE int32_t bits_of_float(float value) { int32_t bits; memcpy(&bits, &value, 4); return bits; }
INLINE double as_double(int64_t bits) { double value; memcpy(&value, &bits, 8); return value; }
INLINE int64_t bits_of(double value) { int64_t bits; memcpy(&bits, &value, 8); return bits; }

#define SIZE32 INT32_C(0x7fffffff)
#define INF32 INT32_C(0x7f800000)
#define SIZE64 INT64_C(0x7fffffffffffffff)
#define INF64 INT64_C(0x7ff0000000000000)

/* A signed integer that orders like the float behind the bits; its own inverse. */
INLINE int32_t order32(int32_t bits) { return bits ^ ((bits >> 31) & SIZE32); }
INLINE int64_t order64(int64_t bits) { return bits ^ (bits < 0 ? SIZE64 : 0); }

/* Raw words as the bits of the float32 of the same value: exact for the 16-bit types. */
INLINE int32_t float32_bits(const loose_i32 *words, int64_t i) { return words[i]; }
INLINE int32_t bfloat16_bits(const loose_u16 *words, int64_t i) { return (int32_t)((uint32_t)words[i] << 16); }
INLINE int32_t float16_bits(const loose_u16 *words, int64_t i) {
    int32_t word = words[i], size = (word & 0x7fff) << 13;
    /* 2^112 moves the exponent from bias 15 to bias 127, subnormals included. */
    int32_t bits = bits_of_float(as_float(size) * 0x1p112f);
    return (size >= 0x0f800000 ? size | INF32 : bits) | (int32_t)((uint32_t)(word & 0x8000) << 16);
}

INLINE double max_of(double left, double right) { return left > right ? left : right; }
INLINE double min_of(double left, double right) { return left < right ? left : right; }

/* What one block adds. */
struct block {
    int64_t kept, unequal, nonfinite, nan_actual, nan_expected, inf_actual, inf_expected, max_abs;
    double max_rel, low, high, absolute, square, signed_sum, actual, expected, cross;
};

INLINE void add_block(struct tally *t, const struct block *b, int64_t start, int64_t *worst_block) {
    double largest = as_double(b->max_abs);
    t->count += b->kept;
    t->unequal += b->unequal;
    t->nonfinite += b->nonfinite;
    t->nan_actual += b->nan_actual;
    t->nan_expected += b->nan_expected;
    t->inf_actual += b->inf_actual;
    t->inf_expected += b->inf_expected;
    if (largest > t->max_abs) {
        t->max_abs = largest;
        *worst_block = start;
    }
    t->low = min_of(t->low, b->low);
    t->high = max_of(t->high, b->high);
    t->absolute += b->absolute;
    t->square += b->square;
    t->signed_sum += b->signed_sum;
    t->actual += b->actual;
    t->expected += b->expected;
    t->cross += b->cross;
}

/* The block that may hold the largest relative error, and between which bounds its own lies. */
struct candidate {
    int64_t start;
    double low, high;
};

/* Whether a block with this upper bound needs no division yet: it is out, or it is the new candidate for certain. */
INLINE int is_settled(struct candidate *best, int64_t start, double high) {
    double low = high * (1 - 0x1p-20) - 0x1p-146;
    if (high <= best->low) return 1;
    if (low > 0x1p126 || low <= best->high) return 0; /* float32 may have overflowed, or the bounds overlap */
    *best = (struct candidate){start, low, high};
    return 1;
}

INLINE int64_t size_of_block(int64_t n, int64_t start) { return n - start < BLOCK ? n - start : BLOCK; }

#define SUMS absolute, square, signed_sum, actual, expected, cross
#define COUNTS kept, unequal, nonfinite, nan_actual, nan_expected, inf_actual, inf_expected
#define STORE_SUMS(b)                                                                                                 \
    b->absolute = absolute, b->square = square, b->signed_sum = signed_sum;                                           \
    b->actual = actual, b->expected = expected, b->cross = cross
#define STORE_COUNTS(b)                                                                                               \
    b->kept = kept, b->unequal = unequal, b->nonfinite = nonfinite, b->nan_actual = nan_actual;                       \
    b->nan_expected = nan_expected, b->inf_actual = inf_actual, b->inf_expected = inf_expected

/* Types whose values are float32 values. Sums, |difference| and its maximum are float64, exact where float64 is. The
 * relative error is first taken in float32, where it is off by less than 2^-22 of itself (two roundings) or 2^-148 (an
 * underflow): only the block that may hold the largest is divided again in float64. */
#define NARROW(NAME, WORD, BITS)                                                                                      \
    INLINE int NAME##_block(const WORD *left, const WORD *right, int64_t n, int masked, struct block *b) {            \
        double absolute = 0, square = 0, signed_sum = 0, actual = 0, expected = 0, cross = 0;                         \
        int64_t max_abs = 0;                                                                                          \
        int32_t low = INF32, high = ~INF32, peak = 0, ratio = 0; /* ~INF32: the order of -Inf */                      \
        int32_t kept = 0, unequal = 0, nonfinite = 0, nan_actual = 0, nan_expected = 0, inf_actual = 0,               \
                inf_expected = 0;                                                                                     \
        _Pragma("omp simd reduction(+ : SUMS, COUNTS) reduction(max : max_abs, high, peak, ratio) reduction(min : low)") \
        for (int64_t i = 0; i < n; i++) {                                                                             \
            int32_t x = BITS(left, i), y = BITS(right, i);                                                            \
            int32_t size_x = x & SIZE32, size_y = y & SIZE32;                                                         \
            int32_t order = order32(y), order_low = order, order_high = order;                                        \
            if (masked) {                                                                                             \
                int32_t bad_x = size_x >= INF32, bad_y = size_y >= INF32, bad = bad_x | bad_y;                        \
                int32_t nan_x = size_x > INF32, nan_y = size_y > INF32;                                               \
                int32_t differs = bad & (x != y) & !(nan_x & nan_y);                                                  \
                nan_actual += nan_x, nan_expected += nan_y;                                                           \
                inf_actual += bad_x - nan_x, inf_expected += bad_y - nan_y;                                           \
                nonfinite += differs, unequal += differs, kept += !bad;                                               \
                x = bad ? 0 : x, y = bad ? 0 : y, size_x = bad ? 0 : size_x, size_y = bad ? 0 : size_y;               \
                order_low = bad ? INF32 : order, order_high = bad ? ~INF32 : order;                                   \
            }                                                                                                         \
            float fx = as_float(x), fy = as_float(y);                                                                 \
            double dx = fx, dy = fy, error = dx - dy;                                                                 \
            int64_t size = bits_of(error) & SIZE64;                                                                   \
            double distance = as_double(size);                                                                        \
            max_abs = size > max_abs ? size : max_abs;                                                                \
            absolute += distance, square += error * error, signed_sum += error;                                       \
            actual += dx * dx, expected += dy * dy, cross += dx * dy;                                                 \
            low = order_low < low ? order_low : low;                                                                  \
            high = order_high > high ? order_high : high;                                                             \
            peak = size_x > peak ? size_x : peak;                                                                     \
            unequal += fx != fy;                                                                                      \
            int32_t relative = bits_of_float((fx - fy) / fy) & SIZE32;                                                \
            relative = size_y ? relative : 0;                                                                         \
            ratio = relative > ratio ? relative : ratio;                                                              \
        }                                                                                                             \
        if (!masked && (peak >= INF32 || high >= INF32 || low <= ~INF32)) return 0;                                   \
        if (!masked) kept = (int32_t)n;                                                                               \
        STORE_SUMS(b);                                                                                                \
        STORE_COUNTS(b);                                                                                              \
        b->max_abs = max_abs;                                                                                         \
        b->low = as_float(order32(low)), b->high = as_float(order32(high));                                           \
        b->max_rel = (double)as_float(ratio) * (1 + 0x1p-22) + 0x1p-148;                                              \
        return 1;                                                                                                     \
    }                                                                                                                 \
    static double NAME##_divide(const WORD *left, const WORD *right, int64_t n) {                                     \
        int64_t ratio = 0;                                                                                            \
        _Pragma("omp simd reduction(max : ratio)")                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                                             \
            int32_t x = BITS(left, i), y = BITS(right, i);                                                            \
            int32_t bad = (x & SIZE32) >= INF32 || (y & SIZE32) >= INF32 || !(y & SIZE32);                            \
            double dx = as_float(x), dy = as_float(y);                                                                \
            int64_t relative = bits_of((dx - dy) / dy) & SIZE64;                                                      \
            relative = bad ? 0 : relative;                                                                            \
            ratio = relative > ratio ? relative : ratio;                                                              \
        }                                                                                                             \
        return as_double(ratio);                                                                                      \
    }                                                                                                                 \
    static int64_t NAME##_find(const WORD *left, const WORD *right, int64_t n, double wanted) {                       \
        int32_t found = BLOCK;                                                                                        \
        _Pragma("omp simd reduction(min : found)")                                                                    \
        for (int32_t i = 0; i < (int32_t)n; i++) {                                                                    \
            double error = (double)as_float(BITS(left, i)) - (double)as_float(BITS(right, i));                        \
            int32_t place = bits_of(error) << 1 == bits_of(wanted) << 1 ? i : BLOCK;                                  \
            found = place < found ? place : found;                                                                    \
        }                                                                                                             \
        return found < BLOCK ? found : 0;                                                                             \
    }                                                                                                                 \
    void difference_##NAME(const WORD *left, const WORD *right, int64_t n, struct tally *t) {                         \
        int64_t worst_block = -1;                                                                                     \
        struct candidate best = {-1, 0, 0};                                                                           \
        for (int64_t start = 0; start < n; start += BLOCK) {                                                          \
            int64_t size = size_of_block(n, start);                                                                   \
            struct block b;                                                                                           \
            if (!NAME##_block(left + start, right + start, size, 0, &b))                                              \
                NAME##_block(left + start, right + start, size, 1, &b);                                               \
            add_block(t, &b, start, &worst_block);                                                                    \
            if (b.max_rel > t->max_rel && b.unequal > b.nonfinite && !is_settled(&best, start, b.max_rel))            \
                t->max_rel = max_of(t->max_rel, NAME##_divide(left + start, right + start, size));                    \
        }                                                                                                             \
        if (best.start >= 0 && best.high > t->max_rel)                                                                \
            t->max_rel = max_of(t->max_rel, NAME##_divide(left + best.start, right + best.start, size_of_block(n, best.start)));\
        if (worst_block >= 0)                                                                                         \
            t->worst = worst_block + NAME##_find(left + worst_block, right + worst_block, size_of_block(n, worst_block), t->max_abs);\
    }

NARROW(float32, loose_i32, float32_bits)
NARROW(bfloat16, loose_u16, bfloat16_bits)
NARROW(float16, loose_u16, float16_bits)

/* Types whose values are float64 values; FLOATING is 0 for integers, which have no NaN and no Inf. */
#define WIDE(NAME, WORD, VALUE, FLOATING)                                                                             \
    INLINE int NAME##_block(const WORD *left, const WORD *right, int64_t n, int masked, struct block *b) {            \
        double absolute = 0, square = 0, signed_sum = 0, actual = 0, expected = 0, cross = 0;                         \
        int64_t max_abs = 0, low = INF64, high = ~INF64, peak = 0, ratio = 0;                                         \
        int64_t kept = 0, unequal = 0, nonfinite = 0, nan_actual = 0, nan_expected = 0, inf_actual = 0,               \
                inf_expected = 0;                                                                                     \
        _Pragma("omp simd reduction(+ : SUMS, COUNTS) reduction(max : max_abs, high, peak, ratio) reduction(min : low)") \
        for (int64_t i = 0; i < n; i++) {                                                                             \
            double dx = VALUE(left[i]), dy = VALUE(right[i]);                                                         \
            int64_t size_x = bits_of(dx) & SIZE64, size_y = bits_of(dy) & SIZE64;                                     \
            int64_t order = order64(bits_of(dy)), order_low = order, order_high = order;                              \
            if (masked) {                                                                                             \
                int64_t bad_x = size_x >= INF64, bad_y = size_y >= INF64, bad = bad_x | bad_y;                        \
                int64_t nan_x = size_x > INF64, nan_y = size_y > INF64;                                               \
                int64_t differs = bad & (bits_of(dx) != bits_of(dy)) & !(nan_x & nan_y);                              \
                nan_actual += nan_x, nan_expected += nan_y;                                                           \
                inf_actual += bad_x - nan_x, inf_expected += bad_y - nan_y;                                           \
                nonfinite += differs, unequal += differs, kept += !bad;                                               \
                dx = bad ? 0.0 : dx, dy = bad ? 0.0 : dy, size_x = bad ? 0 : size_x, size_y = bad ? 0 : size_y;       \
                order_low = bad ? INF64 : order, order_high = bad ? ~INF64 : order;                                   \
            }                                                                                                         \
            double error = dx - dy;                                                                                   \
            int64_t size = bits_of(error) & SIZE64;                                                                   \
            double distance = as_double(size);                                                                        \
            max_abs = size > max_abs ? size : max_abs;                                                                \
            absolute += distance, square += error * error, signed_sum += error;                                       \
            actual += dx * dx, expected += dy * dy, cross += dx * dy;                                                 \
            low = order_low < low ? order_low : low;                                                                  \
            high = order_high > high ? order_high : high;                                                             \
            peak = size_x > peak ? size_x : peak;                                                                     \
            unequal += dx != dy;                                                                                      \
            int64_t relative = bits_of(error / dy) & SIZE64;                                                          \
            relative = size_y ? relative : 0;                                                                         \
            ratio = relative > ratio ? relative : ratio;                                                              \
        }                                                                                                             \
        if (FLOATING && !masked && (peak >= INF64 || high >= INF64 || low <= ~INF64)) return 0;                       \
        if (!masked) kept = n;                                                                                        \
        STORE_SUMS(b);                                                                                                \
        STORE_COUNTS(b);                                                                                              \
        b->max_abs = max_abs;                                                                                         \
        b->low = as_double(order64(low)), b->high = as_double(order64(high));                                         \
        b->max_rel = as_double(ratio);                                                                                \
        return 1;                                                                                                     \
    }                                                                                                                 \
    void difference_##NAME(const WORD *left, const WORD *right, int64_t n, struct tally *t) {                         \
        int64_t worst_block = -1;                                                                                     \
        for (int64_t start = 0; start < n; start += BLOCK) {                                                          \
            int64_t size = size_of_block(n, start);                                                                   \
            struct block b;                                                                                           \
            if (!NAME##_block(left + start, right + start, size, 0, &b))                                              \
                NAME##_block(left + start, right + start, size, 1, &b);                                               \
            add_block(t, &b, start, &worst_block);                                                                    \
            t->max_rel = max_of(t->max_rel, b.max_rel);                                                               \
        }                                                                                                             \
        for (int64_t i = worst_block; i >= 0 && i < n; i++) {                                                         \
            double error = VALUE(left[i]) - VALUE(right[i]);                                                          \
            if (error == t->max_abs || -error == t->max_abs) {                                                        \
                t->worst = i;                                                                                         \
                break;                                                                                                \
            }                                                                                                         \
        }                                                                                                             \
    }

#define AS_IS(word) ((double)(word))
#define TRUTH(word) ((double)((word) != 0))
WIDE(float64, loose_f64, AS_IS, 1)
WIDE(bool, loose_u8, TRUTH, 0)
WIDE(uint8, loose_u8, AS_IS, 0)
WIDE(int8, loose_i8, AS_IS, 0)
WIDE(int16, loose_i16, AS_IS, 0)
WIDE(uint16, loose_u16, AS_IS, 0)
WIDE(int32, loose_i32, AS_IS, 0)
WIDE(uint32, loose_u32, AS_IS, 0)

/* Histograms over the values finite on both sides: of the distance in units in the last place (bucket = number of its
 * binary digits, the last one open), and of |difference| rounded to float32 (8 bins an octave: its upper 11 bits). The
 * places are computed first, in SIMD code, for a few hundred values; what is not finite gets a place behind the others.
 * Several tables in turn, so that one increment does not wait for the one before it. */
enum { GROUP = 512, WAYS = 4 };
#define COUNT(WAY) ulp_tables[WAY][digits[i + WAY]]++, bin_tables[WAY][places[i + WAY]]++

/* Binary digits of the distance of two words of up to 32 bits, sign-extended. Without the bit behind the first one the
 * conversion to float32 cannot round up to the next power of two. */
INLINE int32_t count_digits(int32_t x, int32_t y, int32_t mask) {
    uint32_t size_x = (uint32_t)(x & mask), size_y = (uint32_t)(y & mask);
    uint32_t near = size_x > size_y ? size_x - size_y : size_y - size_x;
    uint32_t far = (x ^ y) < 0 ? size_x + size_y : near;
    int32_t exponent = (bits_of_float((float)(far & ~(far >> 1))) >> 23) - 126;
    return exponent < 0 ? 0 : exponent;
}
INLINE int32_t count_digits64(int64_t x, int64_t y, int64_t mask) {
    int64_t size_x = x & mask, size_y = y & mask;
    double far = (x ^ y) < 0 ? (double)size_x + (double)size_y : (double)(size_x - size_y);
    int32_t exponent = (int32_t)((bits_of(far) & SIZE64) >> 52) - 1022;
    exponent = exponent < 0 ? 0 : exponent;
    return exponent > BUCKETS - 1 ? BUCKETS - 1 : exponent;
}

#define SPREAD(NAME, WORD, SIGNED, MASK, INF, DIGITS, VALUE)                                                          \
    void spread_##NAME(const WORD *left, const WORD *right, int64_t n, int64_t *ulps, int64_t *bins) {                \
        uint32_t ulp_tables[WAYS][BUCKETS + 1] = {{0}}, bin_tables[WAYS][BINS + 1] = {{0}};                           \
        int32_t digits[GROUP], places[GROUP];                                                                         \
        for (int64_t start = 0; start < n; start += GROUP) {                                                          \
            int32_t size = (int32_t)(n - start < GROUP ? n - start : GROUP);                                          \
            _Pragma("omp simd")                                                                                       \
            for (int32_t i = 0; i < size; i++) {                                                                      \
                SIGNED x = (SIGNED)left[start + i], y = (SIGNED)right[start + i];                                     \
                int bad = ((x & MASK) >= INF) | ((y & MASK) >= INF);                                                  \
                int32_t found = DIGITS(x, y, MASK);                                                                   \
                float error = (float)(VALUE(left, start + i) - VALUE(right, start + i));                              \
                digits[i] = bad ? BUCKETS : found;                                                                    \
                places[i] = bad ? BINS : (bits_of_float(error) & SIZE32) >> 20;                                       \
            }                                                                                                         \
            for (int32_t i = size; i < GROUP; i++) digits[i] = BUCKETS, places[i] = BINS;                             \
            for (int32_t i = 0; i < GROUP; i += WAYS) {                                                               \
                COUNT(0), COUNT(1), COUNT(2), COUNT(3);                                                               \
            }                                                                                                         \
        }                                                                                                             \
        for (int way = 0; way < WAYS; way++) {                                                                        \
            for (int i = 0; i < BUCKETS; i++) ulps[i] += ulp_tables[way][i];                                          \
            for (int i = 0; i < BINS; i++) bins[i] += bin_tables[way][i];                                             \
        }                                                                                                             \
    }

#define FLOAT32_VALUE(words, i) (as_float(float32_bits(words, i)))
#define BFLOAT16_VALUE(words, i) (as_float(bfloat16_bits(words, i)))
#define FLOAT16_VALUE(words, i) (as_float(float16_bits(words, i)))
#define FLOAT64_VALUE(words, i) (as_double(words[i]))
typedef int64_t LOOSE loose_i64;
SPREAD(float32, loose_i32, int32_t, SIZE32, INF32, count_digits, FLOAT32_VALUE)
SPREAD(bfloat16, loose_u16, int16_t, 0x7fff, 0x7f80, count_digits, BFLOAT16_VALUE)
SPREAD(float16, loose_u16, int16_t, 0x7fff, 0x7c00, count_digits, FLOAT16_VALUE)
SPREAD(float64, loose_i64, int64_t, SIZE64, INF64, count_digits64, FLOAT64_VALUE)

int difference_version(void) { return VERSION; }
