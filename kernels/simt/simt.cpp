// Runs a launch: blocks one after another, the threads of a block as fibers that take turns.
//
// A fiber runs threads until one of them waits; what runs next is a thread that no longer waits, or
// one that has not begun, on another fiber. So a kernel that never waits runs all its threads on
// one fiber, as plain calls.

#include "simt.h"

#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

extern const simt::Table* const simt_tables[];
extern const size_t simt_table_count;

namespace simt {

__thread Position* position;

namespace {

constexpr uint32_t warp_size = 32;
constexpr size_t stack_bytes = 64 << 10;
constexpr size_t shared_limit = 48 << 10;
constexpr unsigned char poison = 0xa5;

extern "C" void simt_switch(void** from, void* to);
extern "C" void simt_begin();

#if defined(__x86_64__)
asm(R"(
    .text
    .p2align 4
    .globl simt_switch
    .type simt_switch, @function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size simt_switch, . - simt_switch
)");
#endif

struct Fiber {
    char* stack;
    void* sp;
};

enum class State : uint8_t { fresh, running, waits_for_block, waits_for_warp, ended };

struct Thread {
    Fiber* fiber;
    State state;
};

struct Site {
    const char* file;
    uint32_t line;
    bool operator==(const Site& other) const {
        return line == other.line && (file == other.file || strcmp(file, other.file) == 0);
    }
};

struct Warp {
    uint32_t arrived;
    uint32_t turn;
    Operation operation;
    Site site;
    uint64_t value[2][warp_size];
};

struct Variable {
    const void* key;
    void* memory;
    size_t bytes;
};

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* pattern, ...) {
    char text[512];
    va_list list;
    va_start(list, pattern);
    vsnprintf(text, sizeof(text), pattern, list);
    va_end(list);
    return text;
}

const char* name_of(Operation operation) {
    static const char* const names[] = {"block_barrier", "warp_barrier", "shuffle_xor",
                                        "shuffle_from",  "shuffle_up",   "ballot"};
    return names[static_cast<int>(operation)];
}

// What a launch needs; kept for the next one.
struct Machine : Position {
    const Kernel* kernel;
    void* const* arguments;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<uint32_t> ready; // no longer wait; taken from `ready_begin` on
    size_t ready_begin;
    uint32_t next; // the first thread that has not begun
    uint32_t ended;
    uint32_t arrived; // at the block's barrier
    Site barrier;
    std::vector<Variable> variables;
    size_t shared_bytes;
    std::string error;
    void* host_sp;
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Fiber*> idle;
    Fiber* current;

    static void work();
    Fiber* fiber();
    void prepare(Fiber* fiber);
    void to_fiber(void** from, Fiber* to);
    void to_host(void** from) { simt_switch(from, host_sp); }
    void wait();
    [[noreturn]] void fail(const std::string& message, const char* file, uint32_t line);
    void run_block();
    std::string stalled();
    void launch();
};

Machine* machine() { return static_cast<Machine*>(position); }

void Machine::work() {
    Machine* m = machine();
    Fiber* self = m->current;
    for (;;) {
        while (m->next < m->block_size && m->ready_begin == m->ready.size()) {
            const uint32_t thread = m->next++;
            m->thread = thread;
            m->threads[thread] = {self, State::running};
            m->kernel->run(m->arguments);
            m->threads[thread].state = State::ended;
            ++m->ended;
        }
        m->idle.push_back(self);
        if (m->ready_begin < m->ready.size())
            m->to_fiber(&self->sp, m->threads[m->ready[m->ready_begin++]].fiber);
        else
            m->to_host(&self->sp);
    }
}

void Machine::prepare(Fiber* fiber) {
    void** top = reinterpret_cast<void**>(fiber->stack + stack_bytes);
    *--top = nullptr; // keeps the stack aligned, and ends backtraces
    *--top = reinterpret_cast<void*>(&Machine::work);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    fiber->sp = top;
}

Fiber* Machine::fiber() {
    if (idle.empty()) {
        const size_t guard = 4096;
        void* memory = mmap(nullptr, guard + stack_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE) != 0) {
            fputs("zarrs_cuda_simt: no memory for a stack\n", stderr);
            abort();
        }
        fibers.push_back(std::make_unique<Fiber>());
        fibers.back()->stack = static_cast<char*>(memory) + guard;
        prepare(fibers.back().get());
        return fibers.back().get();
    }
    Fiber* fiber = idle.back();
    idle.pop_back();
    return fiber;
}

