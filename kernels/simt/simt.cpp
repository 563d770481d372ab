// Runs a launch: blocks one after another, the threads of a block as fibers that take turns.
//
// A fiber runs threads until one of them waits; then another fiber goes on with a thread that no
// longer waits, or with the next that has not begun. So a kernel that never waits runs all threads
// on one fiber, as plain calls. A rule that is broken ends the launch with a message: its fibers
// are abandoned where they are.
//
// Under ThreadSanitizer each thread of a block has a fiber of its own, whose accesses are ordered by
// barriers only. Two sets of fibers take turns, so blocks whose numbers differ by an odd number are
// not ordered at all. (A fiber takes ThreadSanitizer a third of a millisecond to make.)

#include "simt.h"

#include "fiber.h"
#include "sectors.h"

#include <cstdarg>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// Of each file of kernels.
extern const simt::Table* const simt_tables[];
extern const size_t simt_table_count;

// Device memory comes from an allocator that the tests make fail. Accesses of libraries, and of
// Rust's memcpy, are not for ThreadSanitizer: what orders them is not instrumented.
extern "C" const char* __asan_default_options() {
    return "detect_leaks=0:detect_stack_use_after_return=0:allocator_may_return_null=1";
}
extern "C" const char* __ubsan_default_options() { return "print_stacktrace=1"; }
extern "C" const char* __tsan_default_options() {
    return "halt_on_error=1:ignore_interceptors_accesses=1:allocator_may_return_null=1";
}

namespace simt {

__thread Position* position;

namespace {

constexpr uint32_t warp_size = 32;
constexpr uint32_t largest_block = 1024;
constexpr uint32_t largest_grid = 0x7fffffff;
constexpr size_t shared_limit = 48 << 10;
constexpr unsigned char poison = 0xa5;

#ifdef SIMT_THREAD
constexpr uint32_t fiber_sets = 2;
#endif

enum class State : uint8_t { fresh, runs, waits, ended };

struct Site {
    const char* file;
    uint32_t line;
    bool operator==(const Site& other) const {
        return line == other.line && (file == other.file || strcmp(file, other.file) == 0);
    }
};

struct Thread {
    Fiber* fiber;
    State state;
    Operation operation; // that it waits in
    Site site;
    bool operator==(const Thread& other) const {
        if (state != other.state) return false;
        return state != State::waits || (operation == other.operation && site == other.site);
    }
};

struct Warp {
    uint32_t arrived; // lanes that wait
    uint32_t turn;
    Operation operation;
    Site site;
    uint64_t value[2][warp_size];
    Order order[2];
};

struct Variable {
    const void* key;
    void* memory;
};

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
    char text[512];
    va_list list;
    va_start(list, pattern);
    vsnprintf(text, sizeof(text), pattern, list);
    va_end(list);
    return text;
}

const char* name_of(Operation operation) {
    switch (operation) {
    case Operation::block_barrier: return "block_barrier";
    case Operation::warp_barrier: return "warp_barrier";
    case Operation::shuffle_xor: return "shuffle_xor";
    case Operation::shuffle_from: return "shuffle_from";
    case Operation::shuffle_up: return "shuffle_up";
    case Operation::ballot: return "ballot";
    }
    return "";
}

std::string describe(Operation operation, const Site& site) {
    return format("%s at %s:%u", name_of(operation), site.file, site.line);
}

// What a launch needs. Kept for later ones, because stacks are dear.
struct Machine : Position {
    const Kernel* kernel = nullptr;
    void* const* arguments = nullptr;
    Fiber host;
    std::string error;

    // Of the block.
    Thread threads[largest_block]{};
    Warp warps[largest_block / warp_size]{};
    uint32_t ready[largest_block]{}; // threads that no longer wait: a ring
    uint32_t ready_begin = 0;
    uint32_t ready_count = 0;
    uint32_t next = 0; // the first thread that has not begun
    uint32_t ended = 0;
    uint32_t arrived = 0; // threads that wait for the block
    uint32_t turn = 0;
    Site barrier{};
    Order order[2];
    std::vector<Variable> variables;
    size_t shared_bytes = 0;

    Sectors sectors;
    Order begin;
    Order end;

#ifdef SIMT_THREAD
    std::unique_ptr<Fiber> fibers[fiber_sets][largest_block];
#else
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Fiber*> idle;
#endif
    Fiber* current = nullptr;

