// Turns the output of a batched compressor into frames that every reader of a format accepts.
//
// Stream c, at streams + c * stream_stride (16-aligned), has stream_sizes[c] bytes. It has failed
// if statuses[c] != 0, or its size is 0 or more than stream_most. The frame of subchunk i of
// `count` goes to frames + i * frame_stride (16-aligned). sizes[i] becomes the frame's bytes,
// framed[i] 1 and outcomes[i] FRAMED. Without a frame, sizes[i] and framed[i] become 0, and
// outcomes[i] EMPTY if stored[i] == 0 (stored may be null), else FAILED: a stream failed, or the
// frame's slot is too small.
//
// frame_zstd: copies stream i, a Zstandard frame (RFC 8878) of `bytes` bytes of content, to a frame
// whose header has the content size. The stream has failed if it is not one frame
// whose blocks end where the stream does, needs a dictionary, or has another content size.
//
// frame_gzip: stream i is a deflate stream of `bytes` bytes whose CRC-32 is checksums[i]. It becomes a
// gzip member (RFC 1952) without name and time.
//
// frame_blosc_layout, frame_blosc_streams: subchunk i has `bytes` bytes at inputs + i * in_stride
// (16-aligned): ceil(bytes / block) blocks of `block` bytes, the last of which may be shorter. Stream
// i * blocks + j is of block j. They become a Blosc 1 frame:
//     0   `format`: versions, flags and type size      16  start of each block in the frame
//     4   bytes of content                             ..  for each block: bytes of the stream, the stream
//     8   bytes of a block                             Integers have 32 bits and are little-endian.
//     12  bytes of the frame
// If a stream is not shorter than its block, the frame has the block instead. The first kernel
// writes the header, the starts, sizes[i] and the flags. The second one writes the streams.
//
// A warp owns a piece of a stream, or in frame_blosc_layout a subchunk. Each byte of a stream is
// read once and written once, in aligned stores of 16 bytes but for up to 15 bytes at either end.
// Bytes next to a stream are written one by one, 16 at most. Nothing is written behind a frame.
// Launch: blocks of 256 threads, any grid.
#include "copy_bytes.h"

constexpr uint32_t THREADS = 256;
constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t PIECE = 4 * WINDOW; // that a warp writes at a time

// How many pieces `bytes` bytes have, at least one.
DEVICE uint64_t pieces_in(uint64_t bytes) { return bytes == 0 ? 1 : (bytes - 1) / PIECE + 1; }

DEVICE uint64_t first_warp() { return uint64_t{block_index()} * WARPS + thread_index() / 32; }

DEVICE uint64_t warps() { return uint64_t{block_count()} * WARPS; }

// The warp copies one of the pieces of `bytes` bytes between any addresses; all lanes have the same
// arguments. The first piece also has the bytes in front of the first aligned address to write.
DEVICE void copy_piece(uint8_t* to, const uint8_t* from, uint64_t bytes, uint64_t piece) {
    const uint32_t lane = lane_index();
    uint32_t head = (16 - misalignment(to)) & 15;
    if (head > bytes) head = static_cast<uint32_t>(bytes);
    if (piece == 0 && lane < head) store(to + lane, load(from + lane));
    to += head;
    from += head;
    bytes -= head;
    uint64_t at = piece * PIECE;
    if (at >= bytes) return;
    const uint64_t end = at + PIECE < bytes ? at + PIECE : bytes;
    for (; at + WINDOW <= end; at += WINDOW) copy_window(to + at, from + at);
    for (at += lane * 16; at + 16 <= end; at += STEP) store16(to + at, load16_any(from + at));
    const uint32_t tail = static_cast<uint32_t>(end & 15); // not 0 for the last piece only
    at = end - tail + lane;
    if (lane < tail) store(to + at, load(from + at));
}

// The warp writes up to 16 bytes: the bytes of `low`, then the bytes of `high`.
DEVICE void store_bytes(uint8_t* to, uint32_t bytes, uint64_t low, uint64_t high) {
    const uint32_t lane = lane_index();
    if (lane < bytes) store(to + lane, static_cast<uint8_t>((lane < 8 ? low : high) >> (lane % 8 * 8)));
}

