// raffia translate and raffia classify from outside: a line in, a line out.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/model_case.h"

namespace {

using nlohmann::json;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<json> objects_of(const std::string& text) {
  std::vector<json> objects;
  for (const std::string& line : lines_of(text)) objects.push_back(json::parse(line));
  return objects;
}

using Translate = ModelCommand;

TEST_F(Translate, EveryLineHasItsTranslationAndEmptyOnesStayEmpty) {
  const Result result = raffia("translate " + model("translate-gate"), R"(printf 'abc\n\ndef ab\nabc' |)");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const Result again = raffia("translate " + model("translate-gate") + " --json", R"(printf 'abc\n\ndef ab\nabc' |)");
  const std::vector<json> objects = objects_of(again.out);
  ASSERT_EQ(objects.size(), 4U) << again.out;
  std::string expected;
  for (const json& each : objects) {
    expected += (each["translations"].empty() ? "" : each["translations"][0]["text"].get<std::string>()) + "\n";
  }
  EXPECT_EQ(result.out, expected);
  EXPECT_EQ(objects[1]["translations"], json::array());
  EXPECT_EQ(objects[2]["source"], "def ab");
  EXPECT_EQ(objects[3]["line"], 4);
  EXPECT_EQ(objects[0]["translations"], objects[3]["translations"]);
}

TEST_F(Translate, TheBestOfABeamComeBestFirst) {
  const std::string base = "translate " + model("translate-softmax") + " --beam 4 --n-best 3 --most-tokens 12";
  const std::vector<json> objects = objects_of(raffia(base + " --json", "echo abc def |").out);
  ASSERT_EQ(objects.size(), 1U);
  const json& translations = objects[0]["translations"];
  ASSERT_EQ(translations.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LE(translations[i]["ids"].size(), 12U);
    EXPECT_LE(translations[i]["log_probability"].get<double>(), 0);
    if (i > 0) {
      EXPECT_LE(translations[i]["score"].get<double>(), translations[i - 1]["score"].get<double>());
    }
  }
  const std::vector<std::string> lines = lines_of(raffia(base, "echo abc def |").out);
  ASSERT_GE(lines.size(), 3U);
  EXPECT_EQ(lines[0].substr(0, 2), "1\t");
}

TEST_F(Translate, WrongUseIsRefused) {
  expect_refused(2, "translate", "model is required");
  expect_refused(2, "translate " + model("translate-gate") + " --beam 2 --n-best 3", "--n-best: 3 is more than the 2 hypotheses");
  expect_refused(2, "translate " + model("translate-gate") + " --beam 0", "--beam: '0' is not a positive integer");
  expect_refused(2, "translate " + model("translate-gate") + " --length-penalty x", "--length-penalty: 'x' is not a number");
  expect_refused(1, "translate " + model("lm-gate"), "is a model for lm, expected translate (use raffia generate)");
  expect_refused(1, "translate " + file("missing"), "missing");
}

TEST_F(Translate, NumbersThatAreNotFiniteAreAFailureOfTheirLine) {
  (void)model("translate-gate");
  const std::filesystem::path weights = directory_.path() / "translate-gate" / "model.safetensors";
  std::string bytes = contents(weights);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const float huge = 3e38F;  // its products are infinite
  for (size_t at = sizeof(header) + header; at + sizeof(huge) <= bytes.size(); at += sizeof(huge)) {
    std::memcpy(bytes.data() + at, &huge, sizeof(huge));
  }
  directory_.write("translate-gate/model.safetensors", bytes);
  const Result result = raffia("translate " + model("translate-gate"), R"(printf '\n\nabc\n' |)");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("line 3: translate: the logit of token "), std::string::npos) << result.err;
}

class Classify : public ModelCommand {
 protected:
  // Version 1.0 of numpy's format, float32.
  std::string npy(const std::string& shape, const std::vector<float>& values) const {
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }";
    header.resize((10 + header.size() + 64) / 64 * 64 - 10, ' ');
    header.back() = '\n';
    std::string bytes = "\x93NUMPY";
    bytes += {1, 0, static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)};
    bytes += header;
    const auto* data = reinterpret_cast<const char*>(values.data());
    return bytes.append(data, values.size() * sizeof(float));
  }
};

TEST_F(Classify, EveryLineHasClassesWhoseProbabilitiesSumToOne) {
  const std::string base = "classify " + model("classify-softmax") + " --top 3 --json";
  const std::vector<json> objects = objects_of(raffia(base, R"(printf 'abc\n\nabc\ndef gh\n' |)").out);
  ASSERT_EQ(objects.size(), 4U);
  for (const json& each : objects) {
    ASSERT_EQ(each["classes"].size(), 3U);
    double sum = 0, last = 1;
    for (const json& one : each["classes"]) {
      EXPECT_LE(one["probability"].get<double>(), last);
      sum += last = one["probability"].get<double>();
    }
    EXPECT_NEAR(sum, 1, 1e-12);  // three roundings of doubles
  }
  EXPECT_EQ(objects[0]["classes"], objects[2]["classes"]);
  EXPECT_NE(objects[0]["classes"], objects[3]["classes"]);

  const std::vector<std::string> lines = lines_of(raffia("classify " + model("classify-softmax"), R"(printf 'abc\n' |)").out);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].substr(0, 2), std::to_string(objects[0]["classes"][0]["class"].get<int>()) + "\t");
}

