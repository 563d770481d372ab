// The code that scatter and unscatter share: a walk over a slab's elements, in either direction.
//
// A slab is a box of elements, dense in C order. Its elements belong to subchunks, each of which
// has a slot of slot_stride bytes. Everything is counted in units of V = sizeof(Unit) bytes, and
// aligned to V bytes on both sides. Mixed-radix digits, made on the host, turn the number of a unit
// of the slab into a slot and a unit within the slot.
#pragma once

#include "device.h"

// One digit: it has `extent` values, and steps from one value to the next. The quotient by the
// extent is the upper half of a product with `magic`, shifted right by `shift`.
struct LiftDigit {
    uint32_t extent;
    uint32_t magic;
    uint32_t shift;
    uint32_t within; // units within a slot
    uint32_t slot;
};
static_assert(sizeof(LiftDigit) == 20, "as on the host");

struct LiftParameters {
    uint64_t slot_stride; // bytes
    uint32_t units;       // of the slab; below 2^31
    uint32_t within;      // of the first unit
    uint32_t digit_count; // at least 1
    uint32_t swap;        // reverse groups of so many bytes; 1 for none, at most V
    uint32_t period;      // units after which the fill pattern repeats
    uint32_t period_magic;
    uint32_t period_shift;
    uint32_t zero;
    LiftDigit digits[32]; // slowest first
};
static_assert(sizeof(LiftParameters) == 40 + 32 * 20, "as on the host");

// A digit within a tile, on one of its sides: steps in units.
struct TileDigit {
    uint32_t extent;
    uint32_t magic;
    uint32_t shift;
    uint32_t step; // in the slab, or within a slot
    uint32_t slot;
    uint32_t shared; // in the tile's memory
    uint32_t split;  // 1, 2: the last tile has fewer values, Tile::limit[split - 1]; 0: it has not
};
static_assert(sizeof(TileDigit) == 28, "as on the host");

// A digit of the number of a tile: steps from one tile to the next, in units.
struct GridDigit {
    uint32_t extent;
    uint32_t magic;
    uint32_t shift;
    uint32_t slab;
    uint32_t within;
    uint32_t slot;
    uint32_t split;
    uint32_t last; // values of the split digit in the last tile
};
static_assert(sizeof(GridDigit) == 32, "as on the host");

struct TileParameters {
    uint64_t slot_stride;      // bytes
    uint32_t units;            // of a tile
    uint32_t within;           // of the first unit
    uint32_t swap;             // as above
    uint32_t slab_digit_count; // at least 1, as are the others
    uint32_t slot_digit_count;
    uint32_t grid_digit_count;
    // The only digit in which a thread's next unit differs, and by how much; 0: others differ, too.
    uint32_t slab_leap_digit;
    uint32_t slab_leap;
    uint32_t slot_leap_digit;
    uint32_t slot_leap;
    TileDigit slab_digits[12]; // in the order of the slab, slowest first
    TileDigit slot_digits[12]; // the same digits, in the order of the slots
    GridDigit grid_digits[32];
};
static_assert(sizeof(TileParameters) == 48 + 24 * 28 + 32 * 32, "as on the host");

// n < 2^31.
DEVICE uint32_t fast_divide(uint32_t n, uint32_t magic, uint32_t shift) { return multiply_high(n, magic) >> shift; }

DEVICE bool differs(uint8_t a, uint8_t b) { return a != b; }
DEVICE bool differs(uint16_t a, uint16_t b) { return a != b; }
DEVICE bool differs(uint32_t a, uint32_t b) { return a != b; }
DEVICE bool differs(uint64_t a, uint64_t b) { return a != b; }
DEVICE bool differs(const Bytes16& a, const Bytes16& b) {
    return ((a.word[0] ^ b.word[0]) | (a.word[1] ^ b.word[1]) | (a.word[2] ^ b.word[2]) |
            (a.word[3] ^ b.word[3])) != 0;
}

