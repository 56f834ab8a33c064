"""Training from the command line, as `raffia train`: streams that cannot be written, names, images in directories.

Usage: train_streams_test.py PATH/raffia tests/cli fuzz/corpus/picture_fuzz
"""
import bz2
import gzip
import json
import lzma
import os
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

RAFFIA, PICTURES = sys.argv[1], Path(sys.argv[3])
sys.path.insert(0, sys.argv[2])
import command_case  # noqa: E402

TINY = ["--layers", "1", "--width", "16", "--heads", "2", "--batch", "2", "--threads", "1", "--no-plot"]


def grey_png(value):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + bytes([value] * 12) for _ in range(12))
    head = struct.pack(">IIBBBBB", 12, 12, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def filled(weights, value):
    """A weight file with this value in all of its numbers, and without checksums."""
    size = struct.unpack("<Q", weights[:8])[0]
    header = json.loads(weights[8:8 + size])
    header["__metadata__"] = {"format": "raffia"}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    assert all(tensor["dtype"] == "F32" for name, tensor in header.items() if name != "__metadata__")
    return struct.pack("<Q", len(text)) + text + struct.pack("<f", value) * ((len(weights) - 8 - size) // 4)


class Training(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.home = Path(self.directory.name)
        self.text = self.home / "text.txt"
        self.text.write_text("raffia folds and reads a state of constant size\n" * 60)

    def lm(self, out, *more):
        return ["train", "lm", "--data", str(self.text), "--out", str(out), "--tokenizer", "byte", "--segment", "16", "--steps",
                "8", "--eval-every", "4", "--checkpoint-every", "4", "--log-every", "2", *TINY, *more]

    def run_raffia(self, arguments, redirection="", **streams):
        line = f'exec "$0" "$@" {redirection}'
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
        command = ["sh", "-c", line, RAFFIA, *map(str, arguments)]
        return subprocess.run(command, text=True, errors="surrogateescape", timeout=300, **streams)

    def test_whole_models_are_measured_with_every_contender(self):
        ops = ["softmax", "torch_softmax", "window", "rfa", "rfa_gate", "torch_chunked", "hybrid", "lara", "ra", "eva", "mean"]
        for what in ("layer", "model"):
            run = self.run_raffia(["bench", "train", "--what", what, "--ops", ",".join(ops), "--lengths", "64", "--heads", "2",
                                   "--head-dim", "8", "--layers", "1", "--vocabulary", "32", "--repeats", "1", "--json"])
            self.assertEqual(run.returncode, 0, run.stderr)
            records = json.loads(run.stdout)
            self.assertEqual([record["op"] for record in records], ops)
            self.assertTrue(all(record["seconds"] > 0 for record in records))

    def test_a_new_run_leaves_busy_cores_alone_and_keeps_its_number_of_threads(self):
        cores = len(os.sched_getaffinity(0))
        if cores < 2:
            self.skipTest("needs two cores")
        def lm_of_own_choice(out):
            command = self.lm(out)
            at = command.index("--threads")
            return command[:at] + command[at + 2:]

        # Without OMP_NUM_THREADS the command chooses.
        free = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        others = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2 * cores)]
        try:
            done = self.run_raffia(lm_of_own_choice(self.home / "busy"), env=free)
        finally:
            for process in others:
                process.kill()
                process.wait()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"training with --threads {cores // 2}", done.stderr)
        options = self.home / "busy" / "trainer" / "options.json"
        self.assertEqual(json.loads(options.read_text())["threads"], cores // 2)
        # Resumed later, whatever the load is then.
        resumed = self.run_raffia(["train", "lm", "--out", str(self.home / "busy"), "--resume", "--no-plot"], env=free)
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertEqual(json.loads(options.read_text())["threads"], cores // 2)
        # OMP_NUM_THREADS is a choice of the user.
        chosen = self.run_raffia(lm_of_own_choice(self.home / "chosen"), env=free | {"OMP_NUM_THREADS": "1"})
        self.assertEqual(chosen.returncode, 0, chosen.stderr)
        self.assertNotIn("training with --threads", chosen.stderr)
        self.assertEqual(json.loads((self.home / "chosen" / "trainer" / "options.json").read_text())["threads"], 1)

    def records(self, command):
        done = self.run_raffia([*command, "--json"])
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_run_ends_as_usual_where_stderr_cannot_be_written(self):
        reader, writer = os.pipe()
        os.close(reader)
        self.addCleanup(os.close, writer)
        for number, (redirection, streams) in enumerate((("2>/dev/full", {}), ("2>&-", {}), ("", {"stderr": writer}))):
            with self.subTest(redirection=redirection):
                out = self.home / f"out{number}"
                done = self.run_raffia(self.lm(out, "--json"), redirection, **streams)
                self.assertEqual(done.returncode, 0)
                self.assertEqual(json.loads(done.stdout)["step"], 8)
                self.assertTrue((out / "model.safetensors").exists())
                self.assertTrue(any((out / "trainer").glob("step-00000008")))

    def test_stdout_that_cannot_be_written_is_a_failure_that_keeps_the_model(self):
        out = self.home / "out"
        done = self.run_raffia(self.lm(out, "--json"), ">/dev/full")
        self.assertEqual(done.returncode, 1)
        self.assertIn("raffia: stdout could not be written", done.stderr)
        self.assertTrue((out / "model.safetensors").exists())

    def test_names_that_are_not_utf8_are_replaced_in_json(self):
        out = self.home / os.fsdecode(b"run\xff")
        done = self.run_raffia(self.lm(out, "--json"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["out"], f"{self.home}/run\ufffd")
        resumed = self.run_raffia(["train", "lm", "--out", out, "--resume", "--json", "--no-plot"])
        self.assertEqual((resumed.returncode, json.loads(resumed.stdout)["step"]), (0, 8), resumed.stderr)

    def test_progress_fits_a_narrow_terminal(self):
        for columns in (80, 40):
            code, screen = command_case.on_terminal([RAFFIA, *self.lm(self.home / f"out{columns}")], columns, patience=300)
            self.assertEqual(code, 0, screen)
            bars = [line for line in command_case.drawn_lines(screen) if "% step" in line]
            self.assertGreater(len(bars), 0, screen)
            for line in bars:
                self.assertLess(len(line.split("\n")[0]), columns, repr(line))

    def test_it_speaks_as_raffia_train(self):
        for arguments, said in ((["train", "lmm"], "raffia: unknown command 'lmm': did you mean 'lm'?"),
                                (["train", "lm", "--dtaa", "x"], "raffia train lm: unknown option '--dtaa': did you mean '--data'?"),
                                (["train"], "raffia train: "), (["eval", "--dta", "x"], "raffia eval: "),
                                (["bench", "train", "--lenths", "5"], "raffia bench train: unknown option '--lenths': did you mean")):
            done = self.run_raffia(arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertIn(said, done.stderr)
            self.assertNotIn("raffia-train", done.stderr)
        for arguments in (["train"], ["train", "lm"], ["convert"], ["eval"], ["bench", "train"]):
            done = self.run_raffia([*arguments, "--help"])
            self.assertEqual(done.returncode, 0)
            self.assertIn(f"Usage: raffia {' '.join(arguments)} ", done.stdout)
            self.assertNotIn("raffia-train", done.stdout)

    def test_queries_keys_and_values_are_reported_as_records(self):
        out, dump = self.home / "out", self.home / "qkv.safetensors"
        training = self.lm(out)
        training[training.index("--layers") + 1] = "2"
        self.assertEqual(self.run_raffia(training).returncode, 0)
        command = ["eval", out, "--data", self.text, "--segment", "16", "--dump-qkv", dump]
        shape = [1, 16, 2, 8]
        self.assertEqual(self.records(command),
                         [{"file": str(dump), "layer": layer, "tensor": f"layers.{layer}.{name}", "shape": shape} for layer in (0, 1) for name in "qkv"])
        self.assertEqual(self.records([*command, "--layer", "1"]),
                         [{"file": str(dump), "layer": 1, "tensor": name, "shape": shape} for name in "qkv"])
        self.assertEqual(self.run_raffia([*command, "--csv"]).stdout.splitlines()[:2],
                         ["file,layer,tensor,shape", f'{dump},0,layers.0.q,"[1,16,2,8]"'])
        plain = self.run_raffia(command)
        self.assertEqual((plain.returncode, plain.stdout), (0, ""))
        self.assertIn("q, k and v of 16 tokens", plain.stderr)

    def test_queries_keys_and_values_never_replace_the_data_or_a_model(self):
        out, other = self.home / "out", self.home / "other"
        self.assertEqual(self.run_raffia(self.lm(out)).returncode, 0)
        self.assertEqual(self.run_raffia(self.lm(other)).returncode, 0)
        link = self.home / "link"
        link.symlink_to(self.text)
        command = ["eval", out, "--data", self.text, "--segment", "16", "--dump-qkv"]
        files = [self.text, *(directory / "model.safetensors" for directory in (out, other))]
        before = [file.read_bytes() for file in files]
        for target, said in ((self.text, "is the data (--data): expected another name"), (link, "is the data (--data)"),
                             (files[1], "is a file of a model: expected another name"), (files[2], "is a file of a model")):
            done = self.run_raffia([*command, target])
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(f"--dump-qkv: {target} {said}", done.stderr)
        self.assertEqual([file.read_bytes() for file in files], before)

    def test_weights_that_are_not_finite_or_overflow_are_refused(self):
        for end, lines in (("en", ["a b c", "b c", "c a b"]), ("de", ["x y", "y z", "z x y"])):
            (self.home / f"pairs.{end}").write_text("".join(f"{line}\n" for line in lines * 20))
        labelled = self.home / "labelled.tsv"
        labelled.write_text("yes\ta b c\nno\tx y z\n" * 20)
        images = self.home / "images"
        for name, value in (("night", 10), ("day", 200)):
            for part in ("train", "test"):
                (images / part / name).mkdir(parents=True)
                for i in range(12):
                    (images / part / name / f"{i:02}.png").write_bytes(grey_png(value + i))
        pairs, short = self.home / "pairs", ["--steps", "2", *TINY]
        cases = (("lm", self.text, self.lm(self.home / "lm")),
                 ("translate", pairs, ["train", "translate", "--data", pairs, "--out", self.home / "translate", "--source", "en",
                                       "--target", "de", "--tokenizer", "char", *short]),
                 ("classify", labelled, ["train", "classify", "--data", labelled, "--out", self.home / "classify", "--tokenizer",
                                         "char", *short]),
                 ("image", images, ["train", "image", "--data", images, "--out", self.home / "image", "--patch", "4", *short]))
        for task, data, training in cases:
            done = self.run_raffia(training)
            self.assertEqual(done.returncode, 0, done.stderr)
            out = self.home / task
            sound = (out / "model.safetensors").read_bytes()
            self.assertEqual(self.run_raffia(["eval", out, "--data", data]).returncode, 0)
            for value, said in ((float("nan"), 'weight" contains nan, expected finite numbers: the file is damaged'),
                                (3e38, "expected a finite number: the weights of the model are damaged")):
                with self.subTest(task=task, value=value):
                    (out / "model.safetensors").write_bytes(filled(sound, value))
                    done = self.run_raffia(["eval", out, "--data", data, "--json"])
                    self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
                    self.assertIn(said, done.stderr)

    def test_options_of_a_damaged_run_are_named(self):
        out = self.home / "out"
        self.assertEqual(self.run_raffia(self.lm(out)).returncode, 0)
        options = out / "trainer" / "options.json"
        for text, said in (('{"segment": "x"}', 'field "segment" is a value of type string, expected an integer from 1'),
                           ("[]", "is a value of type array, expected a JSON object")):
            options.write_text(text)
            done = self.run_raffia(["eval", out, "--data", self.text])
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(f"{options}: {said}", done.stderr)

    def test_bleu_of_a_run_is_that_of_eval_on_all_pairs(self):
        """More pairs than one would look at by hand. The last ones are longer than a segment, and unlike those before."""
        out, pairs, valid, begin = (self.home / name for name in ("out", "pairs", "valid", "begin"))
        words = [f"{a} {b} {c} ." for a in "abcdef" for b in "ghijkl" for c in "mnopqr"]
        short, long = [words[i % len(words)] for i in range(2040)], " ".join("abcdefgh" * 5)
        for prefix, sources in ((pairs, words), (valid, short + [long] * 60), (begin, short[:2000])):
            Path(f"{prefix}.en").write_text("".join(line + "\n" for line in sources))
            Path(f"{prefix}.de").write_text("".join(f"so {line}\n" for line in sources))
        done = self.run_raffia(["train", "translate", "--data", pairs, "--valid", valid, "--test", valid, "--out", out, "--tokenizer", "word",
                                "--segment", "16", "--steps", "300", "--eval-every", "300", "--lr", "0.01", *TINY, "--json"])
        self.assertEqual(done.returncode, 0, done.stderr)
        bleu = json.loads(done.stdout)["valid"]["bleu"]
        self.assertGreater(bleu, 1)
        self.assertEqual(bleu, json.loads(done.stdout)["test"]["bleu"])
        self.assertAlmostEqual(bleu, self.records(["eval", out, "--data", valid])[0]["bleu"], places=6)
        self.assertGreater(abs(bleu - self.records(["eval", out, "--data", begin])[0]["bleu"]), 1)

    def test_compressed_data_are_evaluated_as_plain_ones(self):
        out = self.home / "out"
        self.assertEqual(self.run_raffia(self.lm(out)).returncode, 0)
        plain = self.records(["eval", out, "--data", self.text])
        for ending, module in ((".gz", gzip), (".xz", lzma)):
            packed = Path(f"{self.text}{ending}")
            packed.write_bytes(module.compress(self.text.read_bytes()))
            records = self.records(["eval", out, "--data", packed])
            self.assertEqual([r["nll"] for r in records], [r["nll"] for r in plain])
        packed = Path(f"{self.text}.bz2")
        packed.write_bytes(bz2.compress(self.text.read_bytes()))
        for command in (["eval", out, "--data", packed], ["generate", out, "--prompt-file", packed]):
            done = self.run_raffia(command)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(f"{packed}: is compressed with bzip2, expected gzip (.gz), xz (.xz) or no compression", done.stderr)

    def test_images_in_directories_are_learned_and_classified(self):
        data, out = self.home / "images", self.home / "out"
        for number, name in enumerate(("night", "day")):
            for part, count in (("train", 24), ("test", 3)):
                (data / part / name).mkdir(parents=True)
                for i in range(count):
                    (data / part / name / f"{i:02}.png").write_bytes(grey_png(200 * number + i))
        (data / "train" / "day" / "bright.jpg").write_bytes((PICTURES / "grey.jpg").read_bytes())
        (data / "train" / "night" / "dark.pgm").write_bytes(b"P5 12 12 255\n" + bytes(144))
        done = self.run_raffia(["train", "image", "--data", data, "--out", out, "--patch", "4", "--steps", "60", "--eval-every",
                                "30", "--lr", "0.01", *TINY, "--json"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((out / "classes.txt").read_text().split(), ["day", "night"])
        self.assertEqual(json.loads(done.stdout)["test"]["accuracy"], 1)
        found = self.run_raffia(["classify", out, data / "test" / "day" / "00.png", data / "test" / "night" / "00.png"])
        self.assertEqual([line.split("\t")[0] for line in found.stdout.splitlines()], ["day", "night"], found.stderr)
        scored = self.run_raffia(["eval", out, "--data", data, "--json"])
        self.assertEqual(json.loads(scored.stdout)[0]["accuracy"], 1, scored.stderr)
        (data / "test" / "dusk").mkdir()
        (data / "test" / "dusk" / "0.png").write_bytes(grey_png(90))
        self.assertIn('has label "dusk", expected one of the 2 classes: day, night', self.run_raffia(["eval", out, "--data", data]).stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
