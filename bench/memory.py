"""Runs and tables of bench/memory.sh, which makes the models and the fences; see there."""
import json
import os
import statistics
import tempfile
import subprocess
import time

import fences
from fences import MIB, Died, attempt, flash, prompt_file, ram, run, say, set_read_ahead, smol_run, stock, table

# The prompt and the answer are short. What the context takes is taken from the weights that stay in memory.
options = fences.parse(names="packed small large corpus", context=256, margin=24)
parts = options.parts.split(",")


def spread(values, digits=2):
    values = sorted(values)
    return f"{statistics.median(values):.{digits}f} ({values[0]:.{digits}f}-{values[-1]:.{digits}f})"


def read_aheads():
    return (128, 8192) if options.read_ahead else (None,)


def part_stock(state):
    rows = []
    for kilobytes in read_aheads():
        if kilobytes:
            set_read_ahead(kilobytes)

        def measure():
            speed, read = stock(state["prompt"], options.tokens, memory=True, disk=True)
            state.setdefault("stock", {})[kilobytes] = speed
            return [f"stock, mmap, read-ahead {kilobytes or 'as it is'} KB", speed, read]
        attempt(rows, f"stock, read-ahead {kilobytes}", measure)
    table(f"Stock in {options.limit / 1e6:.0f} MB, disk {state['flash']:.0f} MB/s", ["run", "tokens/s", "MB a token"], rows)


def streamed(state, speed, **fence):
    """A row: what a streamed model does, and what the disk allows."""
    report = smol_run(state["prompt"], options.tokens, "--ram", f"{ram()}MiB", memory=True, **fence)
    stream = report.get("stream")
    if not stream:
        raise Died("the model is not streamed: it fits")
    bound = speed / stream["mb_per_pass"]
    got = report["generation_tps"]
    return got, [f"smol --ram {ram()}MiB", got, stream["mb_per_pass"], bound, f"{100 * got / bound:.0f} %",
                 stream["wait_ms_per_pass"], stream["zone_mb"], report["peak_rss_mb"]]


COLUMNS = ["run", "tokens/s", "MB a token", "bound, tokens/s", "of the bound", "wait, ms a token", "zone, MB", "peak, MB"]


def part_stream(state):
    rows = []
    for kilobytes in read_aheads():
        if kilobytes:
            set_read_ahead(kilobytes)

        def measure():
            got, row = streamed(state, state["flash"], disk=True)
            if kilobytes in state.get("stock", {}):
                row[0] += f", {got / state['stock'][kilobytes]:.2f} times stock"
            row[0] += f", read-ahead {kilobytes} KB"
            return row
        attempt(rows, f"stream, read-ahead {kilobytes}", measure)
    table(f"Streamed in {options.limit / 1e6:.0f} MB, disk {state['flash']:.0f} MB/s", COLUMNS, rows)


def part_open(state):
    """The disk as fast as it is: its direct reads are the bound, or computing."""
    rows = []
    for _ in range(options.rounds):
        speed = open_flash()

        def measure(speed=speed):
            row = streamed(state, speed)[1]
            return [f"{row[0]}, disk {speed:.0f} MB/s", *row[1:]]
        attempt(rows, "stream, disk not throttled", measure)

        def resident():
            got = smol_run(state["prompt"], options.tokens, cold=False)
            return ["all in memory", got["generation_tps"], 0.0, "", "", 0.0, 0.0, got["peak_rss_mb"]]
        attempt(rows, "resident", resident)
    table("Disk not throttled: its speed with four direct reads at once", COLUMNS, rows)