// Reverse every group of 2 or 4 bytes.
DEVICE uint32_t swap_word(uint32_t word, uint32_t group) {
    const uint32_t reversed = reverse_bytes(word);
    return group == 2 ? funnel_shift_right(reversed, reversed, 16) : reversed;
}

// Reverse every group of `group` bytes: a power of two, at least 2 and at most the unit.
DEVICE uint8_t swapped(uint8_t unit, uint32_t) { return unit; }
DEVICE uint16_t swapped(uint16_t unit, uint32_t) { return static_cast<uint16_t>(unit << 8 | unit >> 8); }
DEVICE uint32_t swapped(uint32_t unit, uint32_t group) { return swap_word(unit, group); }
DEVICE uint64_t swapped(uint64_t unit, uint32_t group) {
    const uint64_t low = swap_word(static_cast<uint32_t>(unit), group);
    const uint64_t high = swap_word(static_cast<uint32_t>(unit >> 32), group);
    return group == 8 ? low << 32 | high : high << 32 | low;
}
DEVICE Bytes16 swapped(const Bytes16& unit, uint32_t group) {
    const uint32_t a = swap_word(unit.word[0], group), b = swap_word(unit.word[1], group);
    const uint32_t c = swap_word(unit.word[2], group), d = swap_word(unit.word[3], group);
    if (group == 16) return Bytes16{{d, c, b, a}};
    if (group == 8) return Bytes16{{b, a, d, c}};
    return Bytes16{{a, b, c, d}};
}

// The threads of a block, and the units that a thread moves at a time, all in flight together.
constexpr uint32_t LIFT_THREADS = 256;
constexpr uint32_t LIFT_UNITS = 4;

// The place of a unit of the slab in the fill pattern.
DEVICE uint32_t fill_phase(const LiftParameters& p, uint32_t number) {
    if (p.period == 1) return 0;
    return number - fast_divide(number, p.period_magic, p.period_shift) * p.period;
}

// Raises the flags of slots. Bit k of `wanted` asks for the flag of slot[k]. All lanes of the warp
// take part; for each slot, one of them stores.
template <uint32_t count>
DEVICE void raise_of_warp(uint32_t* flags, const uint32_t* slot, uint32_t wanted) {
    ROLLED
    for (uint32_t lanes = ballot(wanted != 0); lanes != 0; lanes = ballot(wanted != 0)) {
        const uint32_t first = count_ones((lanes & (0u - lanes)) - 1);
        uint32_t mine = slot[0];
        UNROLL
        for (uint32_t k = 1; k < count; k++) {
            if ((wanted & ((1u << k) - 1)) == 0) mine = slot[k];
        }
        const uint32_t chosen = shuffle_from(mine, first);
        if (lane_index() == first) raise(flags + chosen);
        UNROLL
        for (uint32_t k = 0; k < count; k++) {
            if (slot[k] == chosen) wanted &= ~(1u << k);
        }
    }
}

