"""Damaged inputs over all commands, their checksums repaired so that the damage gets past the door."""

import gzip
import json
import lzma
import os
import shutil

import formats
from commands import GIGABYTE, TORCH, Limits, command_line, complaints
from mutations import mutated

PART = "inputs"
SEALED_SHARE = 0.85  # the others keep their wrong checksums
# What a message may name: a file, or what a session came to that is no file's fault alone.
NAMED = ("in/", "stdin", "out/run", "learned positions", "logit", "the last checkpoint")
SPARSE_SHARE = 0.01  # grown to 40 GB of nothing
KINDS = {".json": "json", ".jsonl": "json lines", ".safetensors": "tensors", ".state": "state", ".txt": "text", ".tsv": "text", ".toml": "text", ".pgm": "text", ".ppm": "text"}


class Case:
    """in/ holds the input, out/ what the command writes; the command runs in the directory of both."""

    def __init__(self, sound, directory, rng):
        self.sound, self.directory, self.rng = sound, directory, rng
        self.arguments, self.stdin, self.limits = [], b"", Limits()
        self.targets = []  # files that may be damaged, below in/
        self.done = []
        os.makedirs(os.path.join(directory, "in"))
        os.makedirs(os.path.join(directory, "out"))

    def path(self, name):
        return os.path.join(self.directory, "in", name)

    def take(self, name, as_name, may_be_damaged=True):
        """A sound file or directory, copied to in/."""
        source, target = self.sound.path(name), self.path(as_name)
        if os.path.isdir(source):
            shutil.copytree(source, target)
            files = [os.path.relpath(os.path.join(at, file), self.path("")) for at, _, names in os.walk(target) for file in names]
        else:
            shutil.copy(source, target)
            files = [as_name]
        if may_be_damaged:
            self.targets += sorted(file for file in files if os.path.basename(file) not in ("log.csv", "lock", ".lock"))

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def write(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data)

    def damage(self):
        for target in self.rng.sample(self.targets, min(len(self.targets), self.rng.choice((1, 1, 1, 2)))):
            if self.rng.random() < SPARSE_SHARE:
                os.truncate(self.path(target), 40 * GIGABYTE)
                self.done.append(f"{target}: sparse")
                return
            self._damage_file(target)

    def _damage_file(self, target):
        data, sealed = self.read(target), self.rng.random() < SEALED_SHARE
        inside = {".gz": (gzip.decompress, gzip.compress), ".xz": (lzma.decompress, lzma.compress)}.get(os.path.splitext(target)[1])
        if inside and sealed:  # a sound archive of damaged data
            data, done = mutated(inside[0](data), "text", self.rng)
            data = inside[1](data)
        else:
            kind = KINDS.get(os.path.splitext(target)[1], "bytes")
            data, done = mutated(data, kind, self.rng)
        self.write(target, _sealed(target, data) if sealed else data)
        self.done.append(f"{target}: {' '.join(done)}{', sealed' if sealed else ''}")
        if sealed:
            self._seal_neighbours(target)

    def _seal_neighbours(self, target):
        """Other files know this one's checksum, too."""
        directory, name = os.path.split(target)
        if name == "tokenizer.model":
            known = json.loads(self.read(f"{directory}/tokenizer.json"))
            self.write(f"{directory}/tokenizer.json", json.dumps({**known, "checksum": formats.sp_checksum(self.read(target))}).encode())
        if name in ("tokenizer.json", "config.json", "tokenizer.model") and os.path.exists(self.path(f"{directory}/model.safetensors")):
            self.write(f"{directory}/model.safetensors", formats.seal_safetensors(self.read(f"{directory}/model.safetensors")))
        facts = f"{directory}/trainer.json"
        if name != "trainer.json" and os.path.exists(self.path(facts)):
            known = json.loads(self.read(facts))
            data = self.read(target)
            known["files"][name] = {"bytes": len(data), "xxh3": f"{formats.xxh3(data):016x}"}
            self.write(facts, json.dumps(known).encode())

    def traces(self):
        """What tells whether an input was changed."""
        found = {}
        for at, _, names in os.walk(self.path("")):
            for name in names:
                status = os.lstat(os.path.join(at, name))
                found[os.path.join(at, name)] = (status.st_size, status.st_mtime_ns, status.st_ino)
        return found

    def leftovers(self):
        return [name for _, directories, names in os.walk(os.path.join(self.directory, "out")) for name in directories + names if name.endswith(".tmp")]


def _sealed(name, data):
    if name.endswith(".safetensors"):
        return formats.seal_safetensors(data)
    if name.endswith(".state"):
        return formats.seal_image(data)
    if name.endswith(".png"):
        return formats.seal_png(data)
    return data


# Families of inputs: each takes its files and says what is run.


