// A library with the C interface of nvCOMP, for tests without a GPU. Its addresses are those of the
// emulated device. With the null stream it works when it is called. With another stream it enqueues
// its work as a function of the host, and a wrong argument ends the process. It is strict where nvCOMP is undefined: misaligned, too
// small or too large arguments make the call fail, and corrupt input to a decompressor ends the
// process. It writes all memory that nvCOMP may write: the whole temporary memory, and every output
// slot to its end.
//
// Macros select the variant:
// STAND_IN_VERSION      the version that it reports, and whose functions it has
// STAND_IN_FAIL_EVERY   the last of so many chunks fails
// STAND_IN_INPUT, STAND_IN_OUTPUT, STAND_IN_TEMP   the alignments that it requires
// STAND_IN_NO_DEVICE    it cannot tell zstd's temporary memory, as nvCOMP cannot without a device
// STAND_IN_REFUSES      it compresses no batch
// The default is version 6.0, with the values below.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef STAND_IN_VERSION
#define STAND_IN_VERSION 6000
#endif
#ifndef STAND_IN_FAIL_EVERY
#define STAND_IN_FAIL_EVERY SIZE_MAX
#endif
#ifndef STAND_IN_INPUT
#define STAND_IN_INPUT 4
#define STAND_IN_OUTPUT 8
#define STAND_IN_TEMP 16
#endif

#include "abi.h"
#include "codecs.h"

struct format {
    const char* name;
    /// The largest size of a chunk, in bytes.
    size_t limit;
    size_t (*bound)(size_t len);
    size_t (*encode)(const uint8_t* from, size_t len, uint8_t* to);
    enum decoded (*decode)(const uint8_t* from, size_t len, uint8_t* to, size_t room,
                           size_t* written);
};

static const struct format formats_Zstd = {"zstd", 16000000, zstd_bound, zstd_encode, zstd_decode};
static const struct format formats_Deflate = {"deflate", 65536, deflate_bound, deflate_encode,
                                              deflate_decode};
static const struct format formats_LZ4 = {"lz4", 1 << 24, lz4_bound, lz4_encode, lz4_decode};

/// A chunk that begins with this, and one of the digits 0 to 4, fails.
static const char magic[] = "stand-in fails ";

/// Checks the first number of options. The other numbers must be 0.
static nvcompStatus_t first_option(const void* options, int least, int most) {
    int32_t numbers[16];
    memcpy(numbers, options, sizeof numbers);
    for (int i = 1; i < 16; i++)
        if (numbers[i] != 0) return nvcompErrorInvalidValue;
    return numbers[0] < least || numbers[0] > most ? nvcompErrorNotSupported : nvcompSuccess;
}

static nvcompStatus_t compress_options_Zstd(const void* options) {
    return first_option(options, 0, 0);
}

static nvcompStatus_t compress_options_Deflate(const void* options) {
    return first_option(options, 0, 5);
}

static nvcompStatus_t compress_options_LZ4(const void* options) {
    return first_option(options, 0, 0);
}

static nvcompStatus_t decompress_options(const void* options) {
    return first_option(options, NVCOMP_DECOMPRESS_BACKEND_CUDA, NVCOMP_DECOMPRESS_BACKEND_CUDA);
}

static nvcompStatus_t alignments(nvcompStatus_t options, nvcompAlignmentRequirements_t* to) {
    if (options != nvcompSuccess) return options;
    if (to == NULL) return nvcompErrorInvalidValue;
    to->input = STAND_IN_INPUT;
    to->output = STAND_IN_OUTPUT;
    to->temp = STAND_IN_TEMP;
    return nvcompSuccess;
}

/// Returns a size that is deliberately irregular.
static size_t temp_of(size_t chunks, size_t most, size_t total) {
    return chunks == 0 ? 0 : chunks * (most / 4 + 99) + total / 8 + 13;
}

__attribute__((unused)) // by version 4
static nvcompStatus_t temp_size(const struct format* format, nvcompStatus_t options, size_t chunks,
                                size_t most, size_t total, size_t* bytes) {
    if (options != nvcompSuccess) return options;
    if (bytes == NULL || total > chunks * most) return nvcompErrorInvalidValue;
    if (most > format->limit) return nvcompErrorChunkSizeTooLarge;
    *bytes = temp_of(chunks, most, total);
    return nvcompSuccess;
}

static nvcompStatus_t max_output(const struct format* format, nvcompStatus_t options, size_t most,
                                 size_t* bytes) {
    if (options != nvcompSuccess) return options;
    if (bytes == NULL) return nvcompErrorInvalidValue;
    if (most > format->limit) return nvcompErrorChunkSizeTooLarge;
    *bytes = format->bound(most);
    return nvcompSuccess;
}

