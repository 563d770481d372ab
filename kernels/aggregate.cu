// Packs subchunks into dense shards, in three passes.
//
// permute_sizes: for each subchunk i of `count`, permuted[P(i)] = its size and source[P(i)] = i, where
// P is the shard permutation (layout/permutation.rs). The size is sizes[i], or `size` if sizes is null,
// or 0 if present[i] == 0 (present may be null). Places that P does not reach were zeroed before.
// A thread owns a subchunk, and moves about 24 bytes. Launch: blocks of 256 threads, any grid.
//
// scan_whole, scan_sums, scan_add: offsets[k] = sum of the first k of `count` sizes, 0 <= k <=
// count. offsets may be sizes. Either scan_whole, as one block, loops over tiles of 2048 sizes, and
// moves 16 bytes for each size. Or scan_sums sums each tile with one block, scan_whole scans these
// sums, and scan_add adds them with one block for each tile (at least one); 24 bytes are moved for
// each size. Blocks have 256 threads. A warp owns 256 consecutive sizes.
//
// gather: run j is the bytes of `dense` from offsets[j] to offsets[j + 1], and is copied from the
// beginning of slot source[j], at slots + source[j] * slot_stride. slots and dense are 16-aligned.
// offsets[runs] bytes are copied, but at most `capacity`. Warps own stretches of dense of the same
// length, at least 4 KiB. A warp finds its first run by search, and goes on from run to run. Each
// byte is read once and written once, in aligned granules of 16 bytes but for the last one. Where
// runs meet that are aligned differently, granules are loaded twice. A warp also reads about 32
// offsets for each of the log32(runs) rounds of its search, 34 offsets and a source for each
// further run, and where runs meet two offsets and a source for each granule, mostly from caches.
// Launch: blocks of 256 threads, any grid.
#include "copy_bytes.h"

constexpr uint32_t THREADS = 256;
constexpr uint32_t WARPS = THREADS / 32;

constexpr uint32_t MAX_DIGITS = 31;

struct LiftingDigit {
    uint64_t extent;
    uint64_t per_shard;
    uint64_t shard_stride;
    uint64_t within_stride;
};

struct Lifting {
    uint64_t digit_count;
    LiftingDigit digits[MAX_DIGITS]; // fastest first
};
static_assert(sizeof(Lifting) == 8 + MAX_DIGITS * 32, "as the launch has it");

KERNEL(permute_sizes, 256)
(const Lifting lifting, uint64_t count, const uint64_t* sizes, uint64_t size, const uint32_t* present,
 uint64_t* permuted, uint32_t* source) {
    const uint64_t threads = uint64_t{block_count()} * THREADS;
    for (uint64_t i = uint64_t{block_index()} * THREADS + thread_index(); i < count; i += threads) {
        uint64_t number = i;
        uint64_t place = 0;
        for (uint32_t d = 0; d < lifting.digit_count; d++) {
            const uint64_t coordinate = number % lifting.digits[d].extent;
            number /= lifting.digits[d].extent;
            place += coordinate / lifting.digits[d].per_shard * lifting.digits[d].shard_stride +
                     coordinate % lifting.digits[d].per_shard * lifting.digits[d].within_stride;
        }
        const bool elided = present != nullptr && load(present + i) == 0;
        store(permuted + place, elided ? uint64_t{0} : sizes == nullptr ? size : load(sizes + i));
        store(source + place, static_cast<uint32_t>(i));
    }
}

constexpr uint32_t SCAN_ROWS = 8; // sizes per thread
constexpr uint32_t SCAN_TILE = THREADS * SCAN_ROWS;

// The last lane's value.
DEVICE uint64_t last_lane(uint64_t value) {
    const uint32_t low = shuffle_from(static_cast<uint32_t>(value), 31);
    const uint32_t high = shuffle_from(static_cast<uint32_t>(value >> 32), 31);
    return uint64_t{high} << 32 | low;
}

// The first size of the tile that this thread owns; the next ones are 32 apart.
DEVICE uint32_t first_of_tile() { return thread_index() / 32 * (32 * SCAN_ROWS) + lane_index(); }

// Sums the sizes of the tile that begins at `tile`. row[r] becomes the sum before this thread's
// size in row r. Returns the sum of the tile. All threads of the block call this. `warps` may be written
// again behind a barrier.
DEVICE uint64_t scan_tile(const uint64_t* sizes, uint64_t count, uint64_t tile, uint64_t (&row)[SCAN_ROWS],
                          uint64_t* warps) {
    const uint64_t first = tile + first_of_tile();
    const uint32_t lane = lane_index();
    const uint32_t warp = thread_index() / 32;
    uint64_t value[SCAN_ROWS];
    UNROLL
    for (uint32_t r = 0; r < SCAN_ROWS; r++) {
        const uint64_t i = first + r * 32;
        value[r] = i < count ? load(sizes + i) : 0;
    }
    uint64_t before = 0; // the sum of the rows so far
    UNROLL
    for (uint32_t r = 0; r < SCAN_ROWS; r++) {
        uint64_t sum = value[r];
        for (uint32_t delta = 1; delta < 32; delta *= 2) {
            const uint64_t other = shuffle_up(sum, delta);
            if (lane >= delta) sum += other;
        }
        row[r] = before + sum - value[r];
        before += last_lane(sum);
    }
    if (lane == 0) warps[warp] = before;
    block_barrier();
    uint64_t total = 0;
    uint64_t offset = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        if (w == warp) offset = total;
        total += warps[w];
    }
    UNROLL
    for (uint32_t r = 0; r < SCAN_ROWS; r++) row[r] += offset;
    return total;
}

