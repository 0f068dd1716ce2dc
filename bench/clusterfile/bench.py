"""Image to squashfs file, by sconce and by what people use today, on one image and in one run.

    bench.py WORK [--rounds N] [--cold-disk]

WORK/image is what image.sh made. Everything is compressed with zstd at level 3 in blocks of 128 KiB. Each figure is a median
over the rounds; in a round the tools take turns. Peers get their best options.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
MEASURE = HERE.parent / "measure.py"
SCONCE = REPOSITORY / "bin" / "sconce"
MKSQUASHFS = "mksquashfs {tree} {out} -comp zstd -Xcompression-level 3 -b 131072 -noappend -no-progress -quiet"
MB = 1e6


class Bench:
    def __init__(self, work, cold_disk):
        self.work, self.image, self.cold_disk = work, work / "image", cold_disk
        self.out = work / "files"
        self.results = {}

    def run(self, name, script, out, temporary=()):
        """Runs a shell script and notes what it took; temporary are directories whose size at the end counts as such."""
        out = self.out / out
        out.unlink(missing_ok=True)
        if self.cold_disk:
            drop_caches()
        report = self.out / "measured.json"
        log = self.out / f"{name.replace(' ', '-').replace('/', '')}.log"
        code = subprocess.run(
            [sys.executable, "-B", MEASURE, report, log, "--", "sh", "-euc", script], env=clean_env(), check=False
        ).returncode
        if code:
            sys.exit(f"{name} failed, see {log}")
        figures = json.loads(report.read_text())
        figures["size_bytes"] = out.stat().st_size
        figures["temporary_bytes"] = sum(disk_usage(d) for d in temporary)
        self.results.setdefault(name, []).append(figures)
        print(f"  {name}: {figures['wall_s']:.2f} s", file=sys.stderr)

    def round(self):
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        store, image, out = self.out / "store", self.image, self.out
        sconce = f"SCONCE_STORE={store} {SCONCE} copy --quiet"

        # From the gzip layers of the image, every cache of the tools empty.
        self.run("layers: sconce", f"{sconce} oci:{image}/oci:v1 {out}/v1.sqsh", "v1.sqsh")
        self.run("layers: sconce --no-reuse", f"SCONCE_STORE={store}-n {SCONCE} copy --quiet --no-reuse oci:{image}/oci:v1 {out}/n.sqsh", "n.sqsh")
        bundle = out / "bundle"
        self.run(
            "layers: umoci + mksquashfs",
            f"umoci unpack --image {image}/oci:v1 {bundle}; {MKSQUASHFS.format(tree=bundle / 'rootfs', out=out / 'umoci.sqsh')}",
            "umoci.sqsh", [bundle],
        )
        shutil.rmtree(bundle)

        # From a flat tar.
        self.run("tar: sconce", f"SCONCE_STORE={store}-t {SCONCE} copy --quiet tar:{image}/flat.tar {out}/t.sqsh", "t.sqsh")
        self.run("tar: tar2sqfs", f"tar2sqfs -q -c zstd -X level=3 -b 131072 {out}/t2.sqsh < {image}/flat.tar", "t2.sqsh")

        # A line changed on top; everything that a tool keeps is there.
        self.run("change: sconce", f"{sconce} oci:{image}/oci:v2 {out}/v2.sqsh", "v2.sqsh")
        self.run(
            "change: umoci + mksquashfs",
            f"umoci unpack --image {image}/oci:v2 {bundle}; {MKSQUASHFS.format(tree=bundle / 'rootfs', out=out / 'umoci2.sqsh')}",
            "umoci2.sqsh", [bundle],
        )
        shutil.rmtree(bundle)
        self.buildah(out)

        self.run("wrap: sconce .sqsh to .sif", f"{sconce} {out}/v1.sqsh {out}/v1.sif", "v1.sif")
        self.run("wrap: cp", f"cp {out}/v1.sqsh {out}/cp.sif", "cp.sif")

    def buildah(self, out):
        """What a careful person does today: the change as a layer in local storage, the image mounted, mksquashfs."""
        storage = f"--root {out}/storage --runroot {out}/runroot --storage-driver overlay"
        subprocess.run(
            f"buildah {storage} pull -q oci:{self.image}/oci:v1 && buildah {storage} tag $(buildah {storage} images -q) localhost/v1",
            shell=True, check=True, env=clean_env(), stdout=subprocess.DEVNULL,
        )
        (out / "context").mkdir()
        (out / "context" / "Containerfile").write_text(
            "FROM localhost/v1\nCOPY line /usr/lib/python3/dist-packages/torch/debug.py\n"
        )
        (out / "context" / "line").write_text("debug = True\n")
        self.run(
            "change: buildah + mksquashfs",
            f"buildah {storage} bud -q --isolation chroot -t localhost/v2 {out}/context; c=$(buildah {storage} from localhost/v2);"
            f" m=$(buildah {storage} mount $c); {MKSQUASHFS.format(tree='$m', out=out / 'buildah.sqsh')};"
            f" buildah {storage} umount $c; buildah {storage} rm $c",
            "buildah.sqsh",
        )
        subprocess.run(f"buildah {storage} rm -a; buildah {storage} rmi -a -f", shell=True, check=False, env=clean_env(), stdout=subprocess.DEVNULL)

    def start(self, rounds):
        """Seconds of `import torch` from files with nothing in memory, by the kernel's mount and by squashfuse_ll."""
        mount = self.out / "mnt"
        mount.mkdir(exist_ok=True)
        files = {"sconce": "v1.sqsh", "umoci + mksquashfs": "umoci.sqsh", "tar2sqfs": "t2.sqsh"}
        for how in ("kernel", "squashfuse_ll"):
            for _ in range(rounds):
                for tool, file in files.items():
                    self.results.setdefault(f"import torch, {how}: {tool}", []).append(
                        {"wall_s": timed_import(how, self.out / file, mount)}
                    )