    static void work();
    Fiber* fiber_for(uint32_t thread);
    void run(Fiber* self);
    void make_ready(uint32_t thread) {
        threads[thread].state = State::runs;
        ready[(ready_begin + ready_count++) % largest_block] = thread;
    }
    Fiber* take_ready() {
        const uint32_t thread = ready[ready_begin];
        ready_begin = (ready_begin + 1) % largest_block;
        --ready_count;
        return threads[thread].fiber;
    }
    void go(Fiber* from, Fiber* to) {
        current = to;
        from->switch_to(*to);
    }
    void wait(Operation operation, const Site& site);
    std::string missing(Operation operation, const Site& site, uint32_t first, uint32_t count) const;
    [[noreturn]] void fail(std::string message);
    [[noreturn]] void fail_missing(Operation operation, const Site& site, uint32_t first, uint32_t count);
    void run_block();
    void abandon();
    void launch();
};

Machine* machine() { return static_cast<Machine*>(position); }

// What every fiber runs, for ever.
void Machine::work() {
    Machine* m = machine();
    Fiber* self = m->current;
    self->arrive();
    for (;;) {
        m->run(self);
        Fiber* to = &m->host;
        if (m->ready_count > 0) {
            to = m->take_ready();
        } else if (m->next < m->block_size) {
            to = m->fiber_for(m->next);
        }
#ifndef SIMT_THREAD
        m->idle.push_back(self);
#endif
        m->go(self, to);
    }
}

// Run threads from their beginning, while nothing else wants to.
void Machine::run(Fiber* self) {
    self->busy = true;
    do {
        const uint32_t mine = next++;
        thread = mine;
        threads[mine].fiber = self;
        threads[mine].state = State::runs;
        begin.acquire();
        kernel->run(arguments);
        end.release();
        threads[mine].state = State::ended;
        ++ended;
#ifdef SIMT_THREAD
        break;
#endif
    } while (next < block_size && ready_count == 0);
    self->busy = false;
}

// A fiber on which `thread` can begin.
Fiber* Machine::fiber_for(uint32_t thread) {
#ifdef SIMT_THREAD
    return fibers[block % fiber_sets][thread].get();
#else
    (void)thread;
    if (idle.empty()) {
        fibers.push_back(std::make_unique<Fiber>(fibers.size(), work));
        idle.reserve(fibers.size());
        return fibers.back().get();
    }
    Fiber* fiber = idle.back();
    idle.pop_back();
    return fiber;
#endif
}

// Let others run until this thread is ready again.
void Machine::wait(Operation operation, const Site& site) {
    const uint32_t mine = thread;
    Thread& self = threads[mine];
    self.state = State::waits;
    self.operation = operation;
    self.site = site;
    if (ready_count > 0)
        go(self.fiber, take_ready());
    else if (next < block_size)
        go(self.fiber, fiber_for(next));
    else
        go(self.fiber, &host); // nobody can run
    thread = mine;
}

// Which of the `count` threads from `first` on are at the operation, and where the others are.
std::string Machine::missing(Operation operation, const Site& site, uint32_t first, uint32_t count) const {
    std::string text = format("not all of threads %u-%u reach ", first, first + count - 1) + describe(operation, site);
    for (uint32_t i = first; i < first + count; ++i) {
        const Thread& thread = threads[i];
        if (std::find(&threads[first], &threads[i], thread) != &threads[i]) continue;
        std::string list;
        for (uint32_t from = i; from < first + count; ++from) {
            if (!(threads[from] == thread)) continue;
            uint32_t to = from;
            while (to + 1 < first + count && threads[to + 1] == thread) ++to;
            if (!list.empty()) list += ", ";
            list += from == to ? format("%u", from) : format("%u-%u", from, to);
            from = to;
        }
        text += "; " + list;
        switch (thread.state) {
        case State::fresh:
        case State::runs: text += " not yet"; break;
        case State::ended: text += " ended"; break;
        case State::waits: text += " in " + describe(thread.operation, thread.site); break;
        }
    }
    return text;
}

// End the launch.
void Machine::fail(std::string message) {
    {
        Unseen unseen;
        error = format("kernel %s, block %u: ", kernel->name, block) + std::move(message);
    }
    go(threads[thread].fiber, &host);
    abort();
}

// The running thread is at an operation in which others of those from `first` on cannot join it.
void Machine::fail_missing(Operation operation, const Site& site, uint32_t first, uint32_t count) {
    Thread& self = threads[thread];
    self.state = State::waits;
    self.operation = operation;
    self.site = site;
    std::string message;
    {
        Unseen unseen;
        message = missing(operation, site, first, count);
    }
    fail(std::move(message));
}

void Machine::run_block() {
    ready_begin = ready_count = next = ended = arrived = 0;
    shared_bytes = 0;
    for (uint32_t i = 0; i < block_size; ++i) threads[i].state = State::fresh;
    for (uint32_t i = 0; i < block_size / warp_size; ++i) warps[i].arrived = 0;
    go(&host, fiber_for(0));
    if (error.empty() && ended != block_size) {
        std::string text;
        for (uint32_t i = 0; i < block_size / warp_size && text.empty(); ++i)
            if (warps[i].arrived > 0) text = missing(warps[i].operation, warps[i].site, i * warp_size, warp_size);
        if (text.empty()) text = missing(Operation::block_barrier, barrier, 0, block_size);
        error = format("kernel %s, block %u: ", kernel->name, block) + text;
    }
    Unseen unseen;
    for (const Variable& variable : variables) free(variable.memory);
    variables.clear();
    if (counting) sectors.end_block();
}

// Make the fibers of a launch that failed fit for another one.
void Machine::abandon() {
#ifdef SIMT_THREAD
    for (auto& set : fibers)
        for (auto& fiber : set) {
            if (!fiber || !fiber->busy) continue;
            __tsan_switch_to_fiber(fiber->thread, 1);
            end.release();
            __tsan_switch_to_fiber(host.thread, 1);
            fiber->begin(work);
        }
#else
    idle.clear();
    for (auto& fiber : fibers) {
        if (fiber->busy) fiber->begin(work);
        idle.push_back(fiber.get());
    }
#endif
}

// One launch happens after another that had ended, whichever threads of the host they are on.
Order launches;

void Machine::launch() {
    error.clear();
    sectors.clear();
    Position* outer = position;
    position = this;
#ifdef SIMT_THREAD
    host.thread = __tsan_get_current_fiber();
#endif
#ifdef SIMT_THREAD
    // Here, because what makes a fiber is ordered before it.
    for (uint32_t set = 0; set < fiber_sets && set < block_count; ++set)
        for (uint32_t i = 0; i < block_size; ++i)
            if (!fibers[set][i]) fibers[set][i] = std::make_unique<Fiber>(i, work);
#endif
    launches.acquire();
    begin.release();
    for (block = 0; block < block_count && error.empty(); ++block) run_block();
    if (!error.empty()) abandon();
    end.acquire();
    launches.release();
    position = outer;
}

// Machines that no launch uses.
class Pool {
    std::mutex lock;
    std::vector<std::unique_ptr<Machine>> machines;

public:
    std::unique_ptr<Machine> take() {
        std::lock_guard<std::mutex> guard(lock);
        if (machines.empty()) return std::make_unique<Machine>();
        std::unique_ptr<Machine> machine = std::move(machines.back());
        machines.pop_back();
        return machine;
    }
    void give(std::unique_ptr<Machine> machine) {
        std::lock_guard<std::mutex> guard(lock);
        machines.push_back(std::move(machine));
    }
};

// Never destroyed: threads may still launch while the process ends.
Pool& pool() {
    static Pool* pool = new Pool;
    return *pool;
}

const Kernel* find(const char* name) {
    for (size_t i = 0; i < simt_table_count; ++i)
        for (size_t j = 0; j < simt_tables[i]->count; ++j) {
            const Kernel& kernel = simt_tables[i]->kernels[j];
            if (kernel.name != nullptr && strcmp(kernel.name, name) == 0) return &kernel;
        }
    return nullptr;
}

// What is wrong with a launch, before it begins.
std::string check(const char* name, const Kernel* kernel, uint32_t grid, uint32_t block, size_t arguments) {
    if (kernel == nullptr) return format("there is no kernel %s", name);
    if (kernel->threads % warp_size != 0 || kernel->threads == 0 || kernel->threads > largest_block)
        return format("kernel %s is declared with blocks of %u threads", name, kernel->threads);
    if (kernel->threads != block)
        return format("kernel %s takes blocks of %u threads, not of %u", name, kernel->threads, block);
    if (kernel->parameters != arguments)
        return format("kernel %s takes %u arguments, not %zu", name, kernel->parameters, arguments);
    if (grid == 0 || grid > largest_grid) return format("kernel %s with a grid of %u blocks", name, grid);
    return {};
}

} // namespace