DEVICE void store_tile(uint64_t* offsets, uint64_t count, uint64_t tile, const uint64_t (&row)[SCAN_ROWS],
                       uint64_t before) {
    const uint64_t first = tile + first_of_tile();
    UNROLL
    for (uint32_t r = 0; r < SCAN_ROWS; r++) {
        const uint64_t i = first + r * 32;
        if (i < count) store(offsets + i, before + row[r]);
    }
}

KERNEL(scan_whole, 256)(const uint64_t* sizes, uint64_t count, uint64_t* offsets) {
    SHARED(uint64_t, warps, WARPS);
    uint64_t before = 0;
    for (uint64_t tile = 0; tile < count; tile += SCAN_TILE) {
        uint64_t row[SCAN_ROWS];
        const uint64_t total = scan_tile(sizes, count, tile, row, warps);
        store_tile(offsets, count, tile, row, before);
        before += total;
        block_barrier(); // before the next tile's sums
    }
    if (thread_index() == 0) store(offsets + count, before);
}

KERNEL(scan_sums, 256)(const uint64_t* sizes, uint64_t count, uint64_t* sums) {
    SHARED(uint64_t, warps, WARPS);
    const uint64_t tile = uint64_t{block_index()} * SCAN_TILE;
    uint64_t row[SCAN_ROWS];
    const uint64_t total = scan_tile(sizes, count, tile, row, warps);
    if (thread_index() == 0) store(sums + block_index(), total);
}

KERNEL(scan_add, 256)(const uint64_t* sizes, uint64_t count, const uint64_t* before, uint64_t* offsets) {
    SHARED(uint64_t, warps, WARPS);
    const uint64_t tile = uint64_t{block_index()} * SCAN_TILE;
    uint64_t row[SCAN_ROWS];
    scan_tile(sizes, count, tile, row, warps);
    store_tile(offsets, count, tile, row, load(before + block_index()));
    if (block_index() + 1 == block_count() && thread_index() == 0)
        store(offsets + count, load(before + block_count()));
}

constexpr uint32_t SHORTEST_STRETCH = 2 * WINDOW; // that a warp gathers

// A run: byte `at` of dense, before `end`, comes from byte origin + at of the slots, modulo 2^64.
struct Run {
    uint64_t end;
    uint64_t origin;
};

DEVICE Run run_at(const uint32_t* source, const uint64_t* offsets, uint64_t slot_stride, uint64_t number) {
    return Run{load(offsets + number + 1), load(source + number) * slot_stride - load(offsets + number)};
}

