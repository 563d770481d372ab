// CRCs of 32 bits, reflected, of messages in global memory. A file that includes this one first
// defines POLYNOMIAL, the CRC's P without x^32, in the reflected form.
//
// The blocks have 256 threads. `team` warps of a block (a power of two, at most 8) share a message,
// each with a part of it, the parts lying one after the other. Within a part, lane l owns the granules
// l, l + 32, … of 16 bytes.
//
// The register of a CRC is a polynomial over GF(2) modulo P, in which bit 31 is the coefficient of
// x^0: the reflected form. The CRC of a message M with register 0 is M·x^32. Each lane keeps a sum r
// that is to be added to the first word of its next granule, 512 bytes on. With the granule's words
// that is r' = (r + w0)·x^4096 + w1·x^4064 + w2·x^4032 + w3·x^4000, and a product by a constant is
// four look-ups, one for each byte of the word. Since x has an inverse modulo P, the bytes behind a
// message can count as zeros and be divided out. So granules stay aligned, and the initial register
// of ones is added to the first word even where the message has fewer than 4 bytes.
#pragma once
#include "device.h"

constexpr uint32_t THREADS = 256;
constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t STRIDE = 512; // bytes that a warp takes in one step

constexpr uint32_t ONE = 0x80000000u; // x^0

struct Constants {
    // basis[4 * j + b][i]: bit i of byte b of word j, times x^(4096 - 32 j).
    uint32_t basis[16][8];
    // lane[k]: x^(128 (k - 32) - 3968), which takes r to the end of the granule k - 32 granules on.
    uint32_t lane[64];
    // undo[k]: x^(-8 k).
    uint32_t undo[16];
    // behind[k]: x^(8 · 2^k).
    uint32_t behind[64];
};

DEVICE constexpr uint32_t times_x(uint32_t a) { return (a >> 1) ^ ((a & 1) ? POLYNOMIAL : 0); }
DEVICE constexpr uint32_t over_x(uint32_t a) { return (a & ONE) ? ((a ^ POLYNOMIAL) << 1) | 1 : a << 1; }

// The product modulo P.
DEVICE constexpr uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    ROLLED
    for (uint32_t bit = 0; bit < 32; bit++) {
        if (a & (ONE >> bit)) product ^= b;
        b = times_x(b);
    }
    return product;
}

DEVICE constexpr Constants make_constants() {
    Constants c = {};
    uint32_t power = ONE; // x^k
    for (uint32_t k = 0; k <= 4096; k++) {
        for (uint32_t j = 0; j < 4; j++) {
            if (k != 4096 - 32 * j) continue;
            for (uint32_t bit = 0; bit < 32; bit++) c.basis[4 * j + bit / 8][bit % 8] = multiply(1u << bit, power);
        }
        power = times_x(power);
    }
    power = ONE;
    for (uint32_t k = 0; k < 3968 + 128 * 32; k++) {
        if (k % 8 == 0 && k / 8 < 16) c.undo[k / 8] = power;
        power = over_x(power);
    }
    for (uint32_t k = 0; k < 64; k++) {
        c.lane[k] = power;
        for (uint32_t bit = 0; bit < 128; bit++) power = times_x(power);
    }
    power = ONE;
    for (uint32_t bit = 0; bit < 8; bit++) power = times_x(power);
    for (uint32_t k = 0; k < 64; k++) {
        c.behind[k] = power;
        power = multiply(power, power);
    }
    return c;
}

CONSTANT Constants constants = make_constants();

// tables[256 * (4 * j + b) + v]: byte b of word j with value v, times x^(4096 - 32 j). A thread owns a
// value.
DEVICE void fill_tables(uint32_t* tables) {
    const uint32_t value = thread_index();
    UNROLL
    for (uint32_t table = 0; table < 16; table++) {
        uint32_t entry = 0;
        UNROLL
        for (uint32_t bit = 0; bit < 8; bit++) entry ^= constants.basis[table][bit] & (0u - ((value >> bit) & 1));
        tables[256 * table + value] = entry;
    }
    block_barrier();
}

DEVICE uint32_t look_up(const uint32_t* tables, uint32_t word) {
    return tables[word & 255] ^ tables[256 + ((word >> 8) & 255)] ^ tables[512 + ((word >> 16) & 255)] ^
           tables[768 + (word >> 24)];
}

