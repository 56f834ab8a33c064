// Small vocabularies of the kinds that come from elsewhere, as the files of their makers write them.
#ifndef RAFFIA_TESTS_SUPPORT_TINY_VOCABULARY_H_
#define RAFFIA_TESTS_SUPPORT_TINY_VOCABULARY_H_

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace raffia::internal {

// tok.bin of llama2.c.
inline std::string tok_bin(const std::vector<std::pair<std::string, float>>& pieces) {
  std::string bytes;
  const auto add = [&bytes](auto word) {
    char raw[sizeof(word)];
    std::memcpy(raw, &word, sizeof(word));
    bytes.append(raw, sizeof(word));
  };
  size_t longest = 0;
  for (const auto& [piece, score] : pieces) longest = std::max(longest, piece.size());
  add(static_cast<int32_t>(longest));
  for (const auto& [piece, score] : pieces) {
    add(score);
    add(static_cast<int32_t>(piece.size()));
    bytes += piece;
  }
  return bytes;
}

// Unknown, begin, end, 256 bytes, then these pieces from id 259 on; each scores less than the one before.
inline std::vector<std::pair<std::string, float>> scored_pieces(const std::vector<std::string>& pieces) {
  std::vector<std::pair<std::string, float>> all = {{"<unk>", 0.0F}, {"\n<s>\n", 0.0F}, {"\n</s>\n", 0.0F}};
  for (int byte = 0; byte < 256; ++byte) all.emplace_back(fmt::format("<0x{:02X}>", byte), 0.0F);
  for (const std::string& piece : pieces) all.emplace_back(piece, -static_cast<float>(all.size() - 259));
  return all;
}

// A vocabulary of bytes (ids 0..255, in the order of GPT-2), what `merges` make, and "<|end|>" as the last.
inline nlohmann::ordered_json hf_byte_level(const std::vector<std::pair<std::string, std::string>>& merges) {
  nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
  const auto add = [&vocabulary](const std::string& piece) { vocabulary.emplace(piece, vocabulary.size()); };
  const auto utf8 = [](uint32_t code) {
    if (code < 0x80) return std::string{static_cast<char>(code)};
    return std::string{static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
  };
  for (uint32_t code = 0x21; code <= 0x7E; ++code) add(utf8(code));
  for (uint32_t code = 0xA1; code <= 0xFF; ++code) {
    if (code != 0xAD) add(utf8(code));
  }
  for (uint32_t code = 0x100; code < 0x100 + 68; ++code) add(utf8(code));
  nlohmann::ordered_json pairs = nlohmann::ordered_json::array();
  for (const auto& [left, right] : merges) {
    add(left + right);
    pairs.push_back(left + " " + right);
  }
  const size_t end = vocabulary.size();
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens",
           {{{"id", end},
             {"content", "<|end|>"},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"normalized", false},
             {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"post_processor", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}}},
          {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", ""},
            {"end_of_word_suffix", ""},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocabulary},
            {"merges", pairs}}}};
}

// LLaMA 2: unknown, begin, end, 256 bytes, these characters from id 259 on, what `merges` make.
inline nlohmann::ordered_json hf_marks(const std::vector<std::string>& characters,
                                       const std::vector<std::pair<std::string, std::string>>& merges) {
  nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
  const auto add = [&vocabulary](const std::string& piece) { vocabulary.emplace(piece, vocabulary.size()); };
  for (const char* piece : {"<unk>", "<s>", "</s>"}) add(piece);
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte));
  for (const std::string& character : characters) add(character);
  nlohmann::ordered_json pairs = nlohmann::ordered_json::array(), added = nlohmann::ordered_json::array();
  for (const auto& [left, right] : merges) {
    add(left + right);
    pairs.push_back({left, right});
  }
  for (const char* piece : {"<unk>", "<s>", "</s>"}) {
    added.push_back({{"id", added.size()},
                     {"content", piece},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  using Json = nlohmann::ordered_json;
  const std::string mark = "\xE2\x96\x81";
  const Json normalizers = Json::array(
      {{{"type", "Prepend"}, {"prepend", mark}}, {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}}});
  const Json decoders = Json::array({{{"type", "Replace"}, {"pattern", {{"String", mark}}}, {"content", " "}},
                                     {{"type", "ByteFallback"}},
                                     {{"type", "Fuse"}},
                                     {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}});
  const Json single =
      Json::array({{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}});
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"}, {"single", single}, {"pair", single}, {"special_tokens", Json::object()}}},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocabulary},
            {"merges", pairs}}}};
}

}  // namespace raffia::internal

#endif  // RAFFIA_TESTS_SUPPORT_TINY_VOCABULARY_H_
