// Writes the tables that a batched compressor reads: the address and the size of each chunk, and
// the address of the chunk's output.
//
// A chunk is the compressor's unit of work. Subchunk i of `count` has `bytes` bytes at
// inputs + i * in_stride: `blocks` chunks of `block` bytes, the last of which may be shorter. Chunk j of
// it has the number c = i * blocks + j.
// chunk_tables: input_pointers[c] = inputs + i * in_stride + j * block, input_sizes[c] = the chunk's bytes, and
// output_pointers[c] = outputs + c * out_stride. If stored[i] == 0 (stored may be null) the size is 1:
// the result is not used, but a compressor may not accept empty chunks.
//
// A thread owns a chunk. Bytes moved: 24 are written for each chunk, and 4 read. The memory at the
// addresses is not touched.
// Launch: blocks of 256 threads, any grid.
#include "device.h"

constexpr uint32_t THREADS = 256;

KERNEL(chunk_tables, 256)
(uint64_t inputs, uint64_t in_stride, uint64_t bytes, uint64_t block, uint64_t blocks, uint64_t count,
 const uint32_t* stored, uint64_t outputs, uint64_t out_stride, uint64_t* input_pointers, uint64_t* input_sizes,
 uint64_t* output_pointers) {
    const uint64_t threads = uint64_t{block_count()} * THREADS;
    for (uint64_t c = uint64_t{block_index()} * THREADS + thread_index(); c < count * blocks; c += threads) {
        const uint64_t i = c / blocks;
        const uint64_t begin = c % blocks * block;
        const uint64_t left = bytes - begin;
        const bool elided = stored != nullptr && load(stored + i) == 0;
        store(input_pointers + c, inputs + i * in_stride + begin);
        store(input_sizes + c, elided ? uint64_t{1} : left < block ? left : block);
        store(output_pointers + c, outputs + c * out_stride);
    }
}
