#include "torch/train/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "raffia/error.h"
#include "raffia/random.h"
#include "support/compressed_text.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"
#include "torch/libtorch.h"
#include "torch/train/checkpoint.h"
#include "torch/train/log.h"
#include "torch/train/texts.h"

namespace raffia::internal::train {
namespace {

using Row = std::vector<int64_t>;

std::vector<Row> rows_of(const Tensor& ids) {
  std::vector<Row> rows;
  for (int64_t i = 0; i < ids.size(0); ++i) {
    const int64_t* row = ids.data_ptr<int64_t>() + i * ids.size(1);
    rows.emplace_back(row, row + ids.size(1));
  }
  return rows;
}

std::vector<int32_t> count_up(int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// Sequence i is i + 10 repeated so often as its length.
Sequences sequences_of(const std::vector<int64_t>& lengths) {
  Sequences sequences;
  for (size_t i = 0; i < lengths.size(); ++i) {
    sequences.emplace_back(static_cast<size_t>(lengths[i]), static_cast<int32_t>(i + 10));
  }
  return sequences;
}

std::vector<int64_t> random_lengths(size_t count, int64_t max, uint64_t seed) {
  RandomStream random({.seed = seed});
  std::vector<int64_t> lengths(count);
  for (int64_t& length : lengths) length = 1 + random.next_u32() % max;
  return lengths;
}

TEST(TokenStreams, SegmentsOfAStreamFollowEachOther) {
  const TokenStreams streams(count_up(25), 2, 4);  // streams 0..11 and 12..23: three segments each
  EXPECT_EQ(streams.steps_per_epoch(), 3);
  EXPECT_EQ(streams.tokens_per_step(), 8);
  EXPECT_EQ(rows_of(streams.at(0).input), (std::vector<Row>{{0, 1, 2, 3}, {12, 13, 14, 15}}));
  EXPECT_EQ(rows_of(streams.at(0).target), (std::vector<Row>{{1, 2, 3, 4}, {13, 14, 15, 16}}));
  EXPECT_EQ(rows_of(streams.at(2).input), (std::vector<Row>{{8, 9, 10, 11}, {20, 21, 22, 23}}));
  EXPECT_EQ(rows_of(streams.at(2).target), (std::vector<Row>{{9, 10, 11, 12}, {21, 22, 23, 24}}));
  EXPECT_TRUE(streams.at(0).first_of_epoch);
  EXPECT_FALSE(streams.at(2).first_of_epoch);
  EXPECT_TRUE(streams.at(3).first_of_epoch);
  EXPECT_EQ(rows_of(streams.at(3).input), rows_of(streams.at(0).input));  // nothing is left over: epochs are the same
}

TEST(TokenStreams, WhatIsLeftOverInOneEpochIsReadInOthers) {
  const TokenStreams streams(count_up(15), 1, 10);  // 4 of 14 tokens are left over
  std::set<int64_t> seen;
  for (int64_t step = 0; step < 8; ++step) {
    const auto batch = streams.at(step);
    const Row input = rows_of(batch.input)[0], target = rows_of(batch.target)[0];
    seen.insert(target.begin(), target.end());
    EXPECT_EQ(input.back() + 1, target.back());
  }
  EXPECT_EQ(seen.size(), 14U);
  EXPECT_EQ(rows_of(streams.at(0).input)[0].front(), 0);
}

TEST(TokenStreams, ProcessesTogetherHaveTheRowsOfOne) {
  const TokenStreams whole(count_up(1000), 5, 7);
  std::vector<Row> rows;
  for (int64_t rank = 0; rank < 3; ++rank) {
    const TokenStreams part(count_up(1000), 5, 7, {.rank = rank, .world = 3});
    EXPECT_EQ(part.steps_per_epoch(), whole.steps_per_epoch());
    const std::vector<Row> own = rows_of(part.at(31).input);
    EXPECT_EQ(static_cast<int64_t>(own.size()), part.rows());
    rows.insert(rows.end(), own.begin(), own.end());
  }
  EXPECT_EQ(rows, rows_of(whole.at(31).input));
}

TEST(TokenStreams, TextThatIsTooShortIsRefused) {
  EXPECT_EQ(refusal<InvalidArgument>([] { TokenStreams(count_up(8), 2, 4); }),
            "TokenStreams: the text has 8 tokens, expected more than batch x segment = 2 x 4 = 8");
  EXPECT_EQ(TokenStreams(count_up(9), 2, 4).steps_per_epoch(), 1);
  EXPECT_THROW(TokenStreams({}, 1, 1), InvalidArgument);
  EXPECT_THROW(TokenStreams(count_up(99), 2, 4, {.rank = 0, .world = 3}), InvalidArgument);
  EXPECT_THROW(TokenStreams(count_up(99), 2, 4, {.rank = 2, .world = 2}), InvalidArgument);
}

TEST(ExampleOrder, EveryEpochHasEachExampleOnceInAnOrderOfItsOwn) {
  const std::vector<int64_t> lengths = random_lengths(101, 60, 1);
  const ExampleOrder order(lengths, 8, 0, 3);
  EXPECT_EQ(order.steps_per_epoch(), 13);
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < order.steps_per_epoch(); ++i) {
      const auto batch = order.at(epoch * order.steps_per_epoch() + i);
      EXPECT_LE(batch.size(), 8U);
      all.insert(all.end(), batch.begin(), batch.end());
    }
    orders.insert(all);
    std::ranges::sort(all);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<int64_t>(i));
    EXPECT_EQ(all.size(), lengths.size());
  }
  EXPECT_EQ(orders.size(), 3U);
}

