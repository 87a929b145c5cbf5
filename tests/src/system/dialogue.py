"""Plays the person at a terminal: dialogue.py refused|allowed COMMAND...

Runs COMMAND, an interactive bash, on a new terminal, as a shell runs a program in the foreground,
and types. The first argument says whether another terminal may be written from within.
"""

import os
import pty
import select
import subprocess
import sys
import termios
import time

stranger, command = sys.argv[1], sys.argv[2:]
other, other_slave = os.openpty()
other_name = os.ttyname(other_slave)

child, terminal = pty.fork()
if child == 0:
    os.close(other)
    os.close(other_slave)
    before = termios.tcgetattr(0)
    status = subprocess.call(command)
    same = before == termios.tcgetattr(0) and os.tcgetpgrp(0) == os.getpgrp()
    print(f"END status={status} restored={same}", flush=True)
    os._exit(0)

said = b""


def expect(text, patience=60):
    """Waits until the terminal shows the text, and forgets everything up to it."""
    global said
    deadline = time.monotonic() + patience
    while text.encode() not in said:
        if time.monotonic() > deadline:
            sys.exit(f"the terminal never showed {text!r}; it shows {said!r}")
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                said += os.read(terminal, 4096)
            except OSError:
                sys.exit(f"the terminal closed before {text!r}; it shows {said!r}")
    said = said.split(text.encode(), 1)[1]


def enter(text):
    os.write(terminal, text.encode())


def ask(line, answer):
    """The answer must differ from the line, which the terminal echoes."""
    enter(line + "\n")
    expect(answer)
    expect("ready> ")


# Spelt so that the echo of the line is not the prompt.
enter("PS1='rea''dy> '\n")
expect("ready> ")
ask("echo sum=$((6 * 7))", "sum=42")
ask("echo own > $(tty); echo wrote=$?", "wrote=0")
ask("echo own > /dev/tty; echo wrote=$?", "wrote=0")
ask("stty size > /dev/null; echo asked=$?", "asked=0")
verdict = "wrote=1" if stranger == "refused" else "wrote=0"
ask(f"echo keys > {other_name}; echo wrote=$?", verdict)
arrived = bool(select.select([other], [], [], 0.5)[0])
if arrived == (stranger == "refused"):
    sys.exit(f"text {'arrived' if arrived else 'did not arrive'} on the other terminal")

# Ctrl-C ends the program in the foreground and nothing else.
enter("sleep 300\n")
time.sleep(2)
enter("\x03")
expect("ready> ")
ask("echo status=$?", "status=130")

# Ctrl-Z stops it; it can be resumed and ended.
enter("sleep 301\n")
time.sleep(2)
enter("\x1a")
expect("Stopped")
expect("ready> ")
ask("bg; jobs; echo listed=$?", "listed=0")
ask("kill %1; wait; echo gone=1", "gone=1")

# A program may change the terminal's modes; after a session they are what they were before.
enter("stty -echo; exit 5\n")
expect("END status=5")
expect(" restored=True" if stranger == "refused" else " restored=")
os.waitpid(child, 0)
