// The settings of estimators as text: how each key is read and written. A module of the registry lists the keys that it uses.
#ifndef RAFFIA_ESTIMATORS_KEYS_H_
#define RAFFIA_ESTIMATORS_KEYS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "raffia/estimator.h"

namespace raffia::internal {

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

extern const EstimatorKey kSamples, kSamplesOrNone, kMap, kLog, kWindow, kBefore, kChunk, kFeatures, kDecay, kPerProposal,
    kProposals, kWeights, kStrength, kMean, kStreaming, kDraws, kSeed, kLayer, kDraw;

}  // namespace keys

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_KEYS_H_
