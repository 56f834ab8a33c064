"""torch.ops.raffia from Python. RAFFIA_TORCH_LIBRARY names the library under test."""

import os
import unittest
import warnings

import torch

torch.ops.load_library(os.environ["RAFFIA_TORCH_LIBRARY"])
raffia = torch.ops.raffia

warnings.filterwarnings("ignore", message="Backwards compatibility")

B, T, H, G, D, V, ROWS = 2, 21, 4, 2, 5, 3, 6


def random(*shape):
    return torch.randn(*shape, dtype=torch.double)


def case(length=T, seed=0):
    torch.manual_seed(seed)
    return {
        "q": random(B, length, H, D),
        "k": random(B, length, G, D),
        "v": random(B, length, G, V),
        "gate_logits": random(B, length, G) + 1.5,
        "log_scale": random(H) * 0.3 - 1,
        "q_far": random(B, length, H, D),
        "k_far": random(B, length, G, D),
        "weight": random(G, ROWS, D),
        "sigma": torch.rand(G, D, dtype=torch.double) * 0.5 + 0.5,
        "bias": torch.rand(G, ROWS, dtype=torch.double) + 0.5,
        "key_bias": random(B, length, G),
    }


QKV = ["q", "k", "v"]
GATED = QKV + ["gate_logits"]
RANDOM_MAP = ["weight", "sigma"]
WINDOWS = dict(window=6, chunk=3)

# Public name, tensors that go in by position or name, those of them without a gradient, other arguments, of the outputs those
# with a gradient.
OPS = {
    "softmax": ("softmax", QKV + ["key_bias"], [], dict(causal=True), 1),
    "softmax of windows": ("softmax", QKV, [], dict(causal=True, window=6, before=1), 1),
    "rfa": ("rfa", QKV + RANDOM_MAP, ["weight"], dict(map="positive"), 1),
    "causal_rfa": ("causal_rfa", QKV + RANDOM_MAP, ["weight"], dict(map="positive2"), 2),
    "rfa_gate": ("rfa_gate", GATED + RANDOM_MAP, ["weight"], dict(map="positive"), 2),
    "rfa_gate of relu": ("rfa_gate", GATED + ["weight", "bias"], [], dict(map="relu"), 2),
    "rfa_gate of elu": ("rfa_gate", GATED, [], dict(map="elu"), 2),
    "hybrid": ("hybrid", GATED + ["log_scale"] + RANDOM_MAP, ["weight"], dict(map="positive", window=4), 1),
    "hybrid of far inputs": (
        "hybrid",
        GATED + ["log_scale", "q_far", "k_far"] + RANDOM_MAP,
        ["weight"],
        dict(map="positive", window=4),
        1,
    ),
    "lara": ("lara", QKV, [], dict(samples=6), 1),
    "ra": ("ra", QKV, [], dict(draws=2), 1),
    "eva": ("eva", QKV, [], dict(samples=7, window=6), 1),
    "causal_lara": ("causal_lara", QKV, [], dict(samples=8, **WINDOWS), 1),
    "causal_eva": ("causal_eva", QKV, [], dict(summaries=4, features=5, **WINDOWS), 1),
}
POSITIONAL = QKV + ["gate_logits", "log_scale"]


def call(name, tensors, **more):
    """All outputs of an op of the table, as a tuple."""
    op, names, _, arguments, _ = OPS[name]
    given = [tensors[n] for n in names if n in POSITIONAL]
    named = {n: tensors[n] for n in names if n not in POSITIONAL}
    result = getattr(raffia, op)(*given, **named, **arguments, **more)
    return result if isinstance(result, tuple) else (result,)


def converted(tensors, names, how):
    return {n: how(tensors[n]) for n in names}