static int aligned(const void* pointer, size_t to) {
    return ((uintptr_t)pointer & (to - 1)) == 0;
}

/// What a call is given. `most` belongs to compression, `rooms` to decompression.
struct batch {
    const struct format* format;
    nvcompStatus_t (*work)(const struct batch* batch);
    const void* const* inputs;
    const size_t* sizes;
    size_t most;
    const size_t* rooms;
    size_t chunks;
    void* temp;
    size_t temp_bytes;
    void* const* outputs;
    size_t* results;
    nvcompStatus_t* statuses;
};

/// Returns where the bytes are that have an address of the emulated device. Addresses of the host stay.
static void* at(const void* address) {
    const uintptr_t begin = 0x100000000000, distance = 0x100000000000;
    uintptr_t number = (uintptr_t)address;
    return (void*)(number >= begin && number < begin + distance ? number + distance : number);
}

/// Checks the arguments that both directions have. The tables are where the host finds them.
static nvcompStatus_t check(const struct batch* batch, size_t needed) {
    const void *temp = batch->temp, *statuses = batch->statuses;
    if (batch->temp_bytes < needed || (temp == NULL && needed > 0)) return nvcompErrorInvalidValue;
    if (!aligned(temp, STAND_IN_TEMP) || !aligned(statuses, sizeof *batch->statuses))
        return nvcompErrorAlignment;
    if (!aligned(batch->inputs, 8) || !aligned(batch->sizes, 8) || !aligned(batch->outputs, 8) ||
        !aligned(batch->results, 8))
        return nvcompErrorAlignment;
    for (size_t i = 0; i < batch->chunks; i++)
        if (!aligned(batch->inputs[i], STAND_IN_INPUT) ||
            !aligned(batch->outputs[i], STAND_IN_OUTPUT))
            return nvcompErrorAlignment;
    return nvcompSuccess;
}

/// The kind of failure for which nothing is written, not even a status or a size.
enum { silent = 4 };

/// Returns how a chunk fails: 0 to 3, or `silent`, or -1 if it does not.
static int failure(size_t number, const void* chunk, size_t len) {
    const size_t every = STAND_IN_FAIL_EVERY;
    if (number % every == every - 1) return (int)(number / every % 4);
    size_t prefix = sizeof magic - 1;
    if (len > prefix && memcmp(chunk, magic, prefix) == 0) {
        int kind = ((const uint8_t*)chunk)[prefix] - '0';
        if (kind >= 0 && kind <= silent) return kind;
    }
    return -1;
}

/// Writes the status and the size of a failed chunk. One of them can look like success.
static void fail(int kind, size_t slot, nvcompStatus_t reason, size_t* size,
                 nvcompStatus_t* status) {
    static const size_t garbage = 0xfffffffffffffff3;
    if (kind == silent) return;
    *status = kind == 0 ? reason : kind == 1 ? nvcompErrorInternal : nvcompSuccess;
    *size = kind == 0 ? garbage : kind == 1 ? 7 : kind == 2 ? 0 : slot + 1;
}

static void scribble(void* to, size_t len) {
    memset(to, 0xa5, len);
}

static nvcompStatus_t compress(const struct batch* batch) {
    const struct format* format = batch->format;
    size_t total = 0;
    for (size_t i = 0; i < batch->chunks; i++) {
        if (batch->sizes[i] == 0 || batch->sizes[i] > batch->most)
            return nvcompErrorWrongInputLength;
        total += batch->sizes[i];
    }
    nvcompStatus_t status = check(batch, temp_of(batch->chunks, batch->most, total));
    if (status != nvcompSuccess) return status;
#ifdef STAND_IN_REFUSES
    return nvcompErrorInternal;
#endif
    size_t bound = format->bound(batch->most);
    scribble(at(batch->temp), batch->temp_bytes);
    for (size_t i = 0; i < batch->chunks; i++) {
        const void* input = at(batch->inputs[i]);
        int kind = failure(i, input, batch->sizes[i]);
        if (kind >= 0) {
            fail(kind, bound, nvcompErrorCannotCompress, &batch->results[i], &batch->statuses[i]);
        } else {
            batch->results[i] = format->encode(input, batch->sizes[i], at(batch->outputs[i]));
            batch->statuses[i] = nvcompSuccess;
        }
    }
    // This follows all chunks, so that slots that overlap lose their contents.
    for (size_t i = 0; i < batch->chunks; i++) {
        int kind = failure(i, at(batch->inputs[i]), batch->sizes[i]);
        if (kind == silent) continue;
        size_t kept = kind >= 0 ? 0 : batch->results[i];
        scribble((uint8_t*)at(batch->outputs[i]) + kept, bound - kept);
    }
    return nvcompSuccess;
}

