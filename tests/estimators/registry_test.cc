// What every kind of estimator promises through the registry: memory that continues a text, sizes by formula, gradients.
#include "estimators/registry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "support/arrays.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"

namespace raffia::internal {
namespace {

constexpr int64_t kLength = 75, kHeads = 4, kKeyHeads = 2, kDim = 8, kValueDim = 8;

// One of each kind at least; small windows, so that memories fold.
const char* const kCausal[] = {"softmax",
                               "window:window=8",
                               "window:window=8,before=2",
                               "rfa:samples=8",
                               "rfa:map=elu",
                               "rfa_gate:samples=8,map=positive",
                               "hybrid:samples=8,window=8",
                               "ra:samples=2",
                               "lara:samples=16,window=8,chunk=4",
                               "eva:samples=4,window=8,chunk=4,features=8",
                               "mean"};

struct Sequences {
  int64_t batch;
  std::vector<float> q, k, v, gates;

  explicit Sequences(int64_t count)
      : batch(count),
        q(normals(static_cast<size_t>(count * kLength * kHeads * kDim), 1)),
        k(normals(static_cast<size_t>(count * kLength * kKeyHeads * kDim), 2)),
        v(normals(static_cast<size_t>(count * kLength * kKeyHeads * kValueDim), 3)),
        gates(normals(static_cast<size_t>(count * kLength * kKeyHeads), 4, 3)) {}

  AttendInputs views(const FeatureMap* map) const {
    return {.q = {q.data(), {batch, kLength, kHeads, kDim}},
            .k = {k.data(), {batch, kLength, kKeyHeads, kDim}},
            .v = {v.data(), {batch, kLength, kKeyHeads, kValueDim}},
            .gate_logits = {gates.data(), {batch, kLength, kKeyHeads}},
            .map = map};
  }
};

AttendInputs slice(const AttendInputs& inputs, size_t axis, int64_t begin, int64_t count) {
  AttendInputs part = inputs;
  for (View4* x : {&part.q, &part.k, &part.v}) *x = x->slice(axis, begin, count);
  part.gate_logits = part.gate_logits.slice(axis, begin, count);
  return part;
}

class AnyEstimator : public testing::TestWithParam<const char*> {
 protected:
  AnyEstimator() {
    if (traits_of(estimator_).has_map) map_ = estimator_.make_map(kDim, kKeyHeads);
  }
  const FeatureMap* map() const { return map_ ? &*map_ : nullptr; }
  MemorySizes sizes(int64_t batch) const {
    return {.batch = batch, .query_heads = kHeads, .heads = kKeyHeads, .dim = kDim, .value_dim = kValueDim, .map = map()};
  }
  static std::vector<float> empty_out(int64_t batch) {
    return std::vector<float>(static_cast<size_t>(batch * kLength * kHeads * kValueDim));
  }
  static MutView4 view(std::vector<float>& out, int64_t batch) { return {out.data(), {batch, kLength, kHeads, kValueDim}}; }

  const Estimator estimator_ = parse_estimator(GetParam());
  std::optional<FeatureMap> map_;
};

// Sums of at most kLength positive weights and products of numbers of size 1, in another order.
constexpr float kTolerance = 1e-4F;

void expect_near(const std::vector<float>& found, const std::vector<float>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], kTolerance) << what << " at " << i;
}

TEST_P(AnyEstimator, ContinuedInPiecesIsTheWhole) {
  constexpr int64_t kBatch = 2;
  const Sequences data(kBatch);
  const AttendInputs all = data.views(map());
  std::vector<float> whole = empty_out(kBatch), pieces = empty_out(kBatch);
  attend(estimator_, all, view(whole, kBatch), {.causal = true});
  Memory memory = empty_memory(estimator_, sizes(kBatch));
  int64_t begin = 0;
  for (const int64_t count : {1, 7, 0, 30, 3, 34}) {
    attend(estimator_, slice(all, 1, begin, count), memory, view(pieces, kBatch).slice(1, begin, count), {.causal = true});
    begin += count;
    EXPECT_EQ(memory_bytes(estimator_, sizes(kBatch), begin), static_cast<int64_t>(memory.size_bytes())) << begin;
    EXPECT_EQ(memory.tokens(1).value_or(begin), begin);
  }
  ASSERT_EQ(begin, kLength);
  expect_near(pieces, whole, GetParam());
}

TEST_P(AnyEstimator, StepsAreTheWhole) {
  constexpr int64_t kBatch = 3;
  const Sequences data(kBatch);
  const AttendInputs all = data.views(map());
  std::vector<float> whole = empty_out(kBatch), steps = empty_out(kBatch);
  attend(estimator_, all, view(whole, kBatch), {.causal = true});
  std::vector<Memory> memories(kBatch, empty_memory(estimator_, sizes(1)));
  std::vector<Memory*> sessions;
  for (Memory& memory : memories) sessions.push_back(&memory);
  for (int64_t t = 0; t < kLength; ++t) {
    attend_step(estimator_, slice(all, 1, t, 1), sessions, view(steps, kBatch).slice(1, t, 1),
                {.causal = true, .run = {.threads = 2}});
  }
  expect_near(steps, whole, GetParam());
}