def language_model(case):
    case.take(case.rng.choice(case.sound.models["lm"]), "model")
    one = ["--threads", "1"]
    case.arguments = case.rng.choice((
        ["generate", "in/model", "--prompt", "a bad cab", "--tokens", "6", "--json", *one],
        ["generate", "in/model", "--prompt", "ab", "--tokens", "6", "--greedy", "--logprobs", *one],
        ["generate", "in/model", "--prompt", "ab", "--tokens", "4", "--state-out", "out/s.state", *one],
        ["generate", "in/model", "--interactive", "--tokens", "4", *one],
        ["state", "save", "in/model", "out/s.state", "--prompt", "a cab", "--json", *one],
        ["quantize", "in/model", "out/quantized", "--json"],
        ["quantize", "in/model", "out/quantized", "--type", "bf16"],
        ["bench", "prefill", "--model", "in/model", "--lengths", "4", "--repeats", "1", "--json"],
        ["bench", "decode", "--model", "in/model", "--depths", "0", "--tokens", "2", "--repeats", "1", "--json"],
    ))
    case.stdin = b"a cab\n/info\n/back\nbad\n" if "--interactive" in case.arguments else b""


def session(case):
    model, state = case.rng.choice(case.sound.sessions)
    case.take(model, "model", may_be_damaged=False)
    case.take(state, "s.state")
    one = ["--threads", "1"]
    case.arguments = case.rng.choice((
        ["state", "info", "in/s.state", "--json"],
        ["state", "restore", "in/model", "in/s.state", "--check", "--json", *one],
        ["generate", "in/model", "--state-in", "in/s.state", "--tokens", "4", "--json", *one],
        ["generate", "in/model", "--state-in", "in/s.state", "--tokens", "4", "--state-out", "out/s.state", "--prompt", "ab", *one],
        ["generate", "in/model", "--interactive", "--tokens", "3", *one],
    ))
    case.stdin = b"/load in/s.state\na\n/back 2\n" if "--interactive" in case.arguments else b""


def text_classifier(case):
    pairs = case.rng.random() < 0.3
    case.take(case.rng.choice(case.sound.models["pairs" if pairs else "classify"]), "model")
    case.take("pairs.txt" if pairs else "lines.txt", "lines.txt")
    case.arguments = ["classify", "in/model", "in/lines.txt", "--top", "3", "--threads", "1"] + case.rng.choice((["--json"], [], ["--whole"]))


def translator(case):
    case.take(case.rng.choice(case.sound.models["translate"]), "model")
    case.take("lines.txt", "lines.txt")
    case.damage_stdin = True
    case.arguments = ["translate", "in/model", "--beam", case.rng.choice("12"), "--threads", "1"] + case.rng.choice((["--json"], []))


def images(case):
    channels = case.rng.choice("13")
    case.take(case.rng.choice(case.sound.models[f"image{channels}"]), "model", may_be_damaged=case.rng.random() < 0.3)
    names = {"1": ("p2.pgm", "p5.pgm", "deep.pgm", "1.npy", "1.png", "1.jpg", "images-idx3-ubyte", "images-idx3-ubyte.gz", "image.pgm.xz"),
             "3": ("p3.ppm", "p6.ppm", "3.npy", "3.png", "3.jpg")}[channels]
    name = case.rng.choice(names)
    case.take(f"images/{name}", name)
    case.arguments = ["classify", "in/model", f"in/{name}", "--threads", "1"] + case.rng.choice((["--json"], []))


def arrays(case):
    if case.rng.random() < 0.5:
        case.take("arrays/qkv.safetensors", "qkv.safetensors")
        inputs = ["in/qkv.safetensors"]
    else:
        inputs = [f"in/{name}.npy" for name in "qkv"]
        for name in "qkv":
            case.take(f"arrays/{name}.npy", f"{name}.npy")
    estimators = case.rng.choice(("rfa:map=positive,lara", "eva,ra", "window,rfa_gate,hybrid"))
    causal = ["--causal"] if "gate" in estimators or case.rng.random() < 0.5 else []
    case.arguments = ["approx", "--input", *inputs, "--estimators", estimators, "--samples", "4", "--seeds", "1", "--threads", "1", *causal]
    case.arguments += case.rng.choice((["--json"], ["--csv"], []))


def llama2c(case):
    case.take("llama2c/model.bin", "model.bin")
    case.take("llama2c/tok.bin", "tok.bin")
    case.arguments = ["import", "llama2c", "in/model.bin", "in/tok.bin", "out/model", "--json"]


def hugging_face(case):
    case.take(case.rng.choice(("hf-bytes", "hf-marks")), "hf")
    case.arguments = ["import", "hf", "in/hf", "out/model", "--json"] + case.rng.choice(([], ["--type", "int8"], ["--type", "bf16"]))


