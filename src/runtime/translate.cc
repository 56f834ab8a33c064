// Translation by beam search.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "raffia/model.h"
#include "runtime/graph.h"
#include "runtime/model_access.h"
#include "runtime/sampler.h"

namespace raffia {

using namespace internal;
namespace {

using runtime::Graph;
using runtime::graph_of;
using runtime::Memories;
using runtime::Source;
using runtime::Turn;
using runtime::Workspace;

struct Hypothesis {
  std::vector<int32_t> ids;
  double log_probability = 0;
  Memories memory;
};

struct Candidate {
  size_t parent;
  int32_t id;
  double log_probability;
};

double score_of(double log_probability, size_t length, double penalty) {
  return log_probability / std::pow((5.0 + static_cast<double>(length)) / 6.0, penalty);
}

// One token for every hypothesis: logits [hypotheses, vocabulary].
std::vector<float> read(const Graph& graph, std::vector<Hypothesis>& beam, const std::vector<int32_t>& ids, const Source& source,
                        const RunOptions& run, Workspace& work) {
  std::vector<Memories*> memories;
  for (Hypothesis& one : beam) memories.push_back(&one.memory);
  const std::vector<const Source*> sources(beam.size(), &source);
  // All hypotheses have the same length: begin, then the ids.
  const std::vector<int64_t> positions(beam.size(), static_cast<int64_t>(beam[0].ids.size()));
  std::vector<float> logits(beam.size() * static_cast<size_t>(graph.config().vocabulary));
  graph.decode(ids, {.form = Turn::Form::step, .sessions = memories, .positions = positions, .sources = sources, .run = run},
               work, logits);
  return logits;
}

// The best continuations of all hypotheses, best first.
std::vector<Candidate> continuations(const std::vector<Hypothesis>& beam, std::span<const float> logits, size_t vocabulary,
                                     size_t count) {
  std::vector<Candidate> found;
  for (size_t b = 0; b < beam.size(); ++b) {
    const std::span<const float> row = logits.subspan(b * vocabulary, vocabulary);
    runtime::require_finite("translate", "token", row);
    const double sum = runtime::log_sum(row);
    for (const int32_t id : runtime::largest(row, static_cast<int64_t>(count))) {
      found.push_back({b, id, beam[b].log_probability + row[static_cast<size_t>(id)] - sum});
    }
  }
  std::ranges::stable_sort(found, std::ranges::greater{}, &Candidate::log_probability);
  if (found.size() > count) found.resize(count);
  return found;
}

// Hypothesis i of the result continues that of chosen[i]. The last user of a memory takes it over; the others get copies.
std::vector<Hypothesis> continued(std::vector<Hypothesis>& beam, const std::vector<Candidate>& chosen) {
  std::vector<size_t> heirs(beam.size());
  for (const Candidate& one : chosen) ++heirs[one.parent];
  std::vector<Hypothesis> next;
  for (const Candidate& one : chosen) {
    Hypothesis& parent = beam[one.parent];
    Hypothesis& heir = next.emplace_back();
    heir.ids = parent.ids;
    heir.ids.push_back(one.id);
    heir.log_probability = one.log_probability;
    heir.memory = --heirs[one.parent] == 0 ? std::move(parent.memory) : parent.memory;
  }
  return next;
}

}  // namespace

std::vector<Translation> translate(const Model& model, std::span<const int32_t> source, const TranslateOptions& options) {
  const Graph& graph = graph_of(model);
  graph.require_task("translate", Task::translate);
  graph.require_ids("translate", source);
  constexpr int64_t kMax = TranslateOptions::kMaxBeam;
  require(options.beam >= 1 && options.beam <= kMax, "translate: beam is {}, expected 1 to {}", options.beam, kMax);
  require(options.max_tokens >= 0, "translate: max_tokens is {}, expected 0 or more", options.max_tokens);
  require(std::isfinite(options.length_penalty), "translate: length_penalty is {}, expected a number", options.length_penalty);
  graph.require_room("translate", graph.encoder(), static_cast<int64_t>(source.size()));
  if (source.empty()) return {{}};

  Workspace work;
  const float* encoded = graph.encode(source, options.run, work);
  const Source memory_of_source = graph.decoder().read_source(encoded, static_cast<int64_t>(source.size()), options.run);
  auto max = static_cast<size_t>(options.max_tokens > 0 ? options.max_tokens : 2 * static_cast<int64_t>(source.size()) + 16);
  if (const int64_t room = graph.decoder().max_positions(); room > 0) max = std::min(max, static_cast<size_t>(room));

  const auto beam_size = static_cast<size_t>(options.beam), vocabulary = static_cast<size_t>(graph.config().vocabulary);
  std::vector<Translation> ended;
  const auto end = [&](const Hypothesis& one, double log_probability) {
    ended.push_back({one.ids, log_probability, score_of(log_probability, one.ids.size() + 1, options.length_penalty)});
  };
  std::vector<Hypothesis> beam(1);
  beam[0].memory = graph.decoder().empty_memory();
  std::vector<int32_t> last = {Tokenizer::kBegin};
  while (!beam.empty() && beam[0].ids.size() < max) {
    const std::vector<float> logits = read(graph, beam, last, memory_of_source, options.run, work);
    // Twice as many as the beam: even if half of them end, the beam stays full.
    std::vector<Candidate> chosen;
    for (const Candidate& one : continuations(beam, logits, vocabulary, 2 * beam_size)) {
      if (chosen.size() == beam_size) break;
      if (one.id == Tokenizer::kEnd) {
        end(beam[one.parent], one.log_probability);
        if (beam_size == 1) break;  // greedy: the most likely token was the end
      } else {
        chosen.push_back(one);
      }
    }
    if (beam_size == 1 && !ended.empty()) break;
    beam = continued(beam, chosen);
    last.clear();
    for (const Hypothesis& one : beam) last.push_back(one.ids.back());
    if (ended.size() < beam_size || beam.empty()) continue;
    // Log probabilities only decrease: can the best unfinished hypothesis still win, at the maximum length?
    const size_t length = options.length_penalty > 0 ? max + 1 : beam[0].ids.size() + 1;
    const double hope = score_of(beam[0].log_probability, length, options.length_penalty);
    std::ranges::stable_sort(ended, std::ranges::greater{}, &Translation::score);
    if (hope <= ended[beam_size - 1].score) break;
  }
  // If no hypothesis ended, the unfinished ones are returned.
  if (ended.empty()) {
    for (const Hypothesis& one : beam) end(one, one.log_probability);
  }
  std::ranges::stable_sort(ended, std::ranges::greater{}, &Translation::score);
  if (ended.size() > beam_size) ended.resize(beam_size);
  return ended;
}

std::vector<float> translation_logits(const Model& model, std::span<const int32_t> source, std::span<const int32_t> target,
                                      const RunOptions& options) {
  const Graph& graph = graph_of(model);
  graph.require_task("translation_logits", Task::translate);
  graph.require_ids("translation_logits", source);
  graph.require_ids("translation_logits", target);
  require(!source.empty(), "translation_logits: the source is empty");
  const auto rows = static_cast<int64_t>(target.size());
  graph.require_room("translation_logits", graph.encoder(), static_cast<int64_t>(source.size()));
  graph.require_room("translation_logits", graph.decoder(), rows);
  std::vector<float> logits(static_cast<size_t>(rows * graph.config().vocabulary));
  if (rows == 0) return logits;
  Workspace work;
  const float* encoded = graph.encode(source, options, work);
  const Source read_source = graph.decoder().read_source(encoded, static_cast<int64_t>(source.size()), options);
  Memories memory = graph.decoder().empty_memory();
  Memories* session = &memory;
  const Source* one = &read_source;
  const std::vector<int64_t> positions = runtime::positions_from(0, rows);
  graph.decode(
      target,
      {.form = Turn::Form::sequence, .sessions = {&session, 1}, .positions = positions, .sources = {&one, 1}, .run = options},
      work, logits);
  return logits;
}

}  // namespace raffia
