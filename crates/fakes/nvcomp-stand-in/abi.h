// The part of nvCOMP's C interface that the stand-in has: names, types and numbers.
//
// With NVCOMP_HEADERS they come from NVIDIA's headers instead, and the compiler compares the
// stand-in's functions with these headers (`cargo xtask nvcomp-check`).
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

typedef struct CUstream_st* cudaStream_t;

#ifdef NVCOMP_HEADERS

#include "nvcomp.h"
#include "nvcomp/deflate.h"
#include "nvcomp/lz4.h"
#include "nvcomp/version.h"
#include "nvcomp/zstd.h"

static_assert(NVCOMP_VER == STAND_IN_VERSION, "the headers are of the version it claims to be");

#else

#define NVCOMP_EXPORT __attribute__((visibility("default")))

typedef enum {
    nvcompSuccess = 0,
    nvcompErrorInvalidValue = 10,
    nvcompErrorNotSupported = 11,
    nvcompErrorCannotDecompress = 12,
    nvcompErrorAlignment = 17,
    nvcompErrorChunkSizeTooLarge = 18,
    nvcompErrorCannotCompress = 19,
    nvcompErrorWrongInputLength = 20,
    nvcompErrorCudaError = 1000,
    nvcompErrorInternal = 10000,
} nvcompStatus_t;

typedef enum {
    NVCOMP_DECOMPRESS_BACKEND_DEFAULT = 0,
    NVCOMP_DECOMPRESS_BACKEND_HARDWARE = 1,
    NVCOMP_DECOMPRESS_BACKEND_CUDA = 2,
} nvcompDecompressBackend_t;

typedef struct {
    uint32_t version;
    uint32_t cudart_version;
} nvcompProperties_t;

typedef struct {
    size_t input;
    size_t output;
    size_t temp;
} nvcompAlignmentRequirements_t;

typedef struct {
    char reserved[64];
} nvcompBatchedZstdCompressOpts_t;

typedef struct {
    nvcompDecompressBackend_t backend;
    char reserved[60];
} nvcompBatchedZstdDecompressOpts_t;

typedef struct {
    int algorithm;
    char reserved[60];
} nvcompBatchedDeflateCompressOpts_t;

typedef struct {
    nvcompDecompressBackend_t backend;
    int sort_before_hw_decompress;
    char reserved[56];
} nvcompBatchedDeflateDecompressOpts_t;

typedef struct {
    int data_type;
    int bitshuffle_mode;
    char reserved[56];
} nvcompBatchedLZ4CompressOpts_t;

typedef struct {
    nvcompDecompressBackend_t backend;
    int sort_before_hw_decompress;
    int data_type;
    int bitshuffle_mode;
    char reserved[48];
} nvcompBatchedLZ4DecompressOpts_t;

#endif

// The values and layouts that zarrs_cuda assumes, with or without NVIDIA's headers.

static_assert(nvcompSuccess == 0 && nvcompErrorCudaError == 1000, "statuses");
static_assert(nvcompErrorInvalidValue == 10 && nvcompErrorNotSupported == 11, "statuses");
static_assert(nvcompErrorCannotDecompress == 12 && nvcompErrorAlignment == 17, "statuses");
static_assert(nvcompErrorChunkSizeTooLarge == 18 && nvcompErrorCannotCompress == 19, "statuses");
static_assert(nvcompErrorWrongInputLength == 20 && nvcompErrorInternal == 10000, "statuses");
static_assert(sizeof(nvcompStatus_t) == 4 && sizeof(size_t) == 8, "elements of the tables");
static_assert(NVCOMP_DECOMPRESS_BACKEND_CUDA == 2, "the backend without special hardware");
static_assert(sizeof(nvcompProperties_t) == 8 && offsetof(nvcompProperties_t, version) == 0,
              "properties");
static_assert(sizeof(nvcompAlignmentRequirements_t) == 24 &&
                  offsetof(nvcompAlignmentRequirements_t, input) == 0 &&
                  offsetof(nvcompAlignmentRequirements_t, output) == 8 &&
                  offsetof(nvcompAlignmentRequirements_t, temp) == 16,
              "alignments");

#define OPTIONS_OF(X)                                              \
    static_assert(sizeof(nvcompBatched##X##CompressOpts_t) == 64 && \
                      sizeof(nvcompBatched##X##DecompressOpts_t) == 64 && \
                      offsetof(nvcompBatched##X##DecompressOpts_t, backend) == 0, \
                  "options of " #X)
OPTIONS_OF(Zstd);
OPTIONS_OF(Deflate);
OPTIONS_OF(LZ4);
static_assert(offsetof(nvcompBatchedDeflateCompressOpts_t, algorithm) == 0, "the algorithm");
