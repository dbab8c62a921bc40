/* SHA-256 (FIPS 180-4), for lines of a kilobyte: a digest by way of the interpreter's hashlib costs as much again for
 * the calls and the objects. tests hold both ways to hashlib's word, and a module that is loaded does so once. */
#ifndef CREDGATE_SHA256_H
#define CREDGATE_SHA256_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint32_t state[8];
    uint64_t length;
    unsigned char block[64];
} Sha256;

typedef void (*Sha256Blocks)(uint32_t state[8], const unsigned char *data, size_t blocks);

static const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t sha256_turned(uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

static void sha256_blocks_plain(uint32_t state[8], const unsigned char *data, size_t blocks)
{
    for (; blocks; blocks--, data += 64) {
        uint32_t w[64], v[8];
        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 | (uint32_t)data[4 * i + 2] << 8 |
                   data[4 * i + 3];
        for (int i = 16; i < 64; i++) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + w[i - 7] + (sha256_turned(a, 7) ^ sha256_turned(a, 18) ^ (a >> 3)) +
                   (sha256_turned(b, 17) ^ sha256_turned(b, 19) ^ (b >> 10));
        }
        memcpy(v, state, sizeof v);
        /* unrolled, so that no word moves: "a" of one round is "b" of the next */
#pragma GCC unroll 64
        for (int i = 0; i < 64; i++) {
            uint32_t a = v[-i & 7], b = v[(1 - i) & 7], c = v[(2 - i) & 7];
            uint32_t e = v[(4 - i) & 7], f = v[(5 - i) & 7], g = v[(6 - i) & 7];
            uint32_t first = v[(7 - i) & 7] + (sha256_turned(e, 6) ^ sha256_turned(e, 11) ^ sha256_turned(e, 25)) +
                             ((e & f) ^ (~e & g)) + sha256_k[i] + w[i];
            uint32_t second = (sha256_turned(a, 2) ^ sha256_turned(a, 13) ^ sha256_turned(a, 22)) +
                              ((a & b) ^ (a & c) ^ (b & c));
            v[(3 - i) & 7] += first;
            v[(7 - i) & 7] = first + second;
        }
        for (int i = 0; i < 8; i++)
            state[i] += v[i];
    }
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

/* By the processor's own instructions (Intel SDM, SHA256RNDS2): they keep the state as ABEF and CDGH. */
__attribute__((target("sha,sse4.1"))) static void sha256_blocks_native(uint32_t state[8], const unsigned char *data,
                                                                       size_t blocks)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i abef = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
    __m128i cdgh = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
    for (; blocks; blocks--, data += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(data + 16 * i)), swap);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m128i now = w[i & 3];
            __m128i keyed = _mm_add_epi32(now, _mm_loadu_si128((const __m128i *)(const void *)(sha256_k + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, keyed);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(keyed, 0x0e));
            if (i < 12) {
                __m128i last = w[(i + 3) & 3];
                __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) & 3]),
                                            _mm_alignr_epi8(last, w[(i + 2) & 3], 4));
                w[i & 3] = _mm_sha256msg2_epu32(sum, last);
            }
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    state[0] = (uint32_t)_mm_extract_epi32(abef, 3);
    state[1] = (uint32_t)_mm_extract_epi32(abef, 2);
    state[4] = (uint32_t)_mm_extract_epi32(abef, 1);
    state[5] = (uint32_t)_mm_extract_epi32(abef, 0);
    state[2] = (uint32_t)_mm_extract_epi32(cdgh, 3);
    state[3] = (uint32_t)_mm_extract_epi32(cdgh, 2);
    state[6] = (uint32_t)_mm_extract_epi32(cdgh, 1);
    state[7] = (uint32_t)_mm_extract_epi32(cdgh, 0);
}

static Sha256Blocks sha256_best(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & (1u << 29))) /* SHA */
        return sha256_blocks_plain;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & (1u << 19)) || !(c & (1u << 9))) /* SSE4.1, SSSE3 */
        return sha256_blocks_plain;
    return sha256_blocks_native;
}
#else
static Sha256Blocks sha256_best(void) { return sha256_blocks_plain; }
#endif

static Sha256Blocks sha256_blocks = sha256_blocks_plain;

static inline void sha256_begin(Sha256 *sha)
{
    static const uint32_t begin[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(sha->state, begin, sizeof begin);
    sha->length = 0;
}

static inline void sha256_add(Sha256 *sha, const void *bytes, size_t size)
{
    const unsigned char *data = bytes;
    size_t fill = sha->length % 64;
    sha->length += size;
    if (fill) {
        size_t room = 64 - fill, taken = size < room ? size : room;
        memcpy(sha->block + fill, data, taken);
        if (taken < room)
            return;
        sha256_blocks(sha->state, sha->block, 1);
        data += taken;
        size -= taken;
    }
    sha256_blocks(sha->state, data, size / 64);
    memcpy(sha->block, data + size / 64 * 64, size % 64);
}

static inline void sha256_end(Sha256 *sha, unsigned char digest[32])
{
    size_t fill = sha->length % 64;
    uint64_t bits = sha->length * 8;
    sha->block[fill++] = 0x80;
    if (fill > 56) {
        memset(sha->block + fill, 0, 64 - fill);
        sha256_blocks(sha->state, sha->block, 1);
        fill = 0;
    }
    memset(sha->block + fill, 0, 56 - fill);
    for (int i = 0; i < 8; i++)
        sha->block[56 + i] = (unsigned char)(bits >> (56 - 8 * i));
    sha256_blocks(sha->state, sha->block, 1);
    for (int i = 0; i < 32; i++)
        digest[i] = (unsigned char)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

#endif
