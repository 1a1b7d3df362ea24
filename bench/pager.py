"""Runs and tables of bench/pager.sh, which makes the model and the fences; see there."""
import argparse
import ctypes
import json
import mmap
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import time

arguments = argparse.ArgumentParser()
for name in "parts model smol stock folder text svg in-memory in-disk read-ahead".split():
    arguments.add_argument(f"--{name}")
for name in "threads tokens rounds limit".split():
    arguments.add_argument(f"--{name}", type=int)
options = arguments.parse_args()
parts = options.parts.split(",")
MIB = 1 << 20
CONTEXT = 1024
SEED = 7
# Room in the cgroup for what no program counts: page tables, the kernel's own, pages of the program itself.
MARGIN = 48 * MIB
ram = (options.limit - MARGIN) // MIB
running = None


def say(text):
    print(text, file=sys.stderr, flush=True)


def stop(number, _frame):
    sys.exit(128 + number)


for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, stop)


class Died(Exception):
    """A program ended otherwise than it should have."""


def cached(path):
    """MB of a file that are in the page cache."""
    size = os.stat(path).st_size
    pages = -(-size // mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE) as view:
        # Writable, though nothing is written: ctypes asks for that before it tells the address.
        start = ctypes.c_char.from_buffer(view)
        flags = (ctypes.c_ubyte * pages)()
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), flags)
        del start
    return 0.0 if failed else sum(flag & 1 for flag in bytes(flags)) * mmap.PAGESIZE / 1e6


def forget(path):
    """Takes a file out of the page cache; pages there would be another cgroup's, and free of charge."""
    for _ in range(120):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached(path) < 8:
            return
        time.sleep(1)
    raise Died(f"{path} stays in the page cache: another program has it mapped")


def run(command, memory=False, disk=False, cold=True):
    """Runs a command in the fences it is to be in: (standard output, standard error, MB read from disk, seconds)."""
    global running
    # With v2 the last of them counts, and it has both limits.
    groups = [path for path, wanted in ((options.in_disk, disk), (options.in_memory, memory)) if wanted and path]

    def enter():
        for path in groups:
            with open(path, "w") as file:
                file.write(str(os.getpid()))

    if cold:
        forget(options.model)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock, time.monotonic()
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=enter, text=True, errors="replace")
    try:
        out, err = running.communicate()
    finally:
        if running.poll() is None:
            running.kill()
            running.wait()
    seconds = time.monotonic() - start
    read = (resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before) * 512 / 1e6
    if running.returncode:
        raise Died(f"{os.path.basename(command[0])} ended with {running.returncode}: {err.strip()[-400:]}")
    return out, err, read, seconds


def prompt_file(name, start, characters):
    """A piece of the text behind what the routers were fitted to, from the start of a word on."""
    with open(options.text) as file:
        text = file.read()
    start = text.index(" ", start) + 1
    path = os.path.join(options.folder, name)
    with open(path, "w") as file:
        file.write(text[start:start + characters].rsplit(" ", 1)[0])
    return path


def stock(prompt, tokens, **fence):
    """Text of stock's llama-completion: tokens/s, MB read per generated token."""
    program = os.path.join(options.stock, "llama-completion")

    def once(count):
        # Without -nr the weights are copied into memory that can't be dropped, and the limit kills the program.
        command = [program, "-m", options.model, "-f", prompt, "-n", str(count), "-c", str(CONTEXT), "-t",
                   str(options.threads), "--temp", "0.8", "--seed", str(SEED), "-no-cnv", "-nr", "--ignore-eos",
                   "--no-display-prompt", "--no-warmup", "--perf"]
        # Now and then it ends before its last lines are written.
        for _ in range(3):
            _, err, read, _ = run(command, **fence)
            found = re.search(r"[^t] eval time = *([\d.]+) ms / *(\d+) runs", err)
            if found:
                return float(found[1]), int(found[2]), read
        raise Died("llama-completion printed no times")

    _, few, prompt_read = once(2)
    milliseconds, many, read = once(tokens)
    return 1000 * many / milliseconds, (read - prompt_read) / (many - few)


