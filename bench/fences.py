"""Runs programs in a memory cgroup and with a throttled disk, which fences.sh makes, and prints tables."""
import argparse
import ctypes
import json
import mmap
import os
import re
import resource
import signal
import subprocess
import sys
import time

MIB = 1 << 20
SEED = 7
options = None
running = None


def parse(names="", numbers="", context=1024, margin=48):
    """
    The options that a script of this folder passes; the context of its runs, and MiB of a cgroup that are left to what no
    program counts: page tables, the kernel's own, pages of the program itself.
    """
    global options
    arguments = argparse.ArgumentParser()
    for name in f"parts model smol stock folder text in-memory in-disk read-ahead {names}".split():
        arguments.add_argument(f"--{name}")
    for name in f"threads tokens rounds limit {numbers}".split():
        arguments.add_argument(f"--{name}", type=int)
    options = arguments.parse_args()
    options.context, options.margin = str(context), margin * MIB
    return options


def ram():
    """MiB that a program may be told to fill."""
    return (options.limit - options.margin) // MIB


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
        command = [program, "-m", options.model, "-f", prompt, "-n", str(count), "-c", options.context, "-t",
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
        [options.smol, "run", "-m", options.model, "-f", prompt, "--raw", "-n", str(tokens), "-c", options.context,
         "-t", str(options.threads), "--temp", "0.8", "--seed", str(SEED), "--json", *flags], **fence)
    report = json.loads(out)
    report["disk_mb"], report["seconds"] = read, seconds
    return report


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


def shown(cell):
    """Text as it is, numbers with three digits or so."""
    return cell if isinstance(cell, str) else f"{cell:.{3 if cell < 1 else 2 if cell < 10 else 1}f}"


def table(title, columns, rows):
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for row in rows:
        print("| " + " | ".join(map(shown, row)) + " |", flush=True)


def attempt(rows, name, measure):
    """Adds a row; one that can't be had says why."""
    say(f"{name} ...")
    try:
        rows.append(measure())
    except Died as error:
        say(f"{name}: {error}")
        rows.append([name, "-"])
