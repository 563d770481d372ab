// Blosc's byte shuffle and bit shuffle, and their inverses, block by block, as in C-Blosc 1.21.
//
// Each of `count` slots, at from + i * from_stride (16-aligned), holds `bytes` bytes: blocks of
// `block_bytes`, the last of which may be shorter, of elements of `type_bytes` (1 to 255). The same
// place of the same slot of `to` gets the block shuffled. For a block of n whole elements:
// - shuffle: byte j of element i goes to j * n + i. unshuffle: back.
// - bit_shuffle: bit k of byte j of element i goes to bit i % 8 of byte (8 j + k) * n / 8 + i / 8.
//   bit_unshuffle: back. If n is not a multiple of 8, the block is copied as it is.
// Bytes behind the last whole element are copied to where they were.
//
// A block of threads owns a tile, which is at most 16 KiB of whole elements of a Blosc block, and
// moves it through shared memory. Consecutive elements, or a row of their bytes or bits, are read
// and written in aligned granules of 16 bytes. Granules at the ends of a row are shared with other
// tiles, and written byte by byte. Each byte is read once and written once. For types of up to 16
// bytes, rows of bytes are at least 1 KiB long, and rows of bits at least 128 bytes.
// Launch: blocks of 256 threads, any grid. 16.5 KiB of shared memory, 33 KiB for bits.
#include "copy_bytes.h"

constexpr uint32_t THREADS = 256;
constexpr uint32_t TILE = 16 * 1024;

// The place of byte `at` of a tile in shared memory. A word of padding behind every 128 bytes lets
// lanes that are a power of two apart use different banks.
DEVICE constexpr uint32_t padded(uint32_t at) { return at + (at / 128) * 4; }

// Room for a tile, and for the other bytes of its first and last granule.
constexpr uint32_t TILE_WORDS = (padded(TILE + 32) + 3) / 4;

// Reads bytes of a tile, each `step` behind the one before.
struct Strided {
    const uint8_t* tile;
    uint32_t at;
    uint32_t step;
};

DEVICE uint32_t next(Strided& read) {
    const uint32_t byte = read.tile[padded(read.at)];
    read.at += read.step;
    return byte;
}

// Reads one byte of each of `rows` rows, and then the next byte of each row.
struct Woven {
    const uint8_t* tile;
    uint32_t row_bytes;
    uint32_t rows;
    uint32_t row;
    uint32_t x;
};

DEVICE uint32_t next(Woven& read) {
    const uint32_t byte = read.tile[padded(read.row * read.row_bytes + read.x)];
    read.row++;
    if (read.row == read.rows) {
        read.row = 0;
        read.x++;
    }
    return byte;
}

// The block copies `bytes` bytes to shared memory, and returns how far behind the begin of the tile
// they lie.
DEVICE uint32_t load_tile(uint8_t* tile, const uint8_t* from, uint32_t bytes) {
    const uint32_t head = misalignment(from);
    for (uint32_t at = thread_index() * 16; at < head + bytes; at += THREADS * 16) {
        const Bytes16 granule = load16(from - head + at);
        uint32_t* to = reinterpret_cast<uint32_t*>(tile + padded(at));
        UNROLL
        for (uint32_t w = 0; w < 4; w++) to[w] = granule.word[w];
    }
    return head;
}

// How many granules of 16 bytes one of the rows touches at most.
DEVICE uint32_t granules_of_row(const uint8_t* rows, uint64_t stride, uint32_t bytes) {
    const bool aligned = ((misalignment(rows) | stride) & 15) == 0;
    return (bytes + (aligned ? 15 : 30)) / 16;
}