def timed_import(how, file, mount):
    if how == "kernel":
        subprocess.run(["mount", "-t", "squashfs", "-o", "loop,ro", file, mount], check=True)
        process = None
    else:
        process = subprocess.Popen(["squashfuse_ll", "-f", file, mount])
        while not os.path.ismount(mount):
            time.sleep(0.02)
    try:
        subprocess.run(["mount", "--bind", "/dev", mount / "dev"], check=True)
        drop_caches()
        began = time.monotonic()
        subprocess.run(
            ["/usr/sbin/chroot", mount, "/usr/bin/python3", "-B", "-c", "import torch"], check=True, env={"PATH": "/usr/bin:/bin"}
        )
        return time.monotonic() - began
    finally:
        subprocess.run(["umount", "-R", mount], check=True)
        if process:
            process.wait()


def clean_env():
    return {k: v for k, v in os.environ.items() if not k.startswith(("SCONCE_", "SOURCE_DATE"))}


def drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def disk_usage(directory):
    return int(subprocess.run(["du", "-sB1", directory], check=True, capture_output=True, text=True).stdout.split()[0])


COLUMNS = [
    ("wall s", "wall_s", 1), ("CPU s", "cpu_s", 1), ("process MB", "peak_process_bytes", MB), ("tree MB", "peak_tree_bytes", MB),
    ("unpacked MB", "temporary_bytes", MB), ("size MB", "size_bytes", MB), ("others", "others_cores", 1),
]
# (text, of, to, least ratio of wall times)
TARGETS = [
    ("from layers, against umoci + mksquashfs", "layers: umoci + mksquashfs", "layers: sconce", 3.5),
    ("from a flat tar, against tar2sqfs", "tar: tar2sqfs", "tar: sconce", 1 / 1.2),
    ("after a change, against umoci + mksquashfs", "change: umoci + mksquashfs", "change: sconce", 20),
    ("after a change, against buildah + mksquashfs", "change: buildah + mksquashfs", "change: sconce", 8),
]
MEMORY_TARGET = 250 * MB
SIZE_TARGET = 0.03


def show(results):
    medians = {name: {k: statistics.median(r[k] for r in runs) for k in runs[0]} for name, runs in results.items()}
    width = max(map(len, medians))
    print("  " + " " * width + "".join(f"  {title:>11}" for title, _, _ in COLUMNS))
    for name, figures in medians.items():
        cells = "".join(f"  {figures[key] / unit:11.2f}" if key in figures else " " * 13 for _, key, unit in COLUMNS)
        print("  " + name.ljust(width) + cells)
    print("\nTargets")
    good = True
    for text, peer, ours, least in TARGETS:
        if peer in medians and ours in medians:
            ratio = medians[peer]["wall_s"] / medians[ours]["wall_s"]
            good &= line(ratio >= least, f"{text}: {ratio:.2f} times as fast, target {least:.2f}")
    peak = max(max(f.get("peak_process_bytes", 0), f.get("peak_tree_bytes", 0)) for n, f in medians.items() if ": sconce" in n)
    good &= line(peak < MEMORY_TARGET, f"memory: peak {peak / MB:.0f} MB, target under 250")
    for ours, peer in (("layers: sconce", "layers: umoci + mksquashfs"), ("tar: sconce", "tar: tar2sqfs")):
        if ours in medians and peer in medians:
            more = medians[ours]["size_bytes"] / medians[peer]["size_bytes"] - 1
            good &= line(abs(more) <= SIZE_TARGET, f"size of '{ours}' against '{peer}': {more:+.1%}, target within 3 %")
    return good


def line(met, text):
    print(f"  {'met   ' if met else 'MISSED'}  {text}")
    return met


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("BENCH_ROUNDS", "1")))
    parser.add_argument("--cold-disk", action="store_true", help="empty the page cache before each measurement")
    options = parser.parse_args()
    bench = Bench(options.work.resolve(), options.cold_disk)
    for _ in range(options.rounds):
        bench.round()
    bench.start(options.rounds)
    (bench.work / "result.json").write_text(json.dumps(bench.results))
    sys.exit(0 if show(bench.results) else 1)


if __name__ == "__main__":
    main()
