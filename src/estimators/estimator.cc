// Estimators as text: one table says which keys there are, which kinds use them, how they are read and written.
#include "raffia/estimator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/split.h"

namespace raffia {
namespace {

template <typename Value>
struct Named {
  std::string_view name;
  Value value;
};

constexpr Named<EstimatorKind> kEstimatorKinds[] = {{"softmax", EstimatorKind::softmax}, {"window", EstimatorKind::window},
                                                    {"rfa", EstimatorKind::rfa},         {"rfa_gate", EstimatorKind::rfa_gate},
                                                    {"hybrid", EstimatorKind::hybrid},   {"ra", EstimatorKind::ra},
                                                    {"lara", EstimatorKind::lara},       {"eva", EstimatorKind::eva}};
constexpr Named<Proposals> kProposals[] = {
    {"chunk-mean", Proposals::chunk_mean}, {"qk-mixed", Proposals::qk_mixed}, {"standard", Proposals::standard}};
constexpr Named<SampleWeights> kWeights[] = {{"balance", SampleWeights::balance}, {"mis-opt", SampleWeights::mis_opt}};
constexpr Named<Draws> kDraws[] = {{"iid", Draws::iid}, {"orthogonal", Draws::orthogonal}};
constexpr Named<bool> kTruth[] = {{"false", false}, {"true", true}};
constexpr Named<std::optional<bool>> kTruthOrAuto[] = {{"auto", std::nullopt}, {"false", false}, {"true", true}};

bool same_name(std::string_view a, std::string_view b) {
  const auto plain = [](char c) { return c == '-' ? '_' : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [plain](char x, char y) { return plain(x) == plain(y); });
}

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

// The text of a value and where it stands, for messages.
struct Text {
  std::string_view kind, key, value;

