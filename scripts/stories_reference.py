#!/usr/bin/env python3
"""Greedy continuation by a llama2.c model, in float64 and plain Python: the token ids that the runtime has to give.

    scripts/stories_reference.py stories260K.bin tok512.bin --prompt "Once upon a time" --tokens 128
"""
import argparse
import math
import struct
from operator import mul


def read_model(path):
    data = open(path, "rb").read()
    dim, hidden, layers, heads, kv_heads, vocabulary, length = struct.unpack_from("<7i", data)
    shared, vocabulary = vocabulary > 0, abs(vocabulary)
    at = 28

    def matrices(count, rows, columns):
        nonlocal at
        result = []
        for _ in range(count):
            flat = struct.unpack_from(f"<{rows * columns}f", data, at)
            at += 4 * rows * columns
            result.append([flat[i * columns:(i + 1) * columns] for i in range(rows)])
        return result

    kv = dim // heads * kv_heads
    model = {"heads": heads, "kv_heads": kv_heads, "layers": layers, "embedding": matrices(1, vocabulary, dim)[0]}
    for name, rows, columns in (("att_norm", 1, dim), ("wq", dim, dim), ("wk", kv, dim), ("wv", kv, dim), ("wo", dim, dim),
                                ("ffn_norm", 1, dim), ("w1", hidden, dim), ("w2", dim, hidden), ("w3", hidden, dim)):
        model[name] = matrices(layers, rows, columns)
    model["norm"] = matrices(1, 1, dim)[0]
    at += 4 * length * (dim // heads)  # tables of cosines and sines
    model["output"] = model["embedding"] if shared else matrices(1, vocabulary, dim)[0]
    assert at == len(data), (at, len(data))
    return model


def read_pieces(path):
    data = open(path, "rb").read()
    at, pieces = 4, []
    while at < len(data):
        score, size = struct.unpack_from("<fi", data, at)
        pieces.append((data[at + 8:at + 8 + size], score))
        at += 8 + size
    return pieces


def encode(text, pieces):
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    tokens = []
    for character in " " + text:
        spelled = character.encode()
        tokens += [ids[spelled]] if spelled in ids else [byte + 3 for byte in spelled]
    while True:
        best = None
        for i in range(len(tokens) - 1):
            merged = ids.get(pieces[tokens[i]][0] + pieces[tokens[i + 1]][0])
            if merged is not None and (best is None or pieces[merged][1] > best[0]):
                best = (pieces[merged][1], i, merged)
        if best is None:
            return tokens
        tokens[best[1]:best[1] + 2] = [best[2]]


def decode(tokens, pieces):
    text = b""
    for before, token in zip([None] + tokens, tokens):
        piece = pieces[token][0]
        if token < 3:
            continue
        if 3 <= token < 259:
            piece = bytes([token - 3])
        text += piece[1:] if before == 1 and piece[:1] == b" " else piece
    return text.decode(errors="replace")


def product(matrix, x):
    return [sum(map(mul, row, x)) for row in matrix]


def rms_norm(x, weight):
    scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + 1e-5)
    return [v * scale * w for v, w in zip(x, weight[0])]


def rotate(x, position, size):
    result = list(x)
    for i in range(0, len(x), 2):
        angle = position * 10000 ** (-(i % size) / size)
        cos, sin = math.cos(angle), math.sin(angle)
        result[i], result[i + 1] = x[i] * cos - x[i + 1] * sin, x[i] * sin + x[i + 1] * cos
    return result


def logits(model, token, cache):
    x = list(model["embedding"][token])
    heads, size = model["heads"], len(x) // model["heads"]
    for layer in range(model["layers"]):
        keys, values = cache[layer]
        normed = rms_norm(x, model["att_norm"][layer])
        q = rotate(product(model["wq"][layer], normed), len(keys), size)
        keys.append(rotate(product(model["wk"][layer], normed), len(keys), size))
        values.append(product(model["wv"][layer], normed))
        mixed = []
        for head in range(heads):
            first = head * model["kv_heads"] // heads * size
            own = q[head * size:(head + 1) * size]
            scores = [sum(map(mul, own, key[first:first + size])) / math.sqrt(size) for key in keys]
            weights = [math.exp(score - max(scores)) for score in scores]
            mixed += [sum(w * value[first + i] for w, value in zip(weights, values)) / sum(weights) for i in range(size)]
        x = [a + b for a, b in zip(x, product(model["wo"][layer], mixed))]
        normed = rms_norm(x, model["ffn_norm"][layer])
        gate, up = product(model["w1"][layer], normed), product(model["w3"][layer], normed)
        x = [a + b for a, b in zip(x, product(model["w2"][layer], [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]))]
    return product(model["output"], rms_norm(x, model["norm"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("pieces")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    model, pieces = read_model(arguments.model), read_pieces(arguments.pieces)
    prompt = [1] + encode(arguments.prompt, pieces)
    cache = [([], []) for _ in range(model["layers"])]
    for token in prompt:
        scores = logits(model, token, cache)
    tokens, margin = [], math.inf
    while len(tokens) < arguments.tokens:
        best, second = sorted(range(len(scores)), key=lambda i: -scores[i])[:2]
        margin = min(margin, scores[best] - scores[second])
        tokens.append(best)
        scores = logits(model, best, cache)
    print("prompt:", ", ".join(map(str, prompt)))
    print("tokens:", ", ".join(map(str, tokens)))
    print("least difference to the second best logit: %.3g" % margin)
    print(decode(prompt + tokens, pieces))


if __name__ == "__main__":
    main()