DEVICE bool is_elided(const uint32_t* stored, uint64_t i) { return stored != nullptr && load(stored + i) == 0; }

// The bytes of stream c, or 0 if it counts as failed.
DEVICE uint64_t stream_bytes(const uint64_t* sizes, const uint32_t* statuses, uint64_t c, uint64_t most) {
    const uint64_t size = load(sizes + c);
    const uint32_t status = load(statuses + c);
    return status != 0 || size > most ? 0 : size;
}

// The outcome of a subchunk. Any two differ in two bits, and none is 0: the host takes neither a
// flipped bit nor cleared memory for an outcome.
constexpr uint32_t FRAMED = 1;
constexpr uint32_t FAILED = 2;
constexpr uint32_t EMPTY = 4;

// The warp stores the results for a subchunk.
DEVICE void store_result(uint64_t* sizes, uint32_t* framed, uint32_t* outcomes, uint64_t i, uint64_t size,
                         bool elided) {
    if (lane_index() != 0) return;
    store(sizes + i, size);
    store(framed + i, static_cast<uint32_t>(size != 0));
    store(outcomes + i, size != 0 ? FRAMED : elided ? EMPTY : FAILED);
}

constexpr uint32_t ZSTD_MAGIC = 0xfd2fb528u;
constexpr uint32_t ZSTD_BLOCK_HEADER = 3;

struct ZstdHeader {
    uint32_t bytes; // of the stream's own header; 0 if that header cannot be used
    bool checksum;  // behind the blocks
    // The new bytes in place of the first `replaced` bytes.
    uint32_t replaced;
    uint32_t new_bytes;
    uint64_t low;
    uint64_t high;
};

// Reads the header at the beginning of a frame, whose content has `content` bytes.
//
// A header without content size has a window descriptor, which stays. Without it (a single segment)
// the content's size would be the window's size and so limit blocks. But a compressed block may be
// longer than a small content. The new field has at least 2 bytes; a field of 2 counts from 256.
DEVICE ZstdHeader zstd_header(const Bytes16& begin, uint64_t content) {
    ZstdHeader header = {};
    const uint32_t descriptor = begin.word[1] & 255;
    const uint32_t flag = descriptor >> 6;
    const bool single_segment = (descriptor & 0x20) != 0;
    const bool reserved = (descriptor & 0x08) != 0;
    const bool dictionary = (descriptor & 0x03) != 0;
    if (begin.word[0] != ZSTD_MAGIC || reserved || dictionary) return header;
    header.checksum = (descriptor & 0x04) != 0;
    const uint32_t at = single_segment ? 5 : 6; // of the content size
    const uint32_t field = flag == 0 ? (single_segment ? 1 : 0) : 1u << flag;
    if (field != 0) {
        // The 8 bytes from 5 or 6 on.
        const uint64_t middle = begin.word[1] | uint64_t{begin.word[2]} << 32;
        uint64_t size = middle >> (8 * (at - 4)) | uint64_t{begin.word[3]} << (8 * (12 - at));
        if (field < 8) size &= (uint64_t{1} << (8 * field)) - 1;
        if (field == 2) size += 256;
        if (size == content) header.bytes = at + field;
        return header;
    }
    const bool short_field = content >= 256 && content < 256 + 65536;
    const uint32_t new_flag = short_field ? 1 : content >> 32 == 0 ? 2 : 3;
    const uint32_t new_descriptor = new_flag << 6 | (descriptor & 0x04);
    const uint64_t size = short_field ? content - 256 : content;
    header.bytes = at;
    header.replaced = at;
    header.new_bytes = at + (1u << new_flag);
    header.low = ZSTD_MAGIC | uint64_t{new_descriptor} << 32 | uint64_t{begin.word[1] & 0xff00} << 32 | size << 48;
    header.high = size >> 16;
    return header;
}