  std::string what() const { return fmt::format("parse_estimator: {} of {} is", key, kind); }
  [[noreturn]] void fail(std::string_view expected) const {
    throw InvalidArgument(fmt::format("{} \"{}\", expected {}", what(), value, expected));
  }
};

template <typename Number>
Number parse_number(const Text& text, Number low, Number high, std::string_view expected) {
  Number number = 0;
  const char* end = text.value.data() + text.value.size();
  const auto [stop, error] = std::from_chars(text.value.data(), end, number);
  if (error != std::errc() || stop != end || !(number >= low && number <= high)) text.fail(expected);
  return number;
}

// Far above any size that fits in memory, and low enough that products of two do not overflow.
constexpr int64_t kLargestCount = 1'000'000'000;

int64_t parse_positive(const Text& text) { return parse_number<int64_t>(text, 1, kLargestCount, "an integer from 1 to 10^9"); }
int64_t parse_count(const Text& text) { return parse_number<int64_t>(text, 0, kLargestCount, "an integer from 0 to 10^9"); }
uint32_t parse_u32(const Text& text) { return parse_number<uint32_t>(text, 0, UINT32_MAX, "an integer from 0 to 2^32 - 1"); }

using Kinds = uint32_t;
template <typename... Kind>
constexpr Kinds kinds(Kind... kind) {
  return ((1U << static_cast<unsigned>(kind)) | ...);
}

constexpr Kinds kLinear = kinds(EstimatorKind::rfa, EstimatorKind::rfa_gate, EstimatorKind::hybrid);
constexpr Kinds kRandom = kLinear | kinds(EstimatorKind::ra, EstimatorKind::lara, EstimatorKind::eva);

struct Key {
  std::string_view name;
  Kinds kinds;  // that use it
  void (*read)(Estimator& estimator, const Text& text);
  std::string (*write)(const Estimator& estimator);
};

std::string plain(auto value) { return fmt::format("{}", value); }

const Key kKeys[] = {
    {"samples", kRandom,
     [](Estimator& e, const Text& text) { e.samples = e.kind == EstimatorKind::eva ? parse_count(text) : parse_positive(text); },
     [](const Estimator& e) { return e.samples ? plain(*e.samples) : std::string(); }},
    {"map", kLinear,
     [](Estimator& e, const Text& text) {
       try {
         e.map = parse_map_kind(text.value);
       } catch (const InvalidArgument&) {
         text.fail("identity, trig, arccos, positive, positive2, elu or relu");
       }
     },
     [](const Estimator& e) { return plain(name_of(e.map)); }},
    {"log", kinds(EstimatorKind::rfa), [](Estimator& e, const Text& text) { e.log = value_in(kTruth, text.value, text.what()); },
     [](const Estimator& e) { return plain(e.log); }},
    {"window", kinds(EstimatorKind::window, EstimatorKind::hybrid, EstimatorKind::eva, EstimatorKind::lara),
     [](Estimator& e, const Text& text) { e.window = parse_positive(text); }, [](const Estimator& e) { return plain(e.window); }},
    {"before", kinds(EstimatorKind::window), [](Estimator& e, const Text& text) { e.before = parse_count(text); },
     [](const Estimator& e) { return plain(e.before); }},
    {"chunk", kinds(EstimatorKind::eva, EstimatorKind::lara),
     [](Estimator& e, const Text& text) { e.chunk = parse_positive(text); }, [](const Estimator& e) { return plain(e.chunk); }},
    {"features", kinds(EstimatorKind::eva), [](Estimator& e, const Text& text) { e.features = parse_positive(text); },
     [](const Estimator& e) { return plain(e.features); }},
    {"decay", kinds(EstimatorKind::eva),
     [](Estimator& e, const Text& text) {
       e.decay = parse_number(text, std::numeric_limits<float>::min(), 1.0F, "a number above 0 and at most 1");
     },
     [](const Estimator& e) { return plain(e.decay); }},
    {"per_proposal", kinds(EstimatorKind::lara), [](Estimator& e, const Text& text) { e.per_proposal = parse_positive(text); },
     [](const Estimator& e) { return plain(e.per_proposal); }},
    {"proposals", kinds(EstimatorKind::lara),
     [](Estimator& e, const Text& text) { e.proposals = value_in(kProposals, text.value, text.what()); },
     [](const Estimator& e) { return plain(name_of(e.proposals)); }},
    {"weights", kinds(EstimatorKind::lara),
     [](Estimator& e, const Text& text) { e.weights = value_in(kWeights, text.value, text.what()); },
     [](const Estimator& e) { return plain(name_of(e.weights)); }},
    {"strength", kinds(EstimatorKind::lara),
     [](Estimator& e, const Text& text) {
       e.strength = parse_number(text, 0.0F, std::numeric_limits<float>::max(), "a number of 0 or more");
     },
     [](const Estimator& e) { return plain(e.strength); }},
    {"mean", kinds(EstimatorKind::lara),
     [](Estimator& e, const Text& text) { e.mean = value_in(kTruthOrAuto, text.value, text.what()); },
     [](const Estimator& e) { return plain(name_in(kTruthOrAuto, e.mean)); }},
    {"streaming", kinds(EstimatorKind::lara),
     [](Estimator& e, const Text& text) { e.streaming = value_in(kTruth, text.value, text.what()); },
     [](const Estimator& e) { return plain(e.streaming); }},
    {"draws", kLinear | kinds(EstimatorKind::lara, EstimatorKind::eva),
     [](Estimator& e, const Text& text) { e.draws = value_in(kDraws, text.value, text.what()); },
     [](const Estimator& e) { return plain(name_in(kDraws, e.draws)); }},
    {"seed", kRandom,
     [](Estimator& e, const Text& text) {
       e.seed = parse_number<uint64_t>(text, 0, UINT64_MAX, "an integer from 0 to 2^64 - 1");
     },
     [](const Estimator& e) { return plain(e.seed); }},
    {"layer", kRandom, [](Estimator& e, const Text& text) { e.layer = parse_u32(text); },
     [](const Estimator& e) { return plain(e.layer); }},
    {"draw", kRandom, [](Estimator& e, const Text& text) { e.draw = parse_u32(text); },
     [](const Estimator& e) { return plain(e.draw); }},
};

bool uses(EstimatorKind kind, const Key& key) { return (key.kinds & kinds(kind)) != 0; }

const Key& find_key(EstimatorKind kind, std::string_view name) {
  const auto* key = std::find_if(std::begin(kKeys), std::end(kKeys), [name](const Key& k) { return same_name(k.name, name); });
  if (key != std::end(kKeys) && uses(kind, *key)) return *key;
  std::vector<std::string_view> used;
  for (const Key& other : kKeys) {
    if (uses(kind, other)) used.push_back(other.name);
  }
  throw InvalidArgument(fmt::format("parse_estimator: {} has no key \"{}\", expected {}", name_of(kind), name,
                                    used.empty() ? "none" : fmt::format("one of {}", fmt::join(used, ", "))));
}

// The default estimator of this kind: fields that the kind does not use have the same value for all kinds.
Estimator defaults_of(EstimatorKind kind, const Estimator& defaults) {
  Estimator estimator{.kind = kind};
  for (const Key& key : kKeys) {
    if (!uses(kind, key)) continue;
    const std::string value = key.write(defaults);
    if (!value.empty()) key.read(estimator, {name_of(kind), key.name, value});
  }
  return estimator;
}

bool is_random_map(MapKind map) {
  return map == MapKind::trig || map == MapKind::arccos || map == MapKind::positive || map == MapKind::positive2;
}

}  // namespace

std::string_view name_of(EstimatorKind kind) { return name_in(kEstimatorKinds, kind); }
std::string_view name_of(Proposals proposals) { return name_in(kProposals, proposals); }
std::string_view name_of(SampleWeights weights) { return name_in(kWeights, weights); }

Proposals parse_proposals(std::string_view name) { return value_in(kProposals, name, "parse_proposals:"); }
SampleWeights parse_sample_weights(std::string_view name) { return value_in(kWeights, name, "parse_sample_weights:"); }

Estimator parse_estimator(std::string_view text, const Estimator& defaults) {
  const size_t colon = text.find(':');
  Estimator estimator = defaults_of(value_in(kEstimatorKinds, text.substr(0, colon), "parse_estimator: kind is"), defaults);
  if (colon == std::string_view::npos) return estimator;

  std::array<bool, std::size(kKeys)> seen = {};
  for (const std::string_view setting : split(text.substr(colon + 1), ',')) {
    const size_t equals = setting.find('=');
    require(equals != std::string_view::npos, "parse_estimator: \"{}\" in \"{}\", expected key=value", setting, text);
    const Key& key = find_key(estimator.kind, setting.substr(0, equals));
    require(!std::exchange(seen[static_cast<size_t>(&key - kKeys)], true),
            "parse_estimator: key \"{}\" twice in \"{}\", expected once", key.name, text);
    key.read(estimator, {name_of(estimator.kind), key.name, setting.substr(equals + 1)});
  }
  require(!estimator.log || estimator.map == MapKind::trig || estimator.map == MapKind::positive,
          "parse_estimator: map of rfa is \"{}\" with log=true, expected positive (log space has no other features)",
          name_of(estimator.map));
  return estimator;
}

std::string to_string(const Estimator& estimator, const Estimator& defaults) {
  const Estimator plain_one = defaults_of(estimator.kind, defaults);
  std::string text(name_of(estimator.kind));
  char separator = ':';
  for (const Key& key : kKeys) {
    const std::string value = key.write(estimator);
    if (!uses(estimator.kind, key) || value == key.write(plain_one)) continue;
    text += fmt::format("{}{}={}", std::exchange(separator, ','), key.name, value);
  }
  return text;
}

bool Estimator::is_random() const {
  switch (kind) {
    case EstimatorKind::softmax:
    case EstimatorKind::window:
      return false;
    case EstimatorKind::rfa:
      return log || is_random_map(map);
    case EstimatorKind::rfa_gate:
    case EstimatorKind::hybrid:
      return is_random_map(map);
    case EstimatorKind::ra:
      return true;
    case EstimatorKind::lara:
      return mean != true;
    case EstimatorKind::eva:
      return samples != 0;  // the causal form, where it forgets chunks
  }
  return false;
}

bool Estimator::supports_causal() const {
  if (kind == EstimatorKind::rfa) return !log;
  if (kind != EstimatorKind::lara) return true;
  return proposals == Proposals::chunk_mean && weights == SampleWeights::balance && mean != true;
}

bool Estimator::supports_bidirectional() const {
  switch (kind) {
    case EstimatorKind::rfa_gate:
    case EstimatorKind::hybrid:
      return false;
    case EstimatorKind::window:
      return before == 0;
    case EstimatorKind::eva:
      return samples != 0;
    default:
      return true;
  }
}

FeatureMap Estimator::make_map(int64_t dim, int64_t heads) const {
  require((kinds(kind) & kLinear) != 0, "Estimator::make_map: kind is {}, expected rfa, rfa_gate or hybrid", name_of(kind));
  const MapKind chosen = log ? MapKind::positive : map;
  require(chosen != MapKind::relu, "Estimator::make_map: map is relu, whose weights are learned, expected AttendInputs::map");
  if (chosen == MapKind::identity) return FeatureMap::identity(dim, heads);
  if (chosen == MapKind::elu) return FeatureMap::elu(dim, heads);
  return FeatureMap::random(
      chosen,
      {.dim = dim, .count = samples.value_or(64), .heads = heads, .seed = seed, .layer = layer, .draw = draw, .draws = draws});
}

}  // namespace raffia
