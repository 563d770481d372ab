// Scatter: a C-order box of elements into the slots of its subchunks, in any order of axes, with the
// bytes of its elements swapped and each slot compared with the fill value on the way.
//
// `slab` holds the box densely; subchunk i of the batch goes to slots + i * slot_stride. `flags[i]`
// is raised if an element of the box that goes there differs from the fill value in any bit (before
// its bytes are swapped); null flags: no test. `fill` is the fill value, repeated to a multiple of
// the unit. Bytes of slots that the box has no element for are left as they are.
//
// Bytes moved: the box is read and written once. With flags: one flag for each unit (in tiles, for
// a thread's first unit that differs in a slot), and the fill value once for each thread.
//
// scatter_V moves units of V bytes, which divide the runs that are contiguous on both sides. Blocks
// of 256 threads own 1024 consecutive units of the slab: ceil(units / 1024) blocks, below 2^31
// units. Reads are coalesced; writes are as long as the runs.
//
// scatter_tile_V is for runs of one unit: a transposing order, or subchunks that are narrow along
// the last axis. Blocks of 256 threads own one tile each, a box of the slab that is long both in the
// order of the slab and in the order of the slots, and turn it in shared memory: as many blocks as
// there are tiles.
#include "lift.h"

#define SCATTER(kernel, Unit)                                                                      \
    KERNEL(kernel, LIFT_THREADS)                                                                   \
    (LiftParameters p, const Unit* slab, uint8_t* slots, uint32_t* flags, const Unit* fill) {      \
        lift_units_of_block<Unit, false>(p, const_cast<Unit*>(slab), slots, flags, fill);          \
    }
SCATTER(scatter_1, uint8_t)
SCATTER(scatter_2, uint16_t)
SCATTER(scatter_4, uint32_t)
SCATTER(scatter_8, uint64_t)
SCATTER(scatter_16, Bytes16)

#define SCATTER_TILE(kernel, Unit)                                                                 \
    KERNEL(kernel, LIFT_THREADS)                                                                   \
    (TileParameters p, const Unit* slab, uint8_t* slots, uint32_t* flags, const Unit* fill) {      \
        SHARED(Unit, memory, TILE_ROOM<Unit>);                                             \
        lift_tile_of_block<Unit, false>(p, const_cast<Unit*>(slab), slots, flags, fill, memory);   \
    }
SCATTER_TILE(scatter_tile_1, uint8_t)
SCATTER_TILE(scatter_tile_2, uint16_t)
SCATTER_TILE(scatter_tile_4, uint32_t)
SCATTER_TILE(scatter_tile_8, uint64_t)
SCATTER_TILE(scatter_tile_16, Bytes16)
