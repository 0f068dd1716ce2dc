"""Run one command and measure its whole process tree.

    measure.py OUT.json LOG -- COMMAND...

Wall is from start to the end of the last descendant. CPU and the largest process come from the kernel's own accounting
(RUSAGE_CHILDREN, wait4(2)): this process is the tree's reaper (PR_SET_CHILD_SUBREAPER), so that orphans count too. The
tree's peak is a sample every 50 ms of the sum of PSS, proportional set size: a page shared by n processes counts 1/n in each.
"""

import ctypes
import json
import os
import resource
import subprocess
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
SAMPLE_SECONDS = 0.05


def children(pid):
    """Process IDs of the direct children of pid."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as f:
                found += [int(child) for child in f.read().split()]
    except OSError:
        pass  # it ended while we looked
    return found


def pss(pid):
    """Proportional set size of one process in bytes, 0 once it ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            for line in f:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def tree_pss():
    """Sum of PSS over every descendant of this process, in bytes."""
    total, todo = 0, children(os.getpid())
    while todo:
        pid = todo.pop()
        total += pss(pid)
        todo += children(pid)
    return total


class Sampler(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.peak = 0
        self.stop = threading.Event()

    def run(self):
        while not self.stop.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, tree_pss())


def reap_all():
    """Wait for the orphans that came to us."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def machine_busy():
    """CPU seconds that the whole machine has been busy since it started, proc_stat(5)."""
    with open("/proc/stat") as f:
        user, nice, system, idle, iowait, irq, softirq, steal, *_ = (int(n) for n in f.readline().split()[1:])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def measure(argv, log_path):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    sampler = Sampler()
    with open(log_path, "ab") as log:
        start, busy = time.monotonic(), machine_busy()
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        sampler.start()
        code = child.wait()
        reap_all()
        wall, busy = time.monotonic() - start, machine_busy() - busy
    sampler.stop.set()
    sampler.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "exit": code,
        "wall_s": wall,
        "cpu_s": used.ru_utime + used.ru_stime,
        "others_cores": max(busy - used.ru_utime - used.ru_stime, 0) / wall,  # taken by all else, the index included
        "user_s": used.ru_utime,
        "sys_s": used.ru_stime,
        "peak_process_bytes": used.ru_maxrss * 1024,  # Linux counts in KiB, getrusage(2)
        "peak_tree_bytes": max(sampler.peak, 0),
        "written_bytes": used.ru_oublock * 512,  # blocks of 512 bytes
    }


def main():
    out, log, dashes, *argv = sys.argv[1:]
    if dashes != "--" or not argv:
        sys.exit("usage: measure.py OUT.json LOG -- COMMAND...")
    result = measure(argv, log)
    with open(out, "w") as f:
        json.dump(result, f)
    sys.exit(1 if result["exit"] else 0)


if __name__ == "__main__":
    main()
