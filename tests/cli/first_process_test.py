"""Commands as the first process of a container end on signals, whose default action the kernel does not apply to that process.

Usage: first_process_test.py PATH/raffia PATH/golden
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from command_case import golden_model

RAFFIA, GOLDEN = sys.argv[1:]
UNSHARE = ["unshare", "--pid", "--fork", "--kill-child"]


def first_process(unshare):
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
    end = time.monotonic() + 60
    while not children.read_text().split():
        assert unshare.poll() is None and time.monotonic() < end, "unshare starts nothing"
        time.sleep(0.01)
    return int(children.read_text().split()[0])


def await_handler(pid, number):
    """Until the process catches the signal; gives up after a while, since the test is about those that never do."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        caught = int(re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())[1], 16)
        if caught >> (number - 1) & 1:
            return
        time.sleep(0.02)


def check(arguments, number):
    process = subprocess.Popen(UNSHARE + [RAFFIA] + arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        pid = first_process(process)
        await_handler(pid, number)
        time.sleep(0.5)
        assert process.poll() is None, (arguments, process.stderr.read())
        os.kill(pid, number)
        code = process.wait(timeout=30)
        assert code == 128 + number, f"{arguments}: exit code {code}"
    finally:
        process.kill()
        process.wait()


def main():
    if subprocess.run(UNSHARE + ["true"], capture_output=True).returncode != 0:
        print("process namespaces are not permitted here")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as directory:
        pairs = golden_model(GOLDEN, "translate-gate", directory)
        texts = golden_model(GOLDEN, "classify-rfa", directory)
        long = ["--lengths", "8192", "--repeats", "100000"]
        commands = [["translate", pairs], ["classify", texts], ["bench", "attention", "--ops", "softmax", *long]]
        if os.access(Path(RAFFIA).with_name("raffia-train"), os.X_OK):
            commands.append(["bench", "train", "--what", "layer", *long])
        for arguments in commands:
            for number in (signal.SIGINT, signal.SIGTERM):
                check(arguments, number)
            print(f"{arguments[0]}: fine")


main()