// Scatters, or unscatters if `inverse`, the units of one block. In each of LIFT_UNITS rounds, the
// threads take consecutive units of the slab, one for each thread. Threads without a unit take the
// last unit, and store nothing.
//
// Scatter raises the flags, if there are any, of slots that differ from the fill pattern. For
// unscatter, flags tell which subchunks are present. The others yield the fill pattern.
template <typename Unit, bool inverse>
DEVICE void lift_units_of_block(const LiftParameters& p, Unit* slab, uint8_t* slots, uint32_t* flags,
                                const Unit* fill) {
    const uint32_t first = block_index() * (LIFT_THREADS * LIFT_UNITS) + thread_index();
    uint32_t number[LIFT_UNITS], rest[LIFT_UNITS], slot[LIFT_UNITS], within[LIFT_UNITS];
    UNROLL
    for (uint32_t k = 0; k < LIFT_UNITS; k++) {
        const uint32_t wanted = first + k * LIFT_THREADS;
        number[k] = wanted < p.units ? wanted : p.units - 1;
        rest[k] = number[k];
        slot[k] = 0;
        within[k] = p.within;
    }
    Unit value[LIFT_UNITS];
    Unit filler{};
    if (!inverse) {
        UNROLL
        for (uint32_t k = 0; k < LIFT_UNITS; k++) value[k] = load(slab + number[k]);
        if (flags != nullptr) filler = load(fill + fill_phase(p, number[0]));
    }
    ROLLED
    for (uint32_t i = p.digit_count - 1; i > 0; i--) {
        const uint32_t extent = p.digits[i].extent, magic = p.digits[i].magic, shift = p.digits[i].shift;
        const uint32_t within_step = p.digits[i].within, slot_step = p.digits[i].slot;
        UNROLL
        for (uint32_t k = 0; k < LIFT_UNITS; k++) {
            const uint32_t quotient = fast_divide(rest[k], magic, shift);
            const uint32_t digit = rest[k] - quotient * extent;
            within[k] += digit * within_step;
            slot[k] += digit * slot_step;
            rest[k] = quotient;
        }
    }
    Unit* place[LIFT_UNITS];
    UNROLL
    for (uint32_t k = 0; k < LIFT_UNITS; k++) {
        within[k] += rest[k] * p.digits[0].within;
        slot[k] += rest[k] * p.digits[0].slot;
        place[k] = reinterpret_cast<Unit*>(slots + slot[k] * p.slot_stride) + within[k];
    }
    if (inverse) {
        bool present[LIFT_UNITS];
        UNROLL
        for (uint32_t k = 0; k < LIFT_UNITS; k++) present[k] = flags == nullptr || load(flags + slot[k]) != 0;
        UNROLL
        for (uint32_t k = 0; k < LIFT_UNITS; k++) {
            if (present[k]) value[k] = load(place[k]);
        }
        UNROLL
        for (uint32_t k = 0; k < LIFT_UNITS; k++) {
            if (!present[k]) value[k] = load(fill + fill_phase(p, number[k]));
            else if (p.swap != 1) value[k] = swapped(value[k], p.swap);
        }
    } else {
        if (flags != nullptr) {
            // All loads of units and flags are issued before any of them is waited for.
            bool raised[LIFT_UNITS];
            UNROLL
            for (uint32_t k = 0; k < LIFT_UNITS; k++) raised[k] = is_raised(flags + slot[k]);
            uint32_t wanted = 0;
            UNROLL
            for (uint32_t k = 0; k < LIFT_UNITS; k++) {
                if (k > 0 && p.period != 1) filler = load(fill + fill_phase(p, number[k]));
                if (!raised[k] && differs(value[k], filler)) wanted |= 1u << k;
            }
            raise_of_warp<LIFT_UNITS>(flags, slot, wanted);
        }
        if (p.swap != 1) {
            UNROLL
            for (uint32_t k = 0; k < LIFT_UNITS; k++) value[k] = swapped(value[k], p.swap);
        }
    }
    UNROLL
    for (uint32_t k = 0; k < LIFT_UNITS; k++) {
        if (first + k * LIFT_THREADS < p.units) store(inverse ? slab + number[k] : place[k], value[k]);
    }
}

// Where a tile is.
struct Tile {
    uint32_t slab; // its first unit
    uint32_t within;
    uint32_t slot;
    uint32_t limit[2]; // how many values the split digits have in this tile
};

DEVICE Tile find_tile(const TileParameters& p, uint32_t number) {
    Tile tile = {0, p.within, 0, {0xffffffffu, 0xffffffffu}};
    uint32_t rest = number;
    ROLLED
    for (uint32_t i = p.grid_digit_count; i-- > 0;) {
        const GridDigit& digit = p.grid_digits[i];
        uint32_t index = rest;
        if (i > 0) {
            rest = fast_divide(rest, digit.magic, digit.shift);
            index -= rest * digit.extent;
        }
        tile.slab += index * digit.slab;
        tile.within += index * digit.within;
        tile.slot += index * digit.slot;
        if (index == digit.extent - 1) {
            if (digit.split == 1) tile.limit[0] = digit.last;
            if (digit.split == 2) tile.limit[1] = digit.last;
        }
    }
    return tile;
}

