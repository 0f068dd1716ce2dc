"""Medians over the rounds as a table, and ratios against uv."""

import statistics

MB = 1e6
MEMORY_TARGET = 300 * MB
BUSY_CORES = 0.3  # the index and the sampler stay below
# (step, least ratio of uv's wall time to sconce's)
TARGETS = [("cold", 3.0), ("second", 20.0)]
# What is said of a ratio: both make byte code, which sconce does not of tests, or neither does.
ALIKE = {
    **{(tool, "sconce"): "byte code in both" for tool in ("uv-bytecode", "uv-bytecode-zstd", "pip")},
    ("uv", "sconce-no-bytecode"): "same output",
}
COLUMNS = [
    ("wall s", "wall_s", 1),
    ("CPU s", "cpu_s", 1),
    ("process MB", "peak_process_bytes", MB),
    ("tree MB", "peak_tree_bytes", MB),
    ("written MB", "written_bytes", MB),
    ("size MB", "size_bytes", MB),
    (".pyc", "bytecode_files", 1),
    ("others", "others_cores", 1),
]
TITLES = {
    "cold": "First build: recipe to OCI layout, every cache empty",
    "second": "Second build: one small package changed, caches warm, same layout (size: what was added to it)",
}


def medians(rounds):
    """{tool: {step: {key: median}}}"""
    return {
        tool: {
            step: {key: statistics.median(r[tool][step][key] for r in rounds) for key in first[step]}
            for step in first
        }
        for tool, first in rounds[0].items()
    }


def busy(rounds):
    """The most cores that anything else took during any measurement."""
    return max(numbers["others_cores"] for r in rounds for steps in r.values() for numbers in steps.values())


def number(value, unit):
    value /= unit
    return f"{value:.2f}" if value < 100 and value != int(value) else f"{value:.0f}"


def align(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  " + row[0].ljust(widths[0]) + "".join("  " + cell.rjust(w) for cell, w in zip(row[1:], widths[1:])))


def spread(rounds, tool, step):
    walls = [r[tool][step]["wall_s"] for r in rounds]
    return f"{min(walls):.2f}-{max(walls):.2f}"


def table(rounds, step):
    print(f"\n{TITLES[step]}")
    rows = [["", *(title for title, _, _ in COLUMNS), "wall min-max"]]
    for tool, steps in medians(rounds).items():
        cells = [number(steps[step][key], unit) for _, key, unit in COLUMNS]
        rows.append([tool, *cells, spread(rounds, tool, step)])
    align(rows)


def ratio_row(found, tool, to):
    cells = [found[tool][s][k] / found[to][s][k] for s in ("cold", "second") for k in ("wall_s", "cpu_s")]
    return [f"{tool} / {to}", *(f"{c:.1f}x" for c in cells)]


def ratios(rounds):
    found = medians(rounds)
    print("\nHow many times what sconce takes (more than 1: sconce is better)")
    pairs = [(tool, "sconce") for tool in found if not tool.startswith("sconce")] + [("uv", "sconce-no-bytecode")]
    rows = [["", "first, wall", "first, CPU", "second, wall", "second, CPU", ""]]
    for tool, to in pairs:
        if tool in found and to in found:
            rows.append([*ratio_row(found, tool, to), ALIKE.get((tool, to), "")])
    align(rows)


def targets(rounds):
    found = medians(rounds)
    checks = []
    for step, least in TARGETS:
        ratio = found["uv"][step]["wall_s"] / found["sconce"][step]["wall_s"]
        checks.append((f"{step}: {ratio:.1f} times as fast as uv, target {least:.0f}", ratio >= least))
    # A sample can miss what a short process had, the kernel's own count of the largest one cannot: the worse counts.
    peaks = ("peak_tree_bytes", "peak_process_bytes")
    peak = max(found["sconce"][step][key] for step in ("cold", "second") for key in peaks)
    checks.append((f"memory: peak {peak / MB:.0f} MB, process tree or largest process, target under 300", peak < MEMORY_TARGET))
    print("\nTargets")
    for text, met in checks:
        print(f"  {'met   ' if met else 'MISSED'}  {text}")
    return all(met for _, met in checks)


def show(result):
    """Print it all; whether every target is met (True when there is nothing to compare)."""
    facts, rounds = result["facts"], result["rounds"]
    print(
        f"{facts['packages']} packages, {facts['wheel_bytes'] / MB:.0f} MB of wheels, {facts['cores']} cores,"
        f" medians of {len(rounds)}; {', '.join(facts['versions'].values())}"
    )
    for step in TITLES:
        table(rounds, step)
    if busy(rounds) > BUSY_CORES:
        print(f"\nThe machine did other work, up to {busy(rounds):.1f} cores of it: trust CPU before wall.")
    if not {"sconce", "uv"} <= set(rounds[0]):
        return True
    ratios(rounds)
    return targets(rounds)
