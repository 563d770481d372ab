// zstd frames: the first piece as libzstd's blocks, the rest as raw and RLE blocks. Most have no
// content size.

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>
#include <zstd_errors.h>

#include "codecs.h"

enum {
    FIRST = 64 << 10,
    PIECE = 4 << 10,
    HEADER = 14,
    BLOCK_HEADER = 3,
    CHECKSUM = 4,
};

static void little_endian(uint8_t* to, uint64_t number, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++) to[i] = (uint8_t)(number >> (8 * i));
}

size_t zstd_bound(size_t len) {
    size_t rest = len > FIRST ? (len - FIRST + PIECE - 1) / PIECE : 0;
    return HEADER + ZSTD_compressBound(FIRST) + (len > FIRST ? len - FIRST : 0) +
           rest * BLOCK_HEADER + CHECKSUM;
}

/// A context that nobody uses, if there is one: to make one takes longer than to compress a chunk with it.
static _Atomic(ZSTD_CCtx*) spare;

/// Returns libzstd's frame, which the caller frees.
static uint8_t* compress(const uint8_t* from, size_t len, int checksum, size_t* size) {
    size_t room = ZSTD_compressBound(len) + HEADER + CHECKSUM;
    uint8_t* frame = malloc(room);
    ZSTD_CCtx* context = atomic_exchange(&spare, NULL);
    if (context == NULL) context = ZSTD_createCCtx();
    if (frame == NULL || context == NULL) abort();
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 1);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, checksum);
    *size = ZSTD_compress2(context, frame, room, from, len);
    ZSTD_freeCCtx(atomic_exchange(&spare, context));
    if (ZSTD_isError(*size)) abort();
    return frame;
}

/// Writes a header that depends only on content and length: the same chunk gives the same frame.
static size_t header(const uint8_t* from, size_t len, uint8_t* to, int* checksum) {
    little_endian(to, 0xfd2fb528, 4);
    unsigned kind = (from[0] + from[len / 2] + (unsigned)len) % 4;
    *checksum = kind == 1;
    if (kind == 3) { // one segment, with the content size
        if (len < 256) {
            to[4] = 0x20;
            to[5] = (uint8_t)len;
            return 6;
        }
        if (len < 256 + (1 << 16)) {
            to[4] = 0x60;
            little_endian(to + 5, len - 256, 2);
            return 7;
        }
        to[4] = 0xa0;
        little_endian(to + 5, len, 4);
        return 9;
    }
    unsigned log = 10;
    while ((1ull << log) < len) log++;
    to[4] = kind == 1 ? 0x04 : 0x00;
    to[5] = (uint8_t)((log - 10) << 3 | (kind == 2 ? 5 : 0));
    return 6;
}

static int constant(const uint8_t* from, size_t len) {
    return memcmp(from, from + 1, len - 1) == 0;
}

static uint8_t* block(uint8_t* to, unsigned type, size_t len) {
    little_endian(to, len << 3 | type << 1, BLOCK_HEADER);
    return to;
}

size_t zstd_encode(const uint8_t* from, size_t len, uint8_t* to) {
    int checksum;
    uint8_t* at = to + header(from, len, to, &checksum);
    uint8_t* last = NULL;
    size_t done = 0;
    if (len > 1 && !constant(from, len < FIRST ? len : FIRST)) {
        done = len < FIRST ? len : FIRST;
        // Only the first piece has matches: the repeated offsets that a frame begins with are right
        // for it.
        size_t size;
        uint8_t* frame = compress(from, done, 0, &size);
        if (frame[4] != 0) abort(); // if it is 0, the header has six bytes
        const uint8_t* next = frame + 6;
        for (int more = 1; more;) {
            uint32_t word = next[0] | next[1] << 8 | (uint32_t)next[2] << 16;
            more = !(word & 1);
            size_t stored = (word >> 1 & 3) == 1 ? 1 : word >> 3;
            last = block(at, word >> 1 & 3, word >> 3);
            memcpy(at + BLOCK_HEADER, next + BLOCK_HEADER, stored);
            at += BLOCK_HEADER + stored;
            next += BLOCK_HEADER + stored;
        }
        free(frame);
    }
    while (done < len) {
        size_t piece = len - done < PIECE ? len - done : PIECE;
        int run = piece > 1 && constant(from + done, piece);
        last = block(at, run ? 1 : 0, piece);
        size_t stored = run ? 1 : piece;
        memcpy(at + BLOCK_HEADER, from + done, stored);
        at += BLOCK_HEADER + stored;
        done += piece;
    }
    *last |= 1;
    if (checksum) {
        size_t size;
        uint8_t* frame = compress(from, len, 1, &size);
        memcpy(at, frame + size - CHECKSUM, CHECKSUM);
        at += CHECKSUM;
        free(frame);
    }
    return (size_t)(at - to);
}

enum decoded zstd_decode(const uint8_t* from, size_t len, uint8_t* to, size_t room,
                         size_t* written) {
    size_t size = ZSTD_decompress(to, room, from, len);
    if (!ZSTD_isError(size)) {
        *written = size;
        return DECODED;
    }
    return ZSTD_getErrorCode(size) == ZSTD_error_dstSize_tooSmall ? TOO_LARGE : CORRUPT;
}