// The places of `count` units of a tile, on one side: those of a thread.
template <uint32_t count> struct Places {
    uint32_t step[count];
    uint32_t slot[count];
    uint32_t shared[count];
    bool inside[count];
};

// Returns how many values of a digit are in the tile.
DEVICE uint32_t limit_of(const TileDigit& digit, const Tile& tile) {
    return digit.split == 0 ? 0xffffffffu : digit.split == 1 ? tile.limit[0] : tile.limit[1];
}

// Returns the places of the units from `first` on that are LIFT_THREADS apart.
template <uint32_t EACH>
DEVICE Places<EACH> find_places(const TileDigit* digits, uint32_t count, uint32_t leap_digit, uint32_t leap,
                                const Tile& tile, uint32_t units, uint32_t first) {
    Places<EACH> place;
    if (leap != 0) {
        uint32_t rest = first, step = 0, slot = 0, shared = 0, leaping = 0;
        bool inside = true;
        ROLLED
        for (uint32_t i = count; i-- > 0;) {
            const TileDigit& digit = digits[i];
            const uint32_t quotient = i == 0 ? 0 : fast_divide(rest, digit.magic, digit.shift);
            const uint32_t index = rest - quotient * digit.extent;
            rest = quotient;
            step += index * digit.step;
            slot += index * digit.slot;
            shared += index * digit.shared;
            inside = inside && index < limit_of(digit, tile);
            if (i == leap_digit) leaping = index;
        }
        const TileDigit& digit = digits[leap_digit];
        const uint32_t limit = limit_of(digit, tile);
        UNROLL
        for (uint32_t k = 0; k < EACH; k++) {
            const uint32_t more = k * leap;
            place.step[k] = step + more * digit.step;
            place.slot[k] = slot + more * digit.slot;
            place.shared[k] = shared + more * digit.shared;
            place.inside[k] = inside && leaping + more < limit && first + k * LIFT_THREADS < units;
        }
        return place;
    }
    uint32_t rest[EACH];
    UNROLL
    for (uint32_t k = 0; k < EACH; k++) {
        rest[k] = first + k * LIFT_THREADS;
        place.step[k] = place.slot[k] = place.shared[k] = 0;
        place.inside[k] = rest[k] < units;
    }
    ROLLED
    for (uint32_t i = count; i-- > 0;) {
        const TileDigit& digit = digits[i];
        const uint32_t limit = limit_of(digit, tile);
        UNROLL
        for (uint32_t k = 0; k < EACH; k++) {
            // The first digit takes the rest: nothing is divided, and its magic is not used.
            const uint32_t quotient = i == 0 ? 0 : fast_divide(rest[k], digit.magic, digit.shift);
            const uint32_t index = rest[k] - quotient * digit.extent;
            rest[k] = quotient;
            place.step[k] += index * digit.step;
            place.slot[k] += index * digit.slot;
            place.shared[k] += index * digit.shared;
            place.inside[k] = place.inside[k] && index < limit;
        }
    }
    return place;
}

// Units for which a tile's memory has room: the most that the host puts in a tile, and padding.
template <typename Unit>
constexpr uint32_t TILE_ROOM = sizeof(Unit) <= 2 ? 5120 : sizeof(Unit) <= 8 ? 1152 : 320;

// Units that a thread has in flight. A tile of the largest units has one for each thread.
template <typename Unit> constexpr uint32_t TILE_EACH = sizeof(Unit) <= 8 ? LIFT_UNITS : 1;

