// Copies subchunks from shards to slots: the inverse of gather.
//
// For each slot i of `count`, sizes[i] bytes from shards + offsets[i] on are copied to
// slots + i * slot_stride; shards and slots are 16-aligned. A size of zero means that there is nothing
// to copy. An extent that does not fit into shard_bytes or into a slot is not copied, either: offsets
// and sizes may come from a file. A warp owns 4 KiB of a slot at a time. Each byte is read once and
// written once; stores are of aligned 16 bytes but for the last of a slot.
// Launch: blocks of 256 threads, any grid.
#include "copy_bytes.h"

constexpr uint32_t THREADS = 256;
constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t PIECE = 2 * WINDOW; // that a warp writes at a time

// Whether the aligned granules that hold bytes up to `end` of `shards` are within it.
DEVICE bool aligned_within(uint64_t end, uint64_t shard_bytes) { return ((end + 15) & ~uint64_t{15}) <= shard_bytes; }

// One lane copies 16 bytes, or those up to `size`, from byte `at` of its slot on.
DEVICE void split_granule(const uint8_t* shards, uint64_t shard_bytes, uint64_t offset, uint8_t* slot, uint64_t at,
                          uint64_t size) {
    if (at + 16 <= size && aligned_within(offset + at + 16, shard_bytes)) {
        store16(slot + at, load16_any(shards + offset + at));
        return;
    }
    const uint64_t end = at + 16 < size ? at + 16 : size;
    for (; at < end; at++) store(slot + at, load(shards + offset + at));
}

// The piece that a warp writes at a time: part of slot i, from the slot's byte `begin` on.
struct Piece {
    uint64_t i;
    uint64_t begin;
};

DEVICE uint64_t pieces_in(uint64_t slot_stride) { return (slot_stride + PIECE - 1) / PIECE; }

DEVICE Piece piece_of(uint64_t number, uint64_t pieces_per_slot) {
    return Piece{number / pieces_per_slot, number % pieces_per_slot * PIECE};
}

KERNEL(split, 256)
(const uint8_t* shards, uint64_t shard_bytes, const uint64_t* offsets, const uint64_t* sizes, uint8_t* slots,
 uint64_t slot_stride, uint64_t count) {
    const uint64_t pieces_per_slot = pieces_in(slot_stride);
    const uint64_t warps = uint64_t{block_count()} * WARPS;
    uint64_t number = uint64_t{block_index()} * WARPS + thread_index() / 32;
    for (; number < count * pieces_per_slot; number += warps) {
        const Piece piece = piece_of(number, pieces_per_slot);
        const uint64_t size = load(sizes + piece.i);
        if (piece.begin >= size || size > slot_stride) continue;
        const uint64_t offset = load(offsets + piece.i);
        if (offset > shard_bytes || size > shard_bytes - offset) continue;
        uint8_t* slot = slots + piece.i * slot_stride;
        const uint64_t end = piece.begin + PIECE < size ? piece.begin + PIECE : size;
        for (uint64_t at = piece.begin; at < end; at += WINDOW) {
            if (at + WINDOW <= size && aligned_within(offset + at + WINDOW, shard_bytes)) {
                copy_window(slot + at, shards + offset + at);
                continue;
            }
            for (uint32_t k = 0; k < WINDOW_STEPS; k++) {
                const uint64_t granule = at + k * STEP + lane_index() * 16;
                if (granule < size) split_granule(shards, shard_bytes, offset, slot, granule, size);
            }
        }
    }
}
