// Reduce: one element for each window of a box, in another box.
//
// A window has one or two elements along each axis. Along the first axis these are `first` and
// `second`, two boxes of the same shape (`second` may be null), and window number i of this axis is
// i * p.slices bytes after both. The elements of a window are taken in C order:
//   reduce_mean_V   their sum over their count. Integers: exact, rounded half to even. Floats of 16
//                   and 32 bits: summed in 64 bits, in order, and rounded once. Of 64: in order.
//   reduce_order_V  the minimum, maximum or median. -0.0 is less than 0.0. The median of an even
//                   number is the mean of the two in the middle.
//   reduce_bits_V   the first, or the one whose bits are there most often, the first of several.
// A NaN in a window makes a mean, minimum, maximum or median the NaN of p.nan.
//
// V is the size of an element. A thread makes one element. All windows with two elements along at
// most three axes are in registers; others are read again for each step. Where the host says that
// pairs of elements along the fastest axis are aligned, a pair is one load: then each byte is read
// once, in coalesced loads. A pair may hold an element of the padding, which is not used.
// Launch: blocks of 256 threads, ceil(p.count / 256) of them.
#include "device.h"

// A digit of the number of a window: its steps in bytes.
struct ReduceDigit {
    uint64_t from;
    uint64_t to;
    uint32_t extent;
    uint32_t magic;
    uint32_t shift;
    uint32_t short_index; // of the digit: there the window has one element along this axis
    uint32_t axis;        // the bit of the axis in Window::mask, shifted; 0: its windows have one
    uint32_t zero;
};
static_assert(sizeof(ReduceDigit) == 40, "as on the host");

struct ReduceParameters {
    uint64_t steps[8];    // bytes from an element of a window to the second one, fastest axis first
    uint64_t nan;         // the bits of the NaN
    uint64_t infinity;    // the bits of the infinity
    uint32_t count;       // elements to make; below 2^31
    uint32_t digit_count; // at least 1
    uint32_t axes;        // along which windows have two elements, without the first axis
    uint32_t pairs;       // whether the elements along the fastest of them are loaded in pairs
    uint32_t kind;        // of elements
    uint32_t operation;
    ReduceDigit digits[32]; // slowest first
};
static_assert(sizeof(ReduceParameters) == 104 + 32 * 40, "as on the host");

constexpr uint32_t UNSIGNED = 0, SIGNED = 1, FLOAT = 2; // kinds of elements; 3: bfloat16
constexpr uint32_t MINIMUM = 0, MAXIMUM = 1;            // or the median
constexpr uint32_t MODE = 1;                            // or the first
constexpr uint32_t THREADS = 256;

// n < 2^31.
DEVICE uint32_t fast_divide(uint32_t n, uint32_t magic, uint32_t shift) { return multiply_high(n, magic) >> shift; }

// A window of elements.
struct Window {
    const uint8_t* at;   // its first element
    uint64_t slice_step; // to the second slice, if there is one
    uint8_t* to;
    uint32_t axes; // along which it may have two elements
    uint32_t mask; // those along which it has two: bit i for the i-th fastest
};

DEVICE Window find_window(const ReduceParameters& p, const uint8_t* first, const uint8_t* second, uint8_t* to,
                          uint32_t number) {
    Window w;
    w.slice_step = 0;
    w.axes = p.axes;
    w.mask = (1u << p.axes) - 1;
    if (second != nullptr) {
        w.slice_step = reinterpret_cast<uint64_t>(second) - reinterpret_cast<uint64_t>(first);
        w.mask |= 1u << p.axes;
        w.axes++;
    }
    uint64_t from_offset = 0, to_offset = 0;
    uint32_t rest = number;
    ROLLED
    for (uint32_t i = p.digit_count; i-- > 0;) {
        const ReduceDigit& digit = p.digits[i];
        const uint32_t quotient = i == 0 ? 0 : fast_divide(rest, digit.magic, digit.shift);
        const uint32_t index = rest - quotient * digit.extent;
        rest = quotient;
        from_offset += index * digit.from;
        to_offset += index * digit.to;
        if (index == digit.short_index) w.mask &= ~digit.axis;
    }
    w.at = first + from_offset;
    w.to = to + to_offset;
    return w;
}

