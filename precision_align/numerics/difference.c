/* One pass over two buffers for every raw metric, and the histograms of their distances.
 *
 * Portable C99 with the vector types of GCC and Clang and no intrinsics: the compiler makes of them whatever the CPU that
 * it is told has. A sum of float64 has one vector, which takes the two halves of a vector of float32 in turn: with one for
 * each half, as loops without these types get, the sums alone fill the 16 registers of AVX2. Maxima and minima of single
 * lanes are written as loops over the lanes, which become one instruction. No fast-math, which would break NaN and Inf.
 *
 * Every type is read as float32 or float64, exactly, a block at a time. A block that turns out to hold a NaN or an Inf is
 * thrown away and taken again by the masked version of the loop.
 *
 * The layout of struct tally is that of precision_align.numerics.tallies.Tally; VERSION guards it.
 */
#include <stdint.h>
#include <string.h>

/* BLOCK: two blocks as float64 fill half of a first-level cache of 32 KiB. */
enum { VERSION = 1, BLOCK = 1024, BINS = 2048, BUCKETS = 33 };

#if defined __AVX512F__
#define BYTES 64
#elif defined __AVX__
#define BYTES 32
#else
#define BYTES 16
#endif

struct tally {
    int64_t count, unequal, nonfinite, nan_actual, nan_expected, inf_actual, inf_expected, worst;
    double max_abs, max_rel, low, high, absolute, square, signed_sum, actual, expected, cross;
};

/* Buffers come from files and views: no alignment is promised, and one is read under several types. */
#define LOOSE __attribute__((aligned(1), may_alias))
typedef float LOOSE loose_f32;
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

/* The vectors that sums are kept in. A loop over the lanes becomes one instruction. */
#define VECTOR __attribute__((vector_size(BYTES)))
typedef double VECTOR doubles;
typedef int64_t VECTOR longs;
enum { LANES = BYTES / 8 };

INLINE double add_lanes(doubles vector) {
    double total = 0;
    for (int lane = 0; lane < LANES; lane++) total += vector[lane];
    return total;
}

/* What one block adds. */
struct block {
    int64_t kept, unequal, nonfinite, nan_actual, nan_expected, inf_actual, inf_expected;
    double max_abs, max_rel, low, high, absolute, square, signed_sum, actual, expected, cross;
};