// The block copies `rows` rows of `bytes` bytes, which are `stride` apart, to shared memory, where
// they lie one behind the other.
DEVICE void load_rows(uint8_t* tile, const uint8_t* from, uint64_t stride, uint32_t rows, uint32_t bytes) {
    const uint32_t granules = granules_of_row(from, stride, bytes);
    for (uint32_t number = thread_index(); number < rows * granules; number += THREADS) {
        const uint32_t row = number / granules;
        const uint32_t at = number % granules * 16;
        const uint8_t* begin = from + row * stride;
        const uint32_t head = misalignment(begin);
        if (at >= head + bytes) continue;
        const Bytes16 granule = load16(begin - head + at);
        const uint32_t first = row * bytes + at - head; // wraps for bytes in front of the tile
        if (at >= head && at + 16 <= head + bytes && first % 4 == 0) {
            UNROLL
            for (uint32_t w = 0; w < 4; w++)
                *reinterpret_cast<uint32_t*>(tile + padded(first + 4 * w)) = granule.word[w];
        } else {
            UNROLL
            for (uint32_t b = 0; b < 16; b++)
                if (at + b >= head && at + b < head + bytes)
                    tile[padded(first + b)] = static_cast<uint8_t>(granule.word[b / 4] >> (8 * (b % 4)));
        }
    }
}

// The block writes `rows` rows of `bytes` bytes, which are `stride` apart. start(row, x) reads the
// bytes of the row from x on.
template <typename Start>
DEVICE void store_rows(uint8_t* to, uint64_t stride, uint32_t rows, uint32_t bytes, const Start& start) {
    const uint32_t granules = granules_of_row(to, stride, bytes);
    for (uint32_t number = thread_index(); number < rows * granules; number += THREADS) {
        const uint32_t row = number / granules;
        const uint32_t at = number % granules * 16;
        uint8_t* begin = to + row * stride;
        const uint32_t head = misalignment(begin);
        if (at >= head + bytes) continue;
        const uint32_t first = at > head ? at - head : 0;
        auto read = start(row, first);
        if (at >= head && at + 16 <= head + bytes) {
            Bytes16 granule;
            UNROLL
            for (uint32_t w = 0; w < 4; w++) {
                granule.word[w] = next(read);
                UNROLL
                for (uint32_t b = 1; b < 4; b++) granule.word[w] |= next(read) << (8 * b);
            }
            store16(begin + first, granule);
        } else {
            const uint32_t end = at + 16 < head + bytes ? at + 16 - head : bytes;
            for (uint32_t x = first; x < end; x++) store(begin + x, static_cast<uint8_t>(next(read)));
        }
    }
}

// The block copies bytes as they are.
DEVICE void copy_tile(uint8_t* to, const uint8_t* from, uint32_t bytes) {
    const uint32_t head = misalignment(to);
    for (uint32_t at = thread_index() * 16; at < head + bytes; at += THREADS * 16) {
        if (at >= head && at + 16 <= head + bytes) {
            store16(to + (at - head), load16_any(from + (at - head)));
        } else {
            const uint32_t end = at + 16 < head + bytes ? at + 16 - head : bytes;
            for (uint32_t x = at > head ? at - head : 0; x < end; x++) store(to + x, load(from + x));
        }
    }
}

// Byte i's bit k becomes byte k's bit i.
DEVICE uint64_t transpose_bits(uint64_t x) {
    uint64_t t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aaull;
    x = x ^ t ^ (t << 7);
    t = (x ^ (x >> 14)) & 0x0000cccc0000ccccull;
    x = x ^ t ^ (t << 14);
    t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0ull;
    return x ^ t ^ (t << 28);
}

// Part of a Blosc block: whole elements, and in the last tile also the bytes behind them.
struct Tile {
    const uint8_t* from; // the block's first byte
    uint8_t* to;
    uint32_t block_elements;
    uint32_t begin; // in the block, in bytes
    uint32_t bytes;
    uint32_t first; // in the block, in elements
    uint32_t elements;
};

DEVICE void shuffle_tile(const Tile& tile, uint32_t type_bytes, uint8_t* shared) {
    const uint32_t head = load_tile(shared, tile.from + tile.begin, tile.elements * type_bytes);
    block_barrier();
    store_rows(tile.to + tile.first, tile.block_elements, type_bytes, tile.elements,
               [=](uint32_t row, uint32_t x) { return Strided{shared, head + x * type_bytes + row, type_bytes}; });
    block_barrier(); // before the next tile is in shared memory
}

