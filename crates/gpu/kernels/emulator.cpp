// Scheduler of the emulator's fibers.

#include "dev.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__x86_64__)
// Saves the registers that a function must keep, and continues on another stack.
extern "C" void nsbridge_gpu_switch(void **from, void *to);
asm(R"(
.text
.globl nsbridge_gpu_switch
.hidden nsbridge_gpu_switch
.type nsbridge_gpu_switch, @function
nsbridge_gpu_switch:
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
.size nsbridge_gpu_switch, .-nsbridge_gpu_switch
)");
#else
#error "the emulator needs x86-64"
#endif

namespace emulator {

__thread Block block;

namespace {

constexpr uint32_t MOST_THREADS = 1024;
constexpr size_t STACK = 256 << 10;
constexpr size_t SHARED_BYTES = 128 << 10;
constexpr uint32_t VARIABLES = 16;
constexpr uint32_t COPIES = 128;

const Entry *entries = nullptr;

struct Variable {
    const void *key;
    uint32_t at;
};

struct Copy {
    void *to;
    const void *from;
    uint32_t bytes;
    uint32_t group;
};

// Copies of a thread that it has not waited for.
struct Copies {
    Copy all[COPIES];
    uint32_t many;
    uint32_t groups;
};

// Fibers of one thread of the CPU, made once.
struct Fibers {
    void *stacks = nullptr;
    void *saved[MOST_THREADS];
    bool ended[MOST_THREADS];
    uint32_t next[MOST_THREADS];
    uint32_t position[MOST_THREADS];
    Exchange warps[MOST_THREADS / 32];
    uint32_t live;
    uint32_t arrived;
    uint32_t generation;
    uint64_t idle;
    void *scheduler;
    const Entry *entry;
    const void *args;
    Variable variables[VARIABLES];
    uint32_t known;
    uint32_t used;
    uint32_t given;
    Copies copies[MOST_THREADS];
    alignas(128) unsigned char shared[SHARED_BYTES];
};
__thread Fibers *fibers = nullptr;

[[noreturn]] void fail(const char *why) {
    fprintf(stderr, "the kernel %s on the emulator: %s\n", fibers->entry->name, why);
    abort();
}

// Continues with the next fiber of the ring.
void yield() {
    Fibers &own = *fibers;
    if (++own.idle > uint64_t(own.live + 1) * 64) {
        fail("all threads wait, and nothing ends the wait");
    }
    uint32_t from = block.thread, to = own.next[from];
    if (to == from) {
        return;
    }
    block.thread = to;
    nsbridge_gpu_switch(&own.saved[from], own.saved[to]);
}

void begin() {
    Fibers &own = *fibers;
    own.entry->body(own.args);
    uint32_t from = block.thread;
    if (own.copies[from].many > 0) {
        fail("a thread does not wait for its copies");
    }
    own.ended[from] = true;
    own.live--;
    own.idle = 0;
    // A barrier is for the threads that are left.
    if (own.live > 0 && own.arrived == own.live) {
        own.arrived = 0;
        own.generation++;
    }
    uint32_t to = own.next[from];
    if (own.live > 0) {
        uint32_t before = from;
        while (own.next[before] != from) {
            before = own.next[before];
        }
        own.next[before] = to;
        block.thread = to;
        nsbridge_gpu_switch(&own.saved[from], own.saved[to]);
    }
    nsbridge_gpu_switch(&own.saved[from], own.scheduler);
    abort();
}

void prepare(uint32_t thread) {
    auto top = reinterpret_cast<uintptr_t>(fibers->stacks) + STACK * (thread + 1);
    auto slots = reinterpret_cast<void **>(top) - 8;
    // The address of `begin` is popped by `ret`, which leaves the stack as a call does.
    slots[6] = reinterpret_cast<void *>(begin);
    slots[7] = nullptr;
    fibers->saved[thread] = slots;
}

// Puts the threads in a ring: ascending, descending, or shuffled by the number.
void arrange(uint32_t threads, uint32_t order) {
    Fibers &own = *fibers;
    uint32_t ring[MOST_THREADS];
    for (uint32_t i = 0; i < threads; i++) {
        ring[i] = order == 1 ? threads - 1 - i : i;
    }
    uint64_t state = order;
    for (uint32_t i = threads - 1; order > 1 && i > 0; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t other = uint32_t(state >> 33) % (i + 1);
        uint32_t kept = ring[i];
        ring[i] = ring[other];
        ring[other] = kept;
    }
    for (uint32_t i = 0; i < threads; i++) {
        own.next[ring[i]] = ring[(i + 1) % threads];
    }
    block.thread = ring[0];
}

void run_block(uint32_t order) {
    Fibers &own = *fibers;
    uint32_t threads = block.threads;
    for (uint32_t thread = 0; thread < threads; thread++) {
        own.ended[thread] = false;
        own.copies[thread].many = own.copies[thread].groups = 0;
        prepare(thread);
    }
    for (uint32_t warp = 0; warp < (threads + 31) / 32; warp++) {
        own.warps[warp].arrived = own.warps[warp].generation = 0;
    }
    own.live = threads;
    own.arrived = own.generation = 0;
    own.known = own.used = 0;
    own.idle = 0;
    arrange(threads, order);
    nsbridge_gpu_switch(&own.scheduler, own.saved[block.thread]);
}

} // namespace

Entry::Entry(const char *name, void (*body)(const void *), uint32_t bytes, uint32_t threads)
    : name(name), body(body), bytes(bytes), threads(threads), next(entries) {
    entries = this;
}

void barrier() {
    Fibers &own = *fibers;
    uint32_t generation = own.generation;
    own.idle = 0;
    if (++own.arrived == own.live) {
        own.arrived = 0;
        own.generation++;
        return;
    }
    while (own.generation == generation) {
        yield();
    }
    own.idle = 0;
}

void meet() {
    Exchange &own = fibers->warps[block.thread / 32];
    uint32_t generation = own.generation;
    fibers->idle = 0;
    uint32_t first = block.thread / 32 * 32;
    uint32_t lanes = block.threads - first < 32 ? block.threads - first : 32;
    if (++own.arrived == lanes) {
        own.arrived = 0;
        own.generation++;
        return;
    }
    while (own.generation == generation) {
        yield();
    }
    fibers->idle = 0;
}

void pause() {
    fibers->idle = 0;
    sched_yield();
    yield();
    fibers->idle = 0;
}

uint64_t nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec);
}

