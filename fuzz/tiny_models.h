// Models of a few hundred weights, with all kinds of attention that sessions support.
#ifndef RAFFIA_FUZZ_TINY_MODELS_H_
#define RAFFIA_FUZZ_TINY_MODELS_H_

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "raffia/model_config.h"
#include "raffia/session.h"

namespace raffia {

inline ModelConfig tiny_config(std::initializer_list<const char*> estimators) {
  ModelConfig config{.vocabulary = 5, .width = 4, .heads = 2, .layers = std::ssize(estimators), .ffn = 4};
  for (const char* estimator : estimators) config.estimators.push_back(parse_estimator(estimator));
  return config;
}

// Memories of constant size: valid with any position.
inline ModelConfig tiny_folding_config() {
  ModelConfig config = tiny_config({"rfa_gate:samples=2", "hybrid:samples=2,window=2",
                                    "eva:samples=2,window=4,chunk=2,features=2", "lara:samples=2,window=4,chunk=2"});
  config.conv = 2;
  return config;
}

// KV caches.
inline ModelConfig tiny_keeping_config() {
  ModelConfig config = tiny_config({"softmax", "window:window=2,before=1"});
  config.kv_heads = 1;
  config.positions = Positions::rotary;
  config.norm = Norm::rms;
  config.feed_forward = FeedForward::swiglu;
  config.tied = false;
  return config;
}

// Whether a session can sample: with damaged weights logits may be NaN, for which sample() throws.
inline bool can_choose(const Session& session) {
  const auto logits = session.logits();
  return !logits.empty() && std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
}

}  // namespace raffia

#endif  // RAFFIA_FUZZ_TINY_MODELS_H_