DEVICE void unshuffle_tile(const Tile& tile, uint32_t type_bytes, uint8_t* shared) {
    const uint32_t elements = tile.elements;
    load_rows(shared, tile.from + tile.first, tile.block_elements, type_bytes, elements);
    block_barrier();
    store_rows(tile.to + tile.begin, 0, 1, elements * type_bytes, [=](uint32_t, uint32_t x) {
        return Woven{shared, elements, type_bytes, x % type_bytes, x / type_bytes};
    });
    block_barrier(); // before the next tile is in shared memory
}

// The next tile is in `shared` behind the second barrier, and in `bits` behind its own first one.
DEVICE void shuffle_bits_of_tile(const Tile& tile, uint32_t type_bytes, uint8_t* shared, uint8_t* bits) {
    const uint32_t row_bytes = tile.elements / 8;
    const uint32_t head = load_tile(shared, tile.from + tile.begin, tile.elements * type_bytes);
    block_barrier();
    for (uint32_t number = thread_index(); number < row_bytes * type_bytes; number += THREADS) {
        const uint32_t byte = number / row_bytes;
        const uint32_t x = number % row_bytes;
        uint64_t eight = 0;
        UNROLL
        for (uint32_t i = 0; i < 8; i++)
            eight |= uint64_t{shared[padded(head + (8 * x + i) * type_bytes + byte)]} << (8 * i);
        eight = transpose_bits(eight);
        UNROLL
        for (uint32_t k = 0; k < 8; k++)
            bits[padded((8 * byte + k) * row_bytes + x)] = static_cast<uint8_t>(eight >> (8 * k));
    }
    block_barrier();
    store_rows(tile.to + tile.first / 8, tile.block_elements / 8, 8 * type_bytes, row_bytes,
               [=](uint32_t row, uint32_t x) { return Strided{bits, row * row_bytes + x, 1}; });
}

// The same, the other way round.
DEVICE void unshuffle_bits_of_tile(const Tile& tile, uint32_t type_bytes, uint8_t* shared, uint8_t* bits) {
    const uint32_t row_bytes = tile.elements / 8;
    load_rows(bits, tile.from + tile.first / 8, tile.block_elements / 8, 8 * type_bytes, row_bytes);
    block_barrier();
    for (uint32_t number = thread_index(); number < row_bytes * type_bytes; number += THREADS) {
        const uint32_t byte = number / row_bytes;
        const uint32_t x = number % row_bytes;
        uint64_t eight = 0;
        UNROLL
        for (uint32_t k = 0; k < 8; k++)
            eight |= uint64_t{bits[padded((8 * byte + k) * row_bytes + x)]} << (8 * k);
        eight = transpose_bits(eight);
        UNROLL
        for (uint32_t i = 0; i < 8; i++)
            shared[padded((8 * x + i) * type_bytes + byte)] = static_cast<uint8_t>(eight >> (8 * i));
    }
    block_barrier();
    store_rows(tile.to + tile.begin, 0, 1, tile.elements * type_bytes,
               [=](uint32_t, uint32_t x) { return Strided{shared, x, 1}; });
}

