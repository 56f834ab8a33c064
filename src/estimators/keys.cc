// How the settings of estimators are read and written.
#include "estimators/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <vector>

#include "core/check.h"

namespace raffia::internal {
namespace {

template <typename Value>
struct Named {
  std::string_view name;
  Value value;
};

constexpr Named<Proposals> kProposalNames[] = {
    {"chunk-mean", Proposals::chunk_mean}, {"qk-mixed", Proposals::qk_mixed}, {"standard", Proposals::standard}};
constexpr Named<SampleWeights> kWeightNames[] = {{"balance", SampleWeights::balance}, {"mis-opt", SampleWeights::mis_opt}};
constexpr Named<Draws> kDrawNames[] = {{"iid", Draws::iid}, {"orthogonal", Draws::orthogonal}};
constexpr Named<bool> kTruth[] = {{"false", false}, {"true", true}};
constexpr Named<std::optional<bool>> kTruthOrAuto[] = {{"auto", std::nullopt}, {"false", false}, {"true", true}};

template <typename Value, size_t kCount>
std::string_view name_in(const Named<Value> (&names)[kCount], Value value) {
  for (const auto& entry : names) {
    if (entry.value == value) return entry.name;
  }
  return "unknown";
}

template <typename Value, size_t kCount>
std::string list_of(const Named<Value> (&names)[kCount]) {
  std::vector<std::string_view> all;
  for (const auto& entry : names) all.push_back(entry.name);
  return fmt::format("{}", fmt::join(all, ", "));
}

// `what` begins the message: "parse_proposals:".
template <typename Value, size_t kCount>
Value value_in(const Named<Value> (&names)[kCount], std::string_view name, std::string_view what) {
  for (const auto& entry : names) {
    if (same_name(entry.name, name)) return entry.value;
  }
  throw InvalidArgument(fmt::format("{} \"{}\", expected one of {}", what, name, list_of(names)));
}

template <typename Number>
Number parse_number(const KeyText& text, Number low, Number high, std::string_view expected) {
  Number number = 0;
  const char* end = text.value.data() + text.value.size();
  const auto [stop, error] = std::from_chars(text.value.data(), end, number);
  if (error != std::errc() || stop != end || !(number >= low && number <= high)) text.fail(expected);
  return number;
}

// Far above any size that fits in memory, and low enough that products of two do not overflow.
constexpr int64_t kLargestCount = 1'000'000'000;

int64_t parse_positive(const KeyText& text) { return parse_number<int64_t>(text, 1, kLargestCount, "an integer from 1 to 10^9"); }
int64_t parse_count(const KeyText& text) { return parse_number<int64_t>(text, 0, kLargestCount, "an integer from 0 to 10^9"); }
uint32_t parse_u32(const KeyText& text) { return parse_number<uint32_t>(text, 0, UINT32_MAX, "an integer from 0 to 2^32 - 1"); }

std::string plain(auto value) { return fmt::format("{}", value); }

}  // namespace

std::string KeyText::what() const { return fmt::format("parse_estimator: {} of {} is", key, kind); }
void KeyText::fail(std::string_view expected) const {
  throw InvalidArgument(fmt::format("{} \"{}\", expected {}", what(), value, expected));
}

bool same_name(std::string_view a, std::string_view b) {
  const auto plain = [](char c) { return c == '-' ? '_' : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [plain](char x, char y) { return plain(x) == plain(y); });
}

namespace keys {

const EstimatorKey kSamples = {"samples", [](Estimator& e, const KeyText& text) { e.samples = parse_positive(text); },
                               [](const Estimator& e) { return e.samples ? plain(*e.samples) : std::string(); }};
// 0 means none, or all.
const EstimatorKey kSamplesOrNone = {"samples", [](Estimator& e, const KeyText& text) { e.samples = parse_count(text); },
                                     [](const Estimator& e) { return e.samples ? plain(*e.samples) : std::string(); }};
const EstimatorKey kMap = {"map",
                           [](Estimator& e, const KeyText& text) {
                             try {
                               e.map = parse_map_kind(text.value);
                             } catch (const InvalidArgument&) {
                               text.fail("identity, trig, arccos, positive, positive2, elu or relu");
                             }
                           },
                           [](const Estimator& e) { return plain(name_of(e.map)); }};
const EstimatorKey kLog = {"log", [](Estimator& e, const KeyText& text) { e.log = value_in(kTruth, text.value, text.what()); },
                           [](const Estimator& e) { return plain(e.log); }};
const EstimatorKey kWindow = {"window", [](Estimator& e, const KeyText& text) { e.window = parse_positive(text); },
                              [](const Estimator& e) { return plain(e.window); }};
const EstimatorKey kBefore = {"before", [](Estimator& e, const KeyText& text) { e.before = parse_count(text); },
                              [](const Estimator& e) { return plain(e.before); }};
const EstimatorKey kChunk = {"chunk", [](Estimator& e, const KeyText& text) { e.chunk = parse_positive(text); },
                             [](const Estimator& e) { return plain(e.chunk); }};
const EstimatorKey kFeatures = {"features", [](Estimator& e, const KeyText& text) { e.features = parse_positive(text); },
                                [](const Estimator& e) { return plain(e.features); }};
const EstimatorKey kDecay = {"decay",
                             [](Estimator& e, const KeyText& text) {
                               e.decay =
                                   parse_number(text, std::numeric_limits<float>::min(), 1.0F, "a number above 0 and at most 1");
                             },
                             [](const Estimator& e) { return plain(e.decay); }};
const EstimatorKey kPerProposal = {"per_proposal",
                                   [](Estimator& e, const KeyText& text) { e.per_proposal = parse_positive(text); },
                                   [](const Estimator& e) { return plain(e.per_proposal); }};
const EstimatorKey kProposals = {
    "proposals", [](Estimator& e, const KeyText& text) { e.proposals = value_in(kProposalNames, text.value, text.what()); },
    [](const Estimator& e) { return plain(name_of(e.proposals)); }};
const EstimatorKey kWeights = {
    "weights", [](Estimator& e, const KeyText& text) { e.weights = value_in(kWeightNames, text.value, text.what()); },
    [](const Estimator& e) { return plain(name_of(e.weights)); }};
const EstimatorKey kStrength = {"strength",
                                [](Estimator& e, const KeyText& text) {
                                  e.strength =
                                      parse_number(text, 0.0F, std::numeric_limits<float>::max(), "a number of 0 or more");
                                },
                                [](const Estimator& e) { return plain(e.strength); }};
const EstimatorKey kMean = {"mean",
                            [](Estimator& e, const KeyText& text) { e.mean = value_in(kTruthOrAuto, text.value, text.what()); },
                            [](const Estimator& e) { return plain(name_in(kTruthOrAuto, e.mean)); }};
const EstimatorKey kStreaming = {
    "streaming", [](Estimator& e, const KeyText& text) { e.streaming = value_in(kTruth, text.value, text.what()); },
    [](const Estimator& e) { return plain(e.streaming); }};
const EstimatorKey kDraws = {"draws",
                             [](Estimator& e, const KeyText& text) { e.draws = value_in(kDrawNames, text.value, text.what()); },
                             [](const Estimator& e) { return plain(name_in(kDrawNames, e.draws)); }};
const EstimatorKey kSeed = {"seed",
                            [](Estimator& e, const KeyText& text) {
                              e.seed = parse_number<uint64_t>(text, 0, UINT64_MAX, "an integer from 0 to 2^64 - 1");
                            },
                            [](const Estimator& e) { return plain(e.seed); }};
const EstimatorKey kLayer = {"layer", [](Estimator& e, const KeyText& text) { e.layer = parse_u32(text); },
                             [](const Estimator& e) { return plain(e.layer); }};
const EstimatorKey kDraw = {"draw", [](Estimator& e, const KeyText& text) { e.draw = parse_u32(text); },
                            [](const Estimator& e) { return plain(e.draw); }};

}  // namespace keys
}  // namespace raffia::internal

namespace raffia {

using namespace internal;

std::string_view name_of(Proposals proposals) { return name_in(kProposalNames, proposals); }
std::string_view name_of(SampleWeights weights) { return name_in(kWeightNames, weights); }

Proposals parse_proposals(std::string_view name) { return value_in(kProposalNames, name, "parse_proposals:"); }
SampleWeights parse_sample_weights(std::string_view name) { return value_in(kWeightNames, name, "parse_sample_weights:"); }

}  // namespace raffia