DEVICE uint32_t step(const uint32_t* tables, uint32_t sum, const Bytes16& granule) {
    return look_up(tables, sum ^ granule.word[0]) ^ look_up(tables + 1024, granule.word[1]) ^
           look_up(tables + 2048, granule.word[2]) ^ look_up(tables + 3072, granule.word[3]);
}

// `word` without the bytes from byte `keep` on, which may be negative.
DEVICE uint32_t first_bytes(uint32_t word, int keep) {
    return keep >= 4 ? word : keep <= 0 ? 0 : word & ((1u << (8 * keep)) - 1);
}

// The warp's CRC of `bytes` bytes, in every lane. `initial` is added to the first word.
DEVICE uint32_t checksum_part(const uint8_t* from, uint64_t bytes, uint32_t initial, const uint32_t* tables) {
    const uint32_t lane = lane_index();
    const uint8_t* own = from + lane * 16;
    if (lane != 0) initial = 0;
    const uint64_t whole = bytes / STRIDE;
    uint32_t sum = initial;
    uint64_t k = 0;
    // Four loads in flight.
    for (; k + 4 <= whole; k += 4) {
        const Bytes16 a = load16(own), b = load16(own + STRIDE), c = load16(own + 2 * STRIDE),
                      d = load16(own + 3 * STRIDE);
        sum = step(tables, sum, a);
        sum = step(tables, sum, b);
        sum = step(tables, sum, c);
        sum = step(tables, sum, d);
        own += 4 * STRIDE;
    }
    for (; k < whole; k++) {
        sum = step(tables, sum, load16(own));
        own += STRIDE;
    }
    // The remaining bytes, followed by zeros.
    const uint32_t left = static_cast<uint32_t>(bytes % STRIDE);
    uint32_t padding = 0;
    if (left != 0 || whole == 0) {
        padding = STRIDE - left;
        Bytes16 granule = {{0, 0, 0, 0}};
        const int keep = static_cast<int>(left) - static_cast<int>(lane * 16);
        if (keep > 0) granule = load16(own);
        granule.word[0] = first_bytes(granule.word[0], keep);
        granule.word[1] = first_bytes(granule.word[1], keep - 4);
        granule.word[2] = first_bytes(granule.word[2], keep - 8);
        granule.word[3] = first_bytes(granule.word[3], keep - 12);
        sum = step(tables, sum, granule);
    }
    uint32_t crc = multiply(constants.lane[32 + 31 - lane - padding / 16], sum);
    for (uint32_t mask = 16; mask != 0; mask /= 2) crc ^= shuffle_xor(crc, mask);
    return multiply(constants.undo[padding % 16], crc);
}

// Returns `crc` for its message followed by `bytes` bytes that count as zeros.
DEVICE uint32_t followed_by(uint32_t crc, uint64_t bytes) {
    ROLLED
    for (uint32_t k = 0; bytes != 0; k++, bytes >>= 1)
        if (bytes & 1) crc = multiply(constants.behind[k], crc);
    return crc;
}

// Returns the checksum of the first `bytes` bytes of `slot` in every lane of the team's first warp.
// All warps of the block call this.
DEVICE uint32_t checksum(const uint8_t* slot, uint64_t bytes, uint32_t team, const uint32_t* tables,
                         uint32_t* parts) {
    const uint32_t warp = thread_index() / 32;
    const uint32_t rank = warp % team;
    const uint64_t part = (bytes / team + STRIDE - 1) / STRIDE * STRIDE;
    uint64_t begin = part * rank;
    if (begin > bytes) begin = bytes;
    // The last warp takes the remaining bytes, which may be fewer or a few more than a part.
    uint64_t end = rank + 1 == team ? bytes : begin + part;
    if (end > bytes) end = bytes;
    uint32_t crc = 0;
    if (rank == 0 || end > begin)
        crc = followed_by(checksum_part(slot + begin, end - begin, rank == 0 ? ~0u : 0u, tables), bytes - end);
    if (team == 1) return ~crc;
    if (lane_index() == 0) parts[warp] = crc;
    block_barrier();
    crc = 0;
    for (uint32_t k = 0; k < team; k++) crc ^= parts[warp - rank + k];
    block_barrier(); // before the next slots' parts
    return ~crc;
}

