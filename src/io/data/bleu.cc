#include "io/data/bleu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "core/check.h"
#include "raffia/version.h"

namespace raffia::internal {
namespace {

constexpr size_t kOrders = 4;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_point(char c) { return c == '.' || c == ','; }

// ASCII punctuation but for the apostrophe, comma, dash and full stop; the space too.
bool is_separate(char c) {
  const auto within = [c](char low, char high) { return c >= low && c <= high; };
  return within(' ', '&') || within('(', '+') || c == '/' || within(':', '@') || within('[', '`') || within('{', '~');
}

std::string replaced(std::string_view text, std::string_view found, std::string_view instead) {
  std::string result;
  for (size_t at = text.find(found); at != std::string_view::npos; at = text.find(found)) {
    result.append(text.substr(0, at)).append(instead);
    text.remove_prefix(at + found.size());
  }
  return result.append(text);
}

// Bytes of the Unicode white space at text[at]; 0: there is none.
size_t space_size(std::string_view text, size_t at) {
  const char c = text[at];
  if (c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F)) return 1;
  constexpr std::string_view kWide[] = {"\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\xA8",
                                        "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
  const std::string_view rest = text.substr(at);
  for (const std::string_view wide : kWide) {
    if (rest.starts_with(wide)) return wide.size();
  }
  const bool of_general_punctuation = rest.starts_with("\xE2\x80") && rest.size() > 2;  // U+2000 to U+200A
  return of_general_punctuation && static_cast<unsigned char>(rest[2]) <= 0x8A ? 3 : 0;
}

size_t space_at_end(std::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(text.size(), 3); ++size) {
    if (space_size(text, text.size() - size) == size) return size;
  }
  return 0;
}

// Puts a space between the bytes a and b of each pair for which matches(a, b) holds, and one before or after the pair if asked
// to. Pairs are found from the left and share no byte.
template <typename Matches>
std::string with_spaces(std::string_view text, const Matches& matches, bool before, bool after) {
  std::string result;
  for (size_t at = 0; at < text.size(); ++at) {
    if (at + 1 < text.size() && matches(text[at], text[at + 1])) {
      if (before) result += ' ';
      result += text[at++];
      result += ' ';
      result += text[at];
      if (after) result += ' ';
    } else {
      result += text[at];
    }
  }
  return result;
}

std::string single_spaced(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    if (const size_t space = space_size(text, at); space > 0) {
      if (!result.empty() && result.back() != ' ') result += ' ';
      at += space;
    } else {
      result += text[at++];
    }
  }
  if (result.ends_with(' ')) result.pop_back();
  return result;
}

// How often each n-gram of a sentence of tokens occurs, for one n.
class NgramCounts {
 public:
  NgramCounts(std::string_view tokens, size_t order) {
    std::vector<size_t> begins;  // of tokens, and one past the last
    if (!tokens.empty()) begins.push_back(0);
    for (size_t at = 0; at < tokens.size(); ++at) {
      if (tokens[at] == ' ') begins.push_back(at + 1);
    }
    begins.push_back(tokens.size() + 1);
    for (size_t i = 0; i + order < begins.size(); ++i) {
      ++counts_[tokens.substr(begins[i], begins[i + order] - 1 - begins[i])];
      ++total_;
    }
  }

  int64_t total() const { return total_; }

  // Each n-gram counts as often as it occurs in both.
  int64_t matches(const NgramCounts& other) const {
    int64_t both = 0;
    for (const auto& [ngram, count] : counts_) {
      if (const auto found = other.counts_.find(ngram); found != other.counts_.end()) both += std::min(count, found->second);
    }
    return both;
  }

 private:
  std::unordered_map<std::string_view, int64_t> counts_;
  int64_t total_ = 0;
};

void score(Bleu& bleu) {
  const auto own = static_cast<double>(bleu.hypothesis_length), wanted = static_cast<double>(bleu.reference_length);
  if (own < wanted) bleu.brevity_penalty = own > 0 ? std::exp(1 - wanted / own) : 0;
  if (std::ranges::all_of(bleu.matches, [](int64_t count) { return count == 0; })) return;
  double halving = 1, sum_of_logs = 0;
  for (size_t n = 0; n < kOrders; ++n) {
    if (bleu.totals[n] == 0) return;  // sentences so short have no score
    const auto total = static_cast<double>(bleu.totals[n]);
    if (bleu.matches[n] == 0) halving *= 2;  // no match counts as a half, the next time as a quarter
    const double matches = bleu.matches[n] == 0 ? 1 / halving : static_cast<double>(bleu.matches[n]);
    bleu.precisions[n] = 100 * matches / total;
    sum_of_logs += std::log(bleu.precisions[n]);
  }
  bleu.score = bleu.brevity_penalty * std::exp(sum_of_logs / kOrders);
}

}  // namespace

// The four rules of mteval-v13a, in its order. They look at ASCII alone, so bytes will do for characters.
std::string tokens_13a(std::string_view sentence) {
  while (const size_t space = space_at_end(sentence)) sentence.remove_suffix(space);
  std::string text = replaced(sentence, "<skipped>", "");
  text = replaced(text, "-\n", "");
  text = replaced(text, "\n", " ");
  text = replaced(text, "&quot;", "\"");
  text = replaced(text, "&amp;", "&");
  text = replaced(text, "&lt;", "<");
  text = replaced(text, "&gt;", ">");
  std::string spaced(1, ' ');
  for (const char c : text) {
    if (is_separate(c)) spaced += ' ';
    spaced += c;
    if (is_separate(c)) spaced += ' ';
  }
  spaced += ' ';
  const std::string first = with_spaces(
      spaced, [](char a, char b) { return !is_digit(a) && is_point(b); }, false, true);
  const std::string second = with_spaces(
      first, [](char a, char b) { return is_point(a) && !is_digit(b); }, true, false);
  const std::string third = with_spaces(
      second, [](char a, char b) { return is_digit(a) && b == '-'; }, false, true);
  return single_spaced(third);
}

Bleu corpus_bleu(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  require(hypotheses.size() == references.size(), "corpus_bleu: {} translations and {} references, expected the same number",
          hypotheses.size(), references.size());
  Bleu bleu;
  for (size_t i = 0; i < hypotheses.size(); ++i) {
    const std::string own = tokens_13a(hypotheses[i]), wanted = tokens_13a(references[i]);
    for (size_t n = 0; n < kOrders; ++n) {
      const NgramCounts found(own, n + 1), expected(wanted, n + 1);
      bleu.matches[n] += found.matches(expected);
      bleu.totals[n] += found.total();
      if (n == 0) {
        bleu.hypothesis_length += found.total();
        bleu.reference_length += expected.total();
      }
    }
  }
  score(bleu);
  return bleu;
}

std::string bleu_signature() {
  return fmt::format("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:raffia-{}", RAFFIA_VERSION);
}

}  // namespace raffia::internal
