#include "io/imports/hf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/formats/json_fields.h"
#include "io/tokenizers/byte_pieces.h"
#include "io/tokenizers/tokenizer_kinds.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

using Json = nlohmann::json;

void expect_string(JsonFields& fields, std::string_view name, std::string_view expected) {
  if (const std::string found = fields.string(name); found != expected) {
    fields.refuse(name, fmt::format("is \"{}\", expected \"{}\"", found, expected));
  }
}

void expect_truth(JsonFields& fields, std::string_view name, bool expected) {
  if (fields.truth(name) != expected) fields.refuse(name, fmt::format("is {}, expected {}", !expected, expected));
}

// A setting that must be off: absent, null, false or empty.
void expect_off(JsonFields& fields, std::string_view name) {
  if (!fields.has_value(name)) return;
  const Json& value = fields.value(name);
  if (value != Json(false) && value != Json("")) fields.refuse(name, "is set, expected null: it is not supported");
}

// The parts of a Sequence, or the single part; none for null. Each has a type; the caller reads the rest.
std::vector<JsonFields> parts_of(JsonFields& fields, std::string_view name, std::string_view list) {
  if (!fields.has_value(name)) return {};
  std::vector<JsonFields> parts;
  JsonFields outer = fields.object(name);
  if (outer.string("type") != "Sequence") {
    parts.push_back(std::move(outer));
    return parts;
  }
  parts = outer.objects(list);
  outer.expect_no_more();
  return parts;
}

[[noreturn]] void refuse_type(JsonFields& part, std::string_view expected) {
  part.refuse("type", fmt::format("is \"{}\", which is not supported here, expected {}", part.string("type"), expected));
}

// {"type": "Replace", "pattern": {"String": from}, "content": to}
void expect_replace(JsonFields& part, std::string_view from, std::string_view to) {
  JsonFields pattern = part.object("pattern");
  expect_string(pattern, "String", from);
  pattern.expect_no_more();
  expect_string(part, "content", to);
}

class HfReader {
 public:
  HfReader(const HfTokenizerFiles& files, int64_t vocabulary)
      : files_(files), vocabulary_(vocabulary), root_(JsonFields::parse(files.tokenizer, files.where)) {}

  BpeModel read() {
    if (root_.has("version")) expect_string(root_, "version", "1.0");
    // Truncation and padding of batches do not change the meaning of ids.
    (void)root_.has_value("truncation");
    (void)root_.has_value("padding");
    read_normalizer();
    read_pre_tokenizer();
    JsonFields model = root_.object("model");
    read_model(model);
    read_added();
    read_decoder();
    read_post_processor();
    root_.expect_no_more();
    read_config();
    return std::move(bpe_);
  }

 private:
  void read_normalizer() {
    for (JsonFields& part : parts_of(root_, "normalizer", "normalizers")) {
      const std::string type = part.string("type");
      if (type == "Prepend") {
        expect_string(part, "prepend", kSpaceMark);
        bpe_.leading_space = LeadingSpace::always;
      } else if (type == "Replace") {
        expect_replace(part, " ", kSpaceMark);
      } else {
        refuse_type(part, "Prepend and Replace");
      }
      bpe_.form = BpeForm::marks;
      part.expect_no_more();
    }
  }

  void read_pre_tokenizer() {
    bool bytes = false, digits = false, pattern = false, gpt2 = false;
    for (JsonFields& part : parts_of(root_, "pre_tokenizer", "pretokenizers")) {
      const std::string type = part.string("type");
      if (type == "ByteLevel") {
        expect_truth(part, "add_prefix_space", false);
        (void)part.has_value("trim_offsets");
        bytes = true;
        gpt2 = !part.has("use_regex") || part.truth("use_regex");
      } else if (type == "Digits") {
        expect_truth(part, "individual_digits", true);
        digits = true;
      } else if (type == "Split") {
        JsonFields regex = part.object("pattern");
        expect_string(regex, "Regex", kLlama3Pattern);
        regex.expect_no_more();
        expect_string(part, "behavior", "Isolated");
        expect_truth(part, "invert", false);
        pattern = true;
      } else if (type == "Metaspace") {
        read_metaspace(part);
        expect_truth(part, "split", false);
        bpe_.form = BpeForm::marks;
      } else {
        refuse_type(part, "ByteLevel, Digits, Split or Metaspace");
      }
      part.expect_no_more();
    }
    if (bytes && bpe_.form == BpeForm::marks)
      refuse("pre_tokenizer", "has ByteLevel and marks for spaces, expected only one of them");
    if (bpe_.form == BpeForm::marks) {
      bpe_.split = WordSplit::none;
      if (digits || pattern) refuse("pre_tokenizer", "splits text that has marks for spaces, which is not supported");
      return;
    }
    if (!bytes) refuse("pre_tokenizer", "has no ByteLevel, expected one (or a normalizer that marks spaces)");
    if (pattern && (gpt2 || digits))
      refuse("pre_tokenizer", "splits twice, expected Split together with ByteLevel without use_regex");
    if (digits && !gpt2) refuse("pre_tokenizer", "has Digits without use_regex of ByteLevel, which is not supported");
    bpe_.split = pattern ? WordSplit::llama3 : digits ? WordSplit::gpt2_digits : gpt2 ? WordSplit::gpt2 : WordSplit::none;
  }

