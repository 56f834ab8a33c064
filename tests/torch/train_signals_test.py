"""What the command train does when it is interrupted, and how it ends when it was asked for something wrong.

Usage: train_signals_test.py PATH/raffia-train
"""

import json
import os
import pathlib
import pty
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time


def command(program, data, out, *more, steps=100000, eval_every=100000):
    return [program, "train", "lm", "--no-plot", "--data", str(data), "--out", str(out), "--tokenizer", "byte", "--layers", "1",
            "--width", "16", "--heads", "2", "--segment", "16", "--batch", "2", "--steps", str(steps), "--checkpoint-every", "5",
            "--eval-every", str(eval_every), "--threads", "1", *more]


def wait_for(condition, process):
    end = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.01)


def environment(**variables):
    return {**os.environ, **{name: str(value) for name, value in variables.items()}}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def interrupted_runs_exit_as_shells_count(program, data, directory):
    for ranks in (1, 2):
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            out = directory / f"interrupted-{ranks}-{number}"
            words = command(program, data, out, "--local-ranks", str(ranks))
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            wait_for(lambda: list(out.glob("trainer/step-*")), process)
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=60)
            assert process.returncode == 128 + number, f"{ranks} ranks: exit code {process.returncode}\n{stderr}"
            found = re.search(r"interrupted; a checkpoint was written at step (\d+)", stderr)
            assert found, stderr
            assert (out / f"trainer/step-{int(found[1]):08}").is_dir(), found[0]
            assert "exited with code" not in stderr, stderr
            assert stdout == "", stdout


def a_long_evaluation_is_abandoned(program, data, directory):
    valid = directory / "valid.txt"
    valid.write_text(data.read_text() * 4000)  # minutes
    for ranks, number in ((1, signal.SIGTERM), (1, signal.SIGHUP), (2, signal.SIGTERM)):
        out = directory / f"evaluation-{ranks}-{number}"
        words = command(program, data, out, "--valid", str(valid), "--log-every", "3", "--local-ranks", str(ranks), steps=6,
                        eval_every=3)
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        log = out / "log.jsonl"
        wait_for(lambda: log.exists() and '"step":3' in log.read_text(), process)
        time.sleep(0.5)
        assert "valid" not in log.read_text(), "the evaluation was too short for this test"
        process.send_signal(number)
        _, stderr = process.communicate(timeout=20)
        assert process.returncode == 128 + number, f"exit code {process.returncode}\n{stderr}"
        assert "interrupted; a checkpoint was written at step 3:" in stderr, stderr
        assert "valid" not in log.read_text(), log.read_text()