TEST(ExampleOrder, BatchDependsOnSeedAndStepAlone) {
  const std::vector<int64_t> lengths = random_lengths(300, 100, 2);
  const ExampleOrder there(lengths, 16, 0, 7), again(lengths, 16, 0, 7), other(lengths, 16, 0, 8);
  const auto batch = [](const ExampleOrder& order, int64_t step) {
    const auto examples = order.at(step);
    return std::vector<int64_t>(examples.begin(), examples.end());
  };
  std::vector<std::vector<int64_t>> forward, seeded;
  for (int64_t step = 0; step < 60; ++step) {
    forward.push_back(batch(there, step));
    seeded.push_back(batch(other, step));
  }
  for (int64_t step = 59; step >= 0; --step) EXPECT_EQ(batch(again, step), forward[static_cast<size_t>(step)]);
  EXPECT_NE(forward, seeded);
}

TEST(ExampleOrder, BatchesOfTokensAreOfSimilarLengthAndWithinTheirSize) {
  const std::vector<int64_t> lengths = random_lengths(2000, 200, 3);
  constexpr int64_t kTokens = 1024;
  const ExampleOrder order(lengths, 1, kTokens, 1);
  int64_t padded = 0;
  for (int64_t step = 0; step < order.steps_per_epoch(); ++step) {
    int64_t longest = 0;
    const auto batch = order.at(step);
    for (const int64_t i : batch) longest = std::max(longest, lengths[static_cast<size_t>(i)]);
    EXPECT_LE(longest * static_cast<int64_t>(batch.size()), kTokens);
    padded += longest * static_cast<int64_t>(batch.size());
  }
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  EXPECT_LT(static_cast<double>(padded), 1.15 * static_cast<double>(tokens));
  // An example that is longer than a batch may be is a batch of its own.
  EXPECT_EQ(ExampleOrder({5000, 3}, 1, kTokens, 1).steps_per_epoch(), 2);
}

TEST(PairBatches, TargetsBeginAndExpectationsEnd) {
  const PairBatches pairs({{10, 11}, {}, {12}, {13, 14, 15, 16}}, {{20}, {9}, {21, 22}, {23}}, {.batch = 8, .longest = 3});
  EXPECT_EQ(pairs.size(), 2);  // one is empty, one too long
  const auto batch = pairs.range(0, 2);
  EXPECT_EQ(rows_of(batch.source), (std::vector<Row>{{10, 11}, {12, 0}}));
  EXPECT_EQ(rows_of(batch.target), (std::vector<Row>{{2, 20, 0}, {2, 21, 22}}));
  EXPECT_EQ(rows_of(batch.expected), (std::vector<Row>{{20, 3, kIgnore}, {21, 22, 3}}));
  EXPECT_THROW((void)pairs.range(0, 3), InvalidArgument);
  EXPECT_THROW(PairBatches({{1}}, {}), InvalidArgument);
  EXPECT_THROW(PairBatches({{}}, {{1}}), InvalidArgument);
}

