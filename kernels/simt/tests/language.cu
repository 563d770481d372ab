// Kernels for the tests of the emulator.
#include "../../device.h"

// Inclusive scan of 256 words, by warps and then over them.
KERNEL(test_scan, 256)(const uint32_t* input, uint32_t* output) {
    SHARED(uint32_t, totals, 8);
    const uint32_t thread = thread_index();
    uint64_t sum = load(input + thread);
    for (uint32_t delta = 1; delta < 32; delta *= 2) {
        const uint64_t other = shuffle_up(sum, delta);
        if (lane_index() >= delta) sum += other;
    }
    if (lane_index() == 31) totals[thread / 32] = static_cast<uint32_t>(sum);
    block_barrier();
    for (uint32_t warp = 0; warp < thread / 32; ++warp) sum += totals[warp];
    store(output + thread, static_cast<uint32_t>(sum));
}

// A lane of the second warp is missing.
KERNEL(test_missing_lane, 64)(uint32_t missing) {
    if (thread_index() == missing) return;
    ballot(true);
}
