"""Several ranks train as one process does, and a rank that is killed is named and loses nothing.

Usage: distributed_train_test.py PATH/raffia-train
"""

import array
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

STEPS = 8


def command(program, data, out, resume=False, **more):
    flags = {"data": data, "out": out, "tokenizer": "byte", "layers": 2, "width": 32, "heads": 2, "segment": 32, "batch": 4,
             "accumulate": 2, "steps": STEPS, "checkpoint-every": 2, "eval-every": 4, "log-every": 1, "threads": 1}
    flags.update({name.replace("_", "-"): value for name, value in more.items()})
    words = [str(word) for name, value in flags.items() for word in ("--" + name, value)]
    return [program, "train", "lm", "--no-plot", *(["--resume"] if resume else []), *words]


def run(program, data, out, **more):
    result = subprocess.run(command(program, data, out, **more), capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, f"{out}, {more}: exit code {result.returncode}\n{result.stderr}"
    return result


def log(out):
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def floats(path):
    """All fp32 tensors of a safetensors file, by name."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__" or info["dtype"] != "F32":
            continue
        begin, end = info["data_offsets"]
        tensors[name] = array.array("f", data[8 + size + begin:8 + size + end])
    return tensors


def first_gradients(out):
    """By name of the weight, and up to a factor: the mean that AdamW has after one step."""
    means = floats(out / "trainer" / "step-00000001" / "optimiser.safetensors")
    return {name.removesuffix("/mean"): values for name, values in means.items() if name.endswith("/mean")}


def expect_equal_gradients(one, two):
    """All first gradients, to 1e-5 of the largest of their tensor, as losses are compared. Returns which of them AdamW should not divide
    by: of those below 1e-4 of the largest one, that is a tenth, and the first steps of their weights are the rate times a ratio of such
    numbers."""
    first, second = first_gradients(one), first_gradients(two)
    assert first.keys() == second.keys() and first
    tiny = {}
    for name, values in first.items():
        largest = max(map(abs, values))
        worst = max(abs(x - y) for x, y in zip(values, second[name]))
        assert worst <= 1e-5 * largest, f"{name}: a first gradient differs by {worst / largest} of the largest one"
        tiny[name] = [abs(value) < 1e-4 * largest for value in values]
    return tiny


def expect_equal_runs(one, two):
    """Losses of every step and evaluation; weights. The runs have a checkpoint of every step."""
    a, b = log(one), log(two)
    assert len(a) == len(b), "logs differ in length"
    for x, y in zip(a, b):
        for name in ("loss", "grad_norm", "valid_nll"):
            if name in x:
                assert abs(x[name] - y[name]) <= 1e-5 * abs(x[name]), f"step {x['step']}: {name} {x[name]} and {y[name]}"
        assert x.get("tokens") == y.get("tokens")
    first, second = floats(one / "model.safetensors"), floats(two / "model.safetensors")
    assert first.keys() == second.keys() and first
    tiny = expect_equal_gradients(one, two)
    assert sum(map(sum, tiny.values())) < 0.02 * sum(map(len, first.values()))
    for name, values in first.items():
        left_out = tiny.get(name, [False] * len(values))
        worst = max(abs(x - y) for x, y, skip in zip(values, second[name], left_out) if not skip)
        # AdamW divides by the size of gradients, so that the rounding of tiny ones shows: a thousandth of what one step may change.
        assert worst <= 1e-5, f"{name} differs by {worst}"


def kill_a_rank(program, data, out):
    """Kills rank 1 once there is a checkpoint. Returns how long the others took to end."""
    words = command(program, data, out, local_ranks=2, steps=100000, eval_every=100000)
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    pid = None
    end = time.monotonic() + 60
    while time.monotonic() < end and (pid is None or not list(out.glob("trainer/step-*"))):
        assert process.poll() is None, process.stderr.read()
        for path in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}").glob("children"):
            for child in path.read_text().split():
                if b"\0RANK=1\0" in b"\0" + pathlib.Path(f"/proc/{child}/environ").read_bytes() + b"\0":
                    pid = int(child)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    begin = time.monotonic()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1, f"exit code {process.returncode}"
    assert re.search(r"rank 1 \(.*pid %d\) no longer answers \(last seen .* s ago\): stopped at step \d+; "
                     r"the last checkpoint is step \d+" % pid, said), said
    assert f"rank 1 (pid {pid}) was terminated by signal 9" in said, said
    return time.monotonic() - begin


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def both_ranks(commands):
    """Exit codes and what they said, of two ranks as a launcher starts them."""
    port = free_port()
    ranks = []
    for rank, words in enumerate(commands):
        variables = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks.append(subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    return [(rank.returncode, text) for rank, text in zip(ranks, said)]


def differing_options_are_refused_by_name(program, data, directory):
    options = {"lr": (0.001, 0.002), "seed": (1, 2), "width": (32, 64), "batch": (4, 8), "steps": (8, 9), "segment": (32, 16)}
    for name, values in options.items():
        commands = [command(program, data, directory / "differ", **{name: value}) for value in values]
        for code, said in both_ranks(commands):
            assert code == 2, f"{name}: exit code {code}\n{said}"
            expected = f"rank 1 has --{name} {values[1]}, rank 0 has --{name} {values[0]}"
            assert expected in said and "terminate" not in said, said
    assert not (directory / "differ").exists()


def differing_data_are_refused_by_fingerprint(program, data, directory):
    other = directory / "other.txt"
    other.write_text(data.read_text().replace("gate", "gone"))
    for code, said in both_ranks([command(program, text, directory / "other") for text in (data, other)]):
        assert code == 1, f"exit code {code}\n{said}"
        assert "rank 1: the fingerprint of the data is" in said and "terminate" not in said, said


def listening(pids):
    """Addresses that processes listen at, from the kernel's tables."""
    inodes = set()
    for pid in pids:
        for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            try:
                found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
            except FileNotFoundError:
                continue
            if found:
                inodes.add(found[1])
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:  # LISTEN
                addresses.append(words[1].split(":")[0])
    return addresses


def local_ranks_listen_on_the_loopback_alone(program, data, out):
    process = subprocess.Popen(command(program, data, out, local_ranks=2, steps=100000, eval_every=100000),
                               stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    seen = set()
    while time.monotonic() < end and not list(out.glob("trainer/step-*")):
        assert process.poll() is None, process.stderr.read()
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        seen.update(listening([process.pid, *children]))
        time.sleep(0.01)
    process.terminate()
    process.communicate(timeout=60)
    assert seen, "no rank was seen to listen"
    loopback = {"0100007F", "00000000000000000000000001000000"}
    assert seen <= loopback, f"listens at {seen - loopback}"


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        data = directory / "text.txt"
        words = ["raffia", "attention", "state", "fold", "read", "gate", "\n"]
        data.write_text(" ".join(random.Random(1).choices(words, k=2000)))

        every = {"checkpoint_every": 1, "keep": STEPS}
        run(program, data, directory / "one", **every)
        run(program, data, directory / "two", local_ranks=2, **every)
        expect_equal_runs(directory / "one", directory / "two")
        print("data parallel: equal")

        run(program, data, directory / "whole", parallel="sequence", conv=3, **every)
        run(program, data, directory / "split", parallel="sequence", conv=3, local_ranks=2, **every)
        expect_equal_runs(directory / "whole", directory / "split")
        print("sequence parallel: equal")

        differing_options_are_refused_by_name(program, data, directory)
        differing_data_are_refused_by_fingerprint(program, data, directory)
        print("differing options and data: refused")
        local_ranks_listen_on_the_loopback_alone(program, data, directory / "listening")
        print("listening: on the loopback alone")

        seconds = kill_a_rank(program, data, directory / "killed")
        print(f"a rank was killed: named after {seconds:.1f} s")
        # What is left is a run that goes on, on one rank or several.
        newest = int(max((directory / "killed").glob("trainer/step-*")).name.removeprefix("step-"))
        for ranks in (2, 1):
            newest += 2
            run(program, data, directory / "killed", resume=True, local_ranks=ranks, steps=newest)
            assert log(directory / "killed")[-1]["step"] == newest

        refused = subprocess.run(command(program, data, directory / "odd", local_ranks=2, batch=3),
                                 capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2 and "multiple of the number of ranks" in refused.stderr, refused.stderr


main()