class Gradients(unittest.TestCase):
    # Forward passes are in double, gradients come from fp32 kernels: good to some 1e-6 of their terms, of which hundreds cancel.
    def test_gradcheck_of_every_op(self):
        for name, (_, names, constants, _, outputs) in OPS.items():
            with self.subTest(name):
                tensors = case(9)
                moving = [n for n in names if n not in constants]
                valid = torch.rand(B, 9) > 0.2
                valid[:, 0] = True

                def run(*values):
                    result = list(call(name, {**tensors, **dict(zip(moving, values))}, valid=valid)[:outputs])
                    # Outputs of masked tokens have no gradient in some ops: they are not used.
                    result[0] = result[0] * valid[:, :, None, None]
                    # Mass and log decay, the last of a state, are constants to gradients.
                    return tuple(r if i == 0 else r[..., :-2] for i, r in enumerate(result))

                inputs = [tensors[n].clone().requires_grad_() for n in moving]
                self.assertTrue(torch.autograd.gradcheck(run, inputs, eps=1e-5, atol=1e-3, rtol=1e-3))

    def test_state_carries_gradients(self):
        tensors = case(8)
        weight, sigma = tensors["weight"], tensors["sigma"]
        _, state, _ = raffia.rfa_gate(*(tensors[n] for n in GATED), map="positive", weight=weight, sigma=sigma)

        def run(memory):
            return raffia.rfa_gate(
                *(tensors[n] for n in GATED),
                map="positive",
                weight=weight,
                sigma=sigma,
                state=torch.cat([memory, state[..., -2:]], -1),
            )[0]

        self.assertTrue(torch.autograd.gradcheck(run, [state[..., :-2].clone().requires_grad_()], eps=1e-5, atol=1e-3, rtol=1e-3))

    def test_second_derivatives_are_refused(self):
        for name, (op, names, _, _, _) in OPS.items():
            with self.subTest(name):
                tensors = converted(case(), names, torch.Tensor.float)
                q = tensors["q"].requires_grad_()
                (first,) = torch.autograd.grad(call(name, tensors)[0].square().sum(), q, create_graph=True)
                with self.assertRaisesRegex(RuntimeError, f"raffia::{op}: second derivatives are not implemented"):
                    torch.autograd.grad(first.sum(), q)