TEST(PairBatches, SourcesStayWithTheirTargetsAndProcessesShareTheBatch) {
  const Sequences sources = sequences_of(random_lengths(50, 9, 4)), targets = sequences_of(random_lengths(50, 9, 5));
  const PairBatches whole(sources, targets, {.batch = 7, .seed = 2});
  const PairBatches first(sources, targets, {.batch = 7, .seed = 2}, {.rank = 0, .world = 2});
  const PairBatches second(sources, targets, {.batch = 7, .seed = 2}, {.rank = 1, .world = 2});
  for (int64_t step = 0; step < 2 * whole.steps_per_epoch(); ++step) {
    const auto batch = whole.at(step);
    EXPECT_TRUE(batch.source.select(1, 0).equal(batch.expected.select(1, 0)));  // ids of a pair are its number
    const Tensor together = torch::cat({first.at(step).source.select(1, 0), second.at(step).source.select(1, 0)});
    EXPECT_TRUE(together.equal(batch.source.select(1, 0)));
  }
}

TEST(LabelledTextBatches, TextsAreCutPaddedAndKeepTheirLabels) {
  const LabelledTextBatches texts({{10, 10, 10, 10}, {}, {12}}, {}, {0, 1, 2}, {.batch = 2, .longest = 3});
  const auto batch = texts.range(0, 3);
  EXPECT_EQ(rows_of(batch.ids), (std::vector<Row>{{10, 10, 10}, {1, 0, 0}, {12, 0, 0}}));
  EXPECT_FALSE(batch.second.defined());
  EXPECT_EQ(texts.steps_per_epoch(), 2);
  std::map<int64_t, int64_t> label_of = {{10, 0}, {1, 1}, {12, 2}};
  for (int64_t step = 0; step < 6; ++step) {
    const auto some = texts.at(step);
    for (int64_t i = 0; i < some.ids.size(0); ++i) {
      EXPECT_EQ(some.labels[i].item<int64_t>(), label_of.at(some.ids[i][0].item<int64_t>()));
    }
  }
  const LabelledTextBatches pairs({{10}, {11, 11}}, {{20, 20, 20}, {21}}, {1, 0});
  EXPECT_EQ(rows_of(pairs.range(0, 2).second), (std::vector<Row>{{20, 20, 20}, {21, 0, 0}}));
  EXPECT_THROW(LabelledTextBatches({{1}, {2}}, {{1}}, {0, 1}), InvalidArgument);
  EXPECT_THROW(LabelledTextBatches({{1}, {2}}, {}, {0}), InvalidArgument);
}

TEST(ImageBatches, PixelsAreScaledAndKeepTheirLabels) {
  LabelledImages images = {
      .count = 5, .channels = 1, .size = 2, .pixels = std::vector<uint8_t>(20), .labels = {0, 51, 102, 153, 255}};
  for (size_t i = 0; i < 20; ++i) images.pixels[i] = static_cast<uint8_t>(images.labels[i / 4]);
  const ImageBatches batches(images, {.batch = 2});
  EXPECT_EQ(batches.steps_per_epoch(), 3);
  int64_t seen = 0;
  for (int64_t step = 0; step < 3; ++step) {
    const auto batch = batches.at(step);
    EXPECT_EQ(batch.pixels.sizes().slice(1).vec(), (std::vector<int64_t>{1, 2, 2}));
    EXPECT_TRUE(torch::equal(batch.pixels.select(1, 0).select(1, 1).select(1, 1), batch.labels.to(torch::kFloat) / 255));
    seen += batch.labels.size(0);
  }
  EXPECT_EQ(seen, 5);
}

