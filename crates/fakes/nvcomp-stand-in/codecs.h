// Decoders, and encoders whose output is legal but differs from the output of the host's libraries.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum decoded {
    DECODED,
    /// The content is larger than the room for it.
    TOO_LARGE,
    CORRUPT,
};

/// Each encoder writes at most `bound(len)` bytes, and returns how many. `len` is at least 1.
size_t zstd_bound(size_t len);
size_t zstd_encode(const uint8_t* from, size_t len, uint8_t* to);
size_t deflate_bound(size_t len);
size_t deflate_encode(const uint8_t* from, size_t len, uint8_t* to);
size_t lz4_bound(size_t len);
size_t lz4_encode(const uint8_t* from, size_t len, uint8_t* to);

/// Each decoder writes at most `room` bytes, and stores how many in `written`.
enum decoded zstd_decode(const uint8_t* from, size_t len, uint8_t* to, size_t room,
                         size_t* written);
enum decoded deflate_decode(const uint8_t* from, size_t len, uint8_t* to, size_t room,
                            size_t* written);
enum decoded lz4_decode(const uint8_t* from, size_t len, uint8_t* to, size_t room,
                        size_t* written);