class Outputs(unittest.TestCase):
    def test_fp32_agrees_with_double(self):
        for name, (_, names, _, _, _) in OPS.items():
            with self.subTest(name):
                tensors = case()
                exact = call(name, tensors)[0]
                found = call(name, converted(tensors, names, torch.Tensor.float))[0]
                self.assertEqual(found.dtype, torch.float)
                # Weighted means of values near 1: rounding of logits and features of some 1e-6.
                self.assertLess((found - exact).abs().max().item(), 1e-4)

    def test_strided_inputs_give_the_bits_of_contiguous_ones(self):
        for name, (_, names, _, _, _) in OPS.items():
            with self.subTest(name):
                results = []
                for strided in (False, True):
                    tensors = converted(case(), names, torch.Tensor.float)
                    if strided:  # [B, H, T, D] in memory, and every second number of a row
                        for n in ("q", "k", "v"):
                            apart = torch.stack([tensors[n], tensors[n] * 9], -1).transpose(1, 2).contiguous()
                            tensors[n] = apart.transpose(1, 2)[..., 0]
                            self.assertFalse(tensors[n].is_contiguous())
                    inputs = [tensors[n].requires_grad_() for n in QKV]
                    out = call(name, tensors)[0]
                    results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
                for one, two in zip(*results):
                    self.assertTrue(torch.equal(one, two))

    def test_bits_do_not_depend_on_threads(self):
        threads = torch.get_num_threads()
        for name, (_, names, _, _, _) in OPS.items():
            with self.subTest(name):
                results = []
                for count in (1, 2):
                    torch.set_num_threads(count)
                    tensors = {n: x.requires_grad_() for n, x in converted(case(100), names, torch.Tensor.float).items()}
                    out = call(name, tensors)[0]
                    results.append((out, *torch.autograd.grad(out.sum(), [tensors[n] for n in QKV])))
                for one, two in zip(*results):
                    self.assertTrue(torch.equal(one, two))
        torch.set_num_threads(threads)

    def test_meta_tensors_have_the_shapes_of_real_ones(self):
        for name, (_, names, _, _, _) in OPS.items():
            with self.subTest(name):
                real = converted(case(), names, torch.Tensor.float)
                meta = converted(real, names, lambda x: x.to("meta"))
                for a, b in zip(call(name, real), call(name, meta)):
                    self.assertEqual((a.shape, a.dtype, "meta"), (b.shape, b.dtype, b.device.type))

    def test_meta_gradients_have_the_shapes_of_inputs(self):
        for name, (_, names, _, _, _) in OPS.items():
            with self.subTest(name):
                meta = converted(case(), names, lambda x: x.float().to("meta").requires_grad_())
                grads = torch.autograd.grad(call(name, meta)[0].sum(), [meta[n] for n in QKV])
                self.assertEqual([g.shape for g in grads], [meta[n].shape for n in QKV])

    def test_autocast_takes_q_k_and_v_in_bf16_and_keeps_states_in_fp32(self):
        for name, (_, names, _, _, _) in OPS.items():
            with self.subTest(name):
                tensors = converted(case(), names, torch.Tensor.float)
                plain = call(name, tensors)
                tensors["q"].requires_grad_()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    results = call(name, tensors)
                self.assertEqual(results[0].dtype, torch.bfloat16)
                for rest in results[1:]:
                    self.assertIn(rest.dtype, (torch.float, torch.long))
                if name != "ra":  # where rounded logits draw other keys
                    self.assertLess((results[0] - plain[0]).abs().mean().item(), 0.05)
                results[0].float().sum().backward()
                self.assertEqual(tensors["q"].grad.dtype, torch.float)


class States(unittest.TestCase):
    # An op, its step, tensors with a time axis, tensors without, other arguments.
    CASES = [
        ("causal_rfa", QKV, RANDOM_MAP, dict(map="positive")),
        ("rfa_gate", GATED, RANDOM_MAP, dict(map="trig")),
        ("hybrid", GATED, ["log_scale"] + RANDOM_MAP, dict(map="trig", window=4)),
        ("causal_lara", QKV, [], dict(samples=8, **WINDOWS)),
        ("causal_eva", QKV, [], dict(summaries=4, features=5, **WINDOWS)),
    ]

    def parts(self, op, timed, rest, arguments, step=False):
        tensors = converted(case(), timed + rest, torch.Tensor.float)
        named = {n: tensors[n] for n in rest}

        def run(begin, end, state):
            piece = {n: (tensors[n][:, begin] if step else tensors[n][:, begin:end]) for n in timed}
            function = getattr(raffia, op + "_step" if step else op)
            return function(**piece, **named, **arguments, state=state)

        return run

    def test_split_and_resume_equals_whole(self):
        for op, *rest in self.CASES:
            with self.subTest(op):
                run = self.parts(op, *rest)
                whole = run(0, T, None)
                first = run(0, 7, None)
                second = run(7, T, first[1])
                torch.testing.assert_close(torch.cat([first[0], second[0]], 1), whole[0], atol=2e-5, rtol=1e-4)
                torch.testing.assert_close(second[1], whole[1], atol=2e-5, rtol=1e-4)

    def test_steps_equal_whole(self):
        for op, *rest in self.CASES:
            with self.subTest(op):
                whole, step = self.parts(op, *rest)(0, T, None), self.parts(op, *rest, step=True)
                state, outs = None, []
                for t in range(T):
                    out, state = step(t, t + 1, state)[:2]
                    outs.append(out)
                torch.testing.assert_close(torch.stack(outs, 1), whole[0], atol=2e-5, rtol=1e-4)
                torch.testing.assert_close(state, whole[1], atol=2e-5, rtol=1e-4)

    def test_sessions_are_selected_by_index(self):
        for op, *rest in self.CASES:
            with self.subTest(op):
                step = self.parts(op, *rest, step=True)
                state = step(0, 1, step(1, 2, None)[1])[1]
                out = step(2, 3, state)[0]
                swapped = step(2, 3, state.index_select(0, torch.tensor([0, 0])))[0]
                self.assertTrue(torch.equal(swapped[0], out[0]))

    def test_softmax_steps_equal_whole(self):
        q, k, v = (case()[n].float() for n in QKV)
        whole = raffia.softmax(q, k, v, causal=True)
        for t in range(T):
            out = raffia.softmax_step(q[:, t], k, v, torch.full((B,), t + 1))
            torch.testing.assert_close(out, whole[:, t])

    def test_steps_refuse_gradients(self):
        q, k, v = (case()[n][:, 0].float().requires_grad_() for n in QKV)
        with self.assertRaisesRegex(RuntimeError, "raffia::causal_rfa_step: an input requires gradients"):
            raffia.causal_rfa_step(q, k, v, map="elu")
        with torch.no_grad():
            raffia.causal_rfa_step(q, k, v, map="elu")