DEVICE uint64_t step_along(const ReduceParameters& p, const Window& w, uint32_t axis) {
    return axis == p.axes ? w.slice_step : p.steps[axis];
}

// The address of element i of the window, in C order as if it had two along all axes: those that it
// does not have are the ones before them.
DEVICE const uint8_t* element_address(const ReduceParameters& p, const Window& w, uint32_t i) {
    uint64_t offset = 0;
    i &= w.mask;
    ROLLED
    for (uint32_t axis = 0; axis < w.axes; axis++) {
        if ((i >> axis & 1) != 0) offset += step_along(p, w, axis);
    }
    return w.at + offset;
}

// Whether the window has element i itself.
DEVICE bool is_there(const Window& w, uint32_t i) { return (i & ~w.mask) == 0; }

// How many axes have two elements.
DEVICE uint32_t power_of(const Window& w) { return count_ones(w.mask); }

// Elements as they are loaded, two at a time.
template <typename T> struct Pair;
template <> struct Pair<uint8_t> {
    DEVICE void load_two(const uint8_t* from, uint8_t& a, uint8_t& b) {
        const uint16_t both = load(reinterpret_cast<const uint16_t*>(from));
        a = static_cast<uint8_t>(both);
        b = static_cast<uint8_t>(both >> 8);
    }
};
template <> struct Pair<uint16_t> {
    DEVICE void load_two(const uint8_t* from, uint16_t& a, uint16_t& b) {
        const uint32_t both = load(reinterpret_cast<const uint32_t*>(from));
        a = static_cast<uint16_t>(both);
        b = static_cast<uint16_t>(both >> 16);
    }
};
template <> struct Pair<uint32_t> {
    DEVICE void load_two(const uint8_t* from, uint32_t& a, uint32_t& b) {
        const uint64_t both = load(reinterpret_cast<const uint64_t*>(from));
        a = static_cast<uint32_t>(both);
        b = static_cast<uint32_t>(both >> 32);
    }
};
template <> struct Pair<uint64_t> {
    DEVICE void load_two(const uint8_t* from, uint64_t& a, uint64_t& b) {
        const Bytes16 both = load16(from);
        a = both.word[0] | uint64_t{both.word[1]} << 32;
        b = both.word[2] | uint64_t{both.word[3]} << 32;
    }
};
// Pairs of these are not loaded together.
template <> struct Pair<Bytes16> {
    DEVICE void load_two(const uint8_t*, Bytes16&, Bytes16&) {}
};

DEVICE void load_element(const uint8_t* from, uint8_t& value) { value = load(from); }
DEVICE void load_element(const uint8_t* from, uint16_t& value) { value = load(reinterpret_cast<const uint16_t*>(from)); }
DEVICE void load_element(const uint8_t* from, uint32_t& value) { value = load(reinterpret_cast<const uint32_t*>(from)); }
DEVICE void load_element(const uint8_t* from, uint64_t& value) { value = load(reinterpret_cast<const uint64_t*>(from)); }
DEVICE void load_element(const uint8_t* from, Bytes16& value) { value = load16(from); }
DEVICE void store_element(uint8_t* to, uint8_t value) { store(to, value); }
DEVICE void store_element(uint8_t* to, uint16_t value) { store(reinterpret_cast<uint16_t*>(to), value); }
DEVICE void store_element(uint8_t* to, uint32_t value) { store(reinterpret_cast<uint32_t*>(to), value); }
DEVICE void store_element(uint8_t* to, uint64_t value) { store(reinterpret_cast<uint64_t*>(to), value); }
DEVICE void store_element(uint8_t* to, const Bytes16& value) { store16(to, value); }