static nvcompStatus_t decompress(const struct batch* batch) {
    const struct format* format = batch->format;
    size_t total = 0, most = 0;
    if (!aligned(batch->rooms, 8)) return nvcompErrorInvalidValue;
    for (size_t i = 0; i < batch->chunks; i++) {
        total += batch->rooms[i];
        if (batch->rooms[i] > most) most = batch->rooms[i];
    }
    nvcompStatus_t status = check(batch, temp_of(batch->chunks, most, total));
    if (status != nvcompSuccess) return status;
    scribble(at(batch->temp), batch->temp_bytes);
    for (size_t i = 0; i < batch->chunks; i++) {
        size_t written = 0, room = batch->rooms[i];
        uint8_t* output = at(batch->outputs[i]);
        int kind = failure(i, "", 0);
        enum decoded decoded =
            format->decode(at(batch->inputs[i]), batch->sizes[i], output, room, &written);
        if (decoded == CORRUPT) {
            fprintf(stderr, "stand-in for nvCOMP: corrupt %s in chunk %zu of %zu\n", format->name, i,
                    batch->chunks);
            abort();
        }
        if (kind >= 0) {
            fail(kind, room, nvcompErrorCannotDecompress, &batch->results[i], &batch->statuses[i]);
            written = 0;
        } else if (decoded == TOO_LARGE) {
            fail(0, room, nvcompErrorCannotDecompress, &batch->results[i], &batch->statuses[i]);
        } else {
            batch->results[i] = written;
            batch->statuses[i] = nvcompSuccess;
        }
        scribble(output + written, room - written);
    }
    return nvcompSuccess;
}

/// Does the work of a call, in its stream.
static void run(void* data) {
    struct batch* batch = data;
    nvcompStatus_t status = batch->work(batch);
    if (status != nvcompSuccess) {
        fprintf(stderr, "stand-in for nvCOMP: a batch of %zu chunks (%s) failed with status %d\n",
                batch->chunks, batch->format->name, (int)status);
        abort();
    }
    free(batch);
}

/// Does the work of a call now, or enqueues it.
static nvcompStatus_t start(nvcompStatus_t options, struct batch batch, cudaStream_t stream) {
    if (options != nvcompSuccess) return options;
    if (batch.inputs == NULL || batch.sizes == NULL || batch.outputs == NULL ||
        batch.results == NULL || batch.statuses == NULL ||
        (batch.work == decompress && batch.rooms == NULL))
        return nvcompErrorInvalidValue;
    if (batch.most > batch.format->limit) return nvcompErrorChunkSizeTooLarge;
    batch.inputs = at(batch.inputs);
    batch.sizes = at(batch.sizes);
    batch.rooms = at(batch.rooms);
    batch.outputs = at(batch.outputs);
    batch.results = at(batch.results);
    batch.statuses = at(batch.statuses);
    if (stream == NULL) return batch.work(&batch);

    int (*launch)(cudaStream_t, void (*)(void*), void*) = NULL;
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void* symbol = driver == NULL ? NULL : dlsym(driver, "cuLaunchHostFunc");
    if (symbol == NULL) return nvcompErrorCudaError;
    memcpy(&launch, &symbol, sizeof launch);
    struct batch* kept = malloc(sizeof *kept);
    if (kept == NULL) return nvcompErrorInternal;
    *kept = batch;
    if (launch(stream, run, kept) == 0) return nvcompSuccess;
    free(kept);
    return nvcompErrorCudaError;
}

NVCOMP_EXPORT nvcompStatus_t nvcompGetProperties(nvcompProperties_t* properties) {
    if (properties == NULL) return nvcompErrorInvalidValue;
    properties->version = STAND_IN_VERSION;
    properties->cudart_version = 12000;
    return nvcompSuccess;
}

NVCOMP_EXPORT const char* nvcompGetStatusString(nvcompStatus_t status) {
    switch ((int)status) {
    case nvcompSuccess: return "fine";
    case nvcompErrorInvalidValue: return "an argument is wrong";
    case nvcompErrorNotSupported: return "no such option";
    case nvcompErrorCannotDecompress: return "cannot decompress";
    case nvcompErrorAlignment: return "not aligned";
    case nvcompErrorChunkSizeTooLarge: return "chunks too large";
    case nvcompErrorCannotCompress: return "cannot compress";
    case nvcompErrorWrongInputLength: return "a chunk has the wrong length";
    case nvcompErrorCudaError: return "no device";
    default: return "something else";
    }
}

