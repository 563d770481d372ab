// Kernels for the tests of the emulator: each keeps a rule of the language, or breaks one.
#include "../../device.h"

// Inclusive scan of 256 words by each block, in warps and then over them.
KERNEL(test_scan, 256)(const uint32_t* input, uint32_t* output) {
    SHARED(uint32_t, totals, 8);
    const uint32_t thread = thread_index();
    const uint32_t at = block_index() * block_size() + thread;
    uint64_t sum = load(input + at);
    for (uint32_t delta = 1; delta < 32; delta *= 2) {
        const uint64_t other = shuffle_up(sum, delta);
        if (lane_index() >= delta) sum += other;
    }
    if (lane_index() == 31) totals[thread / 32] = static_cast<uint32_t>(sum);
    block_barrier();
    for (uint32_t warp = 0; warp < thread / 32; ++warp) sum += totals[warp];
    store(output + at, static_cast<uint32_t>(sum));
}

// Many barriers: words go round the block `rounds` times, by `step` threads each time.
KERNEL(test_rounds, 128)(uint32_t* words, uint32_t rounds, uint32_t step) {
    SHARED(uint32_t, ring, 128);
    const uint32_t thread = thread_index();
    uint32_t word = load(words + thread);
    for (uint32_t round = 0; round < rounds; ++round) {
        ring[thread] = word;
        block_barrier();
        word = ring[(thread + step) % 128];
        block_barrier();
    }
    store(words + thread, word);
}

// Each shuffle once: 5 words a thread.
KERNEL(test_shuffles, 64)(uint64_t* output) {
    const uint32_t lane = lane_index();
    const uint32_t value = 100 + thread_index();
    uint64_t* to = output + thread_index() * 5;
    store<uint64_t>(to, shuffle_xor(value, 3));
    store<uint64_t>(to + 1, shuffle_from(value, 31 - lane));
    store<uint64_t>(to + 2, shuffle_up((static_cast<uint64_t>(value) << 32), 2));
    store<uint64_t>(to + 3, ballot(lane % 3 == 0));
    store<uint64_t>(to + 4, ballot(thread_index() >= 32));
}

// A value of each type goes where it should.
struct TestRecord {
    uint64_t a;
    uint32_t b[3];
    uint32_t c;
};
KERNEL(test_arguments, 32)(uint64_t* output, TestRecord record, uint32_t word, uint64_t wide) {
    if (block_index() != 1 || thread_index() != 2) return;
    store(output, record.a);
    store<uint64_t>(output + 1, record.b[0] + 10 * record.b[1] + 100 * record.b[2] + 1000 * record.c);
    store<uint64_t>(output + 2, word);
    store(output + 3, wide);
    store<uint64_t>(output + 4, block_count());
}

// The rest of the language, by one thread: 16 words.
KERNEL(test_words, 32)(uint32_t* words) {
    if (thread_index() != 0) return;
    store(words + 4, multiply_high(0x80000000u, 6));
    store(words + 5, funnel_shift_right(0x33221100u, 0x77665544u, 24));
    store(words + 6, funnel_shift_right(0x33221100u, 0x77665544u, 0));
    store(words + 7, reverse_bytes(0x01020304u));
    store(words + 8, atomic_add(words, 5));
    raise(words + 1);
    raise(words + 1);
    store16(words + 12, load16(words));
}

// Every thread adds 1, and raises a flag.
KERNEL(test_atomics, 64)(uint32_t* words) {
    atomic_add(words, 1);
    raise(words + 1);
}

// Shared memory of a block that nothing was written to, summed up.
KERNEL(test_poison, 32)(uint32_t* output) {
    SHARED(uint32_t, memory, 32);
    store(output + block_index() * 32 + thread_index(), memory[thread_index()]);
    memory[thread_index()] = 0;
}

// The lane `missing` of the second warp has ended.
KERNEL(test_missing_lane, 64)(uint32_t missing) {
    if (thread_index() == missing) return;
    ballot(true);
}

// Lanes from `from` on are in another operation.
KERNEL(test_divergent_warp, 32)(uint32_t from) {
    if (lane_index() >= from)
        warp_barrier();
    else
        shuffle_xor(1, 1);
}

