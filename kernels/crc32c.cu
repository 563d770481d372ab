// CRC-32C (Castagnoli) of many subchunks at once: appended, or compared.
//
// crc32c_append: for each slot i of `count`, at slots + i * slot_stride (16-aligned), the checksum of
// its first n bytes is stored little-endian behind them. n is sizes[i], which grows by 4, or `length`
// if sizes is null. Slots with present[i] == 0 are left alone (present may be null).
// crc32c_verify: verdicts[i] = RIGHT if the 4 bytes behind the first n are their checksum, else WRONG;
// ABSENT for slots with present[i] == 0.
//
// Bytes moved: each slot is read once, in aligned loads of 16 bytes; 4 bytes are written.
// Launch: blocks of 256 threads, any grid; `team` warps of a block (a power of two, at most 8) share a
// slot, so a block does 8 / team slots at a time. 16.2 KiB of shared memory.
#include "device.h"

constexpr uint32_t POLYNOMIAL = 0x82f63b78u; // P without x^32
#include "crc.h"

KERNEL(crc32c_append, 256)
(uint8_t* slots, uint64_t slot_stride, uint64_t count, uint64_t* sizes, uint64_t length, const uint32_t* present,
 uint32_t team) {
    SHARED(uint32_t, tables, 4096);
    SHARED(uint32_t, parts, WARPS);
    fill_tables(tables);
    const uint32_t warp = thread_index() / 32;
    const uint32_t teams = WARPS / team;
    for (uint64_t first = uint64_t{block_index()} * teams; first < count; first += uint64_t{block_count()} * teams) {
        const uint64_t i = first + warp / team;
        const bool active = i < count && (present == nullptr || load(present + i) != 0);
        const uint64_t bytes = !active ? 0 : sizes == nullptr ? length : load(sizes + i);
        if (!active && team == 1) continue;
        uint8_t* slot = slots + (active ? i : 0) * slot_stride;
        const uint32_t crc = checksum(slot, bytes, team, tables, parts);
        if (!active || warp % team != 0) continue;
        const uint32_t lane = lane_index();
        warp_barrier(); // every lane has read the size, and what is behind the last bytes
        if (lane < 4) store(slot + bytes + lane, static_cast<uint8_t>(crc >> (8 * lane)));
        if (sizes != nullptr && lane == 0) store(sizes + i, bytes + 4);
    }
}

// The verdict on a slot. Any two differ in two bits, and none is 0, as the outcomes of frames.cu.
constexpr uint32_t RIGHT = 1;
constexpr uint32_t WRONG = 2;
constexpr uint32_t ABSENT = 4;

KERNEL(crc32c_verify, 256)
(const uint8_t* slots, uint64_t slot_stride, uint64_t count, const uint64_t* sizes, uint64_t length,
 const uint32_t* present, uint32_t team, uint32_t* verdicts) {
    SHARED(uint32_t, tables, 4096);
    SHARED(uint32_t, parts, WARPS);
    fill_tables(tables);
    const uint32_t warp = thread_index() / 32;
    const uint32_t teams = WARPS / team;
    for (uint64_t first = uint64_t{block_index()} * teams; first < count; first += uint64_t{block_count()} * teams) {
        const uint64_t i = first + warp / team;
        const bool active = i < count && (present == nullptr || load(present + i) != 0);
        const uint64_t bytes = !active ? 0 : sizes == nullptr ? length : load(sizes + i);
        const uint8_t* slot = slots + (active ? i : 0) * slot_stride;
        uint32_t crc = 0;
        if (active || team != 1) crc = checksum(slot, bytes, team, tables, parts);
        if (i >= count || warp % team != 0) continue;
        const uint32_t lane = lane_index();
        bool differs = false;
        if (active && lane < 4) differs = load(slot + bytes + lane) != static_cast<uint8_t>(crc >> (8 * lane));
        const uint32_t different = ballot(differs);
        if (lane == 0) store(verdicts + i, !active ? ABSENT : different != 0 ? WRONG : RIGHT);
    }
}