unsigned char *shared(const void *variable, uint32_t bytes) {
    Fibers &own = *fibers;
    for (uint32_t i = 0; i < own.known; i++) {
        if (own.variables[i].key == variable) {
            return own.shared + own.variables[i].at;
        }
    }
    uint32_t at = own.used, end = (at + bytes + 127) / 128 * 128;
    if (end > SHARED_BYTES || own.known == VARIABLES) {
        fail("too much shared memory");
    }
    // Not a number in each float, so that a read before a write shows.
    memset(own.shared + at, 0xff, end - at);
    own.variables[own.known++] = Variable{variable, at};
    own.used = end;
    return own.shared + at;
}

void need_shared(uint32_t bytes) {
    if (bytes != fibers->given) {
        fail("the launch gives more or less shared memory than the kernel has");
    }
}

void copy_later(void *to, const void *from, uint32_t bytes) {
    Copies &own = fibers->copies[block.thread];
    if (reinterpret_cast<uintptr_t>(to) % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0) {
        fail("a copy of odd addresses");
    }
    if (own.many == COPIES) {
        fail("too many copies");
    }
    own.all[own.many++] = Copy{to, from, bytes, own.groups};
}

void end_copies() { fibers->copies[block.thread].groups++; }

void wait_for_copies(uint32_t but) {
    Copies &own = fibers->copies[block.thread];
    uint32_t left = 0;
    for (uint32_t i = 0; i < own.many; i++) {
        const Copy &copy = own.all[i];
        if (copy.group + but < own.groups) {
            memcpy(copy.to, copy.from, copy.bytes);
        } else {
            own.all[left++] = copy;
        }
    }
    own.many = left;
}

} // namespace emulator

// The kernels are part of this file, since a linker would leave out a file of which nothing is called.
#include "all.cu"

using namespace emulator;

extern "C" {

// Finds a kernel. Returns null if there is none of this name.
const void *nsbridge_gpu_kernel(const char *name, uint32_t *bytes, uint32_t *threads) {
    for (const Entry *entry = entries; entry; entry = entry->next) {
        if (strcmp(entry->name, name) == 0) {
            *bytes = entry->bytes;
            *threads = entry->threads;
            return entry;
        }
    }
    return nullptr;
}

// Runs all blocks of a launch.
void nsbridge_gpu_launch(
    const void *kernel, const uint32_t *blocks, uint32_t threads, uint32_t shared, const void *args,
    uint32_t order) {
    if (!fibers) {
        fibers = static_cast<Fibers *>(calloc(1, sizeof(Fibers)));
        void *stacks = mmap(nullptr, STACK * MOST_THREADS, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (!fibers || stacks == MAP_FAILED) {
            fprintf(stderr, "no memory for the emulator's threads\n");
            abort();
        }
        fibers->stacks = stacks;
    }
    fibers->entry = static_cast<const Entry *>(kernel);
    fibers->args = args;
    fibers->given = shared;
    block.threads = threads;
    block.warps = fibers->warps;
    for (int i = 0; i < 2; i++) {
        block.blocks[i] = blocks[i];
    }
    for (block.block[1] = 0; block.block[1] < blocks[1]; block.block[1]++) {
        for (block.block[0] = 0; block.block[0] < blocks[0]; block.block[0]++) {
            run_block(order);
        }
    }
}
}
