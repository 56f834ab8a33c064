#include "io/tokenizers/word_splits.h"

#include <algorithm>

#include "io/formats/text.h"
#include "io/tokenizers/unicode_classes.h"

namespace raffia::internal {
namespace {

enum class Class : uint8_t { letter, number, space, other, end };

struct Next {
  Class kind;
  size_t size;  // bytes; 0 at the end
};

Next next(std::string_view text, size_t at) {
  if (at >= text.size()) return {Class::end, 0};
  if (text[at] == '\0') return {Class::other, 1};
  const Character character = character_at(text, at);
  if (is_unicode_letter(character.code)) return {Class::letter, character.size};
  if (is_unicode_number(character.code)) return {Class::number, character.size};
  return {is_unicode_space(character.code) ? Class::space : Class::other, character.size};
}

// Where a run of at most `max` characters of one kind ends.
size_t end_of_run(std::string_view text, size_t at, Class kind, size_t max = SIZE_MAX) {
  for (size_t count = 0; count < max; ++count) {
    const Next character = next(text, at);
    if (character.kind != kind) break;
    at += character.size;
  }
  return at;
}

bool is_line_end(char byte) { return byte == '\n' || byte == '\r'; }

// Bytes of 's 't 're 've 'm 'll 'd at text[at]; 0: none of them.
size_t contraction_size(std::string_view text, size_t at, bool any_case) {
  if (text[at] != '\'') return 0;
  const auto letter = [&](size_t i) {
    const char byte = at + i < text.size() ? text[at + i] : '\0';
    return any_case && byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte + ('a' - 'A')) : byte;
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
  return two ? 3 : 0;
}

// \s+(?!\S)|\s+: the last character of white space is left to the word that follows, unless it is alone.
size_t end_of_spaces(std::string_view text, size_t at) {
  const size_t end = end_of_run(text, at, Class::space);
  if (end == text.size()) return end;
  size_t last = at;
  for (size_t here = at; here < end; here += next(text, here).size) last = here;
  return last > at ? last : end;
}

size_t end_of_gpt2_word(std::string_view text, size_t at) {
  if (const size_t size = contraction_size(text, at, false)) return at + size;
  const size_t begin = text[at] == ' ' ? at + 1 : at;
  const Class kind = next(text, begin).kind;
  if (kind == Class::space || kind == Class::end) return end_of_spaces(text, at);
  return end_of_run(text, begin, kind);
}

size_t end_of_llama3_word(std::string_view text, size_t at) {
  if (const size_t size = contraction_size(text, at, true)) return at + size;
  const Next first = next(text, at);
  if (first.kind == Class::letter) return end_of_run(text, at, Class::letter);
  if (first.kind == Class::number) return end_of_run(text, at, Class::number, 3);
  if (!is_line_end(text[at]) && next(text, at + first.size).kind == Class::letter) {
    return end_of_run(text, at + first.size, Class::letter);
  }
  if (const size_t begin = text[at] == ' ' ? at + 1 : at; next(text, begin).kind == Class::other) {
    size_t end = end_of_run(text, begin, Class::other);
    while (end < text.size() && is_line_end(text[end])) ++end;
    return end;
  }
  const std::string_view spaces = text.substr(at, end_of_run(text, at, Class::space) - at);
  if (const size_t line_end = spaces.find_last_of("\r\n"); line_end != std::string_view::npos) return at + line_end + 1;
  return end_of_spaces(text, at);
}

void add_gpt2_words(std::string_view text, std::vector<std::string_view>& words) {
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = end_of_gpt2_word(text, at);
    words.push_back(text.substr(at, end - at));
  }
}

}  // namespace

std::vector<std::string_view> words_of(std::string_view text, WordSplit split) {
  std::vector<std::string_view> words;
  switch (split) {
    case WordSplit::none:
      if (!text.empty()) words.push_back(text);
      break;
    case WordSplit::gpt2:
      add_gpt2_words(text, words);
      break;
    case WordSplit::gpt2_digits: {
      size_t begin = 0;
      for (size_t at = 0; at < text.size();) {
        const Next character = next(text, at);
        if (character.kind == Class::number) {
          add_gpt2_words(text.substr(begin, at - begin), words);
          words.push_back(text.substr(at, character.size));
          begin = at + character.size;
        }
        at += character.size;
      }
      add_gpt2_words(text.substr(begin), words);
      break;
    }
    case WordSplit::llama3:
      for (size_t at = 0, end = 0; at < text.size(); at = end) {
        end = end_of_llama3_word(text, at);
        words.push_back(text.substr(at, end - at));
      }
      break;
  }
  return words;
}

}  // namespace raffia::internal