class Packing(unittest.TestCase):
    ENDS = [0, 5, 5, 14, T]  # one of them is empty
    TIMED = GATED + ["q_far", "k_far", "key_bias"]

    def packed(self, names):
        tensors = converted(case(), names, torch.Tensor.float)
        return {n: (x[:1].clone() if n in self.TIMED else x).requires_grad_() for n, x in tensors.items()}

    def piece(self, tensors, begin, end):
        return {n: (x[:, begin:end] if n in self.TIMED else x) for n, x in tensors.items()}

    def test_packed_sequences_are_the_separate_ones_with_gradients(self):
        ends = torch.tensor(self.ENDS)
        for name, (op, names, constants, _, _) in OPS.items():
            with self.subTest(name):
                tensors = self.packed(names)
                moving = [tensors[n] for n in names if n not in constants]
                whole = call(name, tensors, cu_seqlens=ends)
                # Alone, an empty sequence has nothing to compare, and some ops refuse it.
                filled = [i for i in range(len(self.ENDS) - 1) if self.ENDS[i] < self.ENDS[i + 1]]
                apart = [call(name, self.piece(tensors, self.ENDS[i], self.ENDS[i + 1])) for i in filled]
                torch.testing.assert_close(whole[0], torch.cat([x[0] for x in apart], 1), atol=2e-5, rtol=1e-4)
                if op.startswith("causal") or op in ("rfa_gate", "hybrid"):
                    torch.testing.assert_close(whole[1][filled], torch.cat([x[1] for x in apart], 0), atol=2e-5, rtol=1e-4)
                torch.manual_seed(1)
                weights = torch.randn_like(whole[0])
                found = torch.autograd.grad((whole[0] * weights).sum(), moving)
                expected = torch.autograd.grad((torch.cat([x[0] for x in apart], 1) * weights).sum(), moving)
                for one, two in zip(found, expected):
                    torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-3)

    def test_keys_of_cross_attention_have_offsets_of_their_own(self):
        ends_q, ends_k = [0, 4, 9, 12], [0, 7, 8, 17]
        cases = [("softmax", {}), ("rfa", dict(map="elu")), ("lara", dict(samples=3)), ("ra", dict(draws=2))]
        torch.manual_seed(3)
        q, k, v = torch.randn(1, 12, H, D), torch.randn(1, 17, G, D), torch.randn(1, 17, G, V)
        first = lambda result: result[0] if isinstance(result, tuple) else result
        for op, arguments in cases:
            with self.subTest(op):
                run = getattr(raffia, op)
                whole = first(run(q, k, v, cu_seqlens=torch.tensor(ends_q), cu_seqlens_k=torch.tensor(ends_k), **arguments))
                for i in range(3):
                    queries, keys = slice(ends_q[i], ends_q[i + 1]), slice(ends_k[i], ends_k[i + 1])
                    apart = first(run(q[:, queries], k[:, keys], v[:, keys], **arguments))
                    torch.testing.assert_close(whole[:, queries], apart, atol=2e-5, rtol=1e-4)

    def test_meta_tensors_have_the_shapes_of_real_ones(self):
        ends = torch.tensor(self.ENDS)
        for name, (_, names, _, _, _) in OPS.items():
            with self.subTest(name):
                real = {n: x.detach() for n, x in self.packed(names).items()}
                meta = converted(real, names, lambda x: x.to("meta"))
                for a, b in zip(call(name, real, cu_seqlens=ends), call(name, meta, cu_seqlens=ends.to("meta"))):
                    self.assertEqual((a.shape, a.dtype, "meta"), (b.shape, b.dtype, b.device.type))

    def test_offsets_that_do_not_fit_are_named(self):
        good = [0, 5, T]
        for name, (op, names, _, _, _) in OPS.items():
            for kind in (torch.float, torch.double):  # twins trust their arguments
                tensors = {n: x.detach().to(kind) for n, x in self.packed(names).items()}
                for message, ends in [
                    ("cu_seqlens is Float, expected Long", torch.tensor(good).float()),
                    (r"cu_seqlens has shape \[3, 1\], expected 1 axes", torch.tensor(good)[:, None]),
                    ("cu_seqlens is empty", torch.tensor([], dtype=torch.long)),
                    ("cu_seqlens goes from 0 to 20, expected 0 to 21", torch.tensor([0, 20])),
                    ("cu_seqlens goes from 1 to 21, expected 0 to 21", torch.tensor([1, T])),
                    ("cu_seqlens decreases", torch.tensor([0, 30, T])),
                ]:
                    with self.subTest(f"{name} {kind} {message}"), self.assertRaisesRegex(RuntimeError, f"{op}: {message}"):
                        call(name, tensors, cu_seqlens=ends)
            with self.subTest(name), self.assertRaisesRegex(RuntimeError, f"{op}: cu_seqlens is given with a batch of 2"):
                call(name, converted(case(), names, torch.Tensor.float), cu_seqlens=torch.tensor(good))


