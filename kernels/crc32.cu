// CRC-32 (of gzip and zip) of many subchunks at once.
//
// crc32: for each slot i of `count`, at slots + i * slot_stride (16-aligned), checksums[i] = the
// checksum of its first n bytes, where n is sizes[i], or `length` if sizes is null; 0 if
// present[i] == 0 (present may be null).
//
// Bytes moved: each slot is read once, in aligned loads of 16 bytes; 4 bytes are written.
// Launch: blocks of 256 threads, any grid; `team` warps of a block (a power of two, at most 8) share a
// slot, so a block does 8 / team slots at a time. 16.2 KiB of shared memory.
#include "device.h"

constexpr uint32_t POLYNOMIAL = 0xedb88320u; // P without x^32
#include "crc.h"

KERNEL(crc32, 256)
(const uint8_t* slots, uint64_t slot_stride, uint64_t count, const uint64_t* sizes, uint64_t length,
 const uint32_t* present, uint32_t team, uint32_t* checksums) {
    SHARED(uint32_t, tables, 4096);
    SHARED(uint32_t, parts, WARPS);
    fill_tables(tables);
    const uint32_t warp = thread_index() / 32;
    const uint32_t teams = WARPS / team;
    for (uint64_t first = uint64_t{block_index()} * teams; first < count; first += uint64_t{block_count()} * teams) {
        const uint64_t i = first + warp / team;
        const bool active = i < count && (present == nullptr || load(present + i) != 0);
        const uint64_t bytes = !active ? 0 : sizes == nullptr ? length : load(sizes + i);
        uint32_t crc = 0;
        if (active || team != 1) crc = checksum(slots + (active ? i : 0) * slot_stride, bytes, team, tables, parts);
        if (i < count && warp % team == 0 && lane_index() == 0) store(checksums + i, active ? crc : 0);
    }
}
