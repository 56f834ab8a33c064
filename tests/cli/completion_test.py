"""Shell completion: completion_test.py SHELL PATH/raffia. Exit code 77: there is no such shell."""
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
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
        self.assertEqual(self.complete("raffia", "quantize", "a", "b", "--type", ""), ["f32", "bf16", "int8", "int4"])
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


class Zsh(unittest.TestCase):
    """A real zsh on a terminal of its own: a line, then Tab. Its cursor keys and colours are not what is tested."""

    def complete(self, line):
        """What the line is after Tab."""
        with tempfile.TemporaryDirectory() as home:
            Path(home, ".zshrc").write_text(
                "PS1='' PS2=''; unsetopt zle_bracketed_paste prompt_cr beep; autoload -Uz compinit && compinit -u -D\n"
                + script_of("zsh") + "\nshow() { print -r -- \"<$BUFFER>\"; BUFFER=''; zle accept-line }\nzle -N show; bindkey '^X' show\n"
                "print ready\n")
            ours, theirs = pty.openpty()
            environment = {"HOME": home, "ZDOTDIR": home, "PATH": os.environ["PATH"], "TERM": "dumb", "LC_ALL": "C.UTF-8"}
            with subprocess.Popen(["zsh", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=home, env=environment, start_new_session=True) as zsh:
                os.close(theirs)
                screen, deadline, typed = "", time.monotonic() + 60, False
                while time.monotonic() < deadline:
                    if select.select([ours], [], [], 1)[0]:
                        screen += os.read(ours, 4096).decode()
                    if not typed and "ready" in screen:
                        os.write(ours, f"{line}\t\x18".encode())
                        typed = True
                    if found := re.search(r"<(.*?)>", screen.partition("ready")[2]):
                        break
                zsh.kill()
            os.close(ours)
        self.assertIsNotNone(found, repr(screen))
        return found.group(1)

    def test_a_real_zsh_completes(self):
        for typed, expected in (("raffia gen", "raffia generate "), ("raffia generate --repetition-w", "raffia generate --repetition-window "),
                                ("raffia quantize a b --type b", "raffia quantize a b --type bf16 "),
                                ("raffia bench attention --ops softmax,rfa_", "raffia bench attention --ops softmax,rfa_gate ")):
            with self.subTest(typed):
                self.assertEqual(self.complete(typed), expected)


class Fish(unittest.TestCase):
    def test_a_real_fish_completes(self):
        for words, expected in (("gen", "generate"), ("generate --pro", "--prompt"), ("quantize a b --type b", "bf16")):
            line = f"{script_of('fish')}\ncomplete -C {json.dumps('raffia ' + words)}"
            done = subprocess.run(["fish", "--no-config", "-c", line], capture_output=True, text=True, timeout=60)
            self.assertIn(expected, [each.split("\t")[0] for each in done.stdout.splitlines()], done.stderr)


if __name__ == "__main__":
    if shutil.which(SHELL) is None:
        print(f"{SHELL} is not installed")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], "Completion"] + [name for name in ("Bash", "Zsh", "Fish") if name.lower() == SHELL], verbosity=2)