// Returns the number of the run of byte `at`, which is at least `low` and below `high`. If several
// runs begin at the same byte, the result is the last of them: the others are empty.
DEVICE uint64_t run_of(const uint64_t* offsets, uint64_t low, uint64_t high, uint64_t at) {
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (load(offsets + middle) <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// The same, by all lanes of a warp together, with 32 guesses in one load.
DEVICE uint64_t run_of_by_warp(const uint64_t* offsets, uint64_t low, uint64_t high, uint64_t at) {
    while (high - low > 1) {
        const uint64_t apart = (high - low + 31) / 32;
        const uint64_t guess = low + (lane_index() + 1) * apart;
        const bool behind = guess >= high || load(offsets + guess) > at;
        // The lanes that are not behind come first, and the last lane always is.
        const uint32_t before = count_ones(~ballot(behind));
        low += before * apart;
        if (low + apart < high) high = low + apart;
    }
    return low;
}

// The same, for a run that is likely to be among the next 32.
DEVICE uint64_t next_run_of_by_warp(const uint64_t* offsets, uint64_t low, uint64_t high, uint64_t at) {
    const uint64_t guess = low + 1 + lane_index();
    const bool behind = guess >= high || load(offsets + guess) > at;
    const uint32_t before = count_ones(~ballot(behind));
    if (before < 32) return low + before;
    return run_of_by_warp(offsets, low + 32, high, at);
}

constexpr uint32_t MEETING_STEPS = 2; // granules of a lane, all in flight; four would take too many registers

// The warp gathers MEETING_STEPS * STEP bytes from `at` on, but none behind `total`. Their runs are
// `first` to `last`. Each lane finds the runs of its granules, loads all granules, and stores them.
DEVICE void gather_meeting(const uint8_t* slots, uint64_t slot_stride, const uint32_t* source, const uint64_t* offsets,
                           uint8_t* dense, uint64_t first, uint64_t last, uint64_t at, uint64_t total) {
    at += lane_index() * 16;
    uint64_t number[MEETING_STEPS];
    UNROLL
    for (uint32_t k = 0; k < MEETING_STEPS; k++) number[k] = first;
    uint64_t step = 1;
    while (step * 2 <= last - first) step *= 2;
    ROLLED
    for (; step != 0; step /= 2) {
        UNROLL
        for (uint32_t k = 0; k < MEETING_STEPS; k++) {
            const uint64_t next = number[k] + step;
            if (next <= last && load(offsets + next) <= at + k * STEP) number[k] = next;
        }
    }
    uint64_t from[MEETING_STEPS]; // where the granule would begin if all of it were of its first run
    uint32_t end[MEETING_STEPS];  // of its first run's bytes
    uint32_t size[MEETING_STEPS];
    UNROLL
    for (uint32_t k = 0; k < MEETING_STEPS; k++) {
        const uint64_t begin = at + k * STEP;
        const Run run = run_at(source, offsets, slot_stride, number[k]);
        size[k] = begin >= total ? 0 : total - begin < 16 ? static_cast<uint32_t>(total - begin) : 16;
        end[k] = run.end - begin < size[k] ? static_cast<uint32_t>(run.end - begin) : size[k];
        from[k] = run.origin + begin;
    }
    Bytes16 low[MEETING_STEPS], high[MEETING_STEPS];
    UNROLL
    for (uint32_t k = 0; k < MEETING_STEPS; k++) load_part(slots, from[k], 0, end[k], low[k], high[k]);
    UNROLL
    for (uint32_t k = 0; k < MEETING_STEPS; k++) {
        low[k] = join16(low[k], high[k], static_cast<uint32_t>(from[k]) & 15);
        // Other runs in the same granule.
        const uint64_t begin = at + k * STEP;
        while (end[k] < size[k]) {
            const Run run = run_at(source, offsets, slot_stride, run_of(offsets, first, last + 1, begin + end[k]));
            const uint32_t next = run.end - begin < size[k] ? static_cast<uint32_t>(run.end - begin) : size[k];
            Bytes16 part, behind;
            load_part(slots, run.origin + begin, end[k], next, part, behind);
            part = join16(part, behind, static_cast<uint32_t>(run.origin + begin) & 15);
            low[k] = splice16(low[k], part, end[k]);
            end[k] = next;
        }
    }
    UNROLL
    for (uint32_t k = 0; k < MEETING_STEPS; k++) {
        if (size[k] == 16)
            store16(dense + at + k * STEP, low[k]);
        else
            store_bytes(dense + at + k * STEP, low[k], size[k]);
    }
}

// Returns the number of bytes that a warp gathers.
DEVICE uint64_t stretch_of(uint64_t total, uint64_t warps) {
    const uint64_t even = (total + warps - 1) / warps;
    return even <= SHORTEST_STRETCH ? SHORTEST_STRETCH : (even + WINDOW - 1) / WINDOW * WINDOW;
}

KERNEL_RESIDENT(gather, 256, 4)
(const uint8_t* slots, uint64_t slot_stride, const uint32_t* source, const uint64_t* offsets, uint64_t runs,
 uint8_t* dense, uint64_t capacity) {
    uint64_t total = load(offsets + runs);
    if (total > capacity) total = capacity;
    const uint64_t stretch = stretch_of(total, uint64_t{block_count()} * WARPS);
    uint64_t at = (uint64_t{block_index()} * WARPS + thread_index() / 32) * stretch;
    if (at >= total) return;
    const uint64_t end = stretch < total - at ? at + stretch : total;
    uint64_t number = run_of_by_warp(offsets, 0, runs, at);
    Run run = run_at(source, offsets, slot_stride, number);
    for (; at < end; at += WINDOW) {
        if (at >= run.end) {
            number = next_run_of_by_warp(offsets, number + 1, runs, at);
            run = run_at(source, offsets, slot_stride, number);
        }
        if (at + WINDOW <= run.end && at + WINDOW <= total) {
            copy_window(dense + at, slots + (run.origin + at));
            continue;
        }
        // Runs meet here, or dense ends. The next window goes on in the last run, or behind it.
        const uint64_t window_end = at + WINDOW < total ? at + WINDOW : total;
        const uint64_t last = next_run_of_by_warp(offsets, number, runs, window_end - 1);
        ROLLED
        for (uint32_t k = 0; k < WINDOW_STEPS; k += MEETING_STEPS)
            gather_meeting(slots, slot_stride, source, offsets, dense, number, last, at + k * STEP, total);
        number = last;
        run = run_at(source, offsets, slot_stride, number);
    }
}
