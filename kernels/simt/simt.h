// The host half of device.h: every name that kernels use, for a host C++ compiler.
//
// The threads of a block take turns on one thread of the host, each until it waits for others. What
// is inlined here has to be fast, or to be seen by the sanitizers; what waits, counts or fails is
// in simt.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define SIMT_INLINE __attribute__((always_inline)) inline
// The place of the call, for messages and counts.
#define SIMT_SITE const char *file = __builtin_FILE(), uint32_t line = __builtin_LINE()

// The namespace that kernels are in.
struct simt_global {};

namespace simt {

// Where the running thread is in its launch.
struct Position {
    uint32_t thread;
    uint32_t block;
    uint32_t block_size;
    uint32_t block_count;
    bool counting;
};

// Of the launch that this thread of the host runs.
extern __thread Position* position;

enum class Operation : uint8_t { block_barrier, warp_barrier, shuffle_xor, shuffle_from, shuffle_up, ballot };

// Wait for the other threads of the block.
void wait_for_block(const char* file, uint32_t line);
// Wait for the other lanes of the warp; what the operation gives this one.
uint64_t wait_for_warp(Operation operation, uint64_t value, uint32_t operand, const char* file, uint32_t line);
// The block's memory for the variable with this key: poisoned, and of exactly this size.
void* shared(const void* key, size_t bytes, const char* file, uint32_t line);
// Note an access to global memory.
void count(const void* address, size_t bytes, bool write, const char* file, uint32_t line);
[[noreturn]] void misaligned(const void* address, size_t alignment, const char* file, uint32_t line);

// What comes before every access to global memory.
static SIMT_INLINE void touch(const void* address, size_t bytes, size_t alignment, bool write, const char* file,
                              uint32_t line) {
    if (__builtin_expect(reinterpret_cast<uintptr_t>(address) % alignment != 0, 0))
        misaligned(address, alignment, file, line);
    if (__builtin_expect(position->counting, 0)) count(address, bytes, write, file, line);
}

// A kernel, as a launch finds it.
struct Kernel {
    const char* name; // null: none
    uint32_t threads;
    uint32_t parameters;
    void (*run)(void* const* arguments);
};

struct Table {
    const Kernel* kernels;
    size_t count;
};

// An argument, of whatever type the parameter has. Its own parameter is a type of the namespace
// that kernels are in, so that a call with it finds them.
template <typename> struct Argument {
    const void* value;
    template <typename T> SIMT_INLINE operator T() const {
        T copy;
        memcpy(&copy, value, sizeof(T));
        return copy;
    }
};

template <size_t> using Any = Argument<simt_global>;

template <typename, typename, typename = void> struct Takes : std::false_type {};
template <typename Entry, size_t... I>
struct Takes<Entry, std::index_sequence<I...>, std::void_t<decltype(Entry::call(std::declval<Any<I>>()...))>>
    : std::true_type {};

// The number of the kernel's parameters. A call without an argument would not find the kernel.
template <typename Entry, size_t N = 1> constexpr uint32_t parameters() {
    static_assert(N < 64, "a kernel has no parameter, or 64 or more, or one that is no plain value");
    if constexpr (N >= 64 || Takes<Entry, std::make_index_sequence<N>>::value)
        return N;
    else
        return parameters<Entry, N + 1>();
}

template <typename Entry, size_t... I> void run(void* const* arguments, std::index_sequence<I...>) {
    (void)arguments;
    Entry::call(Any<I>{arguments[I]}...);
}

template <typename Entry> constexpr Kernel describe() {
    if constexpr (Entry::exists) {
        return {Entry::name, Entry::threads, parameters<Entry>(), [](void* const* arguments) {
                    run<Entry>(arguments, std::make_index_sequence<parameters<Entry>()>());
                }};
    } else {
        return {nullptr, 0, 0, nullptr};
    }
}

template <template <size_t> class Entries, size_t... I>
constexpr std::array<Kernel, sizeof...(I)> describe_all(std::index_sequence<I...>) {
    return {{describe<Entries<I>>()...}};
}

} // namespace simt

namespace {
// The kernels of this file, by a number.
template <size_t> struct simt_entry {
    static constexpr bool exists = false;
};
} // namespace

#define KERNEL(kernel, block)                                                                      \
    namespace {                                                                                    \
    template <> struct simt_entry<__COUNTER__> {                                                   \
        static constexpr bool exists = true;                                                       \
        static constexpr const char* name = #kernel;                                               \
        static constexpr uint32_t threads = block;                                                 \
        template <typename... A> static SIMT_INLINE auto call(A... a) -> decltype(kernel(a...)) {  \
            return kernel(a...);                                                                   \
        }                                                                                          \
    };                                                                                             \
    }                                                                                              \
    static void kernel

