"""
What the guard does when another program takes the memory of a model that reads weights: both run in one memory cgroup, which
fences.sh makes. First the other takes memory in steps, until the work of the model ends; then it gives all back; at last it
takes more than there is at once, so that the system ends the model.
"""
import os
import re
import selectors
import subprocess
import sys
import time

from fences import MIB, parse, ram, table

STEP = 4
# Takes as many MiB as each line says.
TAKER = f"""
import mmap, sys
taken = []
for line in sys.stdin:
    while len(taken) > int(line): taken.pop().close()
    while len(taken) < int(line):
        taken.append(mmap.mmap(-1, {MIB}))
        for page in range(0, {MIB}, 4096): taken[-1][page] = 1
    print(line, end="", flush=True)
"""


def start(command, **pipes):
    """Starts a program in the cgroup."""
    def enter():
        with open(options.in_memory, "w", encoding="ascii") as group:
            group.write(str(os.getpid()))
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=enter, **pipes)
    started.append(program)
    return program


def tell(program, line):
    program.stdin.write(f"{line}\n".encode())
    program.stdin.flush()


def take(mib):
    tell(taker, mib)
    taker.stdout.readline()


def resident(program):
    """MiB of the program's own memory."""
    with open(f"/proc/{program.pid}/status", encoding="ascii") as status:
        return int(re.search(r"RssAnon:\s+(\d+)", status.read())[1]) >> 10


def heard(program, pipe, seconds):
    """What the program writes within that time; nothing when it has ended."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        return os.read(pipe.fileno(), 1 << 16).decode(errors="replace") if selector.select(seconds) else None


def answers(program, seconds=120):
    """Whether it writes some of an answer within that time."""
    return bool(heard(program, program.stdout, seconds))


def quiet(program):
    """Reads the rest of the answer."""
    while heard(program, program.stdout, 3):
        pass


def shortage():
    """Takes memory in steps: (MiB taken, MiB of the model's process) of each, and what it says at the end."""
    steps, spoke = [], time.monotonic()
    for taken in range(0, options.limit // MIB, STEP):
        take(taken)
        until = time.monotonic() + float(options.seconds)
        while time.monotonic() < until:
            if heard(chat, chat.stdout, 0):
                spoke = time.monotonic()
            elif time.monotonic() > spoke + 2:
                # The answer is over: another one keeps it at work.
                spoke = time.monotonic()
                tell(chat, f"/reset\n{text}")
            said = heard(chat, chat.stderr, 0.1)
            if said is None:
                continue
            if "error" in said or not said:
                return steps, said
        steps.append((taken, resident(chat)))
    raise SystemExit("the work did not end")


options = parse("seconds")
started = []
try:
    command = [options.smol, "chat", "-m", options.model, "--ram", f"{ram()}MiB", "-c", options.context,
               "-t", str(options.threads), "--temp", "0"]
    text = "Tell me a very long story about the sea, and leave nothing out."
    taker = start([sys.executable, "-c", TAKER])
    chat = start(command, stderr=subprocess.PIPE)
    with open(f"/proc/{chat.pid}/oom_score_adj", "w", encoding="ascii") as score:
        score.write("1000")  # it is the one that the system would end
    tell(chat, text)
    if not answers(chat):
        raise SystemExit(f"no answer: {heard(chat, chat.stderr, 1)}")
    steps, said = shortage()
    table("Memory is taken", ["by the other, MiB", "model's process, MiB"], [[str(mib) for mib in step] for step in steps])
    print(f"\nthen: {said.strip()}\n")
    quiet(chat)
    least = resident(chat)
    take(0)
    time.sleep(2)
    tell(chat, f"/reset\n{text}")
    print(f"memory is back: {'it answers' if answers(chat) else 'NO ANSWER'}", flush=True)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        heard(chat, chat.stdout, 0.2)
    print(f"its process: {least} MiB, and {resident(chat)} MiB after 20 s\n")
    tell(taker, options.limit // MIB)
    print(f"all is taken at once: it ends with {chat.wait(60)}")
    taker.kill()
    again = subprocess.run([*command[:1], "run", *command[2:], "-p", "Hi", "-n", "1"], capture_output=True, check=False)
    print(f"the next start says: {again.stderr.decode().strip()}")
finally:
    for program in started:
        program.kill()
        program.wait()
