// Place: boxes of subchunks from their slots to a strided array of elements.
//
// A part is a box of one subchunk, and a record of the table: where the box begins in its slot and in
// the array, and how it goes on. A part without a slot is absent: its elements are `fill`, the fill
// value as it is in the array, repeated to a multiple of the unit. Digits in mixed radix, made on the
// host, turn the number of a unit of the part into a place on either side. Axes along which both sides
// go on without a gap are one digit.
//
// place_V moves units of V bytes: every offset and step of the launch is a multiple of V, and so are
// the addresses. Blocks of 256 threads own 1024 consecutive units of one part, `blocks` blocks for
// each part, as many as the largest part needs. Blocks of smaller parts find nothing to do. Each unit
// is read once and written once, in the order of the array: writes are as long as its rows are, reads
// as long as both sides go on together. Bytes of the array that belong to no part are not touched.
#include "lift.h"

struct PlaceDigit {
    uint32_t extent;
    uint32_t magic;
    uint32_t shift;
    uint32_t zero;
    uint64_t source; // bytes from one value to the next in the slot
    uint64_t target; // and in the array
};
static_assert(sizeof(PlaceDigit) == 32, "as on the host");

struct PlacePart {
    uint64_t source; // of the first unit, in bytes from the first slot; ABSENT for the fill value
    uint64_t target; // in bytes from the begin of the array
    uint32_t units;  // below 2^31
    uint32_t digit_count;
    uint64_t zero;
};
static_assert(sizeof(PlacePart) == 32, "as on the host");

constexpr uint64_t ABSENT = ~uint64_t{0};

struct PlaceParameters {
    uint64_t record;  // bytes from one part of the table to the next
    uint32_t blocks;  // for each part
    uint32_t swap;    // reverse groups of so many bytes; 1 for none, at most V
    uint32_t period;  // units after which the fill pattern repeats
    uint32_t zero;
};
static_assert(sizeof(PlaceParameters) == 24, "as on the host");

template <typename Unit>
DEVICE void place_units_of_block(const PlaceParameters& p, const uint8_t* table, const uint8_t* slots, const Unit* fill,
                                 uint8_t* array) {
    const uint32_t number = block_index() / p.blocks;
    const uint8_t* record = table + number * p.record;
    const PlacePart* part = reinterpret_cast<const PlacePart*>(record);
    const PlaceDigit* digits = reinterpret_cast<const PlaceDigit*>(record + sizeof(PlacePart));
    const uint32_t units = load(&part->units);
    const uint32_t first = (block_index() - number * p.blocks) * (LIFT_THREADS * LIFT_UNITS) + thread_index();
    if (first >= units) return;
    const uint64_t begin = load(&part->source);
    uint32_t rest[LIFT_UNITS], phase[LIFT_UNITS];
    uint64_t source[LIFT_UNITS], target[LIFT_UNITS];
    UNROLL
    for (uint32_t k = 0; k < LIFT_UNITS; k++) {
        const uint32_t wanted = first + k * LIFT_THREADS;
        rest[k] = wanted < units ? wanted : units - 1;
        phase[k] = rest[k];
        source[k] = begin;
        target[k] = load(&part->target);
    }
    ROLLED
    for (uint32_t i = load(&part->digit_count) - 1; i > 0; i--) {
        const uint32_t extent = load(&digits[i].extent), magic = load(&digits[i].magic), shift = load(&digits[i].shift);
        const uint64_t source_step = load(&digits[i].source), target_step = load(&digits[i].target);
        UNROLL
        for (uint32_t k = 0; k < LIFT_UNITS; k++) {
            const uint32_t quotient = fast_divide(rest[k], magic, shift);
            const uint32_t digit = rest[k] - quotient * extent;
            source[k] += digit * source_step;
            target[k] += digit * target_step;
            rest[k] = quotient;
        }
    }
    const uint64_t source_step = load(&digits[0].source), target_step = load(&digits[0].target);
    Unit value[LIFT_UNITS];
    UNROLL
    for (uint32_t k = 0; k < LIFT_UNITS; k++) {
        target[k] += rest[k] * target_step;
        if (begin == ABSENT) {
            value[k] = load(fill + phase[k] % p.period);
        } else {
            value[k] = load(reinterpret_cast<const Unit*>(slots + source[k] + rest[k] * source_step));
        }
    }
    if (p.swap != 1 && begin != ABSENT) {
        UNROLL
        for (uint32_t k = 0; k < LIFT_UNITS; k++) value[k] = swapped(value[k], p.swap);
    }
    UNROLL
    for (uint32_t k = 0; k < LIFT_UNITS; k++) {
        if (first + k * LIFT_THREADS < units) store(reinterpret_cast<Unit*>(array + target[k]), value[k]);
    }
}

#define PLACE(kernel, Unit)                                                                        \
    KERNEL(kernel, LIFT_THREADS)                                                                   \
    (PlaceParameters p, const uint8_t* table, const uint8_t* slots, const Unit* fill, uint8_t* array) { \
        place_units_of_block<Unit>(p, table, slots, fill, array);                                  \
    }
PLACE(place_1, uint8_t)
PLACE(place_2, uint16_t)
PLACE(place_4, uint32_t)
PLACE(place_8, uint64_t)
PLACE(place_16, Bytes16)