// Whether the frame's blocks, from byte `at` on, and the checksum behind them end at `bytes`.
DEVICE bool zstd_blocks_end_at(const uint8_t* frame, uint64_t at, bool checksum, uint64_t bytes) {
    for (;;) {
        if (at + ZSTD_BLOCK_HEADER > bytes) return false;
        const uint32_t low = load(frame + at), middle = load(frame + at + 1), high = load(frame + at + 2);
        const uint32_t block = low | middle << 8 | high << 16;
        const uint32_t type = block >> 1 & 3;
        if (type == 3) return false; // reserved
        at += ZSTD_BLOCK_HEADER + (type == 1 ? 1 : block >> 3); // one byte, repeated, or as many as it says
        if ((block & 1) != 0) return at + (checksum ? 4 : 0) == bytes;
    }
}

KERNEL(frame_zstd, 256)
(const uint8_t* streams, uint64_t stream_stride, uint64_t stream_most, const uint64_t* stream_sizes, const uint32_t* statuses,
 const uint32_t* stored, uint64_t bytes, uint64_t count, uint8_t* frames, uint64_t frame_stride, uint64_t* sizes,
 uint32_t* framed, uint32_t* outcomes) {
    const uint64_t pieces = pieces_in(stream_most);
    for (uint64_t number = first_warp(); number < count * pieces; number += warps()) {
        const uint64_t i = number / pieces;
        const uint64_t piece = number % pieces;
        const bool elided = is_elided(stored, i);
        const uint64_t stream_size = elided ? 0 : stream_bytes(stream_sizes, statuses, i, stream_most);
        if (piece != 0 && piece * PIECE >= stream_size) continue;
        const uint8_t* stream = streams + i * stream_stride;
        uint8_t* frame = frames + i * frame_stride;
        uint64_t size = 0;
        if (stream_size != 0) {
            const ZstdHeader header = zstd_header(load16(stream), bytes);
            if (header.bytes != 0) size = stream_size - header.replaced + header.new_bytes;
            if (size > frame_stride) size = 0;
            if (piece == 0 && size != 0 && !zstd_blocks_end_at(stream, header.bytes, header.checksum, stream_size))
                size = 0;
            if (size != 0) {
                if (piece == 0) store_bytes(frame, header.new_bytes, header.low, header.high);
                copy_piece(frame + header.new_bytes, stream + header.replaced, stream_size - header.replaced, piece);
            }
        }
        if (piece == 0) store_result(sizes, framed, outcomes, i, size, elided);
    }
}

// Magic, deflate, no flags, no time, no extra flags, from an unknown system.
constexpr uint32_t GZIP_HEADER = 10;
constexpr uint64_t GZIP_HEADER_LOW = 0x00088b1f;
constexpr uint64_t GZIP_HEADER_HIGH = 0xff00;
constexpr uint32_t GZIP_TRAILER = 8;

KERNEL(frame_gzip, 256)
(const uint8_t* streams, uint64_t stream_stride, uint64_t stream_most, const uint64_t* stream_sizes, const uint32_t* statuses,
 const uint32_t* stored, uint64_t bytes, const uint32_t* checksums, uint64_t count, uint8_t* frames,
 uint64_t frame_stride, uint64_t* sizes, uint32_t* framed, uint32_t* outcomes) {
    const uint64_t pieces = pieces_in(stream_most);
    for (uint64_t number = first_warp(); number < count * pieces; number += warps()) {
        const uint64_t i = number / pieces;
        const uint64_t piece = number % pieces;
        const bool elided = is_elided(stored, i);
        const uint64_t stream_size = elided ? 0 : stream_bytes(stream_sizes, statuses, i, stream_most);
        if (piece != 0 && piece * PIECE >= stream_size) continue;
        uint64_t size = stream_size == 0 ? 0 : GZIP_HEADER + stream_size + GZIP_TRAILER;
        if (size > frame_stride) size = 0;
        if (size != 0) {
            uint8_t* frame = frames + i * frame_stride;
            if (piece == 0) {
                store_bytes(frame, GZIP_HEADER, GZIP_HEADER_LOW, GZIP_HEADER_HIGH);
                const uint64_t trailer = load(checksums + i) | bytes << 32;
                store_bytes(frame + GZIP_HEADER + stream_size, GZIP_TRAILER, trailer, 0);
            }
            copy_piece(frame + GZIP_HEADER, streams + i * stream_stride, stream_size, piece);
        }
        if (piece == 0) store_result(sizes, framed, outcomes, i, size, elided);
    }
}

