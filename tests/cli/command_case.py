"""What tests of the built command share: golden models with a vocabulary, and a terminal of a given width."""
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import termios
import time
from pathlib import Path

VOCABULARY = {"kind": "char", "version": 1, "characters": "\n abcdefghi\u00e9"}


def golden_model(golden, name, directory):
    """A copy of a golden model, whose vocabulary is the end of a line, a space, a to i and one more."""
    copy = Path(directory) / name
    copy.mkdir()
    for file in ("config.json", "model.safetensors"):
        (copy / file).write_bytes((Path(golden) / name / file).read_bytes())
    (copy / "tokenizer.json").write_text(json.dumps(VOCABULARY))
    return str(copy)


def grey_image_model(golden, directory):
    """A golden classifier of images, with the first of its two channels alone."""
    source, copy = Path(golden) / "image-softmax", Path(directory) / "grey-model"
    copy.mkdir()
    config = json.loads((source / "config.json").read_text())
    weights = (source / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", weights[:8])[0]
    header, data = json.loads(weights[8:8 + size]), weights[8 + size:]
    rows, columns = header["patches.weight"]["shape"]
    assert header["patches.weight"]["data_offsets"][0] == 0
    kept = columns // config["channels"]
    parts = [data[4 * columns * row:4 * (columns * row + kept)] for row in range(rows)] + [data[4 * rows * columns:]]
    for name, tensor in header.items():
        if name != "__metadata__":
            tensor["data_offsets"] = [max(0, at - 4 * rows * (columns - kept)) for at in tensor["data_offsets"]]
    header["patches.weight"]["shape"] = [rows, kept]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    (copy / "config.json").write_text(json.dumps(config | {"channels": 1}))
    return str(copy)


def on_terminal(command, columns, patience=60):
    """Runs the command with stderr on a terminal of that width. (exit code, what the terminal got)"""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        screen, deadline = b"", time.monotonic() + patience
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 1)[0]:
                continue
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            screen += part
        else:
            process.kill()
        os.close(ours)
        return process.wait(), screen.decode()


def drawn_lines(screen):
    """What a redrawn line showed, one after the other."""
    return [line.replace("\x1b[K", "") for line in screen.replace("\r\n", "\n").split("\r")]
