// Unscatter, the inverse of scatter: the slots of subchunks into a C-order box of elements, with the
// bytes of the elements swapped, and the fill value where there is no subchunk.
//
// `slab` gets the box densely, from subchunk i of the batch at slots + i * slot_stride. Where
// `flags` are given, subchunks whose flag is zero are absent: their elements are `fill`, the fill
// value as it is in the slab, repeated to a multiple of the unit. Their slots are not read.
//
// Bytes moved: the box is read and written once, and a flag is read for each unit.
//
// unscatter_V and unscatter_tile_V divide their work as scatter_V and scatter_tile_V do, and need
// the same launches. Here writes of unscatter_V are coalesced, and reads are as long as the runs.
#include "lift.h"

#define UNSCATTER(kernel, Unit)                                                                    \
    KERNEL(kernel, LIFT_THREADS)                                                                   \
    (LiftParameters p, Unit* slab, const uint8_t* slots, const uint32_t* flags, const Unit* fill) { \
        lift_units_of_block<Unit, true>(p, slab, const_cast<uint8_t*>(slots), const_cast<uint32_t*>(flags), fill); \
    }
UNSCATTER(unscatter_1, uint8_t)
UNSCATTER(unscatter_2, uint16_t)
UNSCATTER(unscatter_4, uint32_t)
UNSCATTER(unscatter_8, uint64_t)
UNSCATTER(unscatter_16, Bytes16)

#define UNSCATTER_TILE(kernel, Unit)                                                               \
    KERNEL(kernel, LIFT_THREADS)                                                                   \
    (TileParameters p, Unit* slab, const uint8_t* slots, const uint32_t* flags, const Unit* fill) { \
        SHARED(Unit, memory, TILE_ROOM<Unit>);                                             \
        lift_tile_of_block<Unit, true>(p, slab, const_cast<uint8_t*>(slots), const_cast<uint32_t*>(flags), fill, \
                                       memory);                                                    \
    }
UNSCATTER_TILE(unscatter_tile_1, uint8_t)
UNSCATTER_TILE(unscatter_tile_2, uint16_t)
UNSCATTER_TILE(unscatter_tile_4, uint32_t)
UNSCATTER_TILE(unscatter_tile_8, uint64_t)
UNSCATTER_TILE(unscatter_tile_16, Bytes16)
