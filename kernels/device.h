// The language of the kernels: CUDA C++ for NVRTC.
//
// Blocks are one-dimensional. The following are not used, because the emulator does not know them, or
// older drivers reject them: inline PTX, cooperative groups, cp.async, TMA, CUB, blocks that wait for
// one another, extern __shared__.
#pragma once

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;

// KERNEL(name, threads)(parameters) { ... }: a kernel that is launched with blocks of `threads`.
#define KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
// The same. The compiler limits the registers so that `blocks` blocks fit on a multiprocessor.
#define KERNEL_RESIDENT(name, threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks) name
// Before a loop with a constant number of rounds, whose arrays have to stay in registers.
#define UNROLL _Pragma("unroll")
// Before a loop that stays a loop: its code is short, and quick to compile for the driver.
#define ROLLED _Pragma("unroll 1")
// A function that kernels call.
#define DEVICE static __device__ __forceinline__
// Constant data of the kernels.
#define CONSTANT static __constant__ const
// SHARED(type, name, count): `count` elements for the block, uninitialised.
#define SHARED(type, name, count) __shared__ type name[count]

DEVICE uint32_t thread_index() { return threadIdx.x; }
DEVICE uint32_t block_index() { return blockIdx.x; }
DEVICE uint32_t block_size() { return blockDim.x; }
DEVICE uint32_t block_count() { return gridDim.x; }
DEVICE uint32_t lane_index() { return threadIdx.x & 31; }

// Waits until every thread of the block arrives. Then each sees the others' earlier writes.
DEVICE void block_barrier() { __syncthreads(); }
// Waits until every lane of the warp arrives. Then each sees the others' earlier writes.
DEVICE void warp_barrier() { __syncwarp(); }

// All 32 lanes call these.
DEVICE uint32_t shuffle_xor(uint32_t value, uint32_t mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
DEVICE uint32_t shuffle_from(uint32_t value, uint32_t lane) { return __shfl_sync(0xffffffffu, value, lane); }
DEVICE uint64_t shuffle_up(uint64_t value, uint32_t delta) { return __shfl_up_sync(0xffffffffu, value, delta); }
DEVICE uint32_t warp_ballot(bool predicate) { return __ballot_sync(0xffffffffu, predicate); }
#define ballot warp_ballot // NVRTC has a function of this name, which is deprecated

struct alignas(16) Bytes16 {
    uint32_t word[4];
};

// Global memory. The address is aligned to the type.
template <typename T> DEVICE T load(const T* from) { return *from; }
template <typename T> DEVICE void store(T* to, T value) { *to = value; }
DEVICE Bytes16 load16(const void* from) {
    const uint4 v = *static_cast<const uint4*>(from);
    return Bytes16{{v.x, v.y, v.z, v.w}};
}
DEVICE void store16(void* to, const Bytes16& value) {
    *static_cast<uint4*>(to) = make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]);
}

// Whether `flag` is set. Other threads may be setting it just now.
DEVICE bool is_raised(const uint32_t* flag) { return *static_cast<const volatile uint32_t*>(flag) != 0; }
// Sets `flag`. Other threads may be setting it, too: all of them store the same.
DEVICE void raise(uint32_t* flag) { *static_cast<volatile uint32_t*>(flag) = 1; }
DEVICE uint32_t atomic_add(uint32_t* to, uint32_t value) { return atomicAdd(to, value); }

// How many bits are set.
DEVICE uint32_t count_ones(uint32_t value) { return static_cast<uint32_t>(__popc(value)); }
// The upper half of a product.
DEVICE uint32_t multiply_high(uint32_t a, uint32_t b) { return __umulhi(a, b); }
// Bytes 0..3 are low's, 4..7 are high's; the result is the four from `shift / 8` on. shift < 32.
DEVICE uint32_t funnel_shift_right(uint32_t low, uint32_t high, uint32_t shift) {
    return __funnelshift_r(low, high, shift);
}
DEVICE uint32_t reverse_bytes(uint32_t value) { return __byte_perm(value, 0, 0x0123); }
