#include "raffia/estimator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/arrays.h"

namespace raffia::internal {
namespace {

std::string refusal_of_text(const std::string& text) {
  return refusal_of([&text] { (void)parse_estimator(text); });
}

const std::pair<const char*, EstimatorKind> kNames[] = {
    {"softmax", EstimatorKind::softmax},   {"window", EstimatorKind::window}, {"rfa", EstimatorKind::rfa},
    {"rfa_gate", EstimatorKind::rfa_gate}, {"hybrid", EstimatorKind::hybrid}, {"ra", EstimatorKind::ra},
    {"lara", EstimatorKind::lara},         {"eva", EstimatorKind::eva},       {"mean", EstimatorKind::mean}};

TEST(ParseEstimator, ANameAloneIsItsKindWithDefaults) {
  for (const auto& [name, kind] : kNames) {
    EXPECT_EQ(parse_estimator(name), Estimator{.kind = kind}) << name;
    EXPECT_EQ(name_of(kind), name);
    EXPECT_EQ(to_string(Estimator{.kind = kind}), name) << "defaults are omitted";
  }
}

TEST(ParseEstimator, EveryKeySetsItsField) {
  EXPECT_EQ(parse_estimator("rfa:samples=128,map=positive,log=true,draws=iid,seed=18446744073709551615,layer=3,draw=4294967295"),
            (Estimator{.kind = EstimatorKind::rfa,
                       .samples = 128,
                       .map = MapKind::positive,
                       .log = true,
                       .draws = Draws::iid,
                       .seed = UINT64_MAX,
                       .layer = 3,
                       .draw = UINT32_MAX}));
  EXPECT_EQ(parse_estimator("window:window=64,before=2"), (Estimator{.kind = EstimatorKind::window, .window = 64, .before = 2}));
  EXPECT_EQ(parse_estimator("hybrid:window=16,map=elu,samples=8"),
            (Estimator{.kind = EstimatorKind::hybrid, .samples = 8, .map = MapKind::elu, .window = 16}));
  EXPECT_EQ(parse_estimator("eva:samples=0,window=16,chunk=4,features=32,decay=0.5,draws=iid,seed=1"),
            (Estimator{.kind = EstimatorKind::eva,
                       .samples = 0,
                       .window = 16,
                       .chunk = 4,
                       .features = 32,
                       .decay = 0.5F,
                       .draws = Draws::iid,
                       .seed = 1}));
  EXPECT_EQ(parse_estimator("lara:samples=64,per_proposal=2,proposals=qk-mixed,weights=mis-opt,strength=0.25,mean=true,"
                            "streaming=false,window=64,chunk=16"),
            (Estimator{.kind = EstimatorKind::lara,
                       .samples = 64,
                       .window = 64,
                       .chunk = 16,
                       .per_proposal = 2,
                       .proposals = Proposals::qk_mixed,
                       .weights = SampleWeights::mis_opt,
                       .strength = 0.25F,
                       .mean = true,
                       .streaming = false}));
  EXPECT_EQ(parse_estimator("ra:samples=8,seed=2,layer=1,draw=5"),
            (Estimator{.kind = EstimatorKind::ra, .samples = 8, .seed = 2, .layer = 1, .draw = 5}));
}

TEST(ParseEstimator, UnderscoresAndHyphensAreTheSame) {
  EXPECT_EQ(parse_estimator("rfa-gate"), parse_estimator("rfa_gate"));
  EXPECT_EQ(parse_estimator("lara:per-proposal=4,proposals=qk_mixed,weights=mis_opt"),
            parse_estimator("lara:per_proposal=4,proposals=qk-mixed,weights=mis-opt"));
  EXPECT_EQ(parse_proposals("chunk_mean"), Proposals::chunk_mean);
  EXPECT_EQ(parse_sample_weights("mis_opt"), SampleWeights::mis_opt);
}

TEST(ParseEstimator, TextOfAnEstimatorIsReadBackAsTheSame) {
  for (const std::string text :
       {"window:window=64,before=2", "rfa:samples=7,map=arccos,draws=iid,seed=12345678901234567890,layer=9,draw=8",
        "rfa:log=true", "rfa_gate:map=positive2", "hybrid:samples=3,window=128", "ra:samples=8", "eva:samples=0",
        "eva:samples=32,window=8,chunk=2,features=1,decay=0.99",
        "lara:samples=256,window=16,chunk=4,per_proposal=4,proposals=standard,weights=balance,mean=true,streaming=false",
        "lara:weights=mis-opt,strength=0.1", "lara:strength=1e-05"}) {
    const Estimator estimator = parse_estimator(text);
    EXPECT_EQ(parse_estimator(to_string(estimator)), estimator) << text;
  }
  EXPECT_EQ(to_string(parse_estimator("lara:proposals=qk_mixed,samples=64,window=32")), "lara:samples=64,proposals=qk-mixed");
  EXPECT_EQ(to_string(parse_estimator("rfa:samples=64")), "rfa:samples=64")
      << "a value that was given is kept, even if it is the default";
}

TEST(ParseEstimator, KeysThatAreNotNamedTakeTheGivenDefaults) {
  const Estimator drawn{.mean = false};
  EXPECT_EQ(parse_estimator("lara:mean=auto"), parse_estimator("lara"));
  EXPECT_EQ(parse_estimator("lara:samples=4", drawn), parse_estimator("lara:samples=4,mean=false"));
  EXPECT_EQ(parse_estimator("lara:mean=auto", drawn), parse_estimator("lara"));
  EXPECT_EQ(parse_estimator("softmax", drawn), parse_estimator("softmax")) << "a kind keeps nothing that it does not use";
  for (const std::string text : {"lara", "lara:mean=true", "lara:mean=false,samples=3", "rfa:log=true", "eva:decay=0.9"}) {
    const Estimator estimator = parse_estimator(text);
    EXPECT_EQ(parse_estimator(to_string(estimator, drawn), drawn), estimator) << text;
  }
  EXPECT_EQ(to_string(parse_estimator("lara"), drawn), "lara:mean=auto");
  EXPECT_EQ(to_string(parse_estimator("lara:mean=false"), drawn), "lara");
}

TEST(ParseEstimator, NamesRoundTrip) {
  for (const Proposals proposals : {Proposals::chunk_mean, Proposals::qk_mixed, Proposals::standard}) {
    EXPECT_EQ(parse_proposals(name_of(proposals)), proposals);
  }
  for (const SampleWeights weights : {SampleWeights::balance, SampleWeights::mis_opt}) {
    EXPECT_EQ(parse_sample_weights(name_of(weights)), weights);
  }
  EXPECT_EQ(refusal_of([] { (void)parse_proposals("means"); }),
            "parse_proposals: \"means\", expected one of chunk-mean, qk-mixed, standard");
  EXPECT_EQ(refusal_of([] { (void)parse_sample_weights(""); }), "parse_sample_weights: \"\", expected one of balance, mis-opt");
}

TEST(ParseEstimator, RefusalsNameWhatWasExpected) {
  EXPECT_EQ(
      refusal_of_text("performer"),
      "parse_estimator: kind is \"performer\", expected one of softmax, window, rfa, rfa_gate, hybrid, ra, lara, eva, mean");
  EXPECT_EQ(refusal_of_text("").rfind("parse_estimator: kind is \"\", expected one of softmax", 0), 0U);
  EXPECT_EQ(refusal_of_text("rfa:"), "parse_estimator: \"\" in \"rfa:\", expected key=value");
  EXPECT_EQ(refusal_of_text("rfa:samples=4,"), "parse_estimator: \"\" in \"rfa:samples=4,\", expected key=value");
  EXPECT_EQ(refusal_of_text("lara:mean"), "parse_estimator: \"mean\" in \"lara:mean\", expected key=value");
  EXPECT_EQ(refusal_of_text("rfa:samples=4,samples=4"),
            "parse_estimator: key \"samples\" twice in \"rfa:samples=4,samples=4\", expected once");
  EXPECT_EQ(refusal_of_text("lara:per-proposal=2,per_proposal=2"),
            "parse_estimator: key \"per_proposal\" twice in \"lara:per-proposal=2,per_proposal=2\", expected once");
  EXPECT_EQ(refusal_of_text("softmax:samples=4"), "parse_estimator: softmax has no key \"samples\", expected none");
  EXPECT_EQ(refusal_of_text("window:samples=4"),
            "parse_estimator: window has no key \"samples\", expected one of window, before");
  EXPECT_EQ(refusal_of_text("ra:frobs=4"),
            "parse_estimator: ra has no key \"frobs\", expected one of samples, seed, layer, draw");
  EXPECT_EQ(refusal_of_text("lara:proposals=means"),
            "parse_estimator: proposals of lara is \"means\", expected one of chunk-mean, qk-mixed, standard");
  EXPECT_EQ(refusal_of_text("lara:mean=yes"), "parse_estimator: mean of lara is \"yes\", expected one of auto, false, true");
  EXPECT_EQ(refusal_of_text("rfa:map=sine"),
            "parse_estimator: map of rfa is \"sine\", expected identity, trig, arccos, positive, positive2, elu or relu");
  EXPECT_EQ(refusal_of_text("rfa:map=arccos,log=true"),
            "parse_estimator: map of rfa is \"arccos\" with log=true, expected positive (log space has no other features)");
}

TEST(ParseEstimator, KeysOfOtherKindsAreRefused) {
  const std::pair<const char*, const char*> kPairs[] = {{"softmax", "seed=1"},
                                                        {"window", "chunk=8"},
                                                        {"rfa", "window=32"},
                                                        {"rfa", "before=0"},
                                                        {"rfa_gate", "log=true"},
                                                        {"hybrid", "before=1"},
                                                        {"ra", "map=trig"},
                                                        {"ra", "draws=iid"},
                                                        {"ra", "window=8"},
                                                        {"lara", "map=positive"},
                                                        {"lara", "features=4"},
                                                        {"lara", "decay=1"},
                                                        {"eva", "proposals=standard"},
                                                        {"eva", "mean=true"},
                                                        {"eva", "log=true"}};
  for (const auto& [kind, setting] : kPairs) {
    const std::string said = refusal_of_text(std::string(kind) + ":" + setting);
    EXPECT_EQ(said.rfind(std::string("parse_estimator: ") + kind + " has no key", 0), 0U)
        << kind << " " << setting << ": " << said;
  }
}

TEST(ParseEstimator, NumbersOutOfRangeAreRefused) {
  EXPECT_EQ(refusal_of_text("rfa:samples=0"), "parse_estimator: samples of rfa is \"0\", expected an integer from 1 to 10^9");
  EXPECT_EQ(refusal_of_text("eva:samples=-1"), "parse_estimator: samples of eva is \"-1\", expected an integer from 0 to 10^9");
  EXPECT_EQ(refusal_of_text("eva:decay=0"), "parse_estimator: decay of eva is \"0\", expected a number above 0 and at most 1");
  EXPECT_EQ(refusal_of_text("ra:layer=4294967296"),
            "parse_estimator: layer of ra is \"4294967296\", expected an integer from 0 to 2^32 - 1");
  for (const std::string text : {"rfa:samples=",
                                 "rfa:samples=four",
                                 "rfa:samples=4.5",
                                 "rfa:samples= 4",
                                 "rfa:samples=4 ",
                                 "rfa:samples=99999999999",
                                 "rfa:samples=99999999999999999999999",
                                 "eva:decay=1.5",
                                 "eva:decay=nan",
                                 "eva:decay=-0.5",
                                 "eva:window=0",
                                 "eva:chunk=-8",
                                 "eva:features=0",
                                 "lara:strength=-1",
                                 "lara:strength=inf",
                                 "lara:strength=nan",
                                 "lara:strength=1e99",
                                 "lara:per_proposal=0",
                                 "ra:seed=-1",
                                 "ra:seed=18446744073709551616",
                                 "ra:draw=-1",
                                 "window:before=-1"}) {
    const std::string said = refusal_of_text(text);
    EXPECT_NE(said.find(", expected a"), std::string::npos) << text << ": " << said;
  }
}

TEST(Estimator, SaysWhichFormsItHas) {
  const auto forms = [](const char* text) {
    const Estimator estimator = parse_estimator(text);
    return std::pair(traits_of(estimator).causal, traits_of(estimator).bidirectional);
  };
  EXPECT_EQ(forms("softmax"), std::pair(true, true));
  EXPECT_EQ(forms("window"), std::pair(true, true));
  EXPECT_EQ(forms("window:before=1"), std::pair(true, false));
  EXPECT_EQ(forms("rfa"), std::pair(true, true));
  EXPECT_EQ(forms("rfa:log=true"), std::pair(false, true));
  EXPECT_EQ(forms("rfa_gate"), std::pair(true, false));
  EXPECT_EQ(forms("hybrid"), std::pair(true, false));
  EXPECT_EQ(forms("ra"), std::pair(true, true));
  EXPECT_EQ(forms("lara"), std::pair(true, true));
  EXPECT_EQ(forms("lara:proposals=qk-mixed"), std::pair(false, true));
  EXPECT_EQ(forms("lara:weights=mis-opt"), std::pair(false, true));
  EXPECT_EQ(forms("lara:mean=true"), std::pair(false, true));
  EXPECT_EQ(forms("eva"), std::pair(true, true));
  EXPECT_EQ(forms("eva:samples=0"), std::pair(true, false));
  EXPECT_EQ(forms("mean"), std::pair(true, true));
}

TEST(Estimator, SaysWhetherItsOutputDependsOnTheSeed) {
  for (const char* text : {"rfa", "rfa:log=true", "rfa_gate:map=positive", "hybrid", "ra", "lara", "eva"}) {
    EXPECT_TRUE(traits_of(parse_estimator(text)).is_random) << text;
  }
  for (const char* text : {"softmax", "window", "rfa:map=elu", "rfa_gate:map=identity", "hybrid:map=relu", "lara:mean=true",
                           "eva:samples=0", "mean"}) {
    EXPECT_FALSE(traits_of(parse_estimator(text)).is_random) << text;
  }
}

TEST(Estimator, MakesItsMap) {
  const FeatureMap map = parse_estimator("rfa:samples=24,map=positive2,seed=5,layer=2,draw=7,draws=iid").make_map(8, 3);
  const FeatureMap same =
      FeatureMap::positive2({.dim = 8, .count = 24, .heads = 3, .seed = 5, .layer = 2, .draw = 7, .draws = Draws::iid});
  EXPECT_EQ(map.kind(), MapKind::positive2);
  EXPECT_EQ(map.heads(), 3);
  for (int64_t head = 0; head < 3; ++head) EXPECT_TRUE(same_bits(map.weights(head), same.weights(head))) << head;

  EXPECT_EQ(parse_estimator("rfa").make_map(8, 1).rows(), 64) << "by default";
  EXPECT_EQ(parse_estimator("rfa:log=true").make_map(8, 1).kind(), MapKind::positive);
  EXPECT_EQ(parse_estimator("rfa:map=elu").make_map(8, 1).features(), 8);
  EXPECT_EQ(parse_estimator("hybrid:map=identity").make_map(8, 2).features(), 8);
  EXPECT_EQ(refusal_of([] { (void)parse_estimator("rfa:map=relu").make_map(8, 1); }),
            "Estimator::make_map: map is relu, whose weights are learned, expected AttendInputs::map");
  EXPECT_EQ(refusal_of([] { (void)parse_estimator("lara").make_map(8, 1); }),
            "Estimator::make_map: kind is lara, expected rfa, rfa_gate or hybrid");
}

// Two sequences, 4 query heads that share 2 key heads.
struct Inputs {
  static constexpr int64_t kBatch = 2, kLength = 37, kHeads = 4, kKeyHeads = 2, kDim = 8, kValueDim = 5;