void expect_recall(const RecallTask& task, int64_t step, std::map<int64_t, int64_t>& queries_by_distance) {
  const RecallOptions& options = task.options();
  const auto batch = task.at(step);
  const auto input = rows_of(batch.input), target = rows_of(batch.target), distance = rows_of(batch.distance);
  const int64_t first_key = 4 + options.noise, first_value = first_key + options.keys;
  for (size_t row = 0; row < input.size(); ++row) {
    std::map<int64_t, int64_t> place;  // of a key
    for (int64_t i = 0; i < options.pairs; ++i) place[input[row][static_cast<size_t>(2 * i)]] = 2 * i;
    ASSERT_EQ(place.size(), static_cast<size_t>(options.pairs)) << "keys are distinct";
    std::set<int64_t> asked;
    for (size_t at = 0; at < input[row].size(); ++at) {
      const int64_t id = input[row][at];
      ASSERT_GE(id, 4);
      ASSERT_LT(id, task.vocabulary());
      if (distance[row][at] == 0) {
        EXPECT_EQ(target[row][at], kIgnore);
        const bool key_behind_pairs = at >= static_cast<size_t>(2 * options.pairs) && id >= first_key && id < first_value;
        EXPECT_FALSE(key_behind_pairs) << "a key after the pairs is a query";
        continue;
      }
      ASSERT_EQ(place.count(id), 1U);
      EXPECT_TRUE(asked.insert(id).second) << "each pair is queried once";
      EXPECT_EQ(static_cast<int64_t>(at) - place[id], distance[row][at]);
      EXPECT_EQ(target[row][at], input[row][static_cast<size_t>(place[id] + 1)]);
      EXPECT_EQ(target[row][at], input[row][at + 1]);
      ++queries_by_distance[distance[row][at]];
    }
    EXPECT_LE(static_cast<int64_t>(asked.size()), options.queries == 0 ? options.pairs : options.queries);
    EXPECT_GE(asked.size(), 1U);
  }
}

// Both bring a protobuf of their own.
TEST(Tokenizer, PiecesAreLearnedInAProgramOverTorch) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "weave the raffia palm into baskets\n";
  const std::vector<std::string_view> texts = {text};
  const auto tokenizer = train_tokenizer(parse_tokenizer_spec("sp:300"), texts);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_LT(tokenizer->encode(text).size(), text.size() / 2);
  EXPECT_THROW((void)train_tokenizer(parse_tokenizer_spec("sp:100"), texts), InvalidArgument);
  EXPECT_EQ(torch::ones({2, 2}).sum().item<float>(), 4);
}

TEST(RecallTask, QueriesAskForValuesAtTheirDistances) {
  const std::vector<RecallOptions> all = {
      {.batch = 4, .length = 512},
      {.batch = 4, .length = 300, .pairs = 64, .distances = {16, 17, 100, 170}},
      {.batch = 2, .length = 4400, .pairs = 32, .queries = 8, .distances = {16, 256, 4096}},
      {.batch = 3, .length = 6, .pairs = 1, .distances = {2, 4}, .keys = 1, .values = 1, .noise = 1}};
  for (const RecallOptions& options : all) {
    std::map<int64_t, int64_t> queries_by_distance;
    const RecallTask task(options);
    for (int64_t step = 0; step < 10; ++step) expect_recall(task, step, queries_by_distance);
    EXPECT_EQ(queries_by_distance.size(), options.distances.size()) << "every distance occurs, length " << options.length;
  }
}

TEST(RecallTask, BatchDependsOnSeedAndStepAloneAndProcessesShareIt) {
  const RecallTask task({.batch = 5}), other({.batch = 5, .seed = 2});
  EXPECT_TRUE(task.at(3).input.equal(RecallTask({.batch = 5}).at(3).input));
  EXPECT_FALSE(task.at(3).input.equal(task.at(4).input));
  EXPECT_FALSE(task.at(3).input.equal(other.at(3).input));
  const RecallTask first({.batch = 5}, {.rank = 0, .world = 2}), second({.batch = 5}, {.rank = 1, .world = 2});
  EXPECT_TRUE(torch::cat({first.at(3).target, second.at(3).target}).equal(task.at(3).target));
}