#ifdef STAND_IN_NO_DEVICE
#define TEMP_OPTIONS_Zstd(direction) nvcompErrorCudaError
#else
#define TEMP_OPTIONS_Zstd(direction) direction##_options_Zstd(&options)
#endif
#define TEMP_OPTIONS_Deflate(direction) direction##_options_Deflate(&options)
#define TEMP_OPTIONS_LZ4(direction) direction##_options_LZ4(&options)

#if STAND_IN_VERSION >= 6000
#define TEMP_SIZE(X, Direction, options_status)                                                   \
    NVCOMP_EXPORT nvcompStatus_t nvcompBatched##X##Direction##GetTempSize(                       \
        size_t chunks, size_t most, nvcompBatched##X##Direction##Opts_t options, size_t* bytes,  \
        size_t total, cudaStream_t stream) {                                                     \
        (void)stream, (void)options;                                                             \
        return temp_size(&formats_##X, options_status, chunks, most, total, bytes);              \
    }
#elif STAND_IN_VERSION >= 5000
#define TEMP_SIZE(X, Direction, options_status)                                                   \
    NVCOMP_EXPORT nvcompStatus_t nvcompBatched##X##Direction##GetTempSizeAsync(                  \
        size_t chunks, size_t most, nvcompBatched##X##Direction##Opts_t options, size_t* bytes,  \
        size_t total) {                                                                          \
        (void)options;                                                                           \
        return temp_size(&formats_##X, options_status, chunks, most, total, bytes);              \
    }
#else
// The name of version 6 with the arguments of version 4: no caller that checks the version uses it.
#define TEMP_SIZE(X, Direction, options_status)                                                   \
    NVCOMP_EXPORT nvcompStatus_t nvcompBatched##X##Direction##GetTempSize(                       \
        size_t chunks, size_t most, nvcompBatched##X##Direction##Opts_t options, size_t* bytes) { \
        (void)chunks, (void)most, (void)options, (void)bytes;                                    \
        abort();                                                                                 \
    }
#endif

#define FUNCTIONS(X)                                                                              \
    NVCOMP_EXPORT nvcompStatus_t nvcompBatched##X##CompressGetRequiredAlignments(                \
        nvcompBatched##X##CompressOpts_t options, nvcompAlignmentRequirements_t* to) {           \
        return alignments(compress_options_##X(&options), to);                                   \
    }                                                                                            \
    TEMP_SIZE(X, Compress, TEMP_OPTIONS_##X(compress))                                           \
    NVCOMP_EXPORT nvcompStatus_t nvcompBatched##X##CompressGetMaxOutputChunkSize(                \
        size_t most, nvcompBatched##X##CompressOpts_t options, size_t* bytes) {                  \
        return max_output(&formats_##X, compress_options_##X(&options), most, bytes);            \
    }                                                                                            \
    NVCOMP_EXPORT nvcompStatus_t nvcompBatched##X##CompressAsync(                                \
        const void* const* inputs, const size_t* sizes, size_t most, size_t chunks, void* temp,  \
        size_t temp_bytes, void* const* outputs, size_t* results,                                \
        nvcompBatched##X##CompressOpts_t options, nvcompStatus_t* statuses,                      \
        cudaStream_t stream) {                                                                   \
        struct batch batch = {&formats_##X, compress, inputs, sizes, most, NULL,                  \
                              chunks, temp, temp_bytes, outputs, results, statuses};              \
        return start(compress_options_##X(&options), batch, stream);                              \
    }                                                                                             \
    NVCOMP_EXPORT nvcompStatus_t nvcompBatched##X##DecompressGetRequiredAlignments(              \
        nvcompBatched##X##DecompressOpts_t options, nvcompAlignmentRequirements_t* to) {         \
        return alignments(decompress_options(&options), to);                                     \
    }                                                                                            \
    TEMP_SIZE(X, Decompress, decompress_options(&options))                                       \
    NVCOMP_EXPORT nvcompStatus_t nvcompBatched##X##DecompressAsync(                              \
        const void* const* inputs, const size_t* sizes, const size_t* rooms, size_t* results,    \
        size_t chunks, void* const temp, size_t temp_bytes, void* const* outputs,                \
        nvcompBatched##X##DecompressOpts_t options, nvcompStatus_t* statuses,                    \
        cudaStream_t stream) {                                                                   \
        struct batch batch = {&formats_##X, decompress, inputs, sizes, 0, rooms,                  \
                              chunks, temp, temp_bytes, outputs, results, statuses};              \
        return start(decompress_options(&options), batch, stream);                                \
    }

FUNCTIONS(Zstd)
FUNCTIONS(Deflate)
FUNCTIONS(LZ4)