INLINE void add_block(struct tally *t, const struct block *b, int64_t start, int64_t *worst_block) {
    t->count += b->kept;
    t->unequal += b->unequal;
    t->nonfinite += b->nonfinite;
    t->nan_actual += b->nan_actual;
    t->nan_expected += b->nan_expected;
    t->inf_actual += b->inf_actual;
    t->inf_expected += b->inf_expected;
    if (b->max_abs > t->max_abs) {
        t->max_abs = b->max_abs;
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

#define COUNTS kept, nonfinite, nan_actual, nan_expected, inf_actual, inf_expected

/* The steps over one block of values of one type.
 * sum: sums and the largest |difference|, of a multiple of STEP values, which may be filled up with zeros.
 * scan: what is compared as integers.
 * clean: a copy with zeros for pairs that are not finite, filled up; counts them, and finds the range of the others. */
#define BLOCKS(NAME, REAL, PLAIN, INT, STEP, SIZE, INF, BITS, ORDER, AS_REAL)                                         \
    INLINE void NAME##_sum(const REAL *left, const REAL *right, int64_t n, struct block *b) {                         \
        doubles absolute = {0}, square = {0}, signed_sum = {0}, actual = {0}, expected = {0}, cross = {0}, largest = {0}; \
        for (int64_t i = 0; i < n; i += STEP) {                                                                       \
            double x[STEP], y[STEP];                                                                                  \
            for (int lane = 0; lane < STEP; lane++) x[lane] = left[i + lane];                                         \
            for (int lane = 0; lane < STEP; lane++) y[lane] = right[i + lane];                                        \
            for (int part = 0; part < STEP; part += LANES) {                                                          \
                doubles dx, dy;                                                                                       \
                memcpy(&dx, x + part, BYTES), memcpy(&dy, y + part, BYTES);                                           \
                doubles error = dx - dy, size = (doubles)((longs)error & SIZE64);                                     \
                absolute += size, square += error * error, signed_sum += error;                                       \
                actual += dx * dx, expected += dy * dy, cross += dx * dy;                                             \
                longs larger = size > largest;                                                                        \
                largest = (doubles)((larger & (longs)size) | (~larger & (longs)largest));                             \
            }                                                                                                         \
        }                                                                                                             \
        b->absolute = add_lanes(absolute), b->square = add_lanes(square), b->signed_sum = add_lanes(signed_sum);      \
        b->actual = add_lanes(actual), b->expected = add_lanes(expected), b->cross = add_lanes(cross);                \
        b->max_abs = 0;                                                                                               \
        for (int lane = 0; lane < LANES; lane++) b->max_abs = max_of(b->max_abs, largest[lane]);                      \
    }                                                                                                                 \
    INLINE void NAME##_scan(const REAL *left, const REAL *right, int64_t n, struct block *b) {                        \
        INT low = INF, high = ~INF, ratio = 0; /* ~INF: the order of -Inf */                                          \
        INT unequal = 0;                                                                                              \
        _Pragma("omp simd reduction(+ : unequal) reduction(max : high, ratio) reduction(min : low)")                  \
        for (int64_t i = 0; i < n; i++) {                                                                             \
            PLAIN x = left[i], y = right[i];                                                                          \
            INT order = ORDER(BITS(y)), relative = BITS((x - y) / y) & SIZE;                                          \
            low = order < low ? order : low;                                                                          \
            high = order > high ? order : high;                                                                       \
            unequal += x != y;                                                                                        \
            relative = BITS(y) & SIZE ? relative : 0;                                                                 \
            ratio = relative > ratio ? relative : ratio;                                                              \
        }                                                                                                             \
        b->low = AS_REAL(ORDER(low)), b->high = AS_REAL(ORDER(high)), b->max_rel = AS_REAL(ratio);                    \
        b->unequal = unequal;                                                                                         \
    }                                                                                                                 \
    static int64_t NAME##_clean(const REAL *left, const REAL *right, int64_t n, PLAIN *x, PLAIN *y, struct block *b) { \
        INT low = INF, high = ~INF;                                                                                   \
        INT kept = 0, nonfinite = 0, nan_actual = 0, nan_expected = 0, inf_actual = 0, inf_expected = 0; \
        _Pragma("omp simd reduction(+ : COUNTS) reduction(max : high) reduction(min : low)")                          \
        for (int64_t i = 0; i < n; i++) {                                                                             \
            INT word_x = BITS(left[i]), word_y = BITS(right[i]), order = ORDER(word_y);                               \
            INT size_x = word_x & SIZE, size_y = word_y & SIZE;                                                       \
            INT bad_x = size_x >= INF, bad_y = size_y >= INF, bad = bad_x | bad_y;                                    \
            INT nan_x = size_x > INF, nan_y = size_y > INF;                                                           \
            INT order_low = bad ? INF : order, order_high = bad ? ~INF : order;                                       \
            nan_actual += nan_x, nan_expected += nan_y;                                                               \
            inf_actual += bad_x - nan_x, inf_expected += bad_y - nan_y;                                               \
            nonfinite += bad & (word_x != word_y) & !(nan_x & nan_y), kept += !bad;                                   \
            low = order_low < low ? order_low : low;                                                                  \
            high = order_high > high ? order_high : high;                                                             \
            x[i] = AS_REAL(bad ? 0 : word_x), y[i] = AS_REAL(bad ? 0 : word_y);                                       \
        }                                                                                                             \
        for (; n % STEP != 0; n++) x[n] = y[n] = 0;                                                                        \
        b->low = AS_REAL(ORDER(low)), b->high = AS_REAL(ORDER(high));                                                 \
        b->kept = kept, b->nonfinite = nonfinite, b->nan_actual = nan_actual, b->nan_expected = nan_expected;         \
        b->inf_actual = inf_actual, b->inf_expected = inf_expected;                                                   \
        return n;                                                                                                     \
    }                                                                                                                 \
    static void NAME##_block(const REAL *left, const REAL *right, int64_t n, struct block *b) {                       \
        *b = (struct block){.kept = n};                                                                               \
        if (n % STEP == 0) {                                                                                          \
            NAME##_sum(left, right, n, b);                                                                            \
            NAME##_scan(left, right, n, b);                                                                           \
            if (b->actual < as_double(INF64) && b->expected < as_double(INF64)) return;                               \
        }                                                                                                             \
        PLAIN x[BLOCK], y[BLOCK];                                                                                     \
        int64_t size = NAME##_clean(left, right, n, x, y, b);                                                         \
        double low = b->low, high = b->high;                                                                          \
        NAME##_sum(x, y, size, b);                                                                                    \
        NAME##_scan(x, y, size, b);                                                                                   \
        b->low = low, b->high = high, b->unequal += b->nonfinite;                                                     \
    }                                                                                                                 \
    INLINE int64_t NAME##_size(int64_t left) { return left >= BLOCK ? BLOCK : left >= STEP ? left / STEP * STEP : left; } \
    static int64_t NAME##_find(const REAL *left, const REAL *right, int64_t n, double wanted) {                       \
        int32_t found = BLOCK;                                                                                        \
        _Pragma("omp simd reduction(min : found)")                                                                    \
        for (int32_t i = 0; i < (int32_t)n; i++) {                                                                    \
            double error = (double)left[i] - (double)right[i];                                                        \
            int32_t place = bits_of(error) << 1 == bits_of(wanted) << 1 ? i : BLOCK;                                  \
            found = place < found ? place : found;                                                                    \
        }                                                                                                             \
        return found < BLOCK ? found : 0;                                                                             \
    }

