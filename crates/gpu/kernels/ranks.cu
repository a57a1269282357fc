// Rendezvous of the ranks of a model, each on its device.

#include "args.h"
#include "dev.h"

// Tells the other ranks that the work before this kernel is done, and waits until theirs is. A flag
// holds the number of the last rendezvous that its rank has come to, counted over all steps.
KERNEL(meet, MeetArgs, 32) {
    uint32_t other = THREAD;
    if (other >= a.ranks) {
        return;
    }
    uint32_t own = *a.step * a.in_step + a.number + 1;
    store_release(a.flags[other] + a.rank, own);
    const uint32_t *flag = a.flags[a.rank] + other;
    uint64_t begun = nanoseconds();
    // The difference is right even after the numbers have begun anew.
    while (int32_t(load_acquire(flag) - own) < 0) {
        if (*a.lost || nanoseconds() - begun > a.limit_nanoseconds) {
            *a.lost = 1 + other;
            return;
        }
        pause();
    }
}