void wait_for_block(const char* file, uint32_t line) {
    Machine* m = machine();
    const Site site{file, line};
    if (m->arrived == 0)
        m->barrier = site;
    else if (!(m->barrier == site))
        m->fail_missing(Operation::block_barrier, site, 0, m->block_size);
    // Two orders by turns: nobody releases to this one again before all have acquired it.
    Order& order = m->order[m->turn];
    order.release();
    if (++m->arrived < m->block_size) {
        m->wait(Operation::block_barrier, site);
    } else {
        m->arrived = 0;
        m->turn ^= 1;
        for (uint32_t i = 0; i < m->block_size; ++i)
            if (i != m->thread) m->make_ready(i);
    }
    order.acquire();
}

uint64_t wait_for_warp(Operation operation, uint64_t value, uint32_t operand, const char* file, uint32_t line) {
    Machine* m = machine();
    const uint32_t lane = m->thread % warp_size;
    const uint32_t first = m->thread - lane;
    Warp& warp = m->warps[m->thread / warp_size];
    const Site site{file, line};
    if (warp.arrived == 0) {
        warp.operation = operation;
        warp.site = site;
    } else if (warp.operation != operation || !(warp.site == site)) {
        m->fail_missing(operation, site, first, warp_size);
    }
    // Two arrays by turns, as for the block: nobody writes to this one again before all have read it.
    uint64_t* values = warp.value[warp.turn];
    Order& order = warp.order[warp.turn];
    values[lane] = value;
    if (operation == Operation::warp_barrier) order.release();
    if (++warp.arrived < warp_size) {
        m->wait(operation, site);
    } else {
        warp.arrived = 0;
        warp.turn ^= 1;
        for (uint32_t i = first; i < first + warp_size; ++i)
            if (i != m->thread) m->make_ready(i);
    }
    switch (operation) {
    case Operation::shuffle_xor: return values[lane ^ operand % warp_size];
    case Operation::shuffle_from: return values[operand % warp_size];
    case Operation::shuffle_up: return values[lane < operand % warp_size ? lane : lane - operand % warp_size];
    case Operation::ballot: {
        uint64_t bits = 0;
        for (uint32_t i = 0; i < warp_size; ++i) bits |= values[i] << i;
        return bits;
    }
    case Operation::warp_barrier: order.acquire(); return 0;
    case Operation::block_barrier: break;
    }
    return 0;
}

