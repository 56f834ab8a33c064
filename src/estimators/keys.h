// The settings of estimators as text: how each key is read and written. A module of the registry lists the keys that it uses.
#ifndef RAFFIA_ESTIMATORS_KEYS_H_
#define RAFFIA_ESTIMATORS_KEYS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "raffia/estimator.h"

namespace raffia {

// The text of a value and where it stands, for messages.
struct KeyText {
  std::string_view kind, key, value;

  std::string what() const;
  [[noreturn]] void fail(std::string_view expected) const;
};

struct EstimatorKey {
  std::string_view name;
  void (*read)(Estimator& estimator, const KeyText& text);
  std::string (*write)(const Estimator& estimator);  // empty: not set
};

bool same_name(std::string_view a, std::string_view b);  // hyphens and underscores are the same

namespace keys {

// clang-format off
extern const EstimatorKey samples, samples_or_none, map, log, window, before, chunk, features, decay, per_proposal, proposals, weights,
    strength, mean, streaming, draws, seed, layer, draw;
// clang-format on

}  // namespace keys

}  // namespace raffia

#endif  // RAFFIA_ESTIMATORS_KEYS_H_