TEST_P(AnyEstimator, SavedAndSelectedMemoriesContinueWithTheSameBits) {
  const TemporaryDirectory directory("registry_test");
  const Sequences data(2);
  const AttendInputs all = data.views(map());
  const AttendOptions causal{.causal = true};
  constexpr int64_t kRead = 43, kRest = kLength - kRead;
  std::vector<float> out = empty_out(2), expected = empty_out(2), found = empty_out(2);
  Memory memory = empty_memory(estimator_, sizes(2));
  attend(estimator_, slice(all, 1, 0, kRead), memory, view(out, 2).slice(1, 0, kRead), causal);

  memory.save(directory.path() / "memory");
  Memory loaded = Memory::load(directory.path() / "memory");
  EXPECT_TRUE(loaded == memory && loaded.has_shape_of(memory));
  EXPECT_TRUE(Memory::from_bytes(memory.to_bytes()) == memory);
  Memory second = memory.select(std::vector<int64_t>{1});
  EXPECT_EQ(second.batch(), 1);

  const AttendInputs rest = slice(all, 1, kRead, kRest);
  attend(estimator_, rest, memory, view(expected, 2).slice(1, kRead, kRest), causal);
  attend(estimator_, rest, loaded, view(found, 2).slice(1, kRead, kRest), causal);
  EXPECT_TRUE(same_bits(found, expected));
  attend(estimator_, slice(rest, 0, 1, 1), second, view(found, 2).slice(0, 1, 1).slice(1, kRead, kRest), causal);
  EXPECT_TRUE(same_bits(found, expected));
}

TEST_P(AnyEstimator, DamagedMemoriesAreRefused) {
  const Sequences data(1);
  Memory memory = empty_memory(estimator_, sizes(1));
  std::vector<float> out = empty_out(1);
  attend(estimator_, data.views(map()), memory, view(out, 1), {.causal = true});
  const std::vector<std::byte> sound = memory.to_bytes();
  std::vector<std::byte> damaged = sound;
  damaged.back() ^= std::byte{1};
  EXPECT_THROW((void)Memory::from_bytes(damaged), FormatError);
  for (const size_t length : {size_t{0}, size_t{7}, size_t{20}, sound.size() / 2, sound.size() - 1}) {
    EXPECT_THROW((void)Memory::from_bytes(std::span(sound).first(length)), FormatError) << length;
  }
}

// Along one direction of q, k, v and gates: sum(dout o out) changes by the inner product of the direction and the gradients.
TEST_P(AnyEstimator, GradientsAreThoseOfAttend) {
  // Which keys ra draws depends on queries and keys, by jumps: only values are moved then.
  const bool moves_all = estimator_.kind != EstimatorKind::ra;
  Sequences data(1);
  const AttendOptions causal{.causal = true};
  const size_t outputs = empty_out(1).size();
  const std::vector<float> dout = normals(outputs, 5);
  const auto weighted = [&](const Sequences& at) {
    std::vector<float> out = empty_out(1);
    attend(estimator_, at.views(map()), view(out, 1), causal);
    return std::inner_product(out.begin(), out.end(), dout.begin(), 0.0);
  };

  const AttendInputs inputs = data.views(map());
  std::vector<float> out = empty_out(1), record(static_cast<size_t>(attend_record_size(estimator_, inputs, causal)));
  attend(estimator_, inputs, view(out, 1), causal, record);
  std::vector<float> dq(data.q.size()), dk(data.k.size()), dv(data.v.size()), dgates(data.gates.size());
  AttendGradients gradients{
      .q = {dq.data(), inputs.q.shape()}, .k = {dk.data(), inputs.k.shape()}, .v = {dv.data(), inputs.v.shape()}};
  if (traits_of(estimator_).is_gated) gradients.gate_logits = {dgates.data(), inputs.gate_logits.shape()};
  attend_backward(estimator_, inputs, view(out, 1), record, View4(dout.data(), inputs.q.shape()), gradients, causal);

  constexpr float kStep = 1e-3F;
  double expected = 0;
  Sequences before = data, after = data;
  const auto move = [&](std::vector<float> Sequences::*member, const std::vector<float>& gradient, uint64_t seed) {
    const std::vector<float> direction = normals(gradient.size(), seed);
    for (size_t i = 0; i < gradient.size(); ++i) {
      expected += static_cast<double>(direction[i]) * gradient[i];
      (before.*member)[i] -= kStep * direction[i];
      (after.*member)[i] += kStep * direction[i];
    }
  };
  if (moves_all) {
    move(&Sequences::q, dq, 6);
    move(&Sequences::k, dk, 7);
  }
  move(&Sequences::v, dv, 8);
  if (traits_of(estimator_).is_gated) move(&Sequences::gates, dgates, 9);
  const double found = (weighted(after) - weighted(before)) / (2 * kStep);
  // Rounding: 2,400 outputs of size 1 with errors of 1e-7 each, over 2e-3; curvature: of the order of the step squared.
  EXPECT_NEAR(found, expected, 0.02 * std::abs(expected) + 0.05);
}