// Calls `move` for each tile of this block of threads. Blocks whose elements are not a multiple of
// `Multiple` are copied.
template <uint32_t Multiple, typename Move>
DEVICE void for_each_tile(const uint8_t* from, uint64_t from_stride, uint8_t* to, uint64_t to_stride, uint64_t count,
                          uint64_t bytes, uint32_t block_bytes, uint32_t type_bytes, const Move& move) {
    const uint32_t tile_elements = TILE / type_bytes / 16 * 16;
    const uint32_t tile_bytes = tile_elements * type_bytes;
    const uint64_t blocks = (bytes + block_bytes - 1) / block_bytes;
    const uint32_t tiles = (block_bytes - 1) / tile_bytes + 1; // of a whole block
    for (uint64_t number = block_index(); number < count * blocks * tiles; number += block_count()) {
        const uint64_t slot = number / tiles / blocks;
        const uint64_t offset = number / tiles % blocks * block_bytes;
        const uint32_t size = bytes - offset < block_bytes ? static_cast<uint32_t>(bytes - offset) : block_bytes;
        Tile tile;
        tile.begin = static_cast<uint32_t>(number % tiles) * tile_bytes;
        if (tile.begin >= size) continue;
        tile.from = from + slot * from_stride + offset;
        tile.to = to + slot * to_stride + offset;
        tile.block_elements = size / type_bytes;
        tile.bytes = size - tile.begin < tile_bytes ? size - tile.begin : tile_bytes;
        tile.first = tile.begin / type_bytes;
        tile.elements = tile.bytes / type_bytes;
        uint32_t done = 0;
        if (tile.block_elements % Multiple == 0) {
            move(tile);
            done = tile.elements * type_bytes;
        }
        if (done < tile.bytes) copy_tile(tile.to + tile.begin + done, tile.from + tile.begin + done, tile.bytes - done);
    }
}

KERNEL(shuffle, 256)
(const uint8_t* from, uint64_t from_stride, uint8_t* to, uint64_t to_stride, uint64_t count, uint64_t bytes,
 uint32_t block_bytes, uint32_t type_bytes) {
    SHARED(uint32_t, words, TILE_WORDS);
    uint8_t* shared = reinterpret_cast<uint8_t*>(words);
    for_each_tile<1>(from, from_stride, to, to_stride, count, bytes, block_bytes, type_bytes,
                         [=](const Tile& tile) { shuffle_tile(tile, type_bytes, shared); });
}

KERNEL(unshuffle, 256)
(const uint8_t* from, uint64_t from_stride, uint8_t* to, uint64_t to_stride, uint64_t count, uint64_t bytes,
 uint32_t block_bytes, uint32_t type_bytes) {
    SHARED(uint32_t, words, TILE_WORDS);
    uint8_t* shared = reinterpret_cast<uint8_t*>(words);
    for_each_tile<1>(from, from_stride, to, to_stride, count, bytes, block_bytes, type_bytes,
                         [=](const Tile& tile) { unshuffle_tile(tile, type_bytes, shared); });
}

KERNEL(bit_shuffle, 256)
(const uint8_t* from, uint64_t from_stride, uint8_t* to, uint64_t to_stride, uint64_t count, uint64_t bytes,
 uint32_t block_bytes, uint32_t type_bytes) {
    SHARED(uint32_t, words, TILE_WORDS);
    SHARED(uint32_t, bit_words, TILE_WORDS);
    uint8_t* shared = reinterpret_cast<uint8_t*>(words);
    uint8_t* bits = reinterpret_cast<uint8_t*>(bit_words);
    for_each_tile<8>(from, from_stride, to, to_stride, count, bytes, block_bytes, type_bytes,
                        [=](const Tile& tile) { shuffle_bits_of_tile(tile, type_bytes, shared, bits); });
}

KERNEL(bit_unshuffle, 256)
(const uint8_t* from, uint64_t from_stride, uint8_t* to, uint64_t to_stride, uint64_t count, uint64_t bytes,
 uint32_t block_bytes, uint32_t type_bytes) {
    SHARED(uint32_t, words, TILE_WORDS);
    SHARED(uint32_t, bit_words, TILE_WORDS);
    uint8_t* shared = reinterpret_cast<uint8_t*>(words);
    uint8_t* bits = reinterpret_cast<uint8_t*>(bit_words);
    for_each_tile<8>(from, from_stride, to, to_stride, count, bytes, block_bytes, type_bytes,
                        [=](const Tile& tile) { unshuffle_bits_of_tile(tile, type_bytes, shared, bits); });
}