TEST(RecallTask, ImpossibleDistancesAreRefused) {
  EXPECT_EQ(refusal<InvalidArgument>([] {
              RecallTask({.length = 100, .distances = {16, 99}});
            }),
            "RecallTask: distance 99 does not occur in 100 tokens with 16 pairs, expected 2 to 98");
  EXPECT_THROW(RecallTask({.distances = {}}), InvalidArgument);
  EXPECT_THROW(RecallTask({.pairs = 200, .keys = 100}), InvalidArgument);
}

TEST(Texts, CompressedFilesAreDecompressedForEveryTokenizer) {
  const TemporaryDirectory directory("data_test");
  const std::string gzip = directory.write("a.gz", kGzip).string(), xz = directory.write("a.xz", kXz).string();
  for (const char* kind : {"byte", "char", "word", "sp", "bpe", "scored"}) {
    for (const std::string& path : {gzip, xz}) EXPECT_EQ(read_for(kind, path), "two\nlines\n") << kind;
  }
  for (const char* tokenizer : {"byte", "char", "word", "sp:300", "auto"}) {
    TrainOptions options;
    options.data = gzip;
    options.valid = options.test = xz;
    options.tokenizer = tokenizer;
    const Texts texts = read_texts(options);
    EXPECT_EQ(texts.train, "two\nlines\n") << tokenizer;
    EXPECT_EQ(texts.valid, "two\nlines\n") << tokenizer;
    EXPECT_EQ(texts.test, "two\nlines\n") << tokenizer;
  }
}

TEST(Texts, OtherCompressionsAreRefusedForEveryTokenizer) {
  const TemporaryDirectory directory("data_test");
  const std::string path = directory.write("a.zst", "\x28\xB5\x2F\xFD and more").string();
  for (const char* kind : {"byte", "char", "word", "sp", "bpe", "scored"}) {
    EXPECT_EQ(refusal<FormatError>([&] { (void)read_for(kind, path); }),
              path + ": is compressed with zstd, expected gzip (.gz), xz (.xz) or no compression");
  }
}

TEST(RunFiles, DeeplyNestedJsonIsAnErrorOrLeftOut) {
  const TemporaryDirectory directory("data_test");
  const std::string nested = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_EQ(read_log(directory.write("log.jsonl", "{\"step\": 1}\n{\"step\": " + nested + "}\n{\"step\": 2}\n")).size(), 2U);
  EXPECT_EQ(
      read_log(directory.write("log.jsonl", "{\"step\": 1}\n{\"step\": \"2\"}\n{\"loss\": 3}\n[4]\n{\"step\": 5}\n")).size(), 2U);
  std::filesystem::create_directories(directory.path() / "step-00000007");
  directory.write("step-00000007/trainer.json", "{\"files\": " + nested + "}");
  EXPECT_NE(refusal<FormatError>([&] { (void)CheckpointStore(directory.path()).verify(7); }).find("nested deeper than 64 levels"),
            std::string::npos);
}

TEST(RunFiles, DamagedFactsOfACheckpointAreNamedByTheirField) {
  const TemporaryDirectory directory("data_test");
  std::filesystem::create_directories(directory.path() / "step-00000007");
  const auto said = [&](const std::string& text) {
    const std::string path = directory.write("step-00000007/trainer.json", text).string();
    const std::string message = refusal<FormatError>([&] { (void)CheckpointStore(directory.path()).verify(7); });
    EXPECT_EQ(message.rfind(path + ": ", 0), 0U) << message;
    return message.substr(std::min(message.size(), path.size() + 2));
  };
  EXPECT_EQ(said("[1]"), "is a value of type array, expected a JSON object");
  EXPECT_EQ(said("{}"), "field \"files\" is missing");
  EXPECT_EQ(said(R"({"files": 3})"), "field \"files\" is 3, expected an object");
  EXPECT_EQ(said(R"({"files": {"a": {"bytes": -1}}})"), "field \"files.a.bytes\" is -1, expected an integer from 0 to 2^64 - 1");
}

}  // namespace
}  // namespace raffia::internal::train