def smol_run(prompt, tokens, *flags, **fence):
    out, _, read, seconds = run(
        [options.smol, "run", "-m", options.model, "-f", prompt, "--raw", "-n", str(tokens), "-c", str(CONTEXT),
         "-t", str(options.threads), "--temp", "0.8", "--seed", str(SEED), "--json", *flags], **fence)
    report = json.loads(out)
    report["disk_mb"], report["seconds"] = read, seconds
    return report


def generation(prompt, tokens, *flags, **fence):
    """What generating alone costs: a run of one token is taken off a run of all."""
    first = smol_run(prompt, 1, *flags, **fence)
    whole = smol_run(prompt, tokens, *flags, **fence)
    made = whole["generated_tokens"] - first["generated_tokens"]
    if made < tokens // 2:
        say(f"only {made} tokens before the text's end: the figures are rough")
    result = {"speed": whole["generation_tps"], "disk": (whole["disk_mb"] - first["disk_mb"]) / made, "tokens": made}
    a, b = first.get("pager"), whole.get("pager")
    if b:
        counted = b["tokens"] - a["tokens"]
        for key in ("hits", "misses", "useful", "late", "wasted", "streamed"):
            result[key] = b[key] - a[key]
        result["rate"] = result["misses"] / max(1, result["hits"] + result["misses"])
        result["read"] = (b["bytes_read"] - a["bytes_read"]) / 1e6 / counted
        result["wait"] = (b["wait_ms_per_token"] * b["tokens"] - a["wait_ms_per_token"] * a["tokens"]) / counted
        result.update(slots=b["slots"], pool=b["pool_mb"], readers=b["readers"], mode=b["io_mode"])
    return result


def flash():
    """MB/s of reads past the cache, in large pieces, as the fence has it."""
    command = ["dd", f"if={options.model}", "of=/dev/null", "bs=4M", "count=250", "iflag=direct"]
    _, _, read, seconds = run(command, disk=True)
    return read / seconds


def set_read_ahead(kilobytes):
    """Sets the disk's read-ahead; whether that was allowed."""
    if options.read_ahead:
        with open(options.read_ahead, "w") as file:
            file.write(str(kilobytes))
    return bool(options.read_ahead)


def table(title, columns, rows):
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for row in rows:
        print("| " + " | ".join(cell if isinstance(cell, str) else f"{cell:.{2 if cell < 10 else 1}f}" for cell in row) + " |",
              flush=True)


COLUMNS = ["run", "tokens/s", "MB a token", "missed", "wait, ms a token", "bound, tokens/s", "of the bound", "read ahead: useful, late, wasted"]


def bound_of(state, got):
    """Tokens/s if the disk read nothing but the experts that a token lacks, and all the time."""
    lacking = (got["misses"] + got["useful"]) / got["tokens"] * state["expert_mb"]
    return state["flash"] / lacking if lacking else float("inf")


def row(name, got, state):
    bound = bound_of(state, got)
    return [name, got["speed"], got["read"], f"{100 * got['rate']:.1f} %", got["wait"], bound,
            f"{100 * got['speed'] / bound:.0f} %", f"{got['useful']}, {got['late']}, {got['wasted']}"]


def attempt(rows, name, measure):
    """Adds a row; one that can't be had says why."""
    say(f"{name} ...")
    try:
        rows.append(measure())
    except Died as error:
        say(f"{name}: {error}")
        rows.append([name, "-"])


def part_stock(state):
    rows = []
    for kilobytes in (128, 8192) if options.read_ahead else (None,):
        if kilobytes:
            set_read_ahead(kilobytes)
        name = f"stock, mmap, read-ahead {kilobytes} KB" if kilobytes else "stock, mmap, read-ahead as it is"

        def measure():
            # A token takes seconds with a long read-ahead.
            tokens = options.tokens if kilobytes != 8192 else 16
            speed, read = stock(state["prompt"], tokens, memory=True, disk=True)
            state.setdefault("stock", {})[kilobytes] = speed
            return [name, speed, read]
        attempt(rows, name, measure)
    table(f"Stock in {options.limit / MIB:.0f} MiB, disk {state['flash']:.0f} MB/s", COLUMNS[:3], rows)


def fenced(state, *flags):
    return generation(state["prompt"], options.tokens, "--ram", f"{ram}MiB", *flags, memory=True, disk=True)


