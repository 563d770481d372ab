// Copies of bytes between addresses of any alignment, in loads and stores of 16 aligned bytes.
#pragma once
#include "device.h"

// A warp copies this much at a time: four granules of 16 bytes for each lane, all in flight.
constexpr uint32_t WINDOW_STEPS = 4;
constexpr uint32_t STEP = 32 * 16;
constexpr uint32_t WINDOW = WINDOW_STEPS * STEP;

// Returns how many bytes this address is behind a multiple of 16.
DEVICE uint32_t misalignment(const uint8_t* address) {
    return static_cast<uint32_t>(reinterpret_cast<uint64_t>(address)) & 15;
}

// Returns 16 bytes, from byte `shift` on, of the 32 bytes of `low` and then `high`. shift < 16
DEVICE Bytes16 join16(const Bytes16& low, const Bytes16& high, uint32_t shift) {
    uint32_t a = low.word[0], b = low.word[1], c = low.word[2], d = low.word[3], e = high.word[0];
    // Selects whole words: an index that is not a constant would put the words into memory.
    if (shift & 8) {
        a = c;
        b = d;
        c = e;
        d = high.word[1];
        e = high.word[2];
        if (shift & 4) {
            a = b;
            b = c;
            c = d;
            d = e;
            e = high.word[3];
        }
    } else if (shift & 4) {
        a = b;
        b = c;
        c = d;
        d = e;
        e = high.word[1];
    }
    const uint32_t bits = (shift & 3) * 8;
    return Bytes16{{funnel_shift_right(a, b, bits), funnel_shift_right(b, c, bits), funnel_shift_right(c, d, bits),
                    funnel_shift_right(d, e, bits)}};
}

// Loads 16 bytes from any address. Reads only the aligned granules that hold any of these bytes.
DEVICE Bytes16 load16_any(const uint8_t* from) {
    const uint32_t shift = misalignment(from);
    const uint8_t* aligned = from - shift;
    const Bytes16 low = load16(aligned);
    if (shift == 0) return low;
    return join16(low, load16(aligned + 16), shift);
}

// Loads, for join16, the aligned granules that hold bytes `begin` to `end` of the 16 bytes from
// `slots` + `from` on. A granule without such bytes is not read, need not exist, and counts as
// zeros. `from` counts modulo 2^64. `slots` is aligned. end <= 16
DEVICE void load_part(const uint8_t* slots, uint64_t from, uint32_t begin, uint32_t end, Bytes16& low, Bytes16& high) {
    const uint32_t shift = static_cast<uint32_t>(from) & 15;
    low = high = Bytes16{{0, 0, 0, 0}};
    if (begin < end && begin < 16 - shift) low = load16(slots + (from - shift));
    if (end > 16 - shift) high = load16(slots + (from - shift + 16));
}

// Returns the first `count` bytes of `first`, and the other bytes of `rest`. count < 16
DEVICE Bytes16 splice16(const Bytes16& first, const Bytes16& rest, uint32_t count) {
    Bytes16 all;
    UNROLL
    for (uint32_t w = 0; w < 4; w++) {
        const uint32_t keep = count <= 4 * w ? 0 : count >= 4 * w + 4 ? ~0u : (1u << (8 * (count - 4 * w))) - 1;
        all.word[w] = (first.word[w] & keep) | (rest.word[w] & ~keep);
    }
    return all;
}

// Stores the first `count` bytes at any address. count <= 16
DEVICE void store_bytes(uint8_t* to, Bytes16 bytes, uint32_t count) {
    ROLLED
    for (uint32_t i = 0; i < count; i++) {
        store(to + i, static_cast<uint8_t>(bytes.word[0]));
        UNROLL
        for (uint32_t w = 0; w < 3; w++)
            bytes.word[w] = funnel_shift_right(bytes.word[w], bytes.word[w + 1], 8);
        bytes.word[3] >>= 8;
    }
}

// The warp copies WINDOW bytes from any address to an aligned one; all lanes have the same
// arguments. Reads the aligned granules that hold one of the bytes, each once.
DEVICE void copy_window(uint8_t* to, const uint8_t* from) {
    const uint32_t lane = lane_index();
    const uint32_t shift = misalignment(from);
    const uint8_t* aligned = from - shift + lane * 16;
    to += lane * 16;
    Bytes16 granule[WINDOW_STEPS + 1];
    UNROLL
    for (uint32_t k = 0; k < WINDOW_STEPS; k++) granule[k] = load16(aligned + k * STEP);
    if (shift == 0) {
        UNROLL
        for (uint32_t k = 0; k < WINDOW_STEPS; k++) store16(to + k * STEP, granule[k]);
        return;
    }
    granule[WINDOW_STEPS] = granule[0];
    if (lane == 0) granule[WINDOW_STEPS] = load16(aligned + WINDOW);
    UNROLL
    for (uint32_t k = 0; k < WINDOW_STEPS; k++) {
        // The next granule is the next lane's. For the last lane, it is the granule of the first
        // lane in the next step.
        Bytes16 next;
        UNROLL
        for (uint32_t w = 0; w < 4; w++)
            next.word[w] = shuffle_from(lane == 0 ? granule[k + 1].word[w] : granule[k].word[w], (lane + 1) & 31);
        store16(to + k * STEP, join16(granule[k], next, shift));
    }
}
