#include "io/formats/json_fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "raffia/error.h"
#include "raffia/model_config.h"
#include "raffia/tokenizer.h"
#include "support/refusal.h"

namespace raffia::internal {
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

TEST(Json, MissingFieldsHaveDefaultsAndOthersAreChecked) {
  JsonFields fields = JsonFields::parse(R"({"a": 3, "b": 0.5, "text": "x"})", "here");
  EXPECT_EQ(fields.integer("a", 0, 9, 7), 3);
  EXPECT_EQ(fields.integer("c", 0, 9, 7), 7);
  EXPECT_EQ(fields.unsigned_integer("c", 7), 7U);
  EXPECT_EQ(fields.number("b", 0, 1, 0.25), 0.5);
  EXPECT_EQ(fields.number("c", 0, 1, 0.25), 0.25);
  EXPECT_EQ(refusal<FormatError>([&] { (void)fields.integer("a", 4, 9, 7); }),
            "here: field \"a\" is 3, expected an integer from 4 to 9");
  EXPECT_EQ(refusal<FormatError>([&] { (void)fields.number("text", 0, 1, 0.25); }),
            "here: field \"text\" is a value of type string, expected a number from 0 to 1");
}

TEST(Json, OnlyUnknownFieldsThatResembleAKnownOneAreMisspelled) {
  const std::vector<std::string> known = {"width", "heads"};
  JsonFields::parse(R"({"width": 1, "color": 2})", "here").refuse_misspelled(known);
  EXPECT_EQ(refusal<FormatError>([&] { JsonFields::parse(R"({"widht": 1})", "here").refuse_misspelled(known); }),
            "here: field \"widht\" is unknown: did you mean 'width'?");
}

}  // namespace
}  // namespace raffia::internal
