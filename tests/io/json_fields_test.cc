#include "io/formats/json_fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "raffia/error.h"
#include "raffia/model_config.h"
#include "raffia/tokenizer.h"
#include "support/refusal.h"

namespace raffia {
namespace {

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(Json, DeepNestingIsRefusedByEveryReader) {
  for (const std::string& text : {nested(200'000), std::string(200'000, '['), "{\"a\":" + nested(200'000) + "}"}) {
    EXPECT_EQ(refusal<FormatError>([&] { (void)parse_json(text, "here"); }), "here: nested deeper than 64 levels");
    EXPECT_EQ(refusal<FormatError>([&] { (void)parse_ordered_json(text, "here"); }), "here: nested deeper than 64 levels");
    EXPECT_EQ(refusal<FormatError>([&] { (void)JsonFields::parse(text, "here"); }), "here: nested deeper than 8 levels");
    EXPECT_THROW((void)model_config_from_json(text, "here"), FormatError);
    EXPECT_THROW((void)tokenizer_from_json(text, "here"), FormatError);
  }
  EXPECT_EQ(parse_json(nested(60), "here").dump(), nested(60));
}

TEST(Json, WhatIsNotJsonIsRefused) {
  for (const char* text : {"", "{", "[1,]", "nul", "{} {}"}) {
    EXPECT_EQ(refusal<FormatError>([&] { (void)parse_json(text, "here"); }).rfind("here: is not valid JSON: parse error at ", 0),
              0U);
  }
}

TEST(Json, FieldsOfATreeAreCheckedAsThoseOfAText) {
  const auto tree = parse_ordered_json(R"({"files": {"a": {"bytes": "x"}}})", "here");
  JsonFields files = JsonFields::of(tree, "here").object("files");
  EXPECT_EQ(refusal<FormatError>([&] { files.object("a").unsigned_integer("bytes"); }),
            "here: field \"files.a.bytes\" is a value of type string, expected an integer from 0 to 2^64 - 1");
  EXPECT_EQ(refusal<FormatError>([&] { files.object("b"); }), "here: field \"files.b\" is missing");
  EXPECT_EQ(refusal<FormatError>([] { JsonFields::of(parse_ordered_json("[1]", "here"), "here"); }),
            "here: is a value of type array, expected a JSON object");
}

}  // namespace
}  // namespace raffia