TEST_F(Classify, ClassesHaveNamesAndFilesAreReadLikeStdin) {
  const std::string name = model("classify-softmax");
  directory_.write("classify-softmax/classes.txt", "bad\nfair\ngood\n");
  directory_.write("first", "abc\ndef\n");
  directory_.write("second", "abc\ndef");
  const std::vector<json> objects =
      objects_of(raffia("classify " + name + " --json " + file("first") + " " + file("second")).out);
  ASSERT_EQ(objects.size(), 4U);
  const std::vector<std::string> names = {"bad", "fair", "good"};
  for (const json& each : objects) EXPECT_EQ(each["classes"][0]["label"], names[each["classes"][0]["class"].get<size_t>()]);
  EXPECT_EQ(objects[1]["classes"], objects[3]["classes"]);
  EXPECT_EQ(objects[3]["number"], 2);
  EXPECT_EQ(lines_of(raffia("classify " + name + " --whole " + file("first") + " " + file("second")).out).size(), 2U);

  directory_.write("classify-softmax/classes.txt", "bad\ngood\n");
  expect_refused(1, "classify " + name, "classes.txt: has 2 class names, expected 3");
}

TEST_F(Classify, CompressedFilesAndStdinAreWhatTheyWereBefore) {
  directory_.write("lines", "abc\nfed cab\n\n");
  ASSERT_EQ(std::system(("cd '" + directory_.path().string() + "' && gzip -k lines && xz -k lines").c_str()), 0);
  const std::string classifier = "classify " + model("classify-softmax") + " ",
                    translator = "translate " + model("translate-gate");
  const std::string classes = raffia(classifier + file("lines")).out,
                    lines = raffia(translator, "cat " + file("lines") + " |").out;
  EXPECT_EQ(lines_of(classes).size(), 3U);
  for (const std::string name : {"lines.gz", "lines.xz"}) {
    EXPECT_EQ(raffia(classifier + file(name)).out, classes);
    EXPECT_EQ(raffia(classifier + "--whole " + file(name)).out, raffia(classifier + "--whole " + file("lines")).out);
    EXPECT_EQ(raffia(classifier, "cat " + file(name) + " |").out, classes);
    EXPECT_EQ(raffia(translator, "cat " + file(name) + " |").out, lines);
  }
}

TEST_F(Classify, UnknownCharactersAreToldOnce) {
  const std::string said = "2 characters are not in the vocabulary and were read as unknown tokens: \"X\", \"Y\"\n";
  EXPECT_EQ(raffia("classify " + model("classify-softmax"), R"(printf 'abX\nY\n' |)").err, said);
  EXPECT_EQ(raffia("translate " + model("translate-gate"), R"(printf 'abX\nY\n' |)").err, said);
}

TEST_F(Classify, PairsComeWithATabBetween) {
  const std::string base = "classify " + model("pairs-mixed");
  const std::vector<std::string> lines = lines_of(raffia(base, R"(printf 'abc\tdef\ndef\tabc\n' |)").out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0], lines[1]);
  expect_refused(1, base, "stdin: line 1: expected two texts separated by a tab", "echo abc |");
  expect_refused(1, base + " --whole", "stdin: expected two texts separated by a tab", "echo abc |");
}

TEST_F(Classify, TextsAreCutWhereTheModelHasNoMorePositions) {
  const std::string base = "classify " + model("classify-rfa") + " --json";  // 19 of them
  const std::string nineteen = "abcdefghiabcdefghia";
  EXPECT_EQ(objects_of(raffia(base, "echo " + nineteen + " |").out)[0]["classes"],
            objects_of(raffia(base, "echo " + nineteen + "bcdef |").out)[0]["classes"]);
  EXPECT_EQ(objects_of(raffia(base + " --most-tokens 3", "echo abcdef |").out)[0]["classes"],
            objects_of(raffia(base, "echo abc |").out)[0]["classes"]);
}

TEST_F(Classify, ImagesComeAsArrays) {
  const std::string base = "classify " + model("image-softmax") + " ";  // [2, 12, 12]
  std::vector<float> pixels(2 * 2 * 12 * 12);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<float>(i % 97) / 97;
  directory_.write("two.npy", npy("(2, 2, 12, 12)", pixels));
  directory_.write("second.npy", npy("(2, 12, 12)", {pixels.begin() + 2 * 12 * 12, pixels.end()}));
  const std::vector<std::string> lines = lines_of(raffia(base + file("two.npy") + " " + file("second.npy")).out);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1], lines[2]);
  directory_.write("flat.npy", npy("(576,)", pixels));
  expect_refused(1, base + file("flat.npy"), "flat.npy: has shape [576], expected [2, 12, 12]");
  pixels[5] = 255;
  directory_.write("bytes.npy", npy("(2, 2, 12, 12)", pixels));
  expect_refused(1, base + file("bytes.npy"), "bytes.npy: contains 255, expected numbers from 0");
  directory_.write("grey.pgm", "P2 2 1 9\n0 9\n");
  expect_refused(1, base + file("grey.pgm"), "grey.pgm: has shape [1, 1, 2], expected [2, 12, 12]");
  directory_.write("cut.ppm", "P6 2 1 9\nabc");
  expect_refused(1, base + file("cut.ppm"), "cut.ppm: byte 9: 3 bytes follow, expected 6");
  expect_refused(2, base, "image files are missing");
  expect_refused(2, base + "--whole " + file("two.npy"), "--whole");
}

TEST_F(Classify, WrongUseIsRefused) {
  expect_refused(2, "classify", "model is required");
  expect_refused(2, "classify " + model("classify-softmax") + " --top 0", "--top: '0' is not a positive integer");
  expect_refused(1, "classify " + model("lm-gate"), "is a model for lm, expected classify or image");
  expect_refused(1, "classify " + model("classify-softmax") + " " + file("missing"), "missing: cannot open");
}

}  // namespace