void Machine::to_fiber(void** from, Fiber* to) {
    current = to;
    simt_switch(from, to->sp);
}

// Let others run until this thread is ready.
void Machine::wait() {
    const uint32_t self = thread;
    Fiber* fiber = threads[self].fiber;
    if (ready_begin < ready.size())
        to_fiber(&fiber->sp, threads[ready[ready_begin++]].fiber);
    else if (next < block_size)
        to_fiber(&fiber->sp, this->fiber());
    else
        to_host(&fiber->sp);
    thread = self;
}

void Machine::fail(const std::string& message, const char* file, uint32_t line) {
    error = format("kernel %s, block %u, thread %u: %s at %s:%u", kernel->name, block, thread, message.c_str(), file,
                   line);
    void* never;
    to_host(&never);
    abort();
}

void Machine::run_block() {
    ready.clear();
    ready_begin = 0;
    next = ended = arrived = 0;
    shared_bytes = 0;
    for (Warp& warp : warps) warp.arrived = warp.turn = 0;
    to_fiber(&host_sp, fiber());
    if (error.empty() && ended != block_size) error = stalled();
    for (const Variable& variable : variables) free(variable.memory);
    variables.clear();
}

std::string Machine::stalled() {
    std::string text = format("kernel %s, block %u: threads are missing:", kernel->name, block);
    for (size_t i = 0; i < warps.size(); ++i) {
        const Warp& warp = warps[i];
        if (warp.arrived != 0)
            text += format(" warp %zu has %u lanes at %s at %s:%u", i, warp.arrived, name_of(warp.operation),
                           warp.site.file, warp.site.line);
    }
    if (arrived != 0)
        text += format(" the block has %u of %u threads at block_barrier at %s:%u", arrived, block_size, barrier.file,
                       barrier.line);
    return text;
}

void Machine::launch() {
    Position* outer = position;
    position = this;
    threads.resize(block_size);
    warps.resize(block_size / warp_size);
    error.clear();
    for (block = 0; block < block_count && error.empty(); ++block) run_block();
    position = outer;
    if (!error.empty()) {
        idle.clear();
        for (auto& fiber : fibers) {
            prepare(fiber.get());
            idle.push_back(fiber.get());
        }
    }
}

std::mutex pool_lock;
std::vector<std::unique_ptr<Machine>>& pool() {
    static auto* machines = new std::vector<std::unique_ptr<Machine>>;
    return *machines;
}

} // namespace

void wait_for_block(const char* file, uint32_t line) {
    Machine* m = machine();
    const Site site{file, line};
    if (m->arrived == 0)
        m->barrier = site;
    else if (!(m->barrier == site))
        m->fail(format("others wait at the block_barrier at %s:%u, this one at another", m->barrier.file,
                       m->barrier.line),
                file, line);
    const uint32_t self = m->thread;
    if (++m->arrived < m->block_size) {
        m->threads[self].state = State::waits_for_block;
        m->wait();
        return;
    }
    m->arrived = 0;
    m->ready.erase(m->ready.begin(), m->ready.begin() + m->ready_begin);
    m->ready_begin = 0;
    for (uint32_t i = 0; i < m->block_size; ++i) {
        if (i != self) m->ready.push_back(i);
        m->threads[i].state = State::running;
    }
}