  std::vector<float> q = normals(kBatch * kLength * kHeads * kDim, 1), k = normals(kBatch * kLength * kKeyHeads * kDim, 2),
                     v = normals(kBatch * kLength * kKeyHeads * kValueDim, 3), gate = normals(kBatch * kLength * kKeyHeads, 4, 3);

  AttendInputs views() const {
    return {.q = {q.data(), {kBatch, kLength, kHeads, kDim}},
            .k = {k.data(), {kBatch, kLength, kKeyHeads, kDim}},
            .v = {v.data(), {kBatch, kLength, kKeyHeads, kValueDim}},
            .gate_logits = {gate.data(), {kBatch, kLength, kKeyHeads}}};
  }
};

std::vector<float> empty_out() {
  return std::vector<float>(Inputs::kBatch * Inputs::kLength * Inputs::kHeads * Inputs::kValueDim);
}

MutView4 view_of(std::vector<float>& out) {
  return {out.data(), {Inputs::kBatch, Inputs::kLength, Inputs::kHeads, Inputs::kValueDim}};
}

std::vector<float> attended(const char* text, const AttendInputs& inputs, const AttendOptions& options = {}) {
  std::vector<float> out = empty_out();
  attend(parse_estimator(text), inputs, view_of(out), options);
  return out;
}

// What `op(out)` writes.
template <class Op>
std::vector<float> written_by(const Op& op) {
  std::vector<float> out = empty_out();
  op(view_of(out));
  return out;
}

TEST(Attend, IsTheOpThatTheEstimatorNames) {
  const Inputs arrays;
  const AttendInputs in = arrays.views();
  const int64_t lengths[] = {20, 37};
  const Layout layout{.lengths = lengths};
  const AttendOptions causal{.causal = true, .layout = layout, .run = {.threads = 2}}, whole{.layout = layout};
  const AttentionOptions linear{.layout = layout};

  EXPECT_TRUE(same_bits(attended("softmax", in, {.scale = 0.5F, .layout = layout}), written_by([&](MutView4 out) {
                          softmax_attention(in.q, in.k, in.v, out, {.scale = 0.5F, .layout = layout});
                        })));
  EXPECT_TRUE(same_bits(attended("softmax", in, causal), written_by([&](MutView4 out) {
                          softmax_attention(in.q, in.k, in.v, out, {.causal = true, .layout = layout});
                        })));
  EXPECT_TRUE(same_bits(attended("window:window=8,before=1", in, causal), written_by([&](MutView4 out) {
                          softmax_attention(in.q, in.k, in.v, out, {.causal = true, .window = 8, .before = 1, .layout = layout});
                        })));

  const FeatureMap map = FeatureMap::positive({.dim = 8, .count = 16, .heads = 2, .seed = 9});
  EXPECT_TRUE(same_bits(attended("rfa:samples=16,map=positive,seed=9", in, whole),
                        written_by([&](MutView4 out) { rfa_attention(in.q, in.k, in.v, map, out, linear); })));
  EXPECT_TRUE(same_bits(attended("rfa:samples=16,map=positive,seed=9", in, causal), written_by([&](MutView4 out) {
                          State state(map, {.batch = Inputs::kBatch, .value_dim = Inputs::kValueDim});
                          causal_attention(in.q, in.k, in.v, map, state, out, linear);
                        })));
  EXPECT_TRUE(same_bits(attended("rfa_gate:samples=16,map=positive,seed=9", in, causal), written_by([&](MutView4 out) {
                          State state(map, {.batch = Inputs::kBatch, .value_dim = Inputs::kValueDim});
                          gated_attention(in.q, in.k, in.v, in.gate_logits, map, state, out, linear);
                        })));
}

// Outputs in bf16 are rounded, and dout . out with them; gradients are not. Where each query has one dominant key (its own) dq is
// nearly 0, and the rounding would be most of it.
TEST(Attend, GradientsAreTheSameFromOutputsThatWereRoundedToBf16) {
  Inputs arrays;
  const int64_t group = Inputs::kHeads / Inputs::kKeyHeads;
  for (int64_t i = 0; i < static_cast<int64_t>(arrays.q.size()); ++i) {
    const int64_t row = i / Inputs::kDim, token = row / Inputs::kHeads, key_head = row % Inputs::kHeads / group;
    arrays.q[static_cast<size_t>(i)] =
        4 * arrays.k[static_cast<size_t>((token * Inputs::kKeyHeads + key_head) * Inputs::kDim + i % Inputs::kDim)];
  }
  const AttendInputs in = arrays.views();
  const std::vector<float> dout = normals(empty_out().size(), 5);
  const int64_t lengths[] = {20, 37};
  const std::pair<const char*, bool> cases[] = {{"softmax", false},
                                                {"softmax", true},
                                                {"window:window=8,before=1", true},
                                                {"hybrid:window=8,samples=16", true},
                                                {"lara:samples=8", false},
                                                {"lara:samples=16,window=8,chunk=4", true},
                                                {"eva:samples=8,window=8", false},
                                                {"eva:samples=16,window=8,chunk=4,features=16", true}};
  for (const auto& [text, causal] : cases) {
    const Estimator estimator = parse_estimator(text);
    const AttendOptions options{.causal = causal, .layout = {.lengths = lengths}};
    std::vector<float> out = empty_out(), record(static_cast<size_t>(attend_record_size(estimator, in, options)));
    attend(estimator, in, view_of(out), options, record);
    std::vector<BFloat16> rounded;
    for (float value : out) rounded.push_back(BFloat16::from_float(value));
    struct {
      std::vector<float> q, k, v;
    } found[2];
    for (size_t i = 0; i < 2; ++i) {
      found[i] = {std::vector<float>(arrays.q.size()), std::vector<float>(arrays.k.size()), std::vector<float>(arrays.v.size())};
      const Extents<4> shape = view_of(out).shape();
      attend_backward(estimator, in, i == 0 ? View4(out.data(), shape) : View4(rounded.data(), shape), record,
                      View4(dout.data(), shape),
                      {.q = MutView4(found[i].q.data(), in.q.shape()),
                       .k = MutView4(found[i].k.data(), in.k.shape()),
                       .v = MutView4(found[i].v.data(), in.v.shape())},
                      options);
    }
    EXPECT_TRUE(same_bits(found[0].q, found[1].q)) << text << (causal ? " causal" : "");
    EXPECT_TRUE(same_bits(found[0].k, found[1].k)) << text << (causal ? " causal" : "");
    EXPECT_TRUE(same_bits(found[0].v, found[1].v)) << text << (causal ? " causal" : "");
  }
}

TEST(Attend, SamplingEstimatorsAreTheirOps) {
  const Inputs arrays;
  const AttendInputs in = arrays.views();
  const uint8_t valid[Inputs::kBatch * Inputs::kLength] = {1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  const Layout layout{.valid = {valid, {Inputs::kBatch, Inputs::kLength}}};
  const AttendOptions causal{.causal = true, .scale = 0.5F, .layout = layout}, whole{.scale = 0.5F, .layout = layout};

  EXPECT_TRUE(same_bits(attended("lara:samples=12,per_proposal=2,proposals=qk-mixed,draws=iid,seed=3,layer=2,draw=1", in, whole),
                        written_by([&](MutView4 out) {
                          lara_attention(in.q, in.k, in.v, out,
                                         {.samples = 12,
                                          .samples_per_proposal = 2,
                                          .proposals = Proposals::qk_mixed,
                                          .draws = Draws::iid,
                                          .seed = 3,
                                          .layer = 2,
                                          .draw = 1,
                                          .scale = 0.5F,
                                          .layout = layout});
                        })));
  EXPECT_TRUE(same_bits(attended("lara:mean=true", in, whole), written_by([&](MutView4 out) {
                          lara_attention(in.q, in.k, in.v, out, {.samples = 64, .mean = true, .scale = 0.5F, .layout = layout});
                        })));
  EXPECT_TRUE(same_bits(
      attended("lara:weights=mis-opt,strength=0.5,samples=8,mean=false", in, whole), written_by([&](MutView4 out) {
        lara_attention(
            in.q, in.k, in.v, out,
            {.samples = 8, .weights = SampleWeights::mis_opt, .mis_opt_strength = 0.5F, .scale = 0.5F, .layout = layout});
      })));
  EXPECT_TRUE(same_bits(attended("rfa:log=true,samples=8,seed=4", in, whole), written_by([&](MutView4 out) {
                          lara_attention(
                              in.q, in.k, in.v, out,
                              {.samples = 8, .proposals = Proposals::standard, .seed = 4, .scale = 0.5F, .layout = layout});
                        })));
  EXPECT_TRUE(same_bits(attended("lara:samples=8,window=8,chunk=4,per_proposal=2,streaming=false,draws=iid,seed=6", in, causal),
                        written_by([&](MutView4 out) {
                          causal_lara_attention(in.q, in.k, in.v, out,
                                                {.window = 8,
                                                 .chunk = 4,
                                                 .samples = 8,
                                                 .samples_per_proposal = 2,
                                                 .streaming = false,
                                                 .draws = Draws::iid,
                                                 .seed = 6,
                                                 .scale = 0.5F,
                                                 .layout = layout});
                        })));
  EXPECT_TRUE(same_bits(attended("ra:samples=3,seed=7,layer=1,draw=2", in, causal), written_by([&](MutView4 out) {
                          ra_attention(
                              in.q, in.k, in.v, out,
                              {.draws = 3, .causal = true, .seed = 7, .layer = 1, .draw = 2, .scale = 0.5F, .layout = layout});
                        })));
  EXPECT_TRUE(same_bits(attended("ra", in, whole), written_by([&](MutView4 out) {
                          ra_attention(in.q, in.k, in.v, out, {.draws = 1, .scale = 0.5F, .layout = layout});
                        })));
  EXPECT_TRUE(same_bits(attended("eva:samples=6,window=4", in, whole), written_by([&](MutView4 out) {
                          eva_attention(in.q, in.k, in.v, out, {.samples = 6, .window = 4, .scale = 0.5F, .layout = layout});
                        })));
  EXPECT_TRUE(same_bits(attended("eva:samples=2,window=8,chunk=4,features=16,decay=0.9,draws=iid,seed=5,layer=1", in, causal),
                        written_by([&](MutView4 out) {
                          causal_eva_attention(in.q, in.k, in.v, out,
                                               {.window = 8,
                                                .chunk = 4,
                                                .summaries = 2,
                                                .features = 16,
                                                .decay = 0.9F,
                                                .draws = Draws::iid,
                                                .seed = 5,
                                                .layer = 1,
                                                .scale = 0.5F,
                                                .layout = layout});
                        })));
}

TEST(Attend, LaraReadsMeansWhereEachSampleHasOneAndNothingElseIsSaid) {
  const Inputs arrays;
  const AttendInputs in = arrays.views();
  const auto same = [&](const char* a, const char* b, const AttendOptions& options = {}) {
    return same_bits(attended(a, in, options), attended(b, in, options));
  };
  EXPECT_TRUE(same("lara:samples=4", "lara:samples=4,mean=true"));
  EXPECT_FALSE(same("lara:samples=4", "lara:samples=4,mean=false"));
  EXPECT_TRUE(same("lara:samples=4,proposals=qk-mixed", "lara:samples=4,proposals=qk-mixed,mean=true"));
  EXPECT_TRUE(same("lara:samples=4,per-proposal=2", "lara:samples=4,per-proposal=2,mean=false"));
  EXPECT_TRUE(same("lara:samples=4,proposals=standard", "lara:samples=4,proposals=standard,mean=false"));
  EXPECT_TRUE(same("lara:samples=4,proposals=standard", "rfa:samples=4,log=true"));
  const AttendOptions causal{.causal = true};
  EXPECT_TRUE(same("lara:samples=8,window=8,chunk=4", "lara:samples=8,window=8,chunk=4,mean=false", causal));
}

TEST(Attend, HybridTakesItsScaleAndMapOrMakesThem) {
  const Inputs arrays;
  AttendInputs in = arrays.views();
  const FeatureMap map = FeatureMap::trig({.dim = 8, .count = 16, .heads = 2, .seed = 9});
  const auto by_op = [&](float log_scale) {
    const std::vector<float> c(Inputs::kHeads, log_scale);
    return written_by([&](MutView4 out) {
      hybrid_attention(
          {.q = in.q, .k = in.k, .v = in.v, .gate_logits = in.gate_logits, .log_scale = {c.data(), {Inputs::kHeads}}}, map, out,
          {.window = 4});
    });
  };
  EXPECT_TRUE(same_bits(attended("hybrid:samples=16,window=4,seed=9", in, {.causal = true}), by_op(-2)));
  const std::vector<float> c(Inputs::kHeads, 1.0F);
  in.log_scale = {c.data(), {Inputs::kHeads}};
  in.map = &map;
  EXPECT_TRUE(same_bits(attended("hybrid:window=4", in, {.causal = true}), by_op(1)));
}

TEST(Attend, TakesTheMapItIsGiven) {
  const Inputs arrays;
  AttendInputs in = arrays.views();
  FeatureMap map = FeatureMap::trig({.dim = 8, .count = 4, .heads = 2, .seed = 3});
  map.set_sigma(std::vector<float>(16, 0.5F));
  in.map = &map;
  EXPECT_TRUE(
      same_bits(attended("rfa:map=relu", in), written_by([&](MutView4 out) { rfa_attention(in.q, in.k, in.v, map, out); })));
}

// What attention.h says of `valid`.
TEST(Attend, MaskedTokensOutputZeroInCausalOpsButSoftmax) {
  const Inputs arrays;
  const AttendInputs in = arrays.views();
  std::vector<uint8_t> valid(Inputs::kBatch * Inputs::kLength, 1);
  for (size_t i = 0; i < valid.size(); i += 3) valid[i] = 0;
  const Layout layout{.valid = {valid.data(), {Inputs::kBatch, Inputs::kLength}}};
  const auto expect = [&](const char* text, bool causal, bool expected) {
    const std::vector<float> out = attended(text, in, {.causal = causal, .layout = layout});
    constexpr size_t kRow = Inputs::kHeads * Inputs::kValueDim;
    for (size_t t = 4; t < valid.size(); ++t) {
      if (valid[t] != 0 || t == Inputs::kLength) continue;  // the first token of a sequence sees nothing
      const auto row = std::span(out).subspan(t * kRow, kRow);
      EXPECT_EQ(std::ranges::all_of(row, [](float x) { return x == 0; }), expected) << text << " causal " << causal << " " << t;
    }
  };
  for (const char* text : {"rfa:map=positive", "rfa_gate:map=positive", "hybrid", "ra", "lara:window=8,chunk=4",
                           "eva:samples=4,window=8,chunk=4,features=8", "mean"}) {
    expect(text, true, true);
  }
  expect("softmax", true, false);
  for (const char* text :
       {"softmax", "rfa:map=positive", "rfa:log=true", "ra", "lara:samples=4", "eva:samples=4,window=8", "mean"}) {
    expect(text, false, false);
  }
}

TEST(Attend, ReportsClampedDenominators) {
  const Inputs arrays;
  std::vector<float> out = empty_out();
  const Report report = attend(parse_estimator("rfa:samples=2"), arrays.views(), view_of(out));
  EXPECT_EQ(report.rows, Inputs::kBatch * Inputs::kLength * Inputs::kHeads);
}

TEST(Attend, PackedSequencesHaveTheirOwnStates) {
  const Inputs arrays;
  AttendInputs in = arrays.views();
  const int64_t length = Inputs::kLength;
  in.q = in.q.slice(0, 0, 1), in.k = in.k.slice(0, 0, 1), in.v = in.v.slice(0, 0, 1);
  std::vector<float> packed(static_cast<size_t>(length * Inputs::kHeads * Inputs::kValueDim)), apart = packed;
  const Extents<4> shape{1, length, Inputs::kHeads, Inputs::kValueDim};
  const int64_t ends[] = {0, 10, 10, 37};
  const Estimator estimator = parse_estimator("rfa:samples=16,map=positive");
  attend(estimator, in, {packed.data(), shape}, {.causal = true, .layout = {.cu_seqlens = ends}});
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 10}, {10, 27}}) {
    AttendInputs part = in;
    part.q = in.q.slice(1, begin, count), part.k = in.k.slice(1, begin, count), part.v = in.v.slice(1, begin, count);
    attend(estimator, part, MutView4(apart.data(), shape).slice(1, begin, count), {.causal = true});
  }
  EXPECT_TRUE(same_bits(packed, apart));
}

