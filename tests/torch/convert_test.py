"""raffia convert from outside: a tiny softmax model is converted, scored and finetuned. convert_test.py RAFFIA-TRAIN"""
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

program = sys.argv[1]


def run(*arguments, code=0):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=250)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}, expected {code}: {done.stderr}"
    return done


with tempfile.TemporaryDirectory() as name:
    home = pathlib.Path(name)
    text = home / "text.txt"
    text.write_text("".join(f"{i * 7} and {i * 11} make {i * 18}\n" for i in range(400)))
    softmax, gate = home / "softmax", home / "gate"
    flags = ["--data", text, "--layers", 2, "--width", 16, "--heads", 4, "--kv-heads", 2, "--norm", "rms", "--feed-forward", "swiglu", "--no-bias"]
    steps = ["--segment", 32, "--batch", 2, "--steps", 20, "--threads", 1, "--no-plot"]
    run("train", "lm", *flags, *steps, "--estimator", "softmax", "--tokenizer", "char", "--out", softmax)

    fit = ["--data", text, "--segment", 32, "--segments", 8, "--fit-steps", 20, "--threads", 1]
    fits = json.loads(run("convert", softmax, gate, "--to", "rfa_gate:samples=8", *fit, "--json").stdout)
    assert [entry["layer"] for entry in fits] == [0, 1]
    assert all(entry["error"] <= entry["error_at_first"] for entry in fits), fits
    config = json.loads((gate / "config.json").read_text())
    assert config["estimators"] == ["rfa_gate:samples=8,map=relu"], config
    assert (gate / "tokenizer.json").read_bytes() == (softmax / "tokenizer.json").read_bytes()

    # Nothing is written over unless asked for, and never a training run.
    before = (gate / "model.safetensors").read_bytes()
    assert "already exists" in run("convert", softmax, gate, "--to", "rfa", code=2).stderr
    assert "training run" in run("convert", gate, softmax, "--to", "rfa", "--force", code=2).stderr
    assert "expected softmax" in run("convert", gate, home / "again", "--to", "rfa", code=2).stderr
    assert '--to: kind is "nope", expected one of softmax' in run("convert", softmax, home / "again", "--to", "nope", code=2).stderr
    assert not (home / "again").exists()
    assert (gate / "model.safetensors").read_bytes() == before
    run("convert", softmax, gate, "--to", "rfa_gate:samples=8", *fit, "--force")
    assert (gate / "model.safetensors").read_bytes() == before  # the same again, bit for bit

    # A baseline: the mean of the values, in the place of softmax.
    mean = home / "mean"
    run("convert", softmax, mean, "--to", "mean", *fit)
    assert json.loads((mean / "config.json").read_text())["estimators"] == ["mean"]
    assert json.loads(run("eval", mean, "--data", text, "--segment", 32, "--memory", "reset", "--threads", 1, "--json").stdout)[0]["nll"] > 0
    assert "--samples: mean has no samples" in run("convert", softmax, home / "again", "--to", "mean", "--samples", 8, code=2).stderr

    # A model that computes no numbers: an error, not null in JSON, and nothing is written.
    overflowing = home / "overflowing"
    shutil.copytree(softmax, overflowing)
    weights = (softmax / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8:begin])
    del header["__metadata__"]  # with the checksum
    tensors = json.dumps(header).encode()
    tensors += b" " * (-len(tensors) % 8)
    (overflowing / "model.safetensors").write_bytes(
        struct.pack("<Q", len(tensors)) + tensors + struct.pack("<f", 1e30) * ((len(weights) - begin) // 4))
    refused = run("convert", overflowing, home / "nan", "--to", "rfa_gate:samples=8", *fit, "--json", code=1)
    assert "layer 0: the error of the fitted attention is" in refused.stderr and refused.stdout == "", refused
    assert not (home / "nan").exists()

    # A character that the text for training did not have.
    other = home / "other.txt"
    other.write_text(text.read_text() + "\u00e9t\u00e9\n")
    said = run("eval", gate, "--data", other, "--segment", 32, "--memory", "reset", "--threads", 1, "--json").stderr
    assert f'{other}: 3 characters are not in the vocabulary and were read as unknown tokens: "\u00e9", "t"' in said, said

    tuned = home / "tuned"
    run("train", "lm", "--init", gate, "--data", text, *steps, "--out", tuned)
    assert json.loads((tuned / "config.json").read_text())["estimators"] == config["estimators"]
    scores = [json.loads(run("eval", model, "--data", text, "--segment", 32, "--memory", "reset", "--threads", 1, "--json").stdout)[0]["nll"] for model in (gate, tuned)]
    assert scores[1] < scores[0], scores