def prompt_file(case):
    case.take(case.rng.choice(case.sound.models["lm"]), "model", may_be_damaged=False)
    name = case.rng.choice(("text.txt", "text.txt.gz", "text.txt.xz"))
    case.take(name, name)
    case.arguments = case.rng.choice((
        ["generate", "in/model", "--prompt-file", f"in/{name}", "--tokens", "3", "--json", "--threads", "1"],
        ["state", "save", "in/model", "out/s.state", "--prompt-file", f"in/{name}", "--threads", "1"],
    ))


FAMILIES = ((language_model, 34), (session, 20), (text_classifier, 8), (translator, 6), (images, 10), (arrays, 7), (llama2c, 5), (hugging_face, 6), (prompt_file, 4))

# With torch: a second each.


def resumed_run(case):
    task, run = case.rng.choice(case.sound.runs)
    case.take("text.txt", "text.txt", may_be_damaged=False)
    case.take("labels.tsv", "labels.tsv", may_be_damaged=False)
    case.take(run, "run")
    case.changes_input = True
    case.arguments = ["train", task, "--out", "in/run", "--resume", "--steps", "6", "--no-plot", "--json"]


def evaluated_run(case):
    task, run = case.rng.choice(case.sound.runs)
    case.take(run, "model")
    data = "text.txt" if task == "lm" else "labels.tsv"
    case.targets = [target for target in case.targets if "/trainer/" not in target]
    case.take(data, data)
    case.arguments = ["eval", "in/model", "--data", f"in/{data}", "--json"]


def training_data(case):
    kind = case.rng.choice(("toml", "tsv", "text", "gz", "init"))
    small = ["--steps", "2", "--layers", "1", "--width", "16", "--heads", "2", "--batch", "2", "--segment", "16", "--threads", "1", "--no-plot", "--json"]
    if kind == "toml":
        case.take("run.toml", "run.toml")
        case.take("text.txt", "text.txt", may_be_damaged=False)
        case.arguments = ["train", "lm", "--config", "in/run.toml", "--no-plot", "--json"]
    elif kind == "tsv":
        case.take("labels.tsv", "labels.tsv")
        case.arguments = ["train", "classify", "--data", "in/labels.tsv", "--out", "out/run", *small]
    elif kind == "init":
        case.take(case.rng.choice(("lm-byte", "lm-scored", "lm-sp")), "model")
        case.take("text.txt", "text.txt", may_be_damaged=False)
        case.arguments = ["train", "lm", "--init", "in/model", "--data", "in/text.txt", "--out", "out/run", "--steps", "2", "--batch", "2", "--segment", "16", "--threads", "1", "--no-plot"]
    else:
        name = "text.txt" if kind == "text" else "text.txt.gz"
        case.take(name, name)
        tokenizer = case.rng.choice(("byte", "char", "word", "sp:300"))
        case.arguments = ["train", "lm", "--data", f"in/{name}", "--out", "out/run", "--tokenizer", tokenizer, *small]


def converted(case):
    case.take(case.rng.choice(("llama-softmax", "lm-softmax-learned", "lm-scored")), "model")
    case.arguments = ["convert", "in/model", "out/model", "--to", case.rng.choice(("rfa_gate", "hybrid", "eva"))]


TORCH_FAMILIES = ((resumed_run, 6), (evaluated_run, 2), (training_data, 4), (converted, 1))


def run_case(sound, report, seed, number, with_torch):
    rng = formats.seeded(seed, PART, number)
    families = TORCH_FAMILIES if with_torch else FAMILIES
    family = rng.choices([family for family, _ in families], [weight for _, weight in families])[0]
    directory = report.case_directory(PART, number)
    case = Case(sound, directory, rng)
    family(case)
    case.damage()
    if getattr(case, "damage_stdin", False):
        case.stdin = case.read("lines.txt")[:2000]  # a translation is as long as its source, and takes the square of that
    before = case.traces()
    limits = TORCH if with_torch else case.limits
    outcome = sound.commands.run(case.arguments, directory, limits, case.stdin)
    found = complaints(outcome, names=NAMED)
    if not getattr(case, "changes_input", False) and case.traces() != before:
        found.append("the command changed its input")
    found += [f"left {name} behind" for name in case.leftovers()]
    line = command_line(outcome.argv)
    if found:
        _keep(directory, case, outcome, line)
    report.finish(PART, number, directory, found, f"cd {directory}; {line}{' < stdin' if case.stdin else ''}  [{'; '.join(case.done)}]")


def _keep(directory, case, outcome, line):
    for name, data in (("stdin", case.stdin), ("stdout", outcome.out), ("stderr", outcome.err), ("command", line.encode() + b"\n")):
        with open(os.path.join(directory, name), "wb") as file:
            file.write(data)