INSTANTIATE_TEST_SUITE_P(All, AnyEstimator, testing::ValuesIn(kCausal), [](const auto& one) {
  std::string name = one.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

TEST(Registry, HasEveryKindOnce) {
  const auto modules = estimator_modules();
  ASSERT_EQ(modules.size(), estimator_kinds().size());
  for (size_t i = 0; i < modules.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(modules[i]->kind), i) << modules[i]->name;
    EXPECT_EQ(parse_estimator(modules[i]->name).kind, modules[i]->kind);
    EXPECT_FALSE(modules[i]->summary.empty());
  }
  for (const EstimatorKind kind : estimator_kinds()) {
    const bool is_tested = std::ranges::any_of(kCausal, [kind](const char* text) { return parse_estimator(text).kind == kind; });
    EXPECT_TRUE(is_tested) << name_of(kind) << " is missing in this test";
  }
}

TEST(Registry, FormsForEncodersAreBidirectional) {
  for (const char* text : kCausal) {
    EXPECT_TRUE(traits_of(bidirectional_form(parse_estimator(text))).bidirectional) << text;
  }
}

TEST(Registry, MemoriesOfAnotherKindAreRefused) {
  const Sequences data(1);
  std::vector<float> out(data.q.size());
  const MutView4 view(out.data(), {1, kLength, kHeads, kValueDim});
  Memory cache =
      empty_memory(parse_estimator("softmax"), {.query_heads = kHeads, .heads = kKeyHeads, .dim = kDim, .value_dim = kValueDim});
  EXPECT_EQ(refusal<InvalidArgument>(
                [&] { attend(parse_estimator("rfa:map=elu"), data.views(nullptr), cache, view, {.causal = true}); }),
            "attend: memory is a key cache, expected a state (rfa:map=elu)");
  Memory wide =
      empty_memory(parse_estimator("softmax"), {.query_heads = kHeads, .heads = kKeyHeads, .dim = 16, .value_dim = kValueDim});
  EXPECT_EQ(
      refusal<InvalidArgument>([&] { attend(parse_estimator("softmax"), data.views(nullptr), wide, view, {.causal = true}); }),
      "attend: memory is of batch 1, 2 heads, keys of 16 and values of 8, expected 1, 2, 8 and 8 (q, k and v)");
  EXPECT_EQ(refusal<InvalidArgument>([] { (void)empty_memory(parse_estimator("rfa_gate"), {.dim = 8, .value_dim = 8}); }),
            "empty_memory: map is absent, expected that of rfa_gate");
}

TEST(Registry, TokensThatDoNotFitTheirMemoryLeaveItAsItWas) {
  const Sequences data(1);
  std::vector<float> out(data.q.size());
  const MutView4 view(out.data(), {1, kLength, kHeads, kValueDim});
  const AttendInputs all = data.views(nullptr);
  for (const char* text : {"softmax", "window:window=8", "ra"}) {
    const Estimator estimator = parse_estimator(text);
    const MemorySizes sizes{.query_heads = kHeads, .heads = kKeyHeads, .dim = kDim, .value_dim = kValueDim};
    Memory memory = empty_memory(estimator, sizes);
    AttendInputs longer = slice(all, 1, 0, 5);
    longer.v = all.v.slice(1, 0, 7);
    EXPECT_EQ(
        refusal<InvalidArgument>([&] { attend(estimator, longer, memory, view.slice(1, 0, 5), {.causal = true}); }),
        "attend: k has shape [1, 5, 2, 8] and v [1, 7, 2, 8], expected [1, 5, G, D] and [1, 5, G, V] (batch and length of q)");
    EXPECT_EQ(memory.size_bytes(), 0U);

    MemorySizes wide = sizes;
    wide.dim = 16;
    Memory other = empty_memory(estimator, wide);
    Memory* const session = &other;
    EXPECT_THROW(attend_step(estimator, slice(all, 1, 0, 1), {&session, 1}, view.slice(1, 0, 1), {.causal = true}),
                 InvalidArgument);
    EXPECT_EQ(other.size_bytes(), 0U);
  }
}

TEST(KeyCache, GoesBackToAnEarlierToken) {
  KeyCache cache({.batch = 1, .heads = 1, .dim = 2, .value_dim = 1});
  const float keys[] = {1, 2, 3, 4}, values[] = {5, 6};
  cache.append(0, {keys, {2, 1, 2}}, {values, {2, 1, 1}});
  cache.append_copies(0, 3);
  EXPECT_EQ(cache.rows(0), 5);
  cache.truncate(0, 1);
  EXPECT_EQ(cache.tokens(0), 1);
  EXPECT_EQ(cache.size_bytes(), 3 * sizeof(float));
  cache.keep_last(0, 0);
  EXPECT_EQ(refusal<InvalidArgument>([&] { cache.truncate(0, 0); }),
            "KeyCache::truncate: 1 of 1 tokens were dropped, expected a cache that keeps all");
}

}  // namespace
}  // namespace raffia::internal
