/* The hash of precision_align.storage.hashing: folded rows (the layout of their sums is that of
 * precision_align.numerics.folding), and BLAKE2b of these. */
#ifndef PRECISION_ALIGN_DIGESTS
#define PRECISION_ALIGN_DIGESTS

#include <string.h>

#include "vectors.h"

enum { LANES = 128, ROWS = 256, ROW_BYTES = 8 * LANES, ROW_STEP = 4 };

/* Adds a few rows of words to both sums; see folding.py for the formula. Several at a time: each sum is loaded and
 * stored once for all of them. */
INLINE void fold_rows(const loose_u64 *data, const uint64_t *keys, uint64_t *sums, int rows) {
    uint64_t keyed[ROW_STEP][LANES + 8] __attribute__((aligned(64)));
    for (int row = 0; row < rows; row++) {
        for (int lane = 0; lane < LANES; lane++) keyed[row][lane] = data[row * LANES + lane] ^ keys[row + lane];
        keyed[row][LANES] = keyed[row][0];
    }
    for (int lane = 0; lane < LANES; lane += WIDTH) {
        longs first, second, own, next;
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

#endif
