"""Shell completion: completion_test.py SHELL PATH/raffia. Exit code 77: there is no such shell."""
import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SHELL, RAFFIA = sys.argv[1], sys.argv[2]


def script_of(shell, raffia=RAFFIA):
    return subprocess.run([raffia, "completion", shell], capture_output=True, text=True, check=True, timeout=60).stdout


class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.script = script_of(SHELL)

    def test_the_script_parses(self):
        with tempfile.NamedTemporaryFile("w", suffix="." + SHELL) as file:
            file.write(self.script)
            file.flush()
            done = subprocess.run([SHELL, "-n", file.name], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_another_shell_is_bad_usage(self):
        done = subprocess.run([RAFFIA, "completion", "tcsh"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("'tcsh' is unknown, expected one of bash, zsh, fish", done.stderr)


class Bash(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.script = script_of("bash")

    def complete(self, *words, script=None):
        """What a real bash offers for the last of the words."""
        line = (f'{script or self.script}\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _raffia; '
                'printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "--norc", "-c", line, "bash", *words], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_commands(self):
        self.assertEqual(self.complete("raffia", "gen"), ["generate"])
        self.assertEqual(self.complete("raffia", "state", ""), ["info", "save", "restore", "-h", "--help"])
        self.assertIn("train", self.complete("raffia", ""))
        self.assertEqual(self.complete("raffia", "completion", "b"), ["bash"])

    def test_flags(self):
        self.assertEqual(self.complete("raffia", "generate", "--pro"), ["--prompt", "--prompt-file"])
        self.assertEqual(self.complete("raffia", "generate", "model", "--greedy", "--top"), ["--top-k", "--top-p"])
        self.assertEqual(self.complete("raffia", "bench", "attention", "--ma"), ["--map"])

    def test_values_that_have_names(self):
        self.assertEqual(self.complete("raffia", "quantize", "a", "b", "--type", ""), ["f32", "bf16", "int8"])
        self.assertEqual(self.complete("raffia", "bench", "attention", "--ops", "softmax,rfa_"), ["softmax,rfa_gate"])

    def test_file_names_are_left_to_bash(self):
        for words in (["generate", ""], ["generate", "m", "--state-in", ""], ["generate", "m", "--tokens", "--"]):
            self.assertEqual(self.complete("raffia", *words), [])

    def test_training_completes_where_it_is_installed(self):
        has_training = (Path(RAFFIA).parent / "raffia-train").exists()
        self.assertEqual(self.complete("raffia", "train", "l"), ["lm"] if has_training else [])
        self.assertEqual("--tokenizer" in self.complete("raffia", "train", "lm", "--tok"), has_training)

    def test_the_script_needs_no_raffia_train(self):
        with tempfile.TemporaryDirectory() as alone:
            copy = Path(alone) / "raffia"
            shutil.copy(RAFFIA, copy)
            script = script_of("bash", str(copy))
        self.assertEqual(self.complete("raffia", "tra", script=script), ["translate", "train"])
        self.assertEqual(self.complete("raffia", "train", "l", script=script), [])


class Fish(unittest.TestCase):
    def test_a_real_fish_completes(self):
        for words, expected in (("gen", "generate"), ("generate --pro", "--prompt"), ("quantize a b --type in", "int8")):
            line = f"{script_of('fish')}\ncomplete -C {json.dumps('raffia ' + words)}"
            done = subprocess.run(["fish", "--no-config", "-c", line], capture_output=True, text=True, timeout=60)
            self.assertIn(expected, [each.split("\t")[0] for each in done.stdout.splitlines()], done.stderr)


if __name__ == "__main__":
    if shutil.which(SHELL) is None:
        print(f"{SHELL} is not installed")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], "Completion"] + [name for name in ("Bash", "Fish") if name.lower() == SHELL], verbosity=2)