#define KERNEL_RESIDENT(kernel, block, blocks) KERNEL(kernel, block)

// After the last kernel of a file: `table` lists them.
#define SIMT_TABLE(table)                                                                          \
    static constexpr auto table##_kernels =                                                        \
        simt::describe_all<simt_entry>(std::make_index_sequence<__COUNTER__ + 1>());               \
    extern const simt::Table table = {table##_kernels.data(), table##_kernels.size()};

#define DEVICE static SIMT_INLINE
#define CONSTANT static const
#define UNROLL
#define ROLLED
#define SHARED(type, name, count)                                                                  \
    static_assert(alignof(type) <= 16, "shared memory is aligned to 16 bytes");                    \
    type(&name)[count] = *static_cast<type(*)[count]>([](SIMT_SITE) -> void* {                     \
        static char key;                                                                           \
        return simt::shared(&key, sizeof(type[count]), file, line);                                \
    }())

DEVICE uint32_t thread_index() { return simt::position->thread; }
DEVICE uint32_t block_index() { return simt::position->block; }
DEVICE uint32_t block_size() { return simt::position->block_size; }
DEVICE uint32_t block_count() { return simt::position->block_count; }
DEVICE uint32_t lane_index() { return thread_index() & 31; }

DEVICE void block_barrier(SIMT_SITE) { simt::wait_for_block(file, line); }
DEVICE void warp_barrier(SIMT_SITE) { simt::wait_for_warp(simt::Operation::warp_barrier, 0, 0, file, line); }

DEVICE uint32_t shuffle_xor(uint32_t value, uint32_t mask, SIMT_SITE) {
    return static_cast<uint32_t>(simt::wait_for_warp(simt::Operation::shuffle_xor, value, mask, file, line));
}
DEVICE uint32_t shuffle_from(uint32_t value, uint32_t lane, SIMT_SITE) {
    return static_cast<uint32_t>(simt::wait_for_warp(simt::Operation::shuffle_from, value, lane, file, line));
}
DEVICE uint64_t shuffle_up(uint64_t value, uint32_t delta, SIMT_SITE) {
    return simt::wait_for_warp(simt::Operation::shuffle_up, value, delta, file, line);
}
DEVICE uint32_t ballot(bool predicate, SIMT_SITE) {
    return static_cast<uint32_t>(simt::wait_for_warp(simt::Operation::ballot, predicate, 0, file, line));
}

struct alignas(16) Bytes16 {
    uint32_t word[4];
};

template <typename T> DEVICE T load(const T* from, SIMT_SITE) {
    simt::touch(from, sizeof(T), alignof(T), false, file, line);
    return *from;
}
template <typename T> DEVICE void store(T* to, T value, SIMT_SITE) {
    simt::touch(to, sizeof(T), alignof(T), true, file, line);
    *to = value;
}
DEVICE Bytes16 load16(const void* from, SIMT_SITE) {
    simt::touch(from, 16, 16, false, file, line);
    return *static_cast<const Bytes16*>(from);
}
DEVICE void store16(void* to, const Bytes16& value, SIMT_SITE) {
    simt::touch(to, 16, 16, true, file, line);
    *static_cast<Bytes16*>(to) = value;
}

DEVICE bool is_raised(const uint32_t* flag, SIMT_SITE) {
    simt::touch(flag, 4, 4, false, file, line);
    return __atomic_load_n(flag, __ATOMIC_RELAXED) != 0;
}
DEVICE void raise(uint32_t* flag, SIMT_SITE) {
    simt::touch(flag, 4, 4, true, file, line);
    __atomic_fetch_or(flag, 1u, __ATOMIC_RELAXED);
}
DEVICE uint32_t atomic_add(uint32_t* to, uint32_t value, SIMT_SITE) {
    simt::touch(to, 4, 4, true, file, line);
    return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

DEVICE uint32_t count_ones(uint32_t value) { return static_cast<uint32_t>(__builtin_popcount(value)); }
DEVICE uint32_t multiply_high(uint32_t a, uint32_t b) {
    return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
}
DEVICE uint32_t funnel_shift_right(uint32_t low, uint32_t high, uint32_t shift) {
    return static_cast<uint32_t>(((static_cast<uint64_t>(high) << 32) | low) >> (shift & 31));
}
DEVICE uint32_t reverse_bytes(uint32_t value) { return __builtin_bswap32(value); }