// A window of at most 2^AXES elements, all of them in registers.
template <typename T, uint32_t AXES> struct InRegisters {
    static constexpr uint32_t COUNT = 1u << AXES;
    T value[COUNT];

    DEVICE InRegisters load_all(const ReduceParameters& p, const Window& w) {
        InRegisters all;
        uint64_t step[AXES];
        UNROLL
        for (uint32_t axis = 0; axis < AXES; axis++)
            step[axis] = (w.mask >> axis & 1) != 0 ? step_along(p, w, axis) : 0;
        if (sizeof(T) <= 8 && p.pairs != 0) {
            UNROLL
            for (uint32_t i = 0; i < COUNT; i += 2) {
                T second;
                Pair<T>::load_two(address(w, step, i), all.value[i], second);
                all.value[i + 1] = (w.mask & 1) != 0 ? second : all.value[i];
            }
            return all;
        }
        UNROLL
        for (uint32_t i = 0; i < COUNT; i++) load_element(address(w, step, i), all.value[i]);
        return all;
    }

    DEVICE const uint8_t* address(const Window& w, const uint64_t (&step)[AXES], uint32_t i) {
        uint64_t offset = 0;
        UNROLL
        for (uint32_t axis = 0; axis < AXES; axis++) {
            if ((i >> axis & 1) != 0) offset += step[axis];
        }
        return w.at + offset;
    }
};

// Floats as bits: their parts, and to and from 64 bits.
DEVICE double as_double(uint64_t bits) { return __longlong_as_double(static_cast<int64_t>(bits)); }
DEVICE uint64_t as_bits(double value) { return static_cast<uint64_t>(__double_as_longlong(value)); }

// Widen a float of 16 bits that is not NaN.
DEVICE double widen(uint16_t bits) {
    const uint64_t sign = uint64_t{bits} >> 15 << 63;
    const uint64_t magnitude = bits & 0x7fff;
    if (magnitude == 0x7c00) return as_double(sign | uint64_t{0x7ff} << 52);
    // The exponent as if it were one of 64 bits, and then scaled: exact for subnormal numbers, too.
    const double value = as_double(magnitude << 42) * as_double(uint64_t{1023 + 1023 - 15} << 52);
    return as_double(sign | as_bits(value));
}

