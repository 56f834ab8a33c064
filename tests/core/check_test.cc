#include "core/check.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "core/message.h"

namespace raffia::internal {
namespace {

template <typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Check, WrongShapeNamesFunctionArgumentFoundAndExpected) {
  float data[2 * 100 * 4] = {};
  const View3 gate(data, {2, 100, 4});
  EXPECT_EQ(message_of([&] {
              require_shape("gated_attention", "gate_logits", gate, {2, 128, 8}, "batch and heads of k, length of k");
            }),
            "gated_attention: gate_logits has shape [2, 100, 4], expected [2, 128, 8] (batch and heads of k, length of k)");
  EXPECT_EQ(message_of([&] { require_shape("gated_attention", "gate_logits", gate, {2, 100, 4}, "itself"); }), "no error");
}

TEST(Check, ElementsWithoutMemoryAreRefused) {
  const View2 view(static_cast<const float*>(nullptr), {2, 3});
  EXPECT_EQ(message_of([&] {
              require_shape("op", "q", view, {2, 3}, "itself");
            }),
            "op: q has shape [2, 3] and a null pointer, expected data");
  const View2 empty(static_cast<const float*>(nullptr), {0, 3});
  EXPECT_EQ(message_of([&] { require_shape("op", "q", empty, {0, 3}, "itself"); }), "no error");
}

TEST(Check, WrongTypeListsWhatIsTaken) {
  double data = 0;
  const MutView1 view(&data, {1});
  EXPECT_EQ(message_of([&] {
              require_dtype("op", "q", view, {DType::f32, DType::bf16});
            }),
            "op: q has element type f64, expected f32 or bf16");
  EXPECT_EQ(message_of([&] { require_dtype("op", "q", view, {DType::f32, DType::f64}); }), "no error");
}

TEST(Check, ProductsThatOverflowAreNothing) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(checked_product({2, 3, 7}), 42);
  EXPECT_EQ(checked_product({kMax, 1}), kMax);
  EXPECT_EQ(checked_product({kMax, 0}), 0);
  EXPECT_EQ(checked_product({kMax / 2 + 1, 2}), std::nullopt);
  EXPECT_EQ(checked_product({int64_t{1} << 32, int64_t{1} << 31, 0}), std::nullopt);
  EXPECT_EQ(checked_product({3, -1}), std::nullopt);
}

TEST(Message, OfOneLineControlsNoTerminal) {
  EXPECT_EQ(one_line("a\nb\tc\x1b[2J\x7f"), R"(a\nb\tc\x1b[2J\x7f)");
  EXPECT_EQ(one_line("\xC2\x9B"
                     "2J \xC2\xA0\xC3\xA9 \xC2"),
            "\\xc2\\x9b2J \xC2\xA0\xC3\xA9 \xC2");  // U+009B begins sequences, too
  std::string long_message(3000, 'a');
  long_message.append(" expected b");
  const std::string line = one_line(long_message);
  EXPECT_LT(line.size(), 2100U);
  EXPECT_TRUE(line.ends_with(" expected b"));
}

TEST(Message, ThatIsSaidControlsNoTerminal) {
  testing::internal::CaptureStderr();
  say("{}: {}", "a\x1b[2J\r", "b\n\tc");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "a\\x1b[2J\\x0d: b\n\tc\n");
}

TEST(Message, LosesTheFunctionOrExceptionThatItBeginsWith) {
  EXPECT_EQ(without_origin("parse_norm: \"x\", expected layer"), "\"x\", expected layer");
  EXPECT_EQ(without_origin("State::from_bytes: 3 bytes: truncated"), "3 bytes: truncated");
  EXPECT_EQ(without_origin("[json.exception.parse_error.101] parse error at line 1"), "parse error at line 1");
  for (const char* message : {"", "width: is 3", "my_model/config.json: is empty", "[1, 2] is a shape", "parse_norm"}) {
    EXPECT_EQ(without_origin(message), message);
  }
}

}  // namespace
}  // namespace raffia::internal
