"""Static cost of the packed layouts' kernels on two ARM cores, beside upstream's; see docs/kernels.md.

A kernel is compiled for the core, run under an emulator that logs each instruction, and the log is what llvm-mca
gets: every loop with the iterations that it has, whatever the code looks like. Cycles of a long row less those of a
short one, over the products that the long row has more.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs/kernels.md"
KEPT = ROOT / "target/mca"  # the instructions that were counted
BEGIN, END = "<!-- static-cost: begin -->", "<!-- static-cost: end -->"
WORSE = 1.05
KERNELS = ("gemv", "gemm", "prepare")

# Heading in the table, zig's name and llvm-mca's name of the core, and what it has beyond armv8-a.
CORES = (
    ("Cortex-A55", "cortex_a55", "cortex-a55", "+dotprod,+fullfp16"),
    ("Apple A7", "apple_a7", "cyclone", ""),
)


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def tool(name):
    """A program of LLVM 14, whose models of the cores the table was made with."""
    return f"{name}-14"


def build(core, kernels, tree, scratch):
    """The program that runs kernels one by one, for a core: its path, its code by address, and where smol_mark is."""
    _, zig_cpu, mca_cpu, features = core
    out = scratch / zig_cpu
    out.mkdir()
    cpu = tree / "ggml/src/ggml-cpu"
    target = ["-target", "aarch64-linux-musl", f"-mcpu={zig_cpu}"]
    flags = [*target, "-O3", "-g0", "-w", "-DNDEBUG", "-ffp-contract=off", "-ffunction-sections", "-fdata-sections"]
    flags += ["-fno-exceptions", '-DGGML_VERSION=""', '-DGGML_COMMIT=""']
    flags += [f"-I{folder}" for folder in (kernels, tree / "ggml/include", tree / "ggml/src", cpu)]
    sources = [
        *sorted(kernels.glob("*.cpp")),
        ROOT / "ci/mca/runtime.cpp",
        ROOT / "ci/mca/trace.cpp",
        tree / "ggml/src/ggml-quants.c",
        cpu / "quants.c",
        cpu / "arch/arm/quants.c",
        cpu / "arch/arm/repack.cpp",
    ]
    zig = [sys.executable, "-m", "ziglang"]
    objects = []
    for number, source in enumerate(sources):
        # zig keeps what it has compiled, by content.
        objects.append(out / f"{number}-{source.stem}.o")
        language = ["cc", "-std=gnu11"] if source.suffix == ".c" else ["c++", "-std=gnu++17"]
        run(*zig, *language, *flags, "-c", source, "-o", objects[-1])
    program = out / "trace"
    # Without a C library, of which no kernel needs anything (packing may): building one takes longer than all the rest.
    run(*zig, "ld.lld", "--gc-sections", "--unresolved-symbols=ignore-all", *objects, "-o", program)
    dump = run(tool("llvm-objdump"), "-d", "--no-show-raw-insn", f"--mcpu={mca_cpu}", f"--mattr={features}", program)
    code, mark = {}, None
    for line in dump.splitlines():
        if found := re.match(r"([0-9a-f]+) <smol_mark>:", line):
            mark = int(found[1], 16)
        elif found := re.match(r"\s*([0-9a-f]+):\s+(\S.*)", line):
            code[int(found[1], 16)] = instruction(found[2])
    return program, code, mark


def instruction(text):
    """As llvm-mca reads it; where a branch goes to does not matter to it."""
    text = re.sub(r"\s*<[^>]*>", "", text.split("//")[0]).strip()
    name, _, operands = text.partition("\t")
    name = name.strip()
    if name in ("bl", "blr", "ret", "b", "br"):
        return "b #0"
    if name.startswith("b."):
        return f"{name} #0"
    if name in ("cbz", "cbnz", "tbz", "tbnz"):
        return f"{name} {operands.rpartition(',')[0]}, #0"
    return f"{name} {operands}"


def trace(built, name, *what):
    """Kernel, row length, products and instructions of each region of a run."""
    program, code, mark = built
    log = program.with_name(f"{name}.log")
    emulator = ["qemu-aarch64-static", "-cpu", "max", "-singlestep", "-d", "exec,nochain", "-D", log]
    headings = [line.split() for line in run(*emulator, program, *what).splitlines()]
    regions, current, marks = [], None, 0
    with open(log, encoding="ascii") as lines:
        for line in lines:
            if not line.startswith("Trace "):
                continue
            address = int(line.split("[", 1)[1].split("/")[1], 16)
            if address == mark:
                if current is not None:
                    regions.append(current)
                marks += 1
                current = [] if marks % 2 else None
            elif current is not None:
                current.append(code[address])
    log.unlink()
    for heading, region in zip(headings, regions):
        (KEPT / f"{name}-{heading[0]}.s").write_text("\n".join(region) + "\n")
    if len(regions) != len(headings) or not all(regions):
        sys.exit(f"{' '.join(what)}: {len(regions)} traces of {len(headings)} kernels")
    return [(name, int(k), int(products), region) for (name, k, products), region in zip(headings, regions)]


def cycles(core, instructions):
    _, _, mca_cpu, features = core
    report = run(
        *(tool("llvm-mca"), "-mtriple=aarch64", f"-mcpu={mca_cpu}", f"-mattr={features}", "-iterations=1"),
        *("-resource-pressure=0", "-instruction-info=0"),
        input="\n".join(instructions),
    )
    return int(re.search(r"Total Cycles:\s+(\d+)", report)[1])


def costs(core, built, pool, *what):
    """Cycles per 128 products (activations for `prepare`) of each kernel."""
    prefix = "upstream-" if what[0] == "upstream" else ""
    regions = trace(built, f"{core[1]}-{prefix}{what[-1]}", *what)
    counted = pool.map(lambda region: cycles(core, region[3]), regions)
    points = {}
    for (kernel, _, products, _), count in zip(regions, counted):
        points.setdefault(kernel, []).append((products, count))
    result = {}
    for kernel, ((products1, count1), (products2, count2)) in points.items():
        result[kernel] = (count2 - count1) / (products2 - products1) * 128
    return result


def measure(kernels, tree, names):
    """Lines of the table: layout, kernel -> for each core ours and upstream's or None."""
    lines = {}
    KEPT.mkdir(parents=True, exist_ok=True)
    # Several runs at a time do not get in each other's way.
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        builds = list(pool.map(lambda core: build(core, kernels, tree, pathlib.Path(scratch)), CORES))
        for index, (core, built) in enumerate(zip(CORES, builds)):
            listed = run("qemu-aarch64-static", "-cpu", "max", built[0], "list")
            upstream = {}
            for layout, kind in map(str.split, listed.splitlines()):
                if names and not any(layout.startswith(name) for name in names):
                    continue
                if kind not in upstream:
                    upstream[kind] = costs(core, built, pool, "upstream", kind)
                ours = costs(core, built, pool, "layout", layout)
                for kernel in KERNELS:
                    line = lines.setdefault((layout, kernel), [(None, None)] * len(CORES))
                    # Where upstream has no gemm, each column costs it a gemv.
                    theirs = upstream[kind].get(kernel, upstream[kind]["gemv"])
                    line[index] = (ours[kernel], theirs)
    if not lines:
        sys.exit(f"no layout starts with {' or '.join(names)}")
    return lines


