// Greedy translation, in batches of sentences of similar lengths.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "raffia/error.h"
#include "raffia/tokenizer.h"
#include "torch/train/evaluate.h"

namespace raffia::internal::train {
namespace {

using Sentence = std::vector<int32_t>;
using Order = std::vector<size_t>;

// [B, S], padded as PairBatches pads.
Tensor padded(std::span<const Sentence> sources, std::span<const size_t> chosen) {
  size_t longest = 0;
  for (const size_t i : chosen) longest = std::max(longest, sources[i].size());
  Tensor batch = torch::full({static_cast<int64_t>(chosen.size()), static_cast<int64_t>(longest)}, Tokenizer::kPad, at::kLong);
  for (size_t b = 0; b < chosen.size(); ++b) {
    int64_t* to = batch[static_cast<int64_t>(b)].data_ptr<int64_t>();
    std::copy(sources[chosen[b]].begin(), sources[chosen[b]].end(), to);
  }
  return batch;
}

// `chosen`: the numbers of the sentences, for errors. Sentences that have ended stay in their batch; their further outputs are
// ignored.
std::vector<Sentence> translate_batch(nn::TranslatorImpl& model, const Tensor& source, const std::vector<int64_t>& max_tokens,
                                      std::span<const size_t> chosen) {
  const auto batch = static_cast<size_t>(source.size(0));
  const Tensor encoded = model.encode(source);
  nn::ModelState state;
  Tensor last = torch::full({source.size(0), 1}, Tokenizer::kBegin, at::kLong);
  std::vector<Sentence> sentences(batch);
  std::vector<bool> ended(batch, false);
  while (std::find(ended.begin(), ended.end(), false) != ended.end()) {
    const Tensor logits = model.decode(last, encoded, source, &state);  // [B, 1, vocabulary]
    last = logits.argmax(-1);                                           // [B, 1]
    const Tensor finite = logits.isfinite().all(-1);
    const int64_t* ids = last.data_ptr<int64_t>();
    const bool* is_finite = finite.data_ptr<bool>();
    for (size_t b = 0; b < batch; ++b) {
      if (ended[b]) continue;
      if (!is_finite[b]) {
        throw Error(fmt::format(
            "translate: sentence {}: a logit is not finite, expected a finite number: the weights of the model are damaged",
            chosen[b] + 1));
      }
      if (ids[b] != Tokenizer::kEnd) sentences[b].push_back(static_cast<int32_t>(ids[b]));
      ended[b] = ids[b] == Tokenizer::kEnd || static_cast<int64_t>(sentences[b].size()) >= max_tokens[b];
    }
  }
  return sentences;
}

}  // namespace

std::vector<Sentence> translate_greedily(nn::TranslatorImpl& model, std::span<const Sentence> sources, const Decoding& decoding) {
  require(decoding.batch >= 1, "translate_greedily: batch is {}, expected at least 1", decoding.batch);
  const EvaluationMode evaluation(model);
  // The number of learned positions is limited: longer sources are truncated, and so are translations (which begin with kBegin).
  const bool has_end = model.config().positions == Positions::learned;
  const int64_t end = has_end ? model.config().max_length : std::numeric_limits<int64_t>::max();
  Order order;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i].empty()) order.push_back(i);  // an empty source has an empty translation
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return sources[a].size() > sources[b].size(); });

  std::vector<Sentence> translations(sources.size());
  for (size_t begin = 0; begin < order.size(); begin += static_cast<size_t>(decoding.batch)) {
    const auto chosen = std::span(order).subspan(begin, std::min(static_cast<size_t>(decoding.batch), order.size() - begin));
    std::vector<int64_t> max_tokens;
    for (const size_t i : chosen) {
      const auto length = static_cast<double>(sources[i].size());
      max_tokens.push_back(
          std::min(end, static_cast<int64_t>(std::ceil(decoding.length_ratio * length)) + decoding.extra_length));
    }
    Tensor source = padded(sources, chosen);
    if (source.size(1) > end) source = source.narrow(1, 0, end).contiguous();
    std::vector<Sentence> found = translate_batch(model, source, max_tokens, chosen);
    for (size_t b = 0; b < chosen.size(); ++b) translations[chosen[b]] = std::move(found[b]);
    if (decoding.progress) decoding.progress(static_cast<int64_t>(begin + chosen.size()), static_cast<int64_t>(order.size()));
  }
  return translations;
}

}  // namespace raffia::internal::train