uint64_t wait_for_warp(Operation operation, uint64_t value, uint32_t operand, const char* file, uint32_t line) {
    Machine* m = machine();
    const uint32_t self = m->thread;
    const uint32_t lane = self % warp_size;
    Warp& warp = m->warps[self / warp_size];
    const Site site{file, line};
    if (warp.arrived == 0) {
        warp.operation = operation;
        warp.site = site;
    } else if (warp.operation != operation || !(warp.site == site)) {
        m->fail(format("other lanes of the warp wait in %s at %s:%u, this one in %s", name_of(warp.operation),
                       warp.site.file, warp.site.line, name_of(operation)),
                file, line);
    }
    // Nobody gets to the next operation but one before all have read this one's values.
    const uint64_t* values = warp.value[warp.turn];
    warp.value[warp.turn][lane] = value;
    if (++warp.arrived < warp_size) {
        m->threads[self].state = State::waits_for_warp;
        m->wait();
    } else {
        warp.arrived = 0;
        warp.turn ^= 1;
        m->ready.erase(m->ready.begin(), m->ready.begin() + m->ready_begin);
        m->ready_begin = 0;
        for (uint32_t i = self - lane; i < self - lane + warp_size; ++i) {
            if (i != self) m->ready.push_back(i);
            m->threads[i].state = State::running;
        }
    }
    switch (operation) {
    case Operation::shuffle_xor: return values[lane ^ (operand % warp_size)];
    case Operation::shuffle_from: return values[operand % warp_size];
    case Operation::shuffle_up: return values[lane < operand % warp_size ? lane : lane - operand % warp_size];
    case Operation::ballot: {
        uint64_t bits = 0;
        for (uint32_t i = 0; i < warp_size; ++i) bits |= values[i] << i;
        return bits;
    }
    default: return 0;
    }
}

void* shared(const void* key, size_t bytes, const char* file, uint32_t line) {
    Machine* m = machine();
    for (const Variable& variable : m->variables)
        if (variable.key == key) return variable.memory;
    m->shared_bytes += bytes;
    if (m->shared_bytes > shared_limit) m->fail("more than 48 KiB of shared memory", file, line);
    void* memory = malloc(bytes);
    memset(memory, poison, bytes);
    m->variables.push_back({key, memory, bytes});
    return memory;
}

void count(const void*, size_t, bool, const char*, uint32_t) {}

void misaligned(const void* address, size_t alignment, const char* file, uint32_t line) {
    machine()->fail(format("%p is not aligned to %zu bytes", address, alignment), file, line);
}

} // namespace simt

// Runs a kernel. Returns null, or a message to be freed.
extern "C" char* simt_launch(const char* name, uint32_t grid, uint32_t block, void* const* arguments, size_t count) {
    using namespace simt;
    const Kernel* kernel = nullptr;
    for (size_t i = 0; i < simt_table_count; ++i)
        for (size_t j = 0; j < simt_tables[i]->count; ++j) {
            const Kernel* candidate = &simt_tables[i]->kernels[j];
            if (candidate->name != nullptr && strcmp(candidate->name, name) == 0) kernel = candidate;
        }
    std::string error;
    if (kernel == nullptr)
        error = format("there is no kernel %s", name);
    else if (kernel->threads != block)
        error = format("kernel %s takes blocks of %u threads, not %u", name, kernel->threads, block);
    else if (kernel->parameters != count)
        error = format("kernel %s takes %u arguments, not %zu", name, kernel->parameters, count);
    else if (grid == 0 || grid > 0x7fffffff)
        error = format("kernel %s: a grid of %u blocks", name, grid);
    else if (block == 0 || block % warp_size != 0 || block > 1024)
        error = format("kernel %s: blocks of %u threads", name, block);
    if (error.empty()) {
        std::unique_ptr<Machine> machine;
        {
            std::lock_guard<std::mutex> guard(pool_lock);
            if (!pool().empty()) {
                machine = std::move(pool().back());
                pool().pop_back();
            }
        }
        if (!machine) machine = std::make_unique<Machine>();
        machine->kernel = kernel;
        machine->arguments = arguments;
        machine->block_size = block;
        machine->block_count = grid;
        machine->counting = false;
        machine->launch();
        error = machine->error;
        std::lock_guard<std::mutex> guard(pool_lock);
        pool().push_back(std::move(machine));
    }
    return error.empty() ? nullptr : strdup(error.c_str());
}

extern "C" void simt_free(char* text) { free(text); }