def figure(value):
    return "" if value is None else f"{value:.1f}"


def render(lines):
    heading = ["layout", "kernel"]
    for name, *_ in CORES:
        heading += [name, "upstream", "times"]
    rows = [heading]
    for (layout, kernel), cells in sorted(lines.items(), key=lambda item: (KERNELS.index(item[0][1]), item[0][0])):
        row = [layout, kernel]
        for ours, theirs in cells:
            times = f"{theirs / ours:.2f}" if ours and theirs else ""
            row += [figure(ours), figure(theirs), times]
        rows.append(row)
    text = ["| " + " | ".join(row) + " |" for row in rows]
    text.insert(1, "|---|---" + "|---:" * (len(heading) - 2) + "|")
    return "\n".join(text)


def parse(text):
    lines = {}
    for row in text.strip().splitlines()[2:]:
        layout, kernel, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        values = [float(cell) if cell else None for cell in cells]
        lines[layout, kernel] = [tuple(values[i : i + 2]) for i in range(0, len(values), 3)]
    return lines


def compare(lines, table, whole):
    """What is wrong with the figures, given those of the table."""
    faults = []
    for (layout, kernel), cells in lines.items():
        known = table.get((layout, kernel))
        for (core, *_), (ours, _), (before, _) in zip(CORES, cells, known or [(None, None)] * len(CORES)):
            name = f"{layout} {kernel} on {core}"
            if ours is None and before is None:
                continue
            if before is None:
                faults.append(f"{name} is not in the table")
            elif ours is None:
                faults.append(f"{name} is in the table, and no longer built")
            elif ours > before * WORSE:
                faults.append(f"{name}: {ours:.1f} cycles instead of {before:.1f}")
            elif ours * WORSE < before:
                print(f"{name}: better, {ours:.1f} cycles instead of {before:.1f}")
    if whole:
        faults += [f"{layout} {kernel} is in the table only" for layout, kernel in table if (layout, kernel) not in lines]
    return faults


def main():
    parser = argparse.ArgumentParser(prog="ci/mca.sh", description="Static cost of the kernels on ARM cores.")
    parser.add_argument("layout", nargs="*", help="only layouts whose name starts so")
    parser.add_argument("--update", action="store_true", help="write the figures into docs/kernels.md")
    parser.add_argument("--kernels", type=pathlib.Path, default=ROOT / "ggml-sys/native/kernels", metavar="DIR")
    arguments = parser.parse_args()

    tree = pathlib.Path(run(ROOT / "ci/pinned-tree.sh").strip())
    lines = measure(arguments.kernels.resolve(), tree, arguments.layout)
    print(render(lines))
    before, begin, rest = TABLE.read_text().partition(BEGIN)
    kept, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{TABLE}: no table between {BEGIN} and {END}")
    table = parse(kept)
    if arguments.update:
        merged = {**table, **lines} if arguments.layout else lines
        TABLE.write_text(f"{before}{begin}\n{render(merged)}\n{end}{after}")
        return
    if faults := compare(lines, table, not arguments.layout):
        sys.exit("\n".join([*faults, "docs/kernels.md has other figures; if these are meant: ci/mca.sh --update"]))


main()