BLOCKS(narrow, loose_f32, float, int32_t, (2 * LANES), SIZE32, INF32, bits_of_float, order32, as_float)
BLOCKS(wide, loose_f64, double, int64_t, LANES, SIZE64, INF64, bits_of, order64, as_double)

/* Values of a block as float32 or float64: in their place where they are that, else in ``room``. */
typedef const loose_f32 *narrow_reader(const void *words, int64_t start, int64_t n, float *room);
typedef const loose_f64 *wide_reader(const void *words, int64_t start, int64_t n, double *room);

static const loose_f32 *read_float32(const void *words, int64_t start, int64_t n, float *room) {
    (void)n, (void)room;
    return (const loose_f32 *)words + start;
}
static const loose_f64 *read_float64(const void *words, int64_t start, int64_t n, double *room) {
    (void)n, (void)room;
    return (const loose_f64 *)words + start;
}
#define READER(NAME, REAL, PLAIN, WORD, VALUE)                                                                  \
    static const REAL *read_##NAME(const void *words, int64_t start, int64_t n, PLAIN *room) {                        \
        const WORD *from = (const WORD *)words + start;                                                               \
        _Pragma("omp simd")                                                                                           \
        for (int64_t i = 0; i < n; i++) room[i] = VALUE(from, i);                                                     \
        return room;                                                                                                  \
    }
#define BFLOAT16(words, i) (as_float(bfloat16_bits(words, i)))
#define FLOAT16(words, i) (as_float(float16_bits(words, i)))
#define NUMBER(words, i) ((double)words[i])
#define TRUTH(words, i) ((double)(words[i] != 0))
READER(bfloat16, loose_f32, float, loose_u16, BFLOAT16)
READER(float16, loose_f32, float, loose_u16, FLOAT16)
READER(bool, loose_f64, double, loose_u8, TRUTH)
READER(uint8, loose_f64, double, loose_u8, NUMBER)
READER(int8, loose_f64, double, loose_i8, NUMBER)
READER(int16, loose_f64, double, loose_i16, NUMBER)
READER(uint16, loose_f64, double, loose_u16, NUMBER)
READER(int32, loose_f64, double, loose_i32, NUMBER)
READER(uint32, loose_f64, double, loose_u32, NUMBER)

