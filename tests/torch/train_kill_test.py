"""A training run that is killed with SIGKILL at random moments and resumed ends with the same bits as one that is not.

Usage: train_kill_test.py PATH/raffia-train [SEED]
"""

import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

STEPS = 60
KILLS = 5


def command(program, data, out):
    return [program, "train", "lm", "--resume", "--no-plot", "--data", data, "--out", str(out), "--tokenizer", "byte",
            "--layers", "2", "--width", "32", "--heads", "2", "--segment", "32", "--batch", "4", "--dropout", "0.1",
            "--steps", str(STEPS), "--checkpoint-every", "2", "--eval-every", "10", "--log-every", "4", "--threads", "1"]


def newest(out):
    return max(out.glob("trainer/step-*"), default=None)


def losses(out):
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [(r["step"], r.get("loss"), r.get("valid_nll")) for r in records]


def run_killed(program, data, out, chance):
    """Kills the process a little after it began to work, up to KILLS times, then lets it end."""
    kills = 0
    while kills < KILLS:
        before = newest(out)
        with subprocess.Popen(command(program, data, out), stderr=subprocess.DEVNULL) as process:
            # Starting takes a second, of which any part may be hit, but most kills should hit steps and checkpoints.
            if chance.random() < 0.8:
                while newest(out) == before and process.poll() is None:
                    time.sleep(0.002)
            time.sleep(chance.random() * 0.3)
            if process.poll() is not None:
                return kills
            process.send_signal(signal.SIGKILL)
        kills += 1
    subprocess.run(command(program, data, out), stderr=subprocess.DEVNULL, check=True)
    return kills


def main():
    program = sys.argv[1]
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        data = directory / "text.txt"
        words = ["raffia", "attention", "state", "fold", "read", "gate", "\n"]
        data.write_text(" ".join(random.Random(1).choices(words, k=4000)))
        whole, parts = directory / "whole", directory / "parts"
        subprocess.run(command(program, str(data), whole), stderr=subprocess.DEVNULL, check=True)
        kills = run_killed(program, str(data), parts, chance)
        print(f"seed {seed}: killed {kills} times")
        last = f"trainer/step-{STEPS:08}"
        for file in ["model.safetensors", "config.json", "tokenizer.json", f"{last}/model.safetensors",
                     f"{last}/optimiser.safetensors", f"{last}/carried.safetensors"]:
            assert (whole / file).read_bytes() == (parts / file).read_bytes(), f"seed {seed}: {file} differs"
        assert losses(whole) == losses(parts), f"seed {seed}: log.jsonl differs"
        leftovers = [p.name for p in parts.glob("**/.*")]
        assert not leftovers, f"seed {seed}: left behind: {leftovers}"
        assert kills > 0, f"seed {seed}: the run ended before it was killed once"


main()