// Lanes from `from` on are in the same operation at another place.
KERNEL(test_divergent_places, 32)(uint32_t from) {
    if (lane_index() >= from)
        warp_barrier();
    else
        warp_barrier();
}

// Threads from `from` on do not come to the barrier.
KERNEL(test_missing_thread, 128)(uint32_t from) {
    if (thread_index() >= from) return;
    block_barrier();
}

// Threads from `from` on come to another barrier.
KERNEL(test_divergent_barrier, 64)(uint32_t from) {
    if (thread_index() >= from)
        block_barrier();
    else
        block_barrier();
}

// The second warp waits for the block, where half the first waits for the warp.
KERNEL(test_mixed_barrier, 64)(uint32_t from) {
    if (thread_index() >= from)
        block_barrier();
    else
        warp_barrier();
}

KERNEL(test_load, 32)(const uint32_t* words, uint32_t* output) { store(output + thread_index(), load(words)); }

KERNEL(test_load16, 32)(const uint8_t* bytes, uint32_t* output) {
    store(output + thread_index(), load16(bytes).word[0]);
}

KERNEL(test_store16, 32)(uint8_t* bytes) { store16(bytes + 16 * thread_index(), Bytes16{{1, 2, 3, 4}}); }

// 52 KiB.
KERNEL(test_too_much_shared, 32)(uint32_t* output) {
    SHARED(uint32_t, one, 13 * 512);
    SHARED(uint32_t, two, 13 * 512);
    store(output + thread_index(), one[0] + two[0]);
}

// Reads words `stride` apart, `count` times; each time the whole block's further on.
KERNEL(test_strided, 64)(const uint32_t* words, uint32_t* output, uint32_t stride, uint32_t count) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; ++i)
        sum += load(words + (i * block_size() + thread_index()) * stride);
    store(output + thread_index(), sum);
}

// Copies 16 bytes a thread.
KERNEL(test_copy16, 64)(const uint8_t* from, uint8_t* to) {
    const uint32_t at = 16 * (block_index() * block_size() + thread_index());
    store16(to + at, load16(from + at));
}

// Reads one byte more than there are.
KERNEL(test_out_of_bounds, 32)(const uint8_t* bytes, uint32_t* output, uint32_t count) {
    store<uint32_t>(output + thread_index(), load(bytes + (thread_index() == 31 ? count : 0)));
}

// Writes the word `at` of 32.
KERNEL(test_shared_overflow, 32)(uint32_t* output, uint32_t at) {
    SHARED(uint32_t, memory, 32);
    uint32_t* address = memory;
    address[at] = thread_index();
    store(output + thread_index(), address[thread_index()]);
}

// Reverses the block's words; the barrier is left out where `synchronised` is 0.
KERNEL(test_reverse, 64)(uint32_t* words, uint32_t synchronised) {
    SHARED(uint32_t, memory, 64);
    memory[thread_index()] = load(words + thread_index());
    if (synchronised != 0) block_barrier();
    store(words + thread_index(), memory[63 - thread_index()]);
}

// Reverses words in each warp; the warp's barrier is a shuffle where `synchronised` is 0.
KERNEL(test_reverse_warps, 64)(uint32_t* words, uint32_t synchronised) {
    SHARED(uint32_t, memory, 64);
    memory[thread_index()] = load(words + thread_index());
    if (synchronised != 0)
        warp_barrier();
    else
        shuffle_xor(0, 0);
    store(words + thread_index(), memory[thread_index() ^ 31]);
}

// The last thread of each block writes a word of the next block's.
KERNEL(test_blocks_overlap, 32)(uint32_t* words, uint32_t more) {
    const uint32_t at = block_index() * 32 + thread_index();
    store(words + at, at);
    if (thread_index() == 31 && more != 0) store(words + at + more, at);
}

// Adds two signed words.
KERNEL(test_signed_overflow, 32)(uint32_t* output, int32_t a, int32_t b) {
    store(output + thread_index(), static_cast<uint32_t>(a + b));
}
