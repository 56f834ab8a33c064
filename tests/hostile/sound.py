"""Sound files of every kind that a command reads: models with each tokenizer, sessions, images, arrays, files of other programs, training runs."""

import gzip
import json
import lzma
import os
import shutil
import struct

import formats
from commands import TORCH, command_line

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")
TEXT = "a big cab\nhad a bad cafe\u00e9 deed fed a hag\n" * 40
LINES = "a bad cab\na big dig\n\nfeed a cab\n"
LM_GOLDENS = ("lm-gate", "lm-hybrid", "lm-eva", "lm-lara", "lm-softmax-learned", "lm-window", "lm-mixed", "lm-ra", "lm-rfa-positive", "llama-rfa_gate", "llama-softmax")
SP_PIECES = ("\u2581", "a", "b", "c", "d", "e", "ab", "\u2581a", "\u2581b", "ad")
# A tiny model that trains in a second or two after torch is there.
TINY = ("--tokenizer byte --layers 1 --width 16 --heads 2 --batch 2 --segment 16 --threads 1 --no-plot").split()


class SoundFiles:
    """Below `root`; `models` are names of model directories there, by task."""

    def __init__(self, root, commands):
        self.root, self.commands = root, commands
        self.models = {"lm": [], "classify": [], "pairs": [], "translate": [], "image1": [], "image3": []}
        self.sessions = []  # (model, file)
        os.makedirs(root)
        self._write_golden_models()
        self._write_data()
        self._import_models()
        for model in self.models["lm"]:
            self._save_session(model)
        self.runs = self._train() if commands.can_train else []

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def write(self, name, data):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def run(self, *arguments, limits=None, stdin=b""):
        outcome = self.commands.run(arguments, self.root, **({"limits": limits} if limits else {}), stdin=stdin)
        if outcome.code != 0:
            raise SystemExit(f"hostile: a sound command failed: {command_line(outcome.argv)}\n{outcome.errors}")
        return outcome

    # Models.

    def _golden(self, golden, name, tokenizer, vocabulary=16):
        shutil.copytree(os.path.join(GOLDEN, golden), self.path(name), ignore=shutil.ignore_patterns("expected*"))
        if vocabulary != 16:
            self._grow(name, vocabulary)
        if tokenizer:
            self.write(f"{name}/tokenizer.json", json.dumps({**tokenizer, "version": 1}))

    def _edit_tensors(self, name, edit):
        config = json.loads(self.read(f"{name}/config.json"))
        metadata, tensors = formats.read_safetensors(self.read(f"{name}/model.safetensors"))
        edit(config, tensors)
        self.write(f"{name}/config.json", json.dumps(config, indent=2))
        self.write(f"{name}/model.safetensors", formats.write_safetensors(metadata, tensors))

    def _grow(self, name, vocabulary):
        def edit(config, tensors):
            config["vocabulary"] = vocabulary
            for tensor in ("embedding.weight", "output.weight"):
                if tensor in tensors:
                    values = formats.packed_floats(vocabulary * config["width"], formats.seeded(name, tensor))
                    tensors[tensor] = ("F32", [vocabulary, config["width"]], values)

        self._edit_tensors(name, edit)

    def _channels(self, name, channels):
        def edit(config, tensors):
            config["channels"] = channels
            columns = channels * config["patch"] ** 2
            values = formats.packed_floats(config["width"] * columns, formats.seeded(name))
            tensors["patches.weight"] = ("F32", [config["width"], columns], values)

        self._edit_tensors(name, edit)

    def _write_golden_models(self):
        characters = {"kind": "char", "characters": "\n abcdefghi\u00e9"}
        words = {"kind": "word", "words": ["\n", "a", "b", "cab", "bad", "big", "dig", "feed", "fed", "had", "hag", "deed"]}
        for golden in LM_GOLDENS:
            self._golden(golden, golden, characters)
            self.models["lm"].append(golden)
        self._golden("lm-gate", "lm-word", words)
        self._golden("lm-gate", "lm-byte", {"kind": "byte"}, 260)
        model = formats.sentencepiece_model(SP_PIECES)
        self._golden("lm-softmax", "lm-sp", {"kind": "sp", "model": "tokenizer.model", "checksum": formats.sp_checksum(model)}, 261 + len(SP_PIECES))
        self.write("lm-sp/tokenizer.model", model)
        self.models["lm"] += ["lm-word", "lm-byte", "lm-sp"]
        for golden in ("classify-rfa", "classify-lara", "classify-softmax"):
            self._golden(golden, golden, characters)
            self.write(f"{golden}/classes.txt", "good\nbad\nneither\n")
            self.models["classify"].append(golden)
        for task, names in (("pairs", ("pairs-eva", "pairs-mixed")), ("translate", ("translate-gate", "translate-softmax"))):
            for golden in names:
                self._golden(golden, golden, characters)
                self.models[task].append(golden)
        for channels in (1, 3):
            for golden in ("image-rfa", "image-eva"):
                name = f"{golden}-{channels}"
                self._golden(golden, name, None)
                self._channels(name, channels)
                self.models[f"image{channels}"].append(name)

    # Data.

    def _write_data(self):
        rng = formats.seeded("data")
        size = 12
        for channels, kinds in ((1, (2, 5)), (3, (3, 6))):
            values = [rng.randrange(256) for _ in range(channels * size * size)]
            for kind in kinds:
                self.write(f"images/p{kind}.{'pgm' if channels == 1 else 'ppm'}", formats.pnm(kind, size, 255, values))
            self.write(f"images/{channels}.npy", formats.npy((channels, size, size), [value / 255 for value in values]))
            self.write(f"images/{channels}.png", formats.png(channels, size, values))
            self.write(f"images/{channels}.jpg", formats.jpeg(channels, size, values[: channels * 4]))
        self.write("images/deep.pgm", formats.pnm(5, size, 65535, [rng.randrange(65536) for _ in range(size * size)]))
        self.write("images/images-idx3-ubyte", formats.idx((2, size, size), [rng.randrange(256) for _ in range(2 * size * size)]))
        self.write("images/images-idx3-ubyte.gz", gzip.compress(self.read("images/images-idx3-ubyte"), mtime=0))
        self.write("images/image.pgm.xz", lzma.compress(self.read("images/p5.pgm")))
        shape, tensors = (16, 2, 8), {}
        for name in "qkv":
            values = formats.floats(16 * 2 * 8, rng)
            self.write(f"arrays/{name}.npy", formats.npy(shape, values))
            tensors[name] = ("F32", list(shape), struct.pack(f"<{len(values)}f", *values))
        self.write("arrays/qkv.safetensors", formats.write_safetensors({"format": "pt"}, tensors))
        self.write("text.txt", TEXT)
        self.write("text.txt.gz", gzip.compress(TEXT.encode(), mtime=0))
        self.write("text.txt.xz", lzma.compress(TEXT.encode()))
        self.write("lines.txt", LINES)
        self.write("pairs.txt", "a bad cab\tbig dig\nfeed\ta cab\n")
        self.write("labels.tsv", "".join(f"{'good' if i % 3 else 'bad'}\ta {'big' if i % 3 else 'bad'} cab {i}\n" for i in range(60)))
        self.write("run.toml", 'data = "in/text.txt"\nout = "out/run"\n[model]\nlayers = 1\nwidth = 16\nheads = 2\ntokenizer = "byte"\n'
                   '[steps]\nsteps = 2\nlr = 2e-3\nbatch = 2\nsegment = 16\nthreads = 1\n')

    def _import_models(self):
        rng = formats.seeded("llama")
        self.write("llama2c/model.bin", formats.llama2c((16, 24, 2, 4, 2, 263, 32), rng))
        scored = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)] + [(b"<0x%02X>" % i, 0.0) for i in range(256)]
        self.write("llama2c/tok.bin", formats.tok_bin(scored + [(b" ", -1.0), (b"a", -2.0), (b"b", -3.0), (b"ab", -4.0)]))
        self.run("import", "llama2c", "llama2c/model.bin", "llama2c/tok.bin", "lm-scored")
        for kind, tokenizer in (("bytes", _hf_byte_level()), ("marks", _hf_marks())):
            name = f"hf-{kind}"
            self.write(f"{name}/config.json", json.dumps(HF_CONFIG))
            self.write(f"{name}/tokenizer.json", json.dumps(tokenizer))
            self.write(f"{name}/model.safetensors", formats.write_safetensors({"format": "pt"}, _hf_tensors(rng)))
            self.run("import", "hf", name, f"lm-bpe-{kind}")
        self.run("quantize", "lm-gate", "lm-int8")
        self.run("quantize", "lm-softmax-learned", "lm-bf16", "--type", "bf16")
        self.models["lm"] += ["lm-scored", "lm-bpe-bytes", "lm-bpe-marks", "lm-int8", "lm-bf16"]

    def _save_session(self, model):
        name = f"sessions/{model}.state"
        os.makedirs(self.path("sessions"), exist_ok=True)
        self.run("state", "save", model, name, "--prompt", "a bad cab", "--threads", "1")
        self.sessions.append((model, name))

    def _train(self):
        os.makedirs(self.path("in"))
        for data in ("text.txt", "labels.tsv"):  # runs remember where their data were: cases have them in the same place
            shutil.copy(self.path(data), self.path("in"))
        every = ["--steps", "4", "--checkpoint-every", "2", "--eval-every", "2", *TINY]
        self.run("train", "lm", "--data", "in/text.txt", "--out", "run-lm", *every, limits=TORCH)
        self.run("train", "classify", "--data", "in/labels.tsv", "--out", "run-classify", *every, limits=TORCH)
        return [("lm", "run-lm"), ("classify", "run-classify")]