static void add_wide(wide_reader *read, const void *left, const void *right, int64_t n, struct tally *t) {
    double rooms[2][BLOCK];
    int64_t worst_block = -1;
    for (int64_t start = 0, size; start < n; start += size) {
        size = wide_size(n - start);
        struct block b;
        wide_block(read(left, start, size, rooms[0]), read(right, start, size, rooms[1]), size, &b);
        add_block(t, &b, start, &worst_block);
        t->max_rel = max_of(t->max_rel, b.max_rel);
    }
    if (worst_block >= 0) {
        int64_t size = wide_size(n - worst_block);
        t->worst = worst_block + wide_find(read(left, worst_block, size, rooms[0]), read(right, worst_block, size, rooms[1]), size, t->max_abs);
    }
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

/* The largest relative error of a block, in float64. */
static double divide(const loose_f32 *left, const loose_f32 *right, int64_t n) {
    int64_t ratio = 0;
    _Pragma("omp simd reduction(max : ratio)")
    for (int64_t i = 0; i < n; i++) {
        int32_t x = bits_of_float(left[i]), y = bits_of_float(right[i]);
        int32_t bad = (x & SIZE32) >= INF32 || (y & SIZE32) >= INF32 || !(y & SIZE32);
        double dx = as_float(x), dy = as_float(y);
        int64_t relative = bits_of((dx - dy) / dy) & SIZE64;
        relative = bad ? 0 : relative;
        ratio = relative > ratio ? relative : ratio;
    }
    return as_double(ratio);
}

/* Sums, |difference| and its maximum are float64, exact where float64 is. The relative error is first taken in float32,
 * where it is off by less than 2^-22 of itself (two roundings) or 2^-148 (an underflow): only the block that may hold the
 * largest is divided again in float64. */
static void add_narrow(narrow_reader *read, const void *left, const void *right, int64_t n, struct tally *t) {
    float rooms[2][BLOCK];
    int64_t worst_block = -1;
    struct candidate best = {-1, 0, 0};
    for (int64_t start = 0, size; start < n; start += size) {
        size = narrow_size(n - start);
        const loose_f32 *x = read(left, start, size, rooms[0]), *y = read(right, start, size, rooms[1]);
        struct block b;
        narrow_block(x, y, size, &b);
        add_block(t, &b, start, &worst_block);
        double high = b.max_rel * (1 + 0x1p-22) + 0x1p-148;
        if (high > t->max_rel && b.unequal > b.nonfinite && !is_settled(&best, start, high))
            t->max_rel = max_of(t->max_rel, divide(x, y, size));
    }
    if (best.start >= 0 && best.high > t->max_rel) {
        int64_t size = narrow_size(n - best.start);
        t->max_rel = max_of(t->max_rel, divide(read(left, best.start, size, rooms[0]), read(right, best.start, size, rooms[1]), size));
    }
    if (worst_block >= 0) {
        int64_t size = narrow_size(n - worst_block);
        t->worst = worst_block + narrow_find(read(left, worst_block, size, rooms[0]), read(right, worst_block, size, rooms[1]), size, t->max_abs);
    }
}

#define DIFFERENCE(NAME, KIND)                                                                                        \
    void difference_##NAME(const void *left, const void *right, int64_t n, struct tally *t) {                         \
        add_##KIND(read_##NAME, left, right, n, t);                                                                   \
    }
DIFFERENCE(float32, narrow)
DIFFERENCE(bfloat16, narrow)
DIFFERENCE(float16, narrow)
DIFFERENCE(float64, wide)
DIFFERENCE(bool, wide)
DIFFERENCE(uint8, wide)
DIFFERENCE(int8, wide)
DIFFERENCE(int16, wide)
DIFFERENCE(uint16, wide)
DIFFERENCE(int32, wide)
DIFFERENCE(uint32, wide)

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