// Scatters, or unscatters if `inverse`, one tile: into shared memory in the order of one side, and
// out of it in the order of the other side.
template <typename Unit, bool inverse>
DEVICE void lift_tile_of_block(const TileParameters& p, Unit* slab, uint8_t* slots, uint32_t* flags, const Unit* fill,
                               Unit* memory) {
    constexpr uint32_t EACH = TILE_EACH<Unit>;
    const Tile tile = find_tile(p, block_index());
    slab += tile.slab;
    const uint32_t units = p.units;
    if (!inverse) {
        ROLLED
        for (uint32_t begin = 0; begin < units; begin += LIFT_THREADS * EACH) {
            Unit value[EACH];
            const Places<EACH> place = find_places<EACH>(p.slab_digits, p.slab_digit_count, p.slab_leap_digit, p.slab_leap, tile,
                                                         units, begin + thread_index());
            UNROLL
            for (uint32_t k = 0; k < EACH; k++) {
                if (place.inside[k]) value[k] = load(slab + place.step[k]);
            }
            UNROLL
            for (uint32_t k = 0; k < EACH; k++) {
                if (place.inside[k]) memory[place.shared[k]] = value[k];
            }
        }
        block_barrier();
    }
    Unit filler{};
    if (flags != nullptr) filler = load(fill);
    uint32_t raised = 0xffffffffu;
    ROLLED
    for (uint32_t begin = 0; begin < units; begin += LIFT_THREADS * EACH) {
        Unit value[EACH];
        const Places<EACH> place = find_places<EACH>(p.slot_digits, p.slot_digit_count, p.slot_leap_digit, p.slot_leap, tile,
                                         units, begin + thread_index());
        uint32_t slot[EACH];
        Unit* in_slot[EACH];
        UNROLL
        for (uint32_t k = 0; k < EACH; k++) {
            slot[k] = tile.slot + place.slot[k];
            in_slot[k] = reinterpret_cast<Unit*>(slots + slot[k] * p.slot_stride) + (tile.within + place.step[k]);
        }
        if (inverse) {
            bool present[EACH];
            UNROLL
            for (uint32_t k = 0; k < EACH; k++)
                present[k] = place.inside[k] && (flags == nullptr || load(flags + slot[k]) != 0);
            UNROLL
            for (uint32_t k = 0; k < EACH; k++) {
                if (present[k]) value[k] = load(in_slot[k]);
            }
            UNROLL
            for (uint32_t k = 0; k < EACH; k++) {
                if (!present[k]) value[k] = filler;
                else if (p.swap != 1) value[k] = swapped(value[k], p.swap);
                if (place.inside[k]) memory[place.shared[k]] = value[k];
            }
        } else {
            bool different[EACH];
            UNROLL
            for (uint32_t k = 0; k < EACH; k++) {
                different[k] = false;
                if (!place.inside[k]) continue;
                value[k] = memory[place.shared[k]];
                different[k] = flags != nullptr && differs(value[k], filler);
                if (p.swap != 1) value[k] = swapped(value[k], p.swap);
                store(in_slot[k], value[k]);
            }
            // This follows the stores, so that they need not wait for flags.
            UNROLL
            for (uint32_t k = 0; k < EACH; k++) {
                bool wanted = false;
                if (different[k] && slot[k] != raised) {
                    wanted = !is_raised(flags + slot[k]);
                    raised = slot[k];
                }
                raise_of_warp<1>(flags, slot + k, wanted);
            }
        }
    }
    if (inverse) {
        block_barrier();
        ROLLED
        for (uint32_t begin = 0; begin < units; begin += LIFT_THREADS * EACH) {
            const Places<EACH> place = find_places<EACH>(p.slab_digits, p.slab_digit_count, p.slab_leap_digit, p.slab_leap, tile,
                                                         units, begin + thread_index());
            UNROLL
            for (uint32_t k = 0; k < EACH; k++) {
                if (place.inside[k]) store(slab + place.step[k], memory[place.shared[k]]);
            }
        }
    }
}
