// Generates text from a session, piece by piece.
#include <algorithm>

#include "core/check.h"
#include "raffia/session.h"
#include "raffia/text_stream.h"

namespace raffia {

using namespace internal;
namespace {

// Length of the longest suffix of `text` that is a prefix of one of `stops`.
size_t possible_stop(std::string_view text, const std::vector<std::string>& stops) {
  size_t max = 0;
  for (const std::string& stop : stops) {
    for (size_t length = std::min(text.size(), stop.size() - 1); length > max; --length) {
      if (text.ends_with(std::string_view(stop).substr(0, length))) max = length;
    }
  }
  return max;
}

// Where the first stop string begins. All but the last `fresh` bytes of `text` are known to contain none.
size_t first_stop(std::string_view text, size_t fresh, const std::vector<std::string>& stops) {
  size_t first = std::string_view::npos;
  for (const std::string& stop : stops) {
    const size_t searched = text.size() - fresh;
    first = std::min(first, text.find(stop, searched - std::min(searched, stop.size() - 1)));
  }
  return first;
}

}  // namespace

Generated generate(Session& session, const GenerateOptions& options, const std::function<bool(std::string_view text)>& on_text) {
  require(options.tokens >= 0, "generate: tokens is {}, expected 0 or more", options.tokens);
  require(std::ranges::none_of(options.stop, [](const std::string& stop) { return stop.empty(); }),
          "generate: a stop string is empty");
  require(session.position() > 0, "generate: the session has read nothing, expected at least one token");
  Generated result;
  const Tokenizer& tokenizer = session.model().tokenizer();
  TextStream text(tokenizer, session.recent());
  size_t told = 0;  // bytes of result.text
  // Returns false if the caller wants to stop.
  const auto tell = [&](size_t end) {
    const std::string_view fresh = std::string_view(result.text).substr(told, end - told);
    told = end;
    return !on_text || on_text(fresh);
  };
  while (static_cast<int64_t>(result.ids.size()) < options.tokens && session.room() > 0) {
    const int32_t id = session.sample();
    if (options.ends && id == tokenizer.end()) {
      result.reason = Generated::Reason::end;
      break;
    }
    result.ids.push_back(id);
    result.log_probabilities.push_back(session.log_probability(id));
    session.step(id);
    const std::string fresh = text.add(id);
    result.text += fresh;
    if (const size_t stop = first_stop(result.text, fresh.size(), options.stop); stop != std::string::npos) {
      result.text.resize(stop);
      result.reason = Generated::Reason::stop;
      tell(result.text.size());
      return result;
    }
    if (!tell(result.text.size() - possible_stop(result.text, options.stop))) {
      result.reason = Generated::Reason::stop;
      return result;
    }
  }
  if (result.reason == Generated::Reason::length && static_cast<int64_t>(result.ids.size()) < options.tokens) {
    result.reason = Generated::Reason::room;
  }
  result.text += text.rest();
  if (result.text.size() > told) tell(result.text.size());
  return result;
}

}  // namespace raffia