def part_pager(state):
    rows = []
    for kilobytes in (128, 8192) if options.read_ahead else (None,):
        if kilobytes:
            set_read_ahead(kilobytes)
        name = f"smol --ram {ram}MiB" + (f", read-ahead {kilobytes} KB" if kilobytes else "")

        def measure():
            got = fenced(state)
            state["pager"] = got
            say(json.dumps(got))
            for ahead, speed in state.get("stock", {}).items():
                if ahead == kilobytes:
                    say(f"{got['speed'] / speed:.1f} times stock")
            return row(name, got, state)
        attempt(rows, name, measure)
    table(f"Pager in {options.limit / MIB:.0f} MiB, disk {state['flash']:.0f} MB/s", COLUMNS, rows)


def part_bias(state):
    rows = []
    for bias in ("0", "0.03", "0.1", "0.3", "1"):
        attempt(rows, f"--expert-bias {bias}", lambda: row(
            f"--expert-bias {bias}", fenced(state, "--expert-bias", bias), state))
    table("Preference for experts in memory", COLUMNS, rows)


def part_prefetch(state):
    rows = []
    for when in ("off", "on", "auto"):
        attempt(rows, f"--prefetch {when}", lambda: row(
            f"--prefetch {when}", fenced(state, "--prefetch", when), state))
    table("Reading ahead", COLUMNS, rows)


def part_pool(state):
    rows, points = [], []
    for slots in (8, 16, 24, 32, 48, 64, 80, 96):
        def measure():
            got = generation(state["prompt"], options.tokens, "--expert-pool", str(slots), disk=True)
            points.append((slots, got["speed"], bound_of(state, got)))
            return row(f"--expert-pool {slots}", got, state)
        attempt(rows, f"--expert-pool {slots}", measure)
    table("Size of the pool, experts of each layer", COLUMNS, rows)
    if len(points) > 1:
        with open(options.svg, "w") as file:
            file.write(plot(points, state))
        say(f"plot: {options.svg}")


def part_resident(state):
    """Everything in memory: the pager with room for all experts against none, by turns."""
    speeds = {"prompt": [], "generation": []}

    def bench(*flags):
        out = run([options.smol, "bench", "-m", options.model, "-p", "512", "-n", "128", "-r", "8", "-t",
                   str(options.threads), "--json", *flags], cold=False)[0]
        # The pager reads in the first repetitions what it lacks.
        return {"prompt" if test["n_prompt"] else "generation": statistics.median(test["samples_ts"][-3:])
                for test in json.loads(out)}
    for index in range(options.rounds):
        order = ([], ["--expert-pool", "96"])
        got = {}
        for flags in order if index % 2 else order[::-1]:
            try:
                got[bool(flags)] = bench(*flags)
            except Died as error:
                say(str(error))
                return
        for test in speeds:
            speeds[test].append((got[True][test], got[False][test]))
            say(f"{test}: pager {got[True][test]:.2f}, resident {got[False][test]:.2f}")
    rows = []
    for test, pairs in speeds.items():
        ratios = sorted(pager / resident for pager, resident in pairs)
        rows.append([test, *(statistics.median(pair[i] for pair in pairs) for i in (0, 1)),
                     f"{statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})"])
    table("Whole model in memory, no limits", ["test", "pager, tokens/s", "resident, tokens/s", "ratio"], rows)


def part_prompt(state):
    """Bytes read until the first token of a long prompt."""
    prompt = prompt_file("prompt-600.txt", 26000, 2750)
    rows = []

    def measure():
        got = smol_run(prompt, 1, "--ram", f"{ram}MiB", memory=True, disk=True)
        pager = got["pager"]
        return [f"{got['prompt_tokens']} tokens", pager["bytes_read"] / 1e6, state["experts_mb"],
                f"{pager['bytes_read'] / 1e6 / state['experts_mb']:.3f}", got["prompt_tokens"] / got["prompt_tps"],
                f"{pager['streamed']}"]
    attempt(rows, "prompt", measure)
    table("First token of a prompt", ["prompt", "MB read", "MB of all experts", "passes", "seconds", "streamed experts"], rows)