class Errors(unittest.TestCase):
    def test_a_wrong_shape_is_named(self):
        q, k, v, gate = (case()[n].float() for n in GATED)
        with self.assertRaises(RuntimeError) as caught:
            raffia.rfa_gate(q, k, v, gate[:, :5], map="elu")
        self.assertIn(
            "rfa_gate: gate_logits has shape [2, 5, 2], expected [2, 21, 2] (batch, length and heads of k)",
            str(caught.exception),
        )

    def test_a_wrong_type_or_setting_is_named(self):
        q, k, v = (case()[n].float() for n in QKV)
        for message, run in [
            ("softmax: k is Double, expected Float", lambda: raffia.softmax(q, k.double(), v)),
            ("softmax: q is Half, expected", lambda: raffia.softmax(q.half(), k, v)),
            ("rfa: weight is missing", lambda: raffia.rfa(q, k, v)),
            ('"tri" is not a feature map', lambda: raffia.rfa(q, k, v, map="tri")),
            ("lara: draws is .*expected iid or orthogonal", lambda: raffia.lara(q, k, v, draws="x")),
            ("samples is 0", lambda: raffia.lara(q, k, v, samples=0)),
            ("no state can be carried", lambda: raffia.causal_lara(q, k, v, streaming=False, state=torch.zeros(B, 3))),
            ("causal_eva: state has shape", lambda: raffia.causal_eva(q, k, v, state=torch.zeros(B, 3))),
        ]:
            with self.subTest(message), self.assertRaisesRegex(RuntimeError, message):
                run()


if __name__ == "__main__":
    unittest.main()
