"""Model of the scenarios `python-crash` and `python-hang`: answers an order, and misbehaves in it."""

import ctypes
import os
import resource
import signal
import subprocess
import threading
import time

_WORD = (1 << 64) - 1
_EVER = 1_000_000


def piece(seed, index):
    """Returns a piece of the reply with this seed, equal to that of the handler in Rust."""
    z = ((seed ^ index << 32) + 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _WORD
    return "%d:%04x " % (index, (z ^ z >> 31) & 0xFFFF)


def memory(_job):
    """Runs out of memory: a limit refuses the allocation, so the call fails and not the process."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), hard))
    hoard = []
    try:
        while True:
            hoard.append(bytearray(8 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def exit_on_another_thread(_job):
    threading.Thread(target=os._exit, args=(4,)).start()
    threading.Event().wait()


def endless_thread(_job):
    thread = threading.Thread(target=threading.Event().wait)
    thread.start()
    thread.join()


def stubborn_loop(_job):
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass


def spin(_job):
    while True:
        pass


def patient(job):
    while True:
        time.sleep(0.01)
        job.check()


MISDEEDS = {
    # Each ends the process, except that `memory` ends the call.
    "segfault": lambda _job: ctypes.string_at(0),
    "exit": lambda _job: os._exit(3),
    "abort": lambda _job: os.abort(),
    "kill": lambda _job: os.kill(os.getpid(), signal.SIGKILL),
    "thread_exit": exit_on_another_thread,
    "memory": memory,
    # Each hangs until the process group is killed. The first one keeps the interpreter's lock.
    "c_call": lambda _job: ctypes.PyDLL(None).sleep(_EVER),
    "sleep": lambda _job: time.sleep(_EVER),
    "endless_thread": endless_thread,
    "stubborn_loop": stubborn_loop,
    "child": lambda _job: subprocess.run(["sleep", str(_EVER)]),
    # Each hangs until the call is told to stop.
    "spin": spin,
    "patient": patient,
}


def handle(order, job):
    known = 0 if order["deaf"] else len(job.resumed())
    for index in range(known, order["pieces"]):
        time.sleep(order["every_ms"] / 1000)
        if index == order["at"]:
            MISDEEDS[order["misdeed"]](job)
        yield piece(job.seed, index)
