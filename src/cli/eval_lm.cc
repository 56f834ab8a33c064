// raffia eval of language models: likelihoods of a text, and queries, keys and values for raffia approx.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "cli/eval.h"
#include "cli/shared/command.h"
#include "cli/shared/table.h"
#include "cli/shared/unknown_tokens.h"
#include "core/message.h"
#include "model/model_directory.h"
#include "raffia/error.h"
#include "raffia/tokenizer.h"
#include "torch/libtorch.h"
#include "torch/nn/models.h"
#include "torch/tensor_file.h"
#include "torch/train/evaluate.h"
#include "torch/train/texts.h"

namespace raffia::cli {
namespace {

using at::Tensor;

struct LmRecord {
  std::string memory;
  int64_t segment = 0;
  train::TextFacts facts;
  train::NllScore score;
  double seconds = 0;
};

template <int kDigits>
std::string human_number(const Json& value) {
  return fmt::format("{:.{}f}", value.get<double>(), kDigits);
}

const RecordColumn<LmRecord> kLmColumns[] = {
    {"task", [](const LmRecord&) { return json_of(name_of(Task::lm)); }},
    {"memory", [](const LmRecord& r) { return json_of(r.memory); }, Style::key},
    {"segment", [](const LmRecord& r) { return json_of(r.segment); }, Style::key},
    {"tokens", [](const LmRecord& r) { return json_of(r.facts.tokens); }},
    {"words", [](const LmRecord& r) { return json_of(r.facts.words); }},
    {"bytes", [](const LmRecord& r) { return json_of(r.facts.bytes); }},
    {"nll", [](const LmRecord& r) { return json_of(r.score.per_token()); }, Style::measured, human_number<4>},
    {"perplexity", [](const LmRecord& r) { return json_of(r.score.perplexity()); }, Style::measured, human_number<2>},
    {"word_perplexity", [](const LmRecord& r) { return json_of(r.score.word_perplexity(r.facts)); }, Style::measured,
     human_number<2>},
    {"bits_per_byte", [](const LmRecord& r) { return json_of(r.score.bits_per_byte(r.facts)); }, Style::measured,
     human_number<4>},
    {"seconds", [](const LmRecord& r) { return json_of(r.seconds); }, Style::measured,
     [](const Json& value) { return human_seconds(value.get<double>()); }},
};

// A tensor that --dump-qkv wrote.
struct DumpRecord {
  std::string file;
  int64_t layer = 0;
  std::string tensor;
  std::vector<int64_t> shape;
};

const RecordColumn<DumpRecord> kDumpColumns[] = {
    {"file", [](const DumpRecord& r) { return json_of(r.file); }},
    {"layer", [](const DumpRecord& r) { return json_of(r.layer); }, Style::key},
    {"tensor", [](const DumpRecord& r) { return json_of(r.tensor); }, Style::key},
    {"shape", [](const DumpRecord& r) { return json_of(r.shape); }, Style::key},
};

void check_ids(std::span<const int32_t> ids, const ModelConfig& config) {
  for (const int32_t id : ids) {
    if (id >= config.vocabulary)
      throw Error(fmt::format("the tokenizer gives token {}, but the vocabulary of the model is {}", id, config.vocabulary));
  }
}

// Segments that are asked for, or the one that the model was trained with.
std::vector<int64_t> segments_of(const EvalFlags& flags) {
  if (!flags.segments.empty()) return flags.segments;
  return {trained_with(flags.model).segment};
}

std::vector<Memory> memory_of(const EvalFlags& flags, const ModelConfig& config) {
  const bool can_carry = train::can_carry(config);
  if (flags.memory.empty()) return can_carry ? std::vector{Memory::reset, Memory::carried} : std::vector{Memory::reset};
  for (const Memory memory : flags.memory) {
    if (memory == Memory::carried && !can_carry)
      throw UsageError(fmt::format("--memory: the memory of '{}' with positions {} cannot be carried, expected reset",
                                   to_string(config.estimator(0)), name_of(config.positions)));
  }
  return flags.memory;
}

// Tokens that a carried memory takes per call: a matter of speed.
constexpr int64_t kCarriedSegment = 512;

void score(const EvalFlags& flags, nn::LanguageModelImpl& model, const train::ScoredText& text) {
  struct Part {
    Memory memory;
    int64_t segment;
  };
  std::vector<Part> parts;
  for (const Memory memory : memory_of(flags, model.config())) {
    if (memory == Memory::carried) {
      parts.push_back({memory, kCarriedSegment});
      continue;
    }
    for (const int64_t segment : segments_of(flags)) parts.push_back({memory, segment});
  }
  std::vector<LmRecord> records;
  {
    PartsProgress progress(static_cast<int64_t>(parts.size()), text.facts.tokens);
    for (const auto& [memory, segment] : parts) {
      const bool carried = memory == Memory::carried;
      const auto start = std::chrono::steady_clock::now();
      LmRecord record{.memory = std::string(name_in(kMemories, memory)), .segment = carried ? 0 : segment, .facts = text.facts};
      record.score = train::score_lm(
          model, text.ids,
          {.segment = segment,
           .carried = carried,
           .batch = flags.batch,
           .progress = progress.begin(carried ? "memory carried through the text" : fmt::format("segments of {}", segment))});
      require_finite_nll(record.score.per_token());
      record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      records.push_back(record);
    }
  }
  print_table(kLmColumns, std::span<const LmRecord>(records), flags.output.format(), std::cout);
}

// q, k and v of the first segment of the text, as layer 0, 1, .. or --layer saw them, [B, T, H, d].
void dump_qkv(const EvalFlags& flags, nn::LanguageModelImpl& model, std::span<const int32_t> ids) {
  const auto attentions = model.attentions();
  const auto layers = static_cast<int64_t>(attentions.size());
  if (flags.layer && (*flags.layer < 0 || *flags.layer >= layers))
    throw UsageError(fmt::format("--layer: there is no layer {}, expected 0 to {}", *flags.layer, layers - 1));
  const auto segment = std::min(segments_of(flags).front(), static_cast<int64_t>(ids.size()));
  const train::EvaluationMode evaluation(model);
  for (const auto& attention : attentions) attention->keep(true);
  model.hidden(torch::tensor(std::vector<int64_t>(ids.begin(), ids.begin() + segment)).unsqueeze(0));

  NamedTensors tensors;
  std::vector<DumpRecord> records;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (flags.layer && layer != *flags.layer) continue;
    const auto& kept = attentions[static_cast<size_t>(layer)]->kept();
    const std::pair<const char*, const Tensor*> parts[] = {{"q", &kept.q}, {"k", &kept.k}, {"v", &kept.v}};
    for (const auto& [name, tensor] : parts) {
      tensors.emplace_back(flags.layer ? name : fmt::format("layers.{}.{}", layer, name), tensor->to(at::kFloat));
      records.push_back({flags.dump.string(), layer, tensors.back().first, tensor->sizes().vec()});
    }
  }
  save_tensors(flags.dump, tensors);
  // The table would repeat the message: it is left out, unless a program is to read it.
  if (const Format format = flags.output.format(); format != Format::markdown) {
    print_table(kDumpColumns, std::span<const DumpRecord>(records), format, std::cout);
  }
  say("{}: q, k and v of {} tokens, for raffia approx --causal --input {}{}", flags.dump.string(), segment, flags.dump.string(),
      flags.layer ? "" : " --names layers.0.q,layers.0.k,layers.0.v");
}

}  // namespace

void evaluate_lm(const EvalFlags& flags, const ModelConfig& config) {
  if (flags.layer && flags.dump.empty()) throw UsageError("--layer: is for --dump-qkv, which is not given");
  if (is_file_of_model(flags.dump, flags.model)) {
    throw UsageError(fmt::format("--dump-qkv: {} is a file of a model: expected another name", flags.dump.string()));
  }
  if (is_same_file(flags.dump, flags.data)) {
    throw UsageError(fmt::format("--dump-qkv: {} is the data (--data): expected another name", flags.dump.string()));
  }
  nn::LanguageModelImpl model(config);
  nn::load_weights(model, flags.model / kWeightsFile);
  const auto tokenizer = load_tokenizer(flags.model);
  const std::string read = train::read_for(tokenizer->kind(), flags.data);
  const train::ScoredText text = train::scored_text(*tokenizer, read);
  check_ids(text.ids, config);
  UnknownTokens unknown(*tokenizer);
  unknown.add(read, text.ids);
  if (const std::string summary = unknown.summary(); !summary.empty()) say("{}: {}", flags.data.string(), summary);
  if (!flags.dump.empty()) return dump_qkv(flags, model, text.ids);
  score(flags, model, text);
}

}  // namespace raffia::cli