  // The space before a text, in both dialects of the format.
  void read_metaspace(JsonFields& part) {
    expect_string(part, "replacement", kSpaceMark);
    if (part.has("str_rep")) expect_string(part, "str_rep", kSpaceMark);
    bool always = true, first = false;
    if (part.has("add_prefix_space")) always = part.truth("add_prefix_space");
    if (part.has("prepend_scheme")) {
      const std::string scheme = part.string("prepend_scheme");
      if (scheme != "always" && scheme != "first" && scheme != "never") {
        part.refuse("prepend_scheme", fmt::format("is \"{}\", expected always, first or never", scheme));
      }
      always = scheme == "always";
      first = scheme == "first";
    }
    bpe_.leading_space = first ? LeadingSpace::first : always ? LeadingSpace::always : LeadingSpace::none;
  }

  void read_model(JsonFields& model) {
    if (model.has("type")) expect_string(model, "type", "BPE");  // early files leave it out
    for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) expect_off(model, name);
    (void)model.has_value("unk_token");  // never needed: every byte has a piece
    (void)model.has_value("fuse_unk");
    const bool fallback = model.has_value("byte_fallback") && model.truth("byte_fallback");
    if (bpe_.form == BpeForm::marks && !fallback) model.refuse("byte_fallback", "is false, expected true: spaces have marks");
    if (bpe_.form == BpeForm::bytes && fallback) model.refuse("byte_fallback", "is true, expected false: pieces are bytes");
    bpe_.whole_words = model.has_value("ignore_merges") && model.truth("ignore_merges");
    if (bpe_.whole_words && bpe_.form == BpeForm::marks) model.refuse("ignore_merges", "is true, expected false");
    read_vocabulary(model);
    read_merges(model);
    model.expect_no_more();
  }

  void read_vocabulary(JsonFields& model) {
    const Json& vocabulary = model.value("vocab");
    if (!vocabulary.is_object()) model.refuse("vocab", "is not an object, expected ids by piece");
    for (const auto& [piece, id] : vocabulary.items()) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(limit())) {
        model.refuse("vocab", fmt::format("has id {} for piece {}, expected 0 to {}", id.dump(-1, ' ', true),
                                          Json(piece).dump(-1, ' ', true), limit() - 1));
      }
      place(piece, id.get<int64_t>());
    }
  }

  int64_t limit() const { return vocabulary_ > 0 ? vocabulary_ : kMaxTokens; }

  void place(const std::string& piece, int64_t id) {
    const auto at = static_cast<size_t>(id);
    if (piece.empty()) refuse("model.vocab", "has an empty piece");
    if (at >= bpe_.pieces.size()) bpe_.pieces.resize(at + 1);
    if (!bpe_.pieces[at].empty() && bpe_.pieces[at] != piece) {
      refuse("model.vocab", fmt::format("has two pieces of id {}: {} and {}", id, bpe_.pieces[at], piece));
    }
    bpe_.pieces[at] = piece;
    if (const auto [known, fresh] = ids_.emplace(piece, static_cast<int32_t>(id)); !fresh && known->second != id) {
      refuse("model.vocab", fmt::format("has piece {} at ids {} and {}", piece, known->second, id));
    }
  }

  int32_t id_of(std::string_view piece, std::string_view field) const {
    const auto found = ids_.find(std::string(piece));
    if (found == ids_.end()) refuse(field, fmt::format("names piece \"{}\", which is not in the vocabulary", piece));
    return found->second;
  }

  // "left right", or ["left", "right"].
  void read_merges(JsonFields& model) {
    const Json& merges = model.value("merges");
    if (!merges.is_array()) model.refuse("merges", "is not a list");
    for (const Json& merge : merges) {
      const size_t rank = bpe_.merges.size();
      std::string left, right;
      if (merge.is_string()) {
        const auto& both = merge.get_ref<const std::string&>();
        const size_t space = both.find(' ');
        if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
          model.refuse("merges", fmt::format("has a string without exactly one space at index {}", rank));
        }
        left = both.substr(0, space);
        right = both.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        model.refuse("merges", fmt::format("has no pair of pieces at index {}", rank));
      }
      const std::string field = fmt::format("model.merges[{}]", rank);
      bpe_.merges.emplace_back(id_of(left, field), id_of(right, field));
    }
  }

  void read_added() {
    if (!root_.has_value("added_tokens")) return;
    for (JsonFields& token : root_.objects("added_tokens")) {
      const int64_t id = token.integer("id", 0, limit() - 1);
      place(token.string("content"), id);
      for (const char* name : {"single_word", "lstrip", "rstrip"}) expect_off(token, name);
      (void)token.has_value("normalized");  // such tokens hold nothing that is normalised
      bpe_.added.push_back(static_cast<int32_t>(id));
      if (token.truth("special")) bpe_.special.push_back(static_cast<int32_t>(id));
      token.expect_no_more();
    }
  }

  // The decoder follows from the form; it is only checked to match it.
  void read_decoder() {
    for (JsonFields& part : parts_of(root_, "decoder", "decoders")) {
      const std::string type = part.string("type");
      if (bpe_.form == BpeForm::bytes) {
        if (type != "ByteLevel") refuse_type(part, "ByteLevel");
        for (const char* name : {"add_prefix_space", "trim_offsets", "use_regex"}) (void)part.has_value(name);
      } else if (type == "Replace") {
        expect_replace(part, kSpaceMark, " ");
      } else if (type == "Strip") {
        expect_string(part, "content", " ");
        (void)part.integer("start", 0, 1);
        (void)part.integer("stop", 0, 0);
      } else if (type == "Metaspace") {
        const LeadingSpace leading_space = bpe_.leading_space;
        read_metaspace(part);
        bpe_.leading_space = leading_space;
        (void)part.has_value("split");
      } else if (type != "ByteFallback" && type != "Fuse") {
        refuse_type(part, "Replace, ByteFallback, Fuse, Strip or Metaspace");
      }
      part.expect_no_more();
    }
  }

  void read_post_processor() {
    for (JsonFields& part : parts_of(root_, "post_processor", "processors")) {
      const std::string type = part.string("type");
      if (type == "ByteLevel") {
        for (const char* name : {"add_prefix_space", "trim_offsets", "use_regex"}) (void)part.has_value(name);
      } else if (type == "TemplateProcessing") {
        read_template(part);
      } else {
        refuse_type(part, "ByteLevel or TemplateProcessing");
      }
      part.expect_no_more();
    }
  }

  // A text, or a begin and a text.
  void read_template(JsonFields& part) {
    std::optional<std::string> begin;
    bool text = false;
    for (JsonFields& entry : part.objects("single")) {
      if (!text && !begin && entry.has("SpecialToken")) {
        JsonFields token = entry.object("SpecialToken");
        begin = token.string("id");
      } else if (!text && entry.has("Sequence")) {
        (void)entry.object("Sequence");
        text = true;
      } else {
        part.refuse("single", "is an unsupported template, expected a text, or one special piece and a text");
      }
      entry.expect_no_more();
    }
    if (!text) part.refuse("single", "has no text");
    (void)part.has_value("pair");
    (void)part.has_value("special_tokens");
    if (begin) {
      bpe_.begin = id_of(*begin, "post_processor");
      bpe_.begins_texts = true;
    }
  }

  // A token is its text, or an object that has it as content.
  std::optional<int32_t> token_of(JsonFields& config, std::string_view name) const {
    if (!config.has_value(name)) return {};
    const Json& value = config.value(name);
    const std::string piece = value.is_object() ? config.object(name).string("content") : config.string(name);
    const auto found = ids_.find(piece);
    if (found == ids_.end()) config.refuse(name, fmt::format("is \"{}\", which is not in the vocabulary", piece));
    return found->second;
  }

  void read_config() {
    if (!files_.tokenizer_config.empty()) {
      JsonFields config = JsonFields::parse(files_.tokenizer_config, files_.where_config);
      if (const auto begin = token_of(config, "bos_token"); begin && bpe_.begin < 0) bpe_.begin = *begin;
      if (const auto end = token_of(config, "eos_token")) bpe_.end = *end;
      if (config.has_value("add_bos_token")) bpe_.begins_texts = config.truth("add_bos_token");
      if (bpe_.begins_texts && bpe_.begin < 0) config.refuse("add_bos_token", "is true, but there is no bos_token");
    }
    if (vocabulary_ > 0) bpe_.pieces.resize(static_cast<size_t>(vocabulary_));
  }

  [[noreturn]] void refuse(std::string_view field, std::string_view what) const { root_.refuse(field, what); }

  const HfTokenizerFiles& files_;
  int64_t vocabulary_;
  JsonFields root_;
  BpeModel bpe_;
  std::unordered_map<std::string, int32_t> ids_;  // of pieces
};

}  // namespace

BpeModel bpe_from_hf(const HfTokenizerFiles& files, int64_t vocabulary) { return HfReader(files, vocabulary).read(); }

}  // namespace raffia::internal
