// LZ4 blocks: literals, and the matches that a small table finds.

#include <string.h>

#include "codecs.h"

enum {
    TABLE = 1 << 10,
    WINDOW = (1 << 16) - 1,
    SHORTEST = 4,
    /// So many last bytes are literals.
    TAIL = 5,
    /// The last match begins at least so many bytes before the end.
    MARGIN = 12,
};

size_t lz4_bound(size_t len) {
    return len + len / 255 + 19;
}

static uint8_t* length(uint8_t* to, size_t rest) {
    for (; rest >= 255; rest -= 255) *to++ = 255;
    *to++ = (uint8_t)rest;
    return to;
}

static uint8_t* sequence(uint8_t* to, const uint8_t* literals, size_t count, size_t match) {
    uint8_t* token = to++;
    *token = (uint8_t)((count < 15 ? count : 15) << 4 | (match < 15 ? match : 15));
    if (count >= 15) to = length(to, count - 15);
    memcpy(to, literals, count);
    return to + count;
}

size_t lz4_encode(const uint8_t* from, size_t len, uint8_t* to) {
    uint32_t table[TABLE] = {0};
    uint8_t* out = to;
    size_t written = 0;
    for (size_t at = 1; len > MARGIN && at + MARGIN <= len;) {
        uint32_t word;
        memcpy(&word, from + at, 4);
        uint32_t* entry = &table[word * 2654435761u >> 22];
        size_t before = *entry;
        *entry = (uint32_t)at;
        if (at - before > WINDOW || memcmp(from + before, from + at, SHORTEST) != 0) {
            at++;
            continue;
        }
        size_t end = at + SHORTEST;
        while (end < len - TAIL && from[end] == from[end - (at - before)]) end++;
        size_t match = end - at - SHORTEST;
        out = sequence(out, from + written, at - written, match);
        *out++ = (uint8_t)(at - before);
        *out++ = (uint8_t)((at - before) >> 8);
        if (match >= 15) out = length(out, match - 15);
        written = at = end;
    }
    out = sequence(out, from + written, len - written, 0);
    return (size_t)(out - to);
}

enum decoded lz4_decode(const uint8_t* from, size_t len, uint8_t* to, size_t room,
                        size_t* written) {
    const uint8_t* in = from;
    const uint8_t* end = from + len;
    size_t at = 0;
    for (;;) {
        if (in == end) return CORRUPT;
        uint8_t token = *in++;
        size_t count = token >> 4, match = token & 15;
        for (uint8_t more = 255; token >> 4 == 15 && more == 255; count += more) {
            if (in == end) return CORRUPT;
            more = *in++;
        }
        if ((size_t)(end - in) < count) return CORRUPT;
        if (room - at < count) return TOO_LARGE;
        memcpy(to + at, in, count);
        in += count;
        at += count;
        if (in == end) {
            *written = at;
            return DECODED;
        }
        if (end - in < 2) return CORRUPT;
        size_t distance = in[0] | (size_t)in[1] << 8;
        in += 2;
        for (uint8_t more = 255; (token & 15) == 15 && more == 255; match += more) {
            if (in == end) return CORRUPT;
            more = *in++;
        }
        match += SHORTEST;
        if (distance == 0 || distance > at) return CORRUPT;
        if (room - at < match) return TOO_LARGE;
        for (; match > 0; match--, at++) to[at] = to[at - distance];
    }
}
