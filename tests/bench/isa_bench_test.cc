#include "bench/isa_bench.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/kernel_ops.h"
#include "raffia/error.h"
#include "raffia/estimator.h"
#include "raffia/isa.h"
#include "support/refusal.h"

namespace raffia::internal::bench {
namespace {

class Quiet : public Observer {
 public:
  void start(double) override {}
  void begin(const std::string&) override {}
  void advance(double) override {}
  void note(const std::string&) override {}
};

// Fails after so many turns.
class Failing : public Quiet {
 public:
  explicit Failing(int turns) : turns_(turns) {}
  void advance(double) override {
    if (turns_-- == 0) throw std::runtime_error("enough");
  }

 private:
  int turns_;
};

IsaBenchOptions tiny(std::vector<std::string> ops) {
  return {.shape = {.heads = 2, .head_dim = 8, .random_features = 4}, .ops = std::move(ops), .length = 16, .repeats = 1};
}

std::vector<IsaRecord> measured(const IsaBenchOptions& options) {
  Quiet observer;
  return measure_isas(options, observer);
}

std::vector<std::string> isas_of(const IsaRecord& record) {
  std::vector<std::string> isas;
  for (const IsaTime& time : record.times) isas.push_back(time.isa);
  return isas;
}

class IsaBench : public testing::Test {
 protected:
  ~IsaBench() override { set_max_isa(widest_); }

  const Isa widest_ = active_isa();
};

TEST_F(IsaBench, EveryRecordHasATimeForEveryIsaOfTheMachine) {
  std::vector<std::string> all;
  for (const Isa isa : available_isas()) all.emplace_back(name_of(isa));
  for (const bool scalar : {false, true}) {
    IsaBenchOptions options = tiny({"rfa", "product_int8", "gelu"});
    options.scalar = scalar;
    const size_t left_out = scalar || all.size() == 1 ? 0 : 1;  // scalar is the first
    for (const IsaRecord& record : measured(options)) {
      EXPECT_EQ(isas_of(record), std::vector<std::string>(all.begin() + static_cast<std::ptrdiff_t>(left_out), all.end()));
      for (size_t i = 0; i < record.times.size(); ++i) {
        const IsaTime& time = record.times[i];
        EXPECT_GT(time.seconds, 0) << record.op;
        EXPECT_EQ(time.ratio.has_value(), i > 0) << record.op;
        EXPECT_EQ(time.gflops.has_value(), record.op != "gelu");
        EXPECT_EQ(time.peak_fraction.has_value(), record.op != "gelu");
        if (i > 0) {
          EXPECT_DOUBLE_EQ(time.ratio.value_or(0), record.times[i - 1].seconds / time.seconds) << record.op;
        }
      }
    }
  }
}

TEST_F(IsaBench, MeasuresEveryOpInEveryFormByDefault) {
  std::map<std::string, std::set<std::string>> passes;
  for (const IsaRecord& record : measured(tiny({}))) {
    const std::string form = record.causal && !*record.causal ? " full" : "";
    passes[record.op].insert(record.pass + form);
  }
  for (const EstimatorKind kind : estimator_kinds()) {
    const std::string op(name_of(kind));
    const EstimatorTraits traits = traits_of({.kind = kind});
    EXPECT_EQ(passes[op].contains("backward"), traits.causal) << op;
    EXPECT_EQ(passes[op].contains("backward full"), traits.bidirectional) << op;
    EXPECT_EQ(passes[op].contains("step"), op == "softmax" || traits.constant_memory) << op;
    passes.erase(op);
  }
  std::set<std::string> others;
  for (const auto& [op, its_passes] : passes) others.insert(op);
  const std::vector<std::string> kernels = kernel_op_names();
  EXPECT_EQ(others, std::set<std::string>(kernels.begin(), kernels.end()));
}

TEST_F(IsaBench, LayerOpsRunOnOneThreadWhateverElseDoes) {
  IsaBenchOptions options = tiny({"gelu", "product_f32"});
  options.threads = {2, 3};
  std::map<std::string, std::multiset<int64_t>> threads;
  for (const IsaRecord& record : measured(options)) threads[record.op].insert(record.threads);
  EXPECT_EQ(threads["gelu"], (std::multiset<int64_t>{1}));
  EXPECT_EQ(threads["product_f32"], (std::multiset<int64_t>{2, 2, 2, 2, 3, 3, 3, 3}));
}

TEST_F(IsaBench, LeavesTheIsaAsItWas) {
  for (const Isa isa : available_isas()) {
    set_max_isa(isa);
    (void)measured(tiny({"softmax", "gelu"}));
    EXPECT_EQ(active_isa(), isa) << name_of(isa);
  }
}

TEST_F(IsaBench, LeavesTheIsaAsItWasAfterAnException) {
  for (const Isa isa : available_isas()) {
    for (const int turns : {0, 1, 5}) {
      set_max_isa(isa);
      Failing observer(turns);
      EXPECT_THROW((void)measure_isas(tiny({"softmax"}), observer), std::runtime_error);
      EXPECT_EQ(active_isa(), isa) << name_of(isa) << " after " << turns << " turns";
    }
  }
}

TEST_F(IsaBench, RefusesAnUnknownOpByName) {
  EXPECT_NE(refusal<InvalidArgument>([] { (void)measured(tiny({"gelu", "galu"})); }).find("galu"), std::string::npos);
}

IsaRecord record_of(double sse4, double avx2, double avx512) {
  IsaRecord record{
      .op = "rfa",
      .pass = "forward",
      .input = "qk",
      .causal = true,
      .shape = "[1, 16, 2, 8]",
      .dtype = "f32",
      .threads = 1,
      .times = {{.isa = "sse4", .seconds = sse4}, {.isa = "avx2", .seconds = avx2}, {.isa = "avx512", .seconds = avx512}}};
  compare_isas(record);
  return record;
}

TEST(IsaRecords, MarkWhatTakesMoreThanTwoPercentLonger) {
  EXPECT_FALSE(record_of(4, 2, 1).slower);
  EXPECT_FALSE(record_of(4, 2, 2.03).slower);
  EXPECT_EQ(record_of(4, 2, 2.05).slower, "avx512");
  EXPECT_EQ(record_of(2, 3, 2).slower, "avx2");  // each is compared with the next narrower one
  EXPECT_EQ(record_of(1, 2, 3).slower, "avx2, avx512");
}

TEST(IsaRecords, TheTableEndsWithWhatIsSlower) {
  const auto printed = [](const std::vector<IsaRecord>& records) {
    std::ostringstream out;
    print_records(records, Format::markdown, out);
    return out.str();
  };
  const std::string sound = printed({record_of(4, 2, 1)});
  EXPECT_NE(sound.find("\nNo wider instruction set is slower by more than 2% in any row.\n"), std::string::npos) << sound;
  EXPECT_EQ(sound.find("| slower"), std::string::npos) << sound;
  const std::string slow = printed({record_of(4, 2, 1), record_of(4, 2, 2.5)});
  EXPECT_NE(slow.find(" slower |"), std::string::npos) << slow;
  EXPECT_TRUE(
      slow.ends_with("\nA wider instruction set is slower by more than 2% in 1 of 2 rows:\n\n"
                     "- rfa forward qk causal [1, 16, 2, 8]: avx512 0.80\n"))
      << slow;
}

}  // namespace
}  // namespace raffia::internal::bench