TEST(Attend, RefusesFormsThatAKindHasNot) {
  const Inputs arrays;
  const AttendInputs in = arrays.views();
  const auto refusal = [&in](const char* text, bool causal) {
    return refusal_of([&] { (void)attended(text, in, {.causal = causal}); });
  };
  EXPECT_EQ(refusal("rfa_gate", false), "attend: rfa_gate is causal, expected options.causal to be true");
  EXPECT_EQ(refusal("hybrid", false), "attend: hybrid is causal, expected options.causal to be true");
  EXPECT_EQ(refusal("window:before=1", false), "attend: window:before=1 is causal, expected options.causal to be true");
  EXPECT_EQ(refusal("rfa:log=true", true), "attend: rfa:log=true is bidirectional, expected options.causal to be false");
  EXPECT_EQ(refusal("lara:mean=true", true), "attend: lara:mean=true is bidirectional, expected options.causal to be false");
  EXPECT_EQ(refusal("lara:window=7,chunk=3", false),
            "attend: lara:window=7,chunk=3 has keys that its bidirectional form does not use, expected lara");
  EXPECT_EQ(refusal("eva:samples=8,decay=0.5", false),
            "attend: eva:samples=8,decay=0.5 has keys that its bidirectional form does not use, expected eva:samples=8");
  AttendInputs without = in;
  without.gate_logits = {};
  EXPECT_EQ(refusal_of([&] { (void)attended("rfa_gate", without, {.causal = true}); }),
            "attend: gate_logits is absent, expected [B, T, G] (rfa_gate decays by them)");
}

}  // namespace
}  // namespace raffia::internal