constexpr uint32_t BLOSC_HEADER = 16;
constexpr uint32_t BLOSC_INTEGER = 4;

// The bytes of block j.
DEVICE uint32_t block_bytes(uint32_t bytes, uint32_t block, uint32_t j) {
    const uint32_t left = bytes - j * block;
    return left < block ? left : block;
}

KERNEL(frame_blosc_layout, 256)
(uint64_t stream_most, const uint64_t* stream_sizes, const uint32_t* statuses, const uint32_t* stored,
 uint32_t bytes, uint32_t block, uint64_t count, uint32_t format, uint8_t* frames, uint64_t frame_stride,
 uint64_t* sizes, uint32_t* framed, uint32_t* outcomes) {
    const uint32_t lane = lane_index();
    const uint32_t blocks = (bytes - 1) / block + 1;
    for (uint64_t i = first_warp(); i < count; i += warps()) {
        const bool elided = is_elided(stored, i);
        uint32_t* words = reinterpret_cast<uint32_t*>(frames + i * frame_stride);
        uint32_t end = BLOSC_HEADER + BLOSC_INTEGER * blocks; // of the streams so far
        bool bad = false;
        for (uint32_t first = 0; first < blocks && !elided && !bad; first += 32) {
            const uint32_t j = first + lane;
            uint64_t length = 0;
            bool stream_failed = false;
            if (j < blocks) {
                length = stream_bytes(stream_sizes, statuses, i * blocks + j, stream_most);
                stream_failed = length == 0;
                const uint32_t whole = block_bytes(bytes, block, j);
                length = BLOSC_INTEGER + (length < whole ? length : whole);
            }
            bad = ballot(stream_failed) != 0;
            uint64_t sum = length;
            for (uint32_t delta = 1; delta < 32; delta *= 2) {
                const uint64_t other = shuffle_up(sum, delta);
                if (lane >= delta) sum += other;
            }
            if (j < blocks) store(words + BLOSC_HEADER / 4 + j, end + static_cast<uint32_t>(sum - length));
            end += shuffle_from(static_cast<uint32_t>(sum), 31);
        }
        if (elided || bad) end = 0;
        if (end != 0 && lane < 4) store(words + lane, lane == 0 ? format : lane == 1 ? bytes : lane == 2 ? block : end);
        store_result(sizes, framed, outcomes, i, end, elided);
    }
}

KERNEL(frame_blosc_streams, 256)
(const uint8_t* inputs, uint64_t in_stride, const uint8_t* streams, uint64_t stream_stride,
 const uint64_t* stream_sizes, uint32_t bytes, uint32_t block, uint64_t count, uint8_t* frames,
 uint64_t frame_stride, const uint64_t* sizes) {
    const uint64_t pieces = pieces_in(block);
    const uint32_t blocks = (bytes - 1) / block + 1;
    for (uint64_t number = first_warp(); number < count * blocks * pieces; number += warps()) {
        const uint64_t c = number / pieces;
        const uint64_t piece = number % pieces;
        const uint64_t i = c / blocks;
        const uint32_t j = static_cast<uint32_t>(c % blocks);
        if (load(sizes + i) == 0) continue;
        const uint64_t stream_size = load(stream_sizes + c);
        const uint32_t whole = block_bytes(bytes, block, j);
        const bool raw = stream_size >= whole;
        const uint32_t length = raw ? whole : static_cast<uint32_t>(stream_size);
        if (piece != 0 && piece * PIECE >= length) continue;
        const uint8_t* from = raw ? inputs + i * in_stride + uint64_t{j} * block : streams + c * stream_stride;
        uint8_t* frame = frames + i * frame_stride;
        uint8_t* to = frame + load(reinterpret_cast<const uint32_t*>(frame + BLOSC_HEADER) + j);
        if (piece == 0) store_bytes(to, BLOSC_INTEGER, length, 0);
        copy_piece(to + BLOSC_INTEGER, from, length, piece);
    }
}