# A LLaMA of Hugging Face.

HF_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 16, "intermediate_size": 24,
    "max_position_embeddings": 32, "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "float32", "vocab_size": 263,
}


def _hf_tensors(rng):
    tensors = {}

    def add(name, *shape):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors[name] = ("F32", list(shape), formats.packed_floats(count, rng, 0.5))

    add("model.embed_tokens.weight", 263, 16)
    for layer in range(2):
        for name, shape in (("input_layernorm", (16,)), ("post_attention_layernorm", (16,)), ("self_attn.q_proj", (16, 16)), ("self_attn.k_proj", (8, 16)),
                            ("self_attn.v_proj", (8, 16)), ("self_attn.o_proj", (16, 16)), ("mlp.gate_proj", (24, 16)), ("mlp.up_proj", (24, 16)),
                            ("mlp.down_proj", (16, 24))):
            add(f"model.layers.{layer}.{name}.weight", *shape)
    add("model.norm.weight", 16)
    return tensors


def _added(place, content):
    return {"id": place, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def _hf_byte_level():
    codes = [*range(0x21, 0x7F), *(code for code in range(0xA1, 0x100) if code != 0xAD), *range(0x100, 0x144)]
    vocabulary = {piece: place for place, piece in enumerate([chr(code) for code in codes] + ["ab"])}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
             "byte_fallback": False, "vocab": vocabulary, "merges": ["a b"]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [_added(len(vocabulary), "<|end|>")], "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}, "model": model}


def _hf_marks():
    mark = "\u2581"
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + [mark, "a", "b", "ab"]
    to_mark = [{"type": "Prepend", "prepend": mark}, {"type": "Replace", "pattern": {"String": " "}, "content": mark}]
    to_text = [{"type": "Replace", "pattern": {"String": mark}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
               {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
             "vocab": {piece: place for place, piece in enumerate(pieces)}, "merges": [["a", "b"]]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [_added(i, pieces[i]) for i in range(3)],
            "normalizer": {"type": "Sequence", "normalizers": to_mark}, "pre_tokenizer": None,
            "post_processor": {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": {}},
            "decoder": {"type": "Sequence", "decoders": to_text}, "model": model}
