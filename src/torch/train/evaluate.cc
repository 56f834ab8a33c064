#include "torch/train/evaluate.h"

#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "torch/train/data.h"

namespace raffia::internal::train {
namespace {

bool is_white(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// ids[begin, begin + batch * length) as [batch, length], of tokens that lie `stride` after each other.
Tensor rows_of(std::span<const int32_t> ids, int64_t begin, int64_t batch, int64_t stride, int64_t length) {
  Tensor rows = torch::empty({batch, length}, at::kLong);
  int64_t* to = rows.data_ptr<int64_t>();
  for (int64_t b = 0; b < batch; ++b) {
    const int32_t* from = ids.data() + begin + b * stride;
    to = std::copy(from, from + length, to);
  }
  return rows;
}

void require_text(std::span<const int32_t> ids, int64_t segment) {
  require(ids.size() >= 2, "score_lm: the text has {} tokens, expected at least 2", ids.size());
  require(segment >= 1, "score_lm: segment is {}, expected at least 1", segment);
}

NllScore score_carried(nn::LanguageModelImpl& model, std::span<const int32_t> ids, const LmScoring& scoring) {
  require(can_carry(model.config()), "score_lm: memory of {} cannot be carried through a text",
          to_string(model.config().estimator(0)));
  require(scoring.ranks == 1, "score_lm: memory that is carried through a text cannot be split over {} ranks", scoring.ranks);
  const auto predicted = static_cast<int64_t>(ids.size()) - 1;
  nn::ModelState state;
  NllScore score;
  for (int64_t begin = 0; begin < predicted; begin += scoring.segment) {
    const int64_t length = std::min(scoring.segment, predicted - begin);
    const Tensor hidden = model.hidden(rows_of(ids, begin, 1, 0, length), &state);
    score += score_hidden(model, hidden, rows_of(ids, begin + 1, 1, 0, length));
    if (scoring.progress) scoring.progress(begin + length, predicted);
  }
  return score;
}

// Full segments, `batch` at a time, then the rest after the last full one.
NllScore score_reset(nn::LanguageModelImpl& model, std::span<const int32_t> ids, const LmScoring& scoring) {
  require(scoring.batch >= 1, "score_lm: batch is {}, expected at least 1", scoring.batch);
  require(scoring.ranks >= 1 && scoring.rank >= 0 && scoring.rank < scoring.ranks, "score_lm: rank {} of {} ranks", scoring.rank,
          scoring.ranks);
  const auto predicted = static_cast<int64_t>(ids.size()) - 1;
  const int64_t segment = scoring.segment, full = predicted / segment, rest = predicted % segment;
  const int64_t first = full * scoring.rank / scoring.ranks, end = full * (scoring.rank + 1) / scoring.ranks;
  const bool has_rest = rest > 0 && scoring.rank == scoring.ranks - 1;
  const int64_t total = (end - first) * segment + (has_rest ? rest : 0);
  NllScore score;
  const auto add = [&](int64_t begin, int64_t batch, int64_t length) {
    const Tensor hidden = model.hidden(rows_of(ids, begin, batch, segment, length));
    score += score_hidden(model, hidden, rows_of(ids, begin + 1, batch, segment, length));
    if (scoring.progress) scoring.progress(score.tokens, total);
  };
  for (int64_t s = first; s < end; s += scoring.batch) add(s * segment, std::min(scoring.batch, end - s), segment);
  if (has_rest) add(full * segment, 1, rest);
  return score;
}

}  // namespace

TextFacts count_text(std::string_view text, int64_t tokens) {
  TextFacts facts{.tokens = tokens, .bytes = static_cast<int64_t>(text.size())};
  bool in_word = false;
  for (const char c : text) {
    const bool white = is_white(c);
    facts.words += (!white && !in_word) + (c == '\n');
    in_word = !white;
  }
  return facts;
}

NllScore& NllScore::operator+=(const NllScore& other) {
  nll += other.nll;
  tokens += other.tokens;
  return *this;
}

double NllScore::perplexity() const { return std::exp(per_token()); }

double NllScore::word_perplexity(const TextFacts& facts) const { return std::exp(nll / static_cast<double>(facts.words)); }

double NllScore::bits_per_byte(const TextFacts& facts) const {
  return nll / static_cast<double>(facts.bytes) / std::numbers::ln2;
}

bool can_carry(const ModelConfig& config) {
  return config.positions != Positions::learned &&
         std::all_of(config.estimators.begin(), config.estimators.end(),
                     [](const Estimator& estimator) { return traits_of(estimator).fades; });
}

NllScore score_lm(nn::LanguageModelImpl& model, std::span<const int32_t> ids, const LmScoring& scoring) {
  require_text(ids, scoring.segment);
  const EvaluationMode evaluation(model);
  return scoring.carried ? score_carried(model, ids, scoring) : score_reset(model, ids, scoring);
}

NllScore score_hidden(nn::LanguageModelImpl& model, const Tensor& hidden, const Tensor& targets, int64_t part) {
  const torch::NoGradGuard no_grad;
  const Tensor rows = hidden.flatten(0, 1), wanted = targets.flatten();  // [B T, E], [B T]
  NllScore score{.tokens = wanted.ne(kIgnore).sum().item<int64_t>()};
  for (int64_t begin = 0; begin < rows.size(0); begin += part) {
    const Tensor losses = model.loss(rows.slice(0, begin, begin + part), wanted.slice(0, begin, begin + part)).losses;
    score.nll += losses.sum(at::kDouble).item<double>();
  }
  return score;
}

LabelScore& LabelScore::operator+=(const LabelScore& other) {
  correct += other.correct;
  count += other.count;
  nll += other.nll;
  return *this;
}

LabelScore score_labels(const Tensor& logits, const Tensor& labels) {
  const torch::NoGradGuard no_grad;
  const auto options = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone);
  return {.correct = logits.argmax(-1).eq(labels).sum().item<int64_t>(),
          .count = labels.numel(),
          .nll = torch::nn::functional::cross_entropy(logits, labels, options).sum(at::kDouble).item<double>()};
}

}  // namespace raffia::internal::train
