// Raw deflate streams: blocks with the fixed codes, and every fourth one stored. The decoder knows
// dynamic codes, too.

#include <string.h>

#include "codecs.h"

enum {
    PIECE = 4 << 10,
    TABLE = 1 << 12,
    WINDOW = 1 << 15,
    SHORTEST = 3,
    LONGEST = 258,
};

static const uint16_t length_base[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                         31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
static const uint8_t length_extra[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                         2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
static const uint16_t distance_base[30] = {1,   2,   3,   4,   5,   7,    9,    13,   17,   25,
                                           33,  49,  65,  97,  129, 193,  257,  385,  513,  769,
                                           1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
static const uint8_t distance_extra[30] = {0, 0, 0, 0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  6,
                                           6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};

struct writer {
    uint8_t* at;
    uint64_t bits;
    unsigned count;
};

/// Writes bits, low bits first.
static void put(struct writer* out, uint32_t bits, unsigned count) {
    out->bits |= (uint64_t)bits << out->count;
    out->count += count;
    while (out->count >= 8) {
        *out->at++ = (uint8_t)out->bits;
        out->bits >>= 8;
        out->count -= 8;
    }
}

static void align(struct writer* out) {
    if (out->count > 0) put(out, 0, 8 - out->count);
}

/// Writes a Huffman code, high bits first.
static void code(struct writer* out, uint32_t bits, unsigned count) {
    uint32_t reversed = 0;
    for (unsigned i = 0; i < count; i++) reversed |= (bits >> i & 1) << (count - 1 - i);
    put(out, reversed, count);
}

static void symbol(struct writer* out, unsigned number) {
    if (number < 144) {
        code(out, 0x30 + number, 8);
    } else if (number < 256) {
        code(out, 0x190 + number - 144, 9);
    } else if (number < 280) {
        code(out, number - 256, 7);
    } else {
        code(out, 0xc0 + number - 280, 8);
    }
}

static void match(struct writer* out, size_t length, size_t distance) {
    unsigned i = 28;
    while (length_base[i] > length) i--;
    symbol(out, 257 + i);
    put(out, (uint32_t)(length - length_base[i]), length_extra[i]);
    i = 29;
    while (distance_base[i] > distance) i--;
    code(out, i, 5);
    put(out, (uint32_t)(distance - distance_base[i]), distance_extra[i]);
}

size_t deflate_bound(size_t len) {
    // A literal has at most nine bits. A block has three bits for its header and seven for its end,
    // or if it is stored, five bytes and the bits to fill one.
    return len + len / 8 + (len / PIECE + 1) * 6 + 8;
}

size_t deflate_encode(const uint8_t* from, size_t len, uint8_t* to) {
    static const uint32_t none = UINT32_MAX;
    uint32_t table[TABLE];
    for (size_t i = 0; i < TABLE; i++) table[i] = none;
    struct writer out = {to, 0, 0};
    size_t piece = 0;
    for (size_t begin = 0; begin < len; begin += PIECE, piece++) {
        size_t end = len - begin < PIECE ? len : begin + PIECE;
        put(&out, end == len, 1);
        if (piece % 4 == 3) {
            put(&out, 0, 2);
            align(&out);
            put(&out, (uint32_t)(end - begin), 16);
            put(&out, ~(uint32_t)(end - begin) & 0xffff, 16);
            memcpy(out.at, from + begin, end - begin);
            out.at += end - begin;
            continue;
        }
        put(&out, 1, 2);
        for (size_t at = begin; at < end;) {
            size_t length = 0, distance = 0;
            if (end - at >= SHORTEST) {
                uint32_t word = from[at] | from[at + 1] << 8 | (uint32_t)from[at + 2] << 16;
                uint32_t* entry = &table[word * 2654435761u >> 20];
                if (*entry != none && at - *entry <= WINDOW) {
                    distance = at - *entry;
                    while (length < LONGEST && at + length < end &&
                           from[at + length] == from[at + length - distance])
                        length++;
                }
                *entry = (uint32_t)at;
            }
            if (length >= SHORTEST) {
                match(&out, length, distance);
                at += length;
            } else {
                symbol(&out, from[at]);
                at++;
            }
        }
        symbol(&out, 256);
    }
    align(&out);
    return (size_t)(out.at - to);
}

struct reader {
    const uint8_t* at;
    const uint8_t* end;
    uint32_t bits;
    unsigned count;
    int short_of;
};

static uint32_t get(struct reader* in, unsigned count) {
    while (in->count < count) {
        if (in->at == in->end) {
            in->short_of = 1;
            return 0;
        }
        in->bits |= (uint32_t)*in->at++ << in->count;
        in->count += 8;
    }
    uint32_t bits = in->bits & ((1u << count) - 1);
    in->bits >>= count;
    in->count -= count;
    return bits;
}

/// A canonical code: how many symbols have each length, and the symbols in order of their codes.
struct code {
    uint16_t count[16];
    uint16_t symbols[288];
};

/// Builds a code. Returns how many codes of the longest length are unused; negative if there are
/// too many codes.
static int build(struct code* code, const uint8_t* lengths, unsigned symbols) {
    uint16_t offsets[16] = {0};
    memset(code->count, 0, sizeof code->count);
    for (unsigned i = 0; i < symbols; i++) code->count[lengths[i]]++;
    int left = 1;
    for (unsigned i = 1; i < 16; i++) {
        left = left * 2 - code->count[i];
        if (left < 0) return left;
        if (i < 15) offsets[i + 1] = offsets[i] + code->count[i];
    }
    for (unsigned i = 0; i < symbols; i++)
        if (lengths[i] > 0) code->symbols[offsets[lengths[i]]++] = (uint16_t)i;
    return left;
}

static int decode(struct reader* in, const struct code* code) {
    int bits = 0, first = 0, index = 0;
    for (unsigned i = 1; i < 16; i++) {
        bits |= (int)get(in, 1);
        if (in->short_of) return -1;
        int count = code->count[i];
        if (bits - count < first) return code->symbols[index + bits - first];
        index += count;
        first = (first + count) << 1;
        bits <<= 1;
    }
    return -1;
}

static int dynamic_codes(struct reader* in, struct code* literals, struct code* distances) {
    static const uint8_t order[19] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                      11, 4,  12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[320] = {0};
    unsigned literal_count = get(in, 5) + 257, distance_count = get(in, 5) + 1;
    unsigned length_count = get(in, 4) + 4;
    if (in->short_of || literal_count > 286 || distance_count > 30) return 0;
    for (unsigned i = 0; i < length_count; i++) lengths[order[i]] = (uint8_t)get(in, 3);
    struct code code;
    if (in->short_of || build(&code, lengths, 19) != 0) return 0;
    memset(lengths, 0, sizeof lengths);
    for (unsigned i = 0; i < literal_count + distance_count;) {
        int number = decode(in, &code);
        if (number < 0) return 0;
        if (number < 16) {
            lengths[i++] = (uint8_t)number;
            continue;
        }
        if (number == 16 && i == 0) return 0;
        uint8_t length = number == 16 ? lengths[i - 1] : 0;
        unsigned times = number == 16   ? 3 + get(in, 2)
                         : number == 17 ? 3 + get(in, 3)
                                        : 11 + get(in, 7);
        if (in->short_of || i + times > literal_count + distance_count) return 0;
        while (times-- > 0) lengths[i++] = length;
    }
    if (lengths[256] == 0) return 0;
    // A code may be incomplete if it has one symbol only.
    int left = build(literals, lengths, literal_count);
    if (left < 0 || (left > 0 && literals->count[0] + 1u != literal_count)) return 0;
    left = build(distances, lengths + literal_count, distance_count);
    return left == 0 || (left > 0 && distances->count[0] + 1u >= distance_count);
}

static void fixed_codes(struct code* literals, struct code* distances) {
    uint8_t lengths[288];
    memset(lengths, 8, 144);
    memset(lengths + 144, 9, 112);
    memset(lengths + 256, 7, 24);
    memset(lengths + 280, 8, 8);
    build(literals, lengths, 288);
    memset(lengths, 5, 30);
    build(distances, lengths, 30);
}

enum decoded deflate_decode(const uint8_t* from, size_t len, uint8_t* to, size_t room,
                            size_t* written) {
    struct reader in = {from, from + len, 0, 0, 0};
    size_t at = 0;
    int last;
    do {
        last = (int)get(&in, 1);
        unsigned type = get(&in, 2);
        if (in.short_of || type == 3) return CORRUPT;
        if (type == 0) {
            in.bits = in.count = 0;
            if (in.end - in.at < 4) return CORRUPT;
            size_t size = in.at[0] | (size_t)in.at[1] << 8;
            size_t inverse = in.at[2] | (size_t)in.at[3] << 8;
            in.at += 4;
            if ((size ^ inverse) != 0xffff || (size_t)(in.end - in.at) < size) return CORRUPT;
            if (room - at < size) return TOO_LARGE;
            memcpy(to + at, in.at, size);
            in.at += size;
            at += size;
            continue;
        }
        struct code literals, distances;
        if (type == 1) {
            fixed_codes(&literals, &distances);
        } else if (!dynamic_codes(&in, &literals, &distances)) {
            return CORRUPT;
        }
        for (;;) {
            int number = decode(&in, &literals);
            if (number < 0) return CORRUPT;
            if (number == 256) break;
            if (number < 256) {
                if (at == room) return TOO_LARGE;
                to[at++] = (uint8_t)number;
                continue;
            }
            if (number > 285) return CORRUPT;
            size_t length = length_base[number - 257] + get(&in, length_extra[number - 257]);
            int distance_number = decode(&in, &distances);
            if (distance_number < 0 || distance_number > 29) return CORRUPT;
            size_t distance =
                distance_base[distance_number] + get(&in, distance_extra[distance_number]);
            if (in.short_of || distance > at) return CORRUPT;
            if (room - at < length) return TOO_LARGE;
            for (; length > 0; length--, at++) to[at] = to[at - distance];
        }
    } while (!last);
    if (in.at != in.end) return CORRUPT;
    *written = at;
    return DECODED;
}