// Round half to even, to a float of 16 bits. NaN stays some NaN.
DEVICE uint16_t narrow(double value, uint32_t exponent_bits, uint32_t fraction_bits) {
    const uint64_t bits = as_bits(value);
    const uint32_t sign = static_cast<uint32_t>(bits >> 63) << 15;
    const uint64_t magnitude = bits & ~(uint64_t{1} << 63);
    const uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;
    if (magnitude > uint64_t{0x7ff} << 52) return static_cast<uint16_t>(infinity | 1);
    const int exponent = static_cast<int>(magnitude >> 52) - 1023 + ((1 << (exponent_bits - 1)) - 1);
    if (exponent >= (1 << exponent_bits) - 1) return static_cast<uint16_t>(sign | infinity);
    uint32_t shift = 52 - fraction_bits;
    if (exponent < 1) shift += static_cast<uint32_t>(1 - exponent);
    if (shift > 54) return static_cast<uint16_t>(sign);
    const uint64_t significand = (magnitude & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
    const uint64_t rest = significand & ((uint64_t{1} << shift) - 1);
    const uint64_t half = uint64_t{1} << (shift - 1);
    uint32_t rounded = static_cast<uint32_t>(significand >> shift);
    if (rest > half || (rest == half && (rounded & 1) != 0)) rounded++;
    // A carry goes into the exponent, up to infinity.
    if (exponent > 1) rounded += static_cast<uint32_t>(exponent - 1) << fraction_bits;
    return static_cast<uint16_t>(sign | rounded);
}

DEVICE double to_double(uint8_t, uint32_t) { return 0; }
DEVICE double to_double(uint16_t bits, uint32_t kind) {
    return kind == FLOAT ? widen(bits) : __uint_as_float(uint32_t{bits} << 16);
}
DEVICE double to_double(uint32_t bits, uint32_t) { return __uint_as_float(bits); }
DEVICE double to_double(uint64_t bits, uint32_t) { return as_double(bits); }

DEVICE void from_double(double, uint32_t, uint8_t& bits) { bits = 0; }
DEVICE void from_double(double value, uint32_t kind, uint16_t& bits) {
    bits = kind == FLOAT ? narrow(value, 5, 10) : narrow(value, 8, 7);
}
DEVICE void from_double(double value, uint32_t, uint32_t& bits) { bits = __float_as_uint(static_cast<float>(value)); }
DEVICE void from_double(double value, uint32_t, uint64_t& bits) { bits = as_bits(value); }

template <typename T> constexpr T SIGN = static_cast<T>(T{1} << (sizeof(T) * 8 - 1));

template <typename T> DEVICE bool is_nan(const ReduceParameters& p, T bits) {
    return sizeof(T) > 1 && p.kind >= FLOAT && static_cast<T>(bits & static_cast<T>(~SIGN<T>)) > static_cast<T>(p.infinity);
}

// Sums of integers, of which 256 fit. The mean of 2^power of them, rounded half to even.
template <typename T> struct Sum {
    int32_t sum;
    DEVICE Sum zero() { return Sum{0}; }
    __device__ __forceinline__ void add(T value, uint32_t kind) {
        const uint32_t flip = kind == SIGNED ? SIGN<T> : 0;
        sum += static_cast<int32_t>((value ^ flip) - flip);
    }
    __device__ __forceinline__ T mean(uint32_t power) const {
        return static_cast<T>((sum + (1 << (power - 1)) - 1 + (sum >> power & 1)) >> power);
    }
};
template <> struct Sum<uint32_t> {
    int64_t sum;
    DEVICE Sum zero() { return Sum{0}; }
    __device__ __forceinline__ void add(uint32_t value, uint32_t kind) {
        const uint64_t flip = kind == SIGNED ? SIGN<uint32_t> : 0;
        sum += static_cast<int64_t>((value ^ flip) - flip);
    }
    __device__ __forceinline__ uint32_t mean(uint32_t power) const {
        return static_cast<uint32_t>((sum + (int64_t{1} << (power - 1)) - 1 + (sum >> power & 1)) >> power);
    }
};
template <> struct Sum<uint64_t> {
    uint64_t low, high;
    DEVICE Sum zero() { return Sum{0, 0}; }
    __device__ __forceinline__ void add_wide(uint64_t value, uint64_t value_high) {
        low += value;
        high += value_high + (low < value ? 1 : 0);
    }
    __device__ __forceinline__ void add(uint64_t value, uint32_t kind) {
        add_wide(value, kind == SIGNED && (value & SIGN<uint64_t>) != 0 ? ~uint64_t{0} : 0);
    }
    __device__ __forceinline__ uint64_t mean(uint32_t power) const {
        Sum all = *this;
        all.add_wide((uint64_t{1} << (power - 1)) - 1 + (low >> power & 1), 0);
        return all.low >> power | all.high << (64 - power);
    }
};

// The mean of a float sum of 2^power elements.
template <typename T> DEVICE T mean_of(const ReduceParameters& p, double sum, uint32_t power) {
    T mean;
    from_double(sum * as_double(uint64_t{1023 - power} << 52), p.kind, mean);
    return is_nan(p, mean) ? static_cast<T>(p.nan) : mean;
}

template <typename T, uint32_t AXES> DEVICE T mean_in_registers(const ReduceParameters& p, const Window& w) {
    const auto all = InRegisters<T, AXES>::load_all(p, w);
    if (sizeof(T) > 1 && p.kind >= FLOAT) {
        double sum = to_double(all.value[0], p.kind);
        bool nan = is_nan(p, all.value[0]);
        UNROLL
        for (uint32_t i = 1; i < all.COUNT; i++) {
            const double more = to_double(all.value[i], p.kind);
            if (is_there(w, i)) sum += more;
            nan = nan || is_nan(p, all.value[i]);
        }
        return nan ? static_cast<T>(p.nan) : mean_of<T>(p, sum, power_of(w));
    }
    // Elements that are there twice or more often have the mean of one.
    auto sum = Sum<T>::zero();
    UNROLL
    for (uint32_t i = 0; i < all.COUNT; i++) sum.add(all.value[i], p.kind);
    return sum.mean(AXES);
}

template <typename T> DEVICE T element(const ReduceParameters& p, const Window& w, uint32_t i) {
    T value;
    load_element(element_address(p, w, i), value);
    return value;
}

template <typename T> DEVICE T mean_in_memory(const ReduceParameters& p, const Window& w) {
    const uint32_t count = 1u << w.axes;
    if (sizeof(T) > 1 && p.kind >= FLOAT) {
        const T first = element<T>(p, w, 0);
        double sum = to_double(first, p.kind);
        bool nan = is_nan(p, first);
        ROLLED
        for (uint32_t i = 1; i < count; i++) {
            if (!is_there(w, i)) continue;
            const T more = element<T>(p, w, i);
            sum += to_double(more, p.kind);
            nan = nan || is_nan(p, more);
        }
        return nan ? static_cast<T>(p.nan) : mean_of<T>(p, sum, power_of(w));
    }
    auto sum = Sum<T>::zero();
    ROLLED
    for (uint32_t i = 0; i < count; i++) sum.add(element<T>(p, w, i), p.kind);
    return sum.mean(w.axes);
}

// Keys: unsigned numbers that have the order of the elements.
template <typename T> struct KeyOf { using Type = uint32_t; };
template <> struct KeyOf<uint64_t> { using Type = uint64_t; };
template <typename T> using Key = typename KeyOf<T>::Type;

template <typename T> DEVICE Key<T> key_of(T bits, uint32_t kind) {
    if (sizeof(T) > 1 && kind >= FLOAT && (bits & SIGN<T>) != 0) return static_cast<T>(~bits);
    return static_cast<T>(bits ^ (kind == UNSIGNED ? T{0} : SIGN<T>));
}

template <typename T> DEVICE T of_key(Key<T> key, uint32_t kind) {
    const T bits = static_cast<T>(key);
    if (sizeof(T) > 1 && kind >= FLOAT && (bits & SIGN<T>) == 0) return static_cast<T>(~bits);
    return static_cast<T>(bits ^ (kind == UNSIGNED ? T{0} : SIGN<T>));
}

template <typename T> DEVICE T mean_of_two(const ReduceParameters& p, T a, T b) {
    if (sizeof(T) > 1 && p.kind >= FLOAT) return mean_of<T>(p, to_double(a, p.kind) + to_double(b, p.kind), 1);
    auto sum = Sum<T>::zero();
    sum.add(a, p.kind);
    sum.add(b, p.kind);
    return sum.mean(1);
}

// The element in the middle, or the mean of the two there.
template <typename T> DEVICE T median_of(const ReduceParameters& p, const Window& w, Key<T> low, Key<T> high) {
    const T one = of_key<T>(low, p.kind);
    if (w.mask == 0) return one;
    return mean_of_two(p, one, of_key<T>(high, p.kind));
}

template <typename K> DEVICE K smaller(K a, K b) { return a < b ? a : b; }
template <typename K> DEVICE K larger(K a, K b) { return a < b ? b : a; }

template <typename K> DEVICE void exchange(K& a, K& b) {
    const K first = smaller(a, b);
    b = larger(a, b);
    a = first;
}

template <typename K> DEVICE void sort(K (&k)[2]) { exchange(k[0], k[1]); }
template <typename K> DEVICE void sort(K (&k)[4]) {
    exchange(k[0], k[1]), exchange(k[2], k[3]);
    exchange(k[0], k[2]), exchange(k[1], k[3]);
    exchange(k[1], k[2]);
}
template <typename K> DEVICE void sort(K (&k)[8]) {
    exchange(k[0], k[2]), exchange(k[1], k[3]), exchange(k[4], k[6]), exchange(k[5], k[7]);
    exchange(k[0], k[4]), exchange(k[1], k[5]), exchange(k[2], k[6]), exchange(k[3], k[7]);
    exchange(k[0], k[1]), exchange(k[2], k[3]), exchange(k[4], k[5]), exchange(k[6], k[7]);
    exchange(k[2], k[4]), exchange(k[3], k[5]);
    exchange(k[1], k[4]), exchange(k[3], k[6]);
    exchange(k[1], k[2]), exchange(k[3], k[4]), exchange(k[5], k[6]);
}

template <typename T, uint32_t AXES> DEVICE T order_in_registers(const ReduceParameters& p, const Window& w) {
    const auto all = InRegisters<T, AXES>::load_all(p, w);
    Key<T> key[all.COUNT];
    bool nan = false;
    UNROLL
    for (uint32_t i = 0; i < all.COUNT; i++) {
        key[i] = key_of(all.value[i], p.kind);
        nan = nan || is_nan(p, all.value[i]);
    }
    if (nan) return static_cast<T>(p.nan);
    if (p.operation > MAXIMUM) {
        // Elements that are there twice or more often do not move the middle.
        sort(key);
        return median_of<T>(p, w, key[all.COUNT / 2 - 1], key[all.COUNT / 2]);
    }
    UNROLL
    for (uint32_t i = 1; i < all.COUNT; i++)
        key[0] = p.operation == MINIMUM ? smaller(key[0], key[i]) : larger(key[0], key[i]);
    return of_key<T>(key[0], p.kind);
}

template <typename T> DEVICE T order_in_memory(const ReduceParameters& p, const Window& w) {
    const uint32_t count = 1u << w.axes;
    const T first = element<T>(p, w, 0);
    Key<T> least = key_of(first, p.kind), most = least;
    bool nan = is_nan(p, first);
    ROLLED
    for (uint32_t i = 1; i < count; i++) {
        const T value = element<T>(p, w, i);
        least = smaller(least, key_of(value, p.kind));
        most = larger(most, key_of(value, p.kind));
        nan = nan || is_nan(p, value);
    }
    if (nan) return static_cast<T>(p.nan);
    if (p.operation == MINIMUM) return of_key<T>(least, p.kind);
    if (p.operation == MAXIMUM) return of_key<T>(most, p.kind);
    // The lower key in the middle, bit by bit: how many keys of those with its upper bits have a 0
    // here, and do they reach the middle?
    uint32_t rank = count / 2 - 1;
    Key<T> low = 0;
    ROLLED
    for (uint32_t bit = sizeof(T) * 8; bit-- > 0;) {
        uint32_t zeros = 0;
        ROLLED
        for (uint32_t i = 0; i < count; i++) {
            if (key_of(element<T>(p, w, i), p.kind) >> bit == low >> bit) zeros++;
        }
        if (rank >= zeros) {
            rank -= zeros;
            low |= Key<T>{1} << bit;
        }
    }
    // The key after it: the same one again, or the next larger one.
    uint32_t up_to_low = 0;
    Key<T> next = most;
    ROLLED
    for (uint32_t i = 0; i < count; i++) {
        const Key<T> key = key_of(element<T>(p, w, i), p.kind);
        if (key <= low) up_to_low++;
        else next = smaller(next, key);
    }
    return median_of<T>(p, w, low, up_to_low > count / 2 ? low : next);
}

template <typename T> DEVICE bool same(T a, T b) { return a == b; }
DEVICE bool same(const Bytes16& a, const Bytes16& b) {
    return ((a.word[0] ^ b.word[0]) | (a.word[1] ^ b.word[1]) | (a.word[2] ^ b.word[2]) | (a.word[3] ^ b.word[3])) == 0;
}

template <typename T, uint32_t AXES> DEVICE T mode_in_registers(const ReduceParameters& p, const Window& w) {
    const auto all = InRegisters<T, AXES>::load_all(p, w);
    T mode = all.value[0];
    uint32_t most = 0;
    UNROLL
    for (uint32_t i = 0; i < all.COUNT; i++) {
        uint32_t times = 0;
        UNROLL
        for (uint32_t j = 0; j < all.COUNT; j++) times += same(all.value[i], all.value[j]) ? 1 : 0;
        if (times > most) {
            mode = all.value[i];
            most = times;
        }
    }
    return mode;
}

template <typename T> DEVICE T mode_in_memory(const ReduceParameters& p, const Window& w) {
    const uint32_t count = 1u << w.axes;
    T mode = element<T>(p, w, 0);
    uint32_t most = 0;
    ROLLED
    for (uint32_t i = 0; i < count; i++) {
        const T value = element<T>(p, w, i);
        uint32_t times = 0;
        ROLLED
        for (uint32_t j = 0; j < count; j++) times += same(value, element<T>(p, w, j)) ? 1 : 0;
        if (times > most) {
            mode = value;
            most = times;
        }
    }
    return mode;
}

#define BY_AXES(function)                                                                          \
    w.axes <= 1   ? function##_in_registers<T, 1>(p, w)                                            \
    : w.axes == 2 ? function##_in_registers<T, 2>(p, w)                                            \
    : w.axes == 3 ? function##_in_registers<T, 3>(p, w)                                            \
                  : function##_in_memory<T>(p, w)

template <typename T> DEVICE T reduce_mean(const ReduceParameters& p, const Window& w) { return BY_AXES(mean); }
template <typename T> DEVICE T reduce_order(const ReduceParameters& p, const Window& w) { return BY_AXES(order); }
template <typename T> DEVICE T reduce_bits(const ReduceParameters& p, const Window& w) {
    if (p.operation != MODE) return element<T>(p, w, 0);
    return BY_AXES(mode);
}

// Four blocks fit on a multiprocessor of every architecture. Where a multiprocessor has room for fewer blocks
// than a kernel asks for, assemblers warn, and ignore the number.
#define REDUCE(kernel, function, Element)                                                          \
    KERNEL_RESIDENT(kernel, 256, 4)                                                                \
    (ReduceParameters p, const uint8_t* first, const uint8_t* second, uint8_t* to) {               \
        const uint32_t number = block_index() * THREADS + thread_index();                          \
        if (number >= p.count) return;                                                             \
        const Window w = find_window(p, first, second, to, number);                                \
        store_element(w.to, function<Element>(p, w));                                              \
    }
REDUCE(reduce_mean_1, reduce_mean, uint8_t)
REDUCE(reduce_mean_2, reduce_mean, uint16_t)
REDUCE(reduce_mean_4, reduce_mean, uint32_t)
REDUCE(reduce_mean_8, reduce_mean, uint64_t)
REDUCE(reduce_order_1, reduce_order, uint8_t)
REDUCE(reduce_order_2, reduce_order, uint16_t)
REDUCE(reduce_order_4, reduce_order, uint32_t)
REDUCE(reduce_order_8, reduce_order, uint64_t)
REDUCE(reduce_bits_1, reduce_bits, uint8_t)
REDUCE(reduce_bits_2, reduce_bits, uint16_t)
REDUCE(reduce_bits_4, reduce_bits, uint32_t)
REDUCE(reduce_bits_8, reduce_bits, uint64_t)
REDUCE(reduce_bits_16, reduce_bits, Bytes16)