def open_flash():
    """MB/s of four direct reads at once, into as much memory as a stream has: what `smol plan` measures."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        out = run([options.smol, "--cache", folder, "plan", "-m", options.model, "--ram", f"{ram()}MiB", "-c", options.context,
                   "--json"])[0]
    return json.loads(out)["flash"]["parallel_mb_s"]


def part_cache(_state):
    """Starts of a packed model: packing, writing a cache, mapping it; and stock's with a memory map and plain kernels."""
    folder = os.path.join(options.folder, "packed")
    told = ["-m", options.packed, "-p", "The sky is", "-n", "1", "-c", "256", "-t", str(options.threads), "--temp", "0"]
    plain = [options.smol, "run", "--raw", *told]
    cached = [*plain, "--pack-cache", folder]
    commands = {"without a cache": plain, "warm cache": cached}
    program = os.path.join(options.stock, "llama-completion")
    if os.access(program, os.X_OK):
        commands["stock, mmap, -nr"] = [program, *told, "-no-cnv", "--no-warmup", "--no-display-prompt", "-nr"]
    loads = {name: [] for name in commands}
    firsts, wholes, cold = ({name: [] for name in commands} for _ in range(3))
    try:
        if os.path.isdir(folder):
            run([options.smol, "cache", "clear", "--pack-cache", folder], cold=False)
        packing = json.loads(run([*cached, "--json"], cold=False)[0])
        file = packing["cache"]["file"]
        for _ in range(options.rounds):
            for name, command in commands.items():
                if command[0] == options.smol:
                    loads[name].append(json.loads(run([*command, "--json"], cold=False)[0])["load_s"])
                first, whole = first_output(command)
                firsts[name].append(first)
                wholes[name].append(whole)
        # From the disk.
        for _ in range(min(options.rounds, 3)):
            for name, command in commands.items():
                for path in (options.packed, file):
                    fences.forget(path)
                cold[name].append(first_output(command)[0])
    except Died as error:
        say(str(error))
        return
    rows = [[name, spread(loads[name], 3) if loads[name] else "", spread(firsts[name], 3), spread(wholes[name], 3),
             spread(cold[name])] for name in commands]
    rows.insert(0, ["packs and writes the cache", packing["load_s"], "", "", ""])
    table(f"{os.path.basename(options.packed)}: {os.path.getsize(options.packed) / 1e6:.0f} MB, cache of "
          f"{os.path.getsize(file) / 1e6:.0f} MB, in the page cache; seconds",
          ["run", "load", "first token", "whole program", "first token, from the disk"], rows)


def part_head(_state):
    """Pruned heads: speed of generation by turns, and bits per byte of text."""
    rows = []
    corpus = options.corpus or prompt_file("head-corpus.txt", 0, 28000)
    text = prompt_file("head-text.txt", 28000, 20000)
    for path, keep in ((options.small, 16384), (options.large, 65536)):
        name = os.path.basename(path)

        def measure():
            pruned = os.path.join(options.folder, f"pruned-{keep}.gguf")
            run([options.smol, "recut", path, pruned, "--head-from", corpus, "--keep", str(keep), "--force"], cold=False)
            ratios, speeds = [], {path: [], pruned: []}
            for index in range(options.rounds):
                for model in (path, pruned) if index % 2 else (pruned, path):
                    out = run([options.smol, "bench", "-m", model, "-p", "0", "-n", "48", "-r", "3", "-t",
                               str(options.threads), "--json"], cold=False)[0]
                    speeds[model].append(statistics.median(json.loads(out)[0]["samples_ts"]))
                ratios.append(speeds[pruned][-1] / speeds[path][-1])
            bits = []
            for model in (path, pruned):
                out = run([options.smol, "perplexity", "-m", model, "-f", text, "-c", "512", "--json"], cold=False)[0]
                bits.append(json.loads(out))
            outside = bits[1].get("outside_tokens", 0)
            return [f"{name}, {keep} rows", spread(speeds[path], 1), spread(speeds[pruned], 1), spread(ratios),
                    bits[0]["bits_per_byte"], bits[1]["bits_per_byte"], f"{outside} tokens",
                    os.path.getsize(path) / 1e6, os.path.getsize(pruned) / 1e6]
        attempt(rows, f"head of {name}", measure)
    table("Pruned heads", ["model", "full, tokens/s", "pruned, tokens/s", "ratio", "bits per byte", "pruned, of kept text",
                           "outside", "file, MB", "pruned, MB"], rows)


def main():
    state = {"prompt": prompt_file("prompt.txt", 15000, 300), "flash": flash()}
    print(f"{os.path.basename(options.model)}: {os.stat(options.model).st_size / 1e6:.0f} MB; {options.threads} threads; "
          f"disk {state['flash']:.0f} MB/s; memory {options.limit / MIB:.0f} MiB", flush=True)
    for part in parts:
        if part in {"stock", "stream", "open"} and not options.in_memory:
            say(f"{part}: left out, it needs a memory cgroup")
        elif part == "stock" and not os.access(os.path.join(options.stock, "llama-completion"), os.X_OK):
            say(f"stock: left out, no llama-completion in {options.stock} (ci/stock.sh llama-completion)")
        else:
            globals()["part_" + part](state)


main()