def ranks_that_were_interrupted_in_evaluations_end_as_the_whole(program, data, directory):
    valid = directory / "valid.txt"
    valid.write_text(data.read_text() * 40)  # some seconds
    for parallel in ("data", "sequence"):
        def words(out, *more):
            return command(program, data, out, "--valid", str(valid), "--log-every", "3", "--parallel", parallel, "--local-ranks", "2", *more,
                           steps=6, eval_every=3)

        whole, parts = directory / f"whole-{parallel}", directory / f"parts-{parallel}"
        subprocess.run(words(whole), check=True, capture_output=True, timeout=120)
        log = parts / "log.jsonl"
        for step, more in ((3, []), (6, ["--resume"])):
            process = subprocess.Popen(words(parts, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            wait_for(lambda: log.exists() and f'"step":{step},"loss"' in log.read_text(), process)
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=60)
            assert process.returncode == 128 + signal.SIGTERM, f"exit code {process.returncode}\n{stderr}"
            assert f'"step":{step},"valid' not in log.read_text(), "the evaluation was too short for this test"
        subprocess.run(words(parts, "--resume"), check=True, capture_output=True, timeout=120)
        measured = {"seconds", "tokens_per_second", "bytes_sent"}
        records = [[{name: value for name, value in json.loads(line).items() if name not in measured}
                    for line in (out / "log.jsonl").read_text().splitlines()] for out in (whole, parts)]
        assert records[0] == records[1], records
        for file in ("model.safetensors", "trainer/step-00000006/model.safetensors", "trainer/step-00000006/optimiser.safetensors"):
            assert (whole / file).read_bytes() == (parts / file).read_bytes(), f"{parallel}: {file} differs"


def a_terminal_that_is_closed_leaves_a_checkpoint(program, data, directory):
    out = directory / "terminal"
    words = command(program, data, out)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(words[0], words)
    end = time.monotonic() + 120
    while not list(out.glob("trainer/step-*")):
        assert time.monotonic() < end, "nothing happens"
        if select.select([terminal], [], [], 0.01)[0]:
            os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP, status


def a_closed_terminal_sends_several_signals(program, data, directory):
    out = directory / "closed"
    process = subprocess.Popen(command(program, data, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: list(out.glob("trainer/step-*")), process)
    for _ in range(50):
        if process.poll() is None:
            process.send_signal(signal.SIGHUP)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGHUP, f"exit code {process.returncode}\n{stderr}"
    assert "interrupted; a checkpoint was written" in stderr, stderr


def runs_under_nohup_go_on(program, data, directory):
    for ranks in (1, 2):
        out = directory / f"nohup-{ranks}"
        process = subprocess.Popen(command(program, data, out, "--local-ranks", str(ranks)), stderr=subprocess.PIPE, text=True,
                                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        newest = lambda: max((path.name for path in out.glob("trainer/step-*")), default="")
        wait_for(newest, process)
        process.send_signal(signal.SIGHUP)
        before = newest()
        wait_for(lambda: newest() > before, process)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM, f"exit code {process.returncode}\n{stderr}"


def a_rank_that_waits_ends_at_once(program, data, directory):
    for rank in (0, 1):
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            out = directory / "waiting"
            variables = environment(RANK=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
            process = subprocess.Popen(command(program, data, out), env=variables, stderr=subprocess.PIPE)
            # Bit by bit: handlers are there once the signals are among those that are caught.
            caught = 1 << (number - 1)
            status = pathlib.Path(f"/proc/{process.pid}/status")
            wait_for(lambda: int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16) & caught, process)
            time.sleep(0.5)
            assert process.poll() is None, process.stderr.read()
            process.send_signal(number)
            process.communicate(timeout=20)  # not the half hour that ranks wait for each other
            assert process.returncode == 128 + number, f"rank {rank}: exit code {process.returncode}"


def start_two_ranks(words):
    port = free_port()
    return [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             env=environment(RANK=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)) for rank in (0, 1)]


def a_rank_that_is_stopped_is_not_waited_for(program, data, directory):
    # Which rank is stopped, and what the other one is sent.
    for stopped, number in ((1, signal.SIGTERM), (0, signal.SIGTERM), (1, None)):
        out = directory / f"stopped-{stopped}-{number}"
        ranks = start_two_ranks(command(program, data, out))
        try:
            wait_for(lambda: list(out.glob("trainer/step-*")), ranks[0])
            ranks[stopped].send_signal(signal.SIGSTOP)
            time.sleep(1)
            other = ranks[1 - stopped]
            if number is not None:
                other.send_signal(number)
            _, stderr = other.communicate(timeout=60)  # not the half hour that ranks wait for each other
            assert other.returncode == (1 if number is None else 128 + number), f"exit code {other.returncode}\n{stderr}"
            expected = "interrupted; " if number is not None else ""
            assert re.search(rf"raffia: {expected}rank {stopped} \(.*pid {ranks[stopped].pid}\) no longer answers \(last seen .* s ago\): "
                             r"stopped at step \d+; the last checkpoint is step \d+", stderr), stderr
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()


def any_rank_ends_an_evaluation(program, data, directory):
    valid = directory / "valid.txt"
    valid.write_text(data.read_text() * 4000)  # minutes
    out = directory / "evaluation-by-rank-1"
    ranks = start_two_ranks(command(program, data, out, "--valid", str(valid), "--log-every", "3", steps=6, eval_every=3))
    try:
        log = out / "log.jsonl"
        wait_for(lambda: log.exists() and '"step":3' in log.read_text(), ranks[0])
        time.sleep(0.5)
        ranks[1].send_signal(signal.SIGTERM)
        for rank in ranks:
            _, stderr = rank.communicate(timeout=30)
            assert rank.returncode == 128 + signal.SIGTERM, f"exit code {rank.returncode}\n{stderr}"
            assert "interrupted; a checkpoint was written at step 3:" in stderr, stderr
        assert "valid" not in log.read_text(), log.read_text()
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def wrong_keys_are_bad_usage(program, data, directory):
    config = directory / "wrong.toml"
    for text in ("layerz = 3\n", "layers = 'two'\n"):
        config.write_text(text)
        result = subprocess.run(command(program, data, directory / "wrong", "--config", str(config)), capture_output=True, text=True,
                                timeout=60)
        assert result.returncode == 2, f"{text!r}: exit code {result.returncode}"
        assert f"{config}:1: " in result.stderr, result.stderr
    assert not (directory / "wrong").exists()


def on_a_terminal(words):
    """All that a command says to a terminal that is its stdout and stderr."""
    master, slave = pty.openpty()
    process = subprocess.Popen(words, stdout=slave, stderr=slave)
    os.close(slave)
    said = b""
    while True:
        if not select.select([master], [], [], 120)[0]:
            break
        try:
            block = os.read(master, 4096)
        except OSError:
            break
        if not block:
            break
        said += block
    os.close(master)
    assert process.wait(timeout=60) == 0, said
    return said.decode()


def a_resumed_bar_starts_where_the_run_stood(program, data, directory):
    out = directory / "bar"
    subprocess.run(command(program, data, out, steps=30), check=True, capture_output=True, timeout=120)
    said = on_a_terminal(command(program, data, out, "--resume", steps=40))
    first = re.search(r"\] +(\d+)% step 30/40", said)
    assert first and first[1] == "75", said
    said = on_a_terminal(command(program, data, out, "--resume", steps=40))
    assert "the run is complete: step 40 of 40\r\n" in said, said
    result = [line for line in said.replace("\r", "\n").split("\n") if "nll" in line][-1]
    assert result.removeprefix("\x1b[K").startswith(f"{out}: step"), said


def sleeping_threads(program, data, directory):
    """Waiting threads sleep unless the user has chosen: what libgomp says it uses."""
    def policy(**variables):
        base = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
        result = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60,
                                env={**base, "OMP_DISPLAY_ENV": "VERBOSE", **variables})
        assert result.returncode == 0, result.stderr
        return re.findall(r"GOMP_SPINCOUNT = '(\w+)'", result.stderr)[-1]
    assert policy() == "0"
    assert policy(GOMP_SPINCOUNT="1234") == "1234"
    assert policy(OMP_WAIT_POLICY="active") not in ("0", "1234")


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        data = directory / "text.txt"
        data.write_text(" ".join(random.Random(1).choices(["raffia", "attention", "state", "fold", "\n"], k=2000)))
        for check in (sleeping_threads, wrong_keys_are_bad_usage, a_resumed_bar_starts_where_the_run_stood,
                      interrupted_runs_exit_as_shells_count, a_long_evaluation_is_abandoned,
                      ranks_that_were_interrupted_in_evaluations_end_as_the_whole, a_terminal_that_is_closed_leaves_a_checkpoint,
                      a_closed_terminal_sends_several_signals, runs_under_nohup_go_on, a_rank_that_waits_ends_at_once,
                      a_rank_that_is_stopped_is_not_waited_for, any_rank_ends_an_evaluation):
            check(program, data, directory)
            print(f"{check.__name__}: fine")


main()