def part_perplexity(state):
    """What the preference costs, with the pool that the limit leaves; no throttle, since that changes no text."""
    slots = str(state["pager"]["slots"] // state["layers"]) if "pager" in state else "27"
    text = prompt_file("perplexity.txt", 20000, 18000)
    rows = []
    for bias in ("0.03", "0.1", "0.3", "1"):
        def measure():
            out = run([options.smol, "perplexity", "-m", options.model, "-f", text, "-c", "512", "-t", str(options.threads),
                       "--expert-pool", slots, "--expert-bias", bias, "--prefetch", "off", "--json"], cold=False)[0]
            report = json.loads(out)
            base = report["baseline"]
            return [f"--expert-bias {bias}", report["perplexity"], base["perplexity"],
                    f"{100 * (report['perplexity_ratio'] - 1):+.2f} %", f"{100 * report['pager']['miss_rate']:.1f} %",
                    f"{100 * base['pager']['miss_rate']:.1f} %",
                    f"{report['pager']['miss_rate'] / base['pager']['miss_rate']:.2f}"]
        attempt(rows, f"perplexity --expert-bias {bias}", measure)
    table(f"Perplexity with {slots} experts of each layer in memory",
          ["run", "perplexity", "without", "cost", "missed", "without", "part of it"], rows)


def plot(points, state):
    """Tokens/s, and what the disk allows, over the size of the pool."""
    width, height, left, bottom, top = 640, 360, 56, 48, 24
    highest = max(speed for _, speed, _ in points) * 1.15
    x = lambda slots: left + (width - left - 16) * slots / points[-1][0]
    y = lambda speed: height - bottom - (height - bottom - top) * speed / highest
    line = lambda dots: " ".join(f"{x(a):.1f},{y(min(b, highest)):.1f}" for a, b in dots)
    text = lambda px, py, what, anchor="middle": f'<text x="{px:.1f}" y="{py:.1f}" text-anchor="{anchor}">{what}</text>'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#444">',
             f'<rect width="{width}" height="{height}" fill="#fff"/>']
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if highest / step <= 8)
    for speed in range(0, int(highest) + 1, step):
        parts.append(f'<path d="M{left} {y(speed):.1f}H{width - 16}" stroke="#ddd"/>' + text(left - 6, y(speed) + 4, speed, "end"))
    for slots, _, _ in points:
        parts.append(text(x(slots), height - bottom + 16, slots))
    bound = [(slots, limit) for slots, _, limit in points if limit <= highest]
    parts.append(f'<polyline points="{line(bound)}" fill="none" stroke="#b44" stroke-dasharray="5 4" stroke-width="1.5"/>')
    parts.append(f'<polyline points="{line([(a, b) for a, b, _ in points])}" fill="none" stroke="#26a" stroke-width="2"/>')
    parts += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="#26a"/>' for a, b, _ in points]
    parts.append(text((width + left) / 2, height - 10, "experts of each layer in memory, of 96"))
    parts.append(text(left, 16, f"tokens/s, disk {state['flash']:.0f} MB/s; dashed: disk speed / MB missed a token", "start"))
    return "\n".join([*parts, "</svg>", ""])


def experts():
    """MB of all experts, the number of layers that have any, and that of experts, as `smol inspect` lists them."""
    out = run([options.smol, "inspect", options.model, "--json"], cold=False)[0]
    tensors = [tensor for tensor in json.loads(out)["tensors"] if "_exps." in tensor["name"]]
    down = [tensor["shape"][2] for tensor in tensors if "ffn_down_exps" in tensor["name"]]
    return sum(tensor["bytes"] for tensor in tensors) / 1e6, len(down), sum(down)


def main():
    megabytes, layers, count = experts()
    state = {"prompt": prompt_file("prompt.txt", 15000, 900), "experts_mb": megabytes, "layers": layers,
             "expert_mb": megabytes / count, "flash": flash()}
    print(f"{os.path.basename(options.model)}: {os.stat(options.model).st_size / 1e6:.0f} MB, {megabytes:.0f} MB of them experts "
          f"in {layers} layers; {options.threads} threads; sampled text, temperature 0.8, seed {SEED}; "
          f"disk {state['flash']:.0f} MB/s", flush=True)
    fences = {"stock", "pager", "bias", "prefetch", "prompt"}
    for part in parts:
        if part in fences and not options.in_memory:
            say(f"{part}: left out, it needs a memory cgroup")
        elif part == "stock" and not os.access(os.path.join(options.stock, "llama-completion"), os.X_OK):
            say(f"stock: left out, no llama-completion in {options.stock} (ci/stock.sh llama-completion)")
        else:
            globals()["part_" + part](state)


main()
