// Stacks of their own, and switching between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

#if !defined(SIMT_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define SIMT_UCONTEXT
#endif
#ifdef SIMT_UCONTEXT
#include <ucontext.h>
#endif

// What the sanitizers have to be told. The file that includes this is not instrumented itself.
#ifdef SIMT_ADDRESS
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t bytes);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* bytes);
void __asan_poison_memory_region(const volatile void* address, size_t bytes);
void __asan_unpoison_memory_region(const volatile void* address, size_t bytes);
}
#endif
#ifdef SIMT_THREAD
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace simt {

#if defined(SIMT_ADDRESS) || defined(SIMT_THREAD)
constexpr size_t stack_bytes = 256 << 10; // reports are written on them
#else
constexpr size_t stack_bytes = 64 << 10;
#endif

// For ThreadSanitizer: what was released to `order` happens before what follows acquiring it.
struct Order {
    char place;
#ifdef SIMT_THREAD
    void acquire() { __tsan_acquire(&place); }
    void release() { __tsan_release(&place); }
#else
    void acquire() {}
    void release() {}
#endif
};

// For ThreadSanitizer: what the emulator itself does in here is no access of the kernel's.
struct Unseen {
#ifdef SIMT_THREAD
    Unseen() {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
    ~Unseen() {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
#else
    Unseen() {}
#endif
    Unseen(const Unseen&) = delete;
    Unseen& operator=(const Unseen&) = delete;
};

#ifdef SIMT_UCONTEXT

struct Context {
    ucontext_t saved;
};

inline void switch_context(Context& from, Context& to) { swapcontext(&from.saved, &to.saved); }

inline void prepare_context(Context& context, char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context.saved);
    context.saved.uc_stack.ss_sp = stack;
    context.saved.uc_stack.ss_size = bytes;
    context.saved.uc_link = nullptr;
    makecontext(&context.saved, entry, 0);
}

#else

// The rest is saved on the stack.
struct Context {
    void* stack_pointer;
};

extern "C" void simt_switch(void** save, void* stack_pointer);

#if defined(__x86_64__)
constexpr size_t entry_word = 6;
constexpr size_t frame_words = 8; // the entry finds the stack as after a call, from nowhere
asm(R"(
    .text
    .p2align 4
    .globl simt_switch
    .hidden simt_switch
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
#else
constexpr size_t entry_word = 11; // the link register
constexpr size_t frame_words = 20;
asm(R"(
    .text
    .p2align 4
    .globl simt_switch
    .hidden simt_switch
    .type simt_switch, %function
simt_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size simt_switch, . - simt_switch
)");
#endif

inline void switch_context(Context& from, Context& to) { simt_switch(&from.stack_pointer, to.stack_pointer); }

inline void prepare_context(Context& context, char* stack, size_t bytes, void (*entry)()) {
    void** frame = reinterpret_cast<void**>(stack + bytes) - frame_words;
    for (size_t i = 0; i < frame_words; ++i) frame[i] = nullptr;
    frame[entry_word] = reinterpret_cast<void*>(entry);
    context.stack_pointer = frame;
}

#endif

// A place to run: a stack of its own, or the one that a launch came on.
struct Fiber {
    Context context{};
    char* stack = nullptr;
    size_t bytes = 0;
    Fiber* before = nullptr; // ran until this one was switched to
    bool busy = false;       // a thread has begun on it, and not ended
#ifdef SIMT_ADDRESS
    void* fake_stack = nullptr;
#endif
#ifdef SIMT_THREAD
    void* thread = nullptr;
#endif

    // The stack that a launch comes on.
    Fiber() = default;
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // A stack of its own, on which `entry` runs. Stacks begin at different lines of the cache.
    Fiber(size_t number, void (*entry)()) {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        void* memory = mmap(nullptr, page + stack_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
            fputs("zarrs_cuda_simt: no memory for a stack\n", stderr);
            abort();
        }
        stack = static_cast<char*>(memory) + page;
        bytes = stack_bytes - number % 16 * 256;
        begin(entry);
    }

    // Forget what runs on it, if anything does.
    void begin(void (*entry)()) {
        busy = false;
        prepare_context(context, stack, bytes, entry);
#ifdef SIMT_ADDRESS
        __asan_unpoison_memory_region(stack, stack_bytes);
        fake_stack = nullptr;
#endif
#ifdef SIMT_THREAD
        if (thread != nullptr) __tsan_destroy_fiber(thread);
        thread = __tsan_create_fiber(0);
#endif
    }

    // Called first on the fiber that was switched to.
    void arrive() {
#ifdef SIMT_ADDRESS
        const void* bottom;
        __sanitizer_finish_switch_fiber(fake_stack, &bottom, &before->bytes);
        before->stack = const_cast<char*>(static_cast<const char*>(bottom));
#endif
    }

    // Run `to` until something switches back.
    void switch_to(Fiber& to) {
        to.before = this;
#ifdef SIMT_ADDRESS
        __sanitizer_start_switch_fiber(&fake_stack, to.stack, to.bytes);
#endif
#ifdef SIMT_THREAD
        __tsan_switch_to_fiber(to.thread, 1); // orders nothing
#endif
        switch_context(context, to.context);
        arrive();
    }
};

} // namespace simt
