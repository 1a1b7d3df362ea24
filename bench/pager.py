"""Runs and tables of bench/pager.sh, which makes the model and the fences; see there."""
import json
import os
import statistics

import fences
from fences import MIB, SEED, Died, attempt, flash, prompt_file, ram, run, say, set_read_ahead, smol_run, stock, table

options = fences.parse(names="svg")
parts = options.parts.split(",")


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


COLUMNS = ["run", "tokens/s", "MB a token", "missed", "wait, ms a token", "bound, tokens/s", "of the bound", "read ahead: useful, late, wasted"]


def bound_of(state, got):
    """Tokens/s if the disk read nothing but the experts that a token lacks, and all the time."""
    lacking = (got["misses"] + got["useful"]) / got["tokens"] * state["expert_mb"]
    return state["flash"] / lacking if lacking else float("inf")


def row(name, got, state):
    bound = bound_of(state, got)
    return [name, got["speed"], got["read"], f"{100 * got['rate']:.1f} %", got["wait"], bound,
            f"{100 * got['speed'] / bound:.0f} %", f"{got['useful']}, {got['late']}, {got['wasted']}"]


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
    return generation(state["prompt"], options.tokens, "--ram", f"{ram()}MiB", *flags, memory=True, disk=True)


def part_pager(state):
    rows = []
    for kilobytes in (128, 8192) if options.read_ahead else (None,):
        if kilobytes:
            set_read_ahead(kilobytes)
        name = f"smol --ram {ram()}MiB" + (f", read-ahead {kilobytes} KB" if kilobytes else "")

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
        out = run([options.smol, "bench", "-m", options.model, "-p", "512", "-n", "128", "-r", "14", "-t",
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
        got = smol_run(prompt, 1, "--ram", f"{ram()}MiB", memory=True, disk=True)
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