void* shared(const void* key, size_t bytes, const char* file, uint32_t line) {
    Machine* m = machine();
    for (const Variable& variable : m->variables)
        if (variable.key == key) return variable.memory;
    m->shared_bytes += bytes;
    if (m->shared_bytes > shared_limit)
        m->fail(format("%zu bytes of shared memory at %s:%u, more than %zu", m->shared_bytes, file, line, shared_limit));
    Unseen unseen;
    void* memory = malloc(bytes);
    if (memory == nullptr) abort();
    memset(memory, poison, bytes);
    m->variables.push_back({key, memory});
    return memory;
}

void count(const void* address, size_t bytes, bool write, const char* file, uint32_t line) {
    Unseen unseen;
    Machine* m = machine();
    m->sectors.access(m->thread, m->block_size, address, bytes, write, file, line);
}

void misaligned(const void* address, size_t alignment, const char* file, uint32_t line) {
    Machine* m = machine();
    m->fail(format("thread %u accesses %p, not aligned to %zu, at %s:%u", m->thread, address, alignment, file, line));
}

} // namespace simt

// Make AddressSanitizer refuse these bytes, or take them again.
extern "C" void simt_forbid(uint64_t address, size_t bytes, bool forbid) {
#ifdef SIMT_ADDRESS
    const void* first = reinterpret_cast<const void*>(static_cast<uintptr_t>(address));
    (forbid ? __asan_poison_memory_region : __asan_unpoison_memory_region)(first, bytes);
#else
    (void)address, (void)bytes, (void)forbid;
#endif
}

// Run a kernel: `arguments` points to the value of each argument. What went wrong goes to `failed`,
// and what was counted, if it is asked for, to `counted`.
extern "C" void simt_launch(const char* name, uint32_t grid, uint32_t block, void* const* arguments, size_t count,
                            bool counting, void* sink, void (*failed)(void* sink, const char* message),
                            void (*counted)(void* sink, const simt::Count* count)) {
    using namespace simt;
    const Kernel* kernel = find(name);
    const std::string refused = check(name, kernel, grid, block, count);
    if (!refused.empty()) {
        failed(sink, refused.c_str());
        return;
    }
    std::unique_ptr<Machine> machine = pool().take();
    machine->kernel = kernel;
    machine->arguments = arguments;
    machine->block_size = block;
    machine->block_count = grid;
    machine->counting = counting;
    machine->launch();
    if (!machine->error.empty()) {
        failed(sink, machine->error.c_str());
    } else {
        for (const Count& count : machine->sectors.counts()) counted(sink, &count);
    }
    pool().give(std::move(machine));
}
