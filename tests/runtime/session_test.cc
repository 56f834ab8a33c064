// Sessions: whatever happens to them, they go on as if nothing had.
#include "raffia/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <limits>
#include <random>
#include <span>

#include "golden.h"
#include "io/formats/image.h"
#include "io/formats/session_file.h"
#include "raffia/error.h"
#include "raffia/estimator.h"
#include "runtime/random_weights.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"

namespace raffia::internal {
namespace {

std::vector<int32_t> random_ids(int64_t vocabulary, size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(generator() % static_cast<uint32_t>(vocabulary));
  return ids;
}

std::vector<float> copied(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

// The tokens that a session chooses and reads, and the logits after them.
struct Continuation {
  std::vector<int32_t> ids;
  std::vector<float> logits;
  bool operator==(const Continuation&) const = default;
};
Continuation go_on(Session& session, int count = 20) {
  Continuation result;
  for (int i = 0; i < count; ++i) {
    result.ids.push_back(session.sample());
    session.step(result.ids.back());
  }
  result.logits = copied(session.logits());
  return result;
}

// Models of every estimator.
class AnySession : public testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<const Model> model_ = golden_model(GetParam());
  // ra reads all of the past for every token.
  bool is_slow() const { return GetParam().ends_with("-ra"); }
  // Past two chunks.
  std::vector<int32_t> prompt(uint32_t seed = 1) const {
    return random_ids(model_->config().vocabulary, is_slow() ? 40 : 2 * Session::kChunk + 37, seed);
  }
};

TEST_P(AnySession, ForkSaveAndRestoreGoOnBitForBit) {
  Session session(model_, {.sampling = {.repetition_penalty = 1.1, .temperature = 0.8, .seed = 5}});
  session.prefill(prompt());
  go_on(session, 3);
  Session fork = session;
  const std::vector<std::byte> image = session.to_bytes();
  Session restored = Session::from_bytes(model_, image, {}, "image");
  EXPECT_EQ(restored.position(), session.position());
  EXPECT_EQ(restored.to_bytes(), image);
  const Continuation expected = go_on(session);
  EXPECT_EQ(go_on(fork), expected);
  EXPECT_EQ(go_on(restored), expected);
}

TEST_P(AnySession, RollbackGoesOnAsItWouldHaveThen) {
  const SessionOptions options{.sampling = {.seed = 3}, .snapshot_every = 7, .snapshots = 4};
  Session session(model_, options);
  session.prefill(prompt());
  go_on(session, 2);
  Session then = session;
  const Continuation expected = go_on(then, 12);
  Session now = session;
  go_on(now, 17);
  now.rollback(17);
  EXPECT_EQ(now.position(), session.position());
  EXPECT_EQ(copied(now.logits()), copied(session.logits()));
  EXPECT_EQ(go_on(now, 12), expected);
  // And again, over steps that were read twice.
  now.rollback(12);
  EXPECT_EQ(go_on(now, 12), expected);
  EXPECT_THROW(now.rollback(now.rollback_limit() + 1), InvalidArgument);
}

TEST_P(AnySession, RollbackIntoAPromptEqualsAShorterPrompt) {
  const std::vector<int32_t> ids = prompt();
  Session whole(model_, {.snapshot_every = 1, .snapshots = 1000}), part(model_);
  whole.prefill(ids);
  part.prefill(std::span(ids).first(ids.size() - 9));
  whole.rollback(9);
  EXPECT_EQ(copied(whole.logits()), copied(part.logits()));
  EXPECT_EQ(go_on(whole), go_on(part));
}

TEST_P(AnySession, LogitsOfAllTokensChangeNoBit) {
  const std::vector<int32_t> ids = prompt();
  Session all(model_, {.snapshot_every = 256}), last(model_);
  std::vector<float> seen;
  all.prefill(ids, [&](int64_t, std::span<const float> logits) {
    seen.assign(logits.end() - model_->config().vocabulary, logits.end());
  });
  last.prefill(ids);
  const std::vector<float> expected = copied(last.logits());
  EXPECT_EQ(copied(all.logits()), expected);
  EXPECT_EQ(seen, expected);
  // No snapshot is there: the last piece is read again.
  all.step(ids.front());
  all.rollback(1);
  EXPECT_EQ(copied(all.logits()), expected);
}

// More than products take one by one (kPackedFrom).
TEST_P(AnySession, ThirtySessionsInOneStepEqualThirtySteps) {
  constexpr uint32_t kCount = 30;
  std::vector<Session> alone, together;
  std::vector<Session*> batch;
  std::vector<int32_t> ids;
  for (uint32_t i = 0; i < kCount; ++i) {
    alone.emplace_back(model_);
    alone.back().prefill(random_ids(model_->config().vocabulary, 1 + i % 5, i));
    ids.push_back(alone.back().sample());
  }
  together = alone;
  for (Session& session : together) batch.push_back(&session);
  Session::step(batch, ids);
  for (uint32_t i = 0; i < kCount; ++i) {
    alone[i].step(ids[i]);
    ASSERT_EQ(copied(together[i].logits()), copied(alone[i].logits())) << "session " << i;
  }
}

TEST_P(AnySession, BatchAndThreadsChangeNoBit) {
  const auto pool = make_thread_pool(3);
  const auto run_alone = [&](uint32_t seed, const RunOptions& run) {
    Session session(model_, {.sampling = {.seed = seed}, .run = run});
    const std::vector<int32_t> ids = prompt(seed);
    session.prefill(std::span(ids).first(ids.size() - seed));
    return session;
  };
  std::vector<Session> alone, together;
  for (uint32_t i = 0; i < 5; ++i) {
    alone.push_back(run_alone(i, {.threads = 1}));
    together.push_back(run_alone(i, {.threads = 3, .executor = pool.get()}));
    ASSERT_EQ(copied(alone.back().logits()), copied(together.back().logits()));
  }
  // Sessions join and leave: those of 0 to 4 that are in turn `turn`.
  for (uint32_t turn = 0; turn < 12; ++turn) {
    std::vector<Session*> batch;
    std::vector<int32_t> ids;
    for (uint32_t i = 0; i < 5; ++i) {
      if ((turn + i) % (i + 1) != 0 && turn != 5) continue;
      const int32_t id = alone[i].sample();
      EXPECT_EQ(together[i].sample(), id);
      alone[i].step(id);
      batch.push_back(&together[i]);
      ids.push_back(id);
    }
    Session::step(batch, ids, {.threads = static_cast<int>(1 + turn % 3), .executor = pool.get()});
    for (uint32_t i = 0; i < 5; ++i) {
      ASSERT_EQ(copied(alone[i].logits()), copied(together[i].logits())) << "session " << i << ", turn " << turn;
    }
  }
}

TEST_P(AnySession, CachedPrefixesGoOnBitForBit) {
  const size_t length = is_slow() ? Session::kChunk + 3 : 2 * Session::kChunk + 37;
  const std::vector<int32_t> ids = random_ids(model_->config().vocabulary, length, 2);
  PrefixCache cache(model_, {.every = Session::kChunk});
  Session first(model_), second(model_), other(model_), plain(model_);
  EXPECT_EQ(first.prefill(ids, &cache), 0);
  const int64_t boundary = static_cast<int64_t>(length) / Session::kChunk * Session::kChunk;
  EXPECT_EQ(second.prefill(ids, &cache), boundary);
  plain.prefill(ids);
  EXPECT_EQ(copied(second.logits()), copied(plain.logits()));
  const Continuation expected = go_on(plain);
  EXPECT_EQ(go_on(second), expected);
  EXPECT_EQ(go_on(first), expected);
  // A prompt of exactly the known tokens reads nothing at all.
  Session exact(model_), part(model_);
  EXPECT_EQ(exact.prefill(std::span(ids).first(Session::kChunk), &cache), Session::kChunk);
  part.prefill(std::span(ids).first(Session::kChunk));
  EXPECT_EQ(copied(exact.logits()), copied(part.logits()));
  std::vector<int32_t> changed = ids;
  changed[3] = (changed[3] + 1) % static_cast<int32_t>(model_->config().vocabulary);
  EXPECT_EQ(other.prefill(changed, &cache), 0);
  const PrefixCache::Counts counts = cache.counts();
  EXPECT_EQ(counts.lookups, 4);
  EXPECT_EQ(counts.hits, 2);
  EXPECT_EQ(counts.tokens_known, boundary + Session::kChunk);
}

TEST_P(AnySession, NumbersThatAreNotFiniteAreRefusedByTheNameOfTheFile) {
  Session session(model_);
  EXPECT_EQ(Session::from_bytes(model_, session.to_bytes(), {}, "empty").position(), 0);  // -inf in empty memories is sound
  session.prefill(random_ids(model_->config().vocabulary, 43, 1));  // a prime: no window has just ended and is empty
  const SessionImage sound = session_from_bytes(session.to_bytes(), "image");
  const auto expect_refusal = [&](const SessionImage& image, const std::string& what, float bad) {
    const std::string said = refusal<FormatError>([&] { (void)Session::from_bytes(model_, to_bytes(image), {}, "chat.state"); });
    EXPECT_EQ(said, "chat.state: the " + what + " contain " + (bad > 0 ? "inf" : "nan") +
                        ", expected finite numbers: the session is damaged");
  };
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    SessionImage image = sound;
    image.logits.back() = bad;
    expect_refusal(image, "logits", bad);
    for (size_t i = 0; i < sound.parts.size(); ++i) {
      const std::string memory = "of memory " + std::to_string(i);
      image = sound;
      if (KeyCache* cache = image.parts[i].past.key_cache()) {
        const auto copy = [](const View4& rows) {
          const auto* data = static_cast<const float*>(rows.data());
          return std::vector<float>(data, data + rows.size());
        };
        std::vector<float> keys = copy(cache->keys(0)), values = copy(cache->values(0));
        ASSERT_FALSE(values.empty());
        values.back() = bad;
        cache->assign(0, image.position, keys, values);
        expect_refusal(image, "values " + memory, bad);
        keys.front() = bad;
        cache->assign(0, image.position, keys, values);
        expect_refusal(image, "keys " + memory, bad);
      } else if (State* state = image.parts[i].past.state()) {
        state->log_decay(0, 0) = bad;
        expect_refusal(image, "numbers " + memory, bad);
        image = sound;
        image.parts[i].past.state()->sums(0, 0).front() = bad;
        expect_refusal(image, "numbers " + memory, bad);
      } else {
        image.parts[i].past.window_state()->part(WindowPart::keys, 0).front() = bad;
        expect_refusal(image, "numbers " + memory, bad);
      }
      if (sound.parts[i].tail.empty()) continue;
      image = sound;
      image.parts[i].tail.back() = bad;
      expect_refusal(image, "tail " + memory, bad);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnySession, testing::ValuesIn(endless_golden_names()), [](const auto& param) {
  std::string name = param.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

// Of every kind in the registry, also those without a golden model.
TEST(Session, OfAnyKindOfEstimatorGoesOnFromItsFile) {
  const TemporaryDirectory directory("session_test");
  for (const EstimatorKind kind : estimator_kinds()) {
    const Estimator estimator = parse_estimator(name_of(kind));
    ASSERT_TRUE(traits_of(estimator).causal && traits_of(estimator).has_memory) << name_of(kind);
    const ModelConfig config{.vocabulary = 40, .width = 32, .heads = 2, .kv_heads = 1, .layers = 2, .estimators = {estimator}};
    const auto model = Model::over(config, runtime::random_weights(config, WeightType::f32, 3), nullptr, "random");
    Session session(model);
    session.prefill(random_ids(40, 70, 1));
    session.save(directory.path() / "state");
    Session restored = Session::restore(model, directory.path() / "state");
    EXPECT_EQ(go_on(restored), go_on(session)) << name_of(kind);
  }
}

TEST(Session, OneSnapshotIsEnough) {
  const auto model = golden_model("lm-gate");
  Session session(model, {.snapshot_every = 10, .snapshots = 1});
  session.prefill(random_ids(model->config().vocabulary, 35, 4));
  EXPECT_EQ(session.rollback_limit(), 0);
  go_on(session, 4);
  EXPECT_EQ(session.rollback_limit(), 4);
  session.rollback(4);
  EXPECT_EQ(session.position(), 35);
}

TEST(Session, RollbackAfterAnotherSeedDrawsAsThatSeedDoes) {
  const auto model = golden_model("lm-gate");
  const std::vector<int32_t> prompt = random_ids(model->config().vocabulary, 20, 4);
  Session session(model, {.sampling = {.seed = 1}, .snapshot_every = 8});
  session.prefill(prompt);
  const auto draw = [](Session& from) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 12; ++i) {
      ids.push_back(from.sample());
      from.step(ids.back());
    }
    return ids;
  };
  (void)draw(session);
  session.set_sampling({.seed = 2});
  session.rollback(12);
  Session expected(model, {.sampling = {.seed = 2}});
  expected.prefill(prompt);
  EXPECT_EQ(draw(session), draw(expected));
}

TEST(Session, FilesThatOnlyClaimToBeLongTakeNoMemory) {
  const TemporaryDirectory directory("session_test");
  const std::filesystem::path path = directory.write("empty.session", "");
  std::filesystem::resize_file(path, uintmax_t{1} << 42);  // a hole
  EXPECT_NE(refusal<FormatError>([&] { (void)read_session_info(path); }), "accepted");
}

TEST(Session, StateFileHasTheSameSizeAfterAnyNumberOfTokens) {
  const auto model = golden_model("lm-gate");
  Session session(model);
  std::vector<size_t> sizes;
  for (const size_t count : {1, 70, 5000}) {
    session.prefill(random_ids(model->config().vocabulary, count, 4));
    sizes.push_back(session.to_bytes().size());
  }
  EXPECT_EQ(sizes[0], sizes[1]);
  EXPECT_EQ(sizes[0], sizes[2]);
  for (int i = 0; i < 20; ++i) session.sample();  // the count of draws gets a second digit
  session.set_sampling({.repetition_penalty = 4.0 / 3, .temperature = 0.1, .top_k = 1000, .seed = UINT64_MAX});
  EXPECT_EQ(session.to_bytes().size(), sizes[0]);
}

TEST(Session, DamagedAndForeignFilesAreRefused) {
  const auto model = golden_model("lm-gate");
  const TemporaryDirectory directory("session_test");
  const std::filesystem::path path = directory.path() / "chat.session";
  Session session(model);
  session.prefill(random_ids(model->config().vocabulary, 50, 4));
  session.save(path);
  const std::vector<std::byte> image = session.to_bytes();
  EXPECT_EQ(Session::restore(model, path).to_bytes(), image);
  EXPECT_EQ(read_session_info(path).position, 50);

  const auto refusal_of = [&](std::span<const std::byte> bytes) {
    return refusal<FormatError>([&] { (void)Session::from_bytes(model, bytes, {}, "chat"); });
  };
  for (const size_t length : {size_t{0}, size_t{7}, size_t{40}, image.size() / 2, image.size() - 1}) {
    EXPECT_NE(refusal_of(std::span(image).first(length)), "accepted") << length;
  }
  std::mt19937 generator(7);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> flipped = image;
    const size_t at = generator() % flipped.size();
    flipped[at] ^= static_cast<std::byte>(1U << (generator() % 8));
    EXPECT_NE(refusal_of(flipped), "accepted") << "bit of byte " << at;
  }
  std::vector<std::byte> longer = image;
  longer.push_back({});
  EXPECT_NE(refusal_of(longer).find("bytes follow"), std::string::npos);

  // Damage inside of a memory, with a checksum that fits.
  std::vector<std::byte> inner = image;
  const auto magic = std::as_bytes(std::span(kStateImage.magic));
  const auto found = std::search(inner.begin(), inner.end(), magic.begin(), magic.end());
  ASSERT_NE(found, inner.end());
  *found = std::byte{'X'};
  put_header(kSessionImage, read_fields(kSessionImage, std::span(inner).first(kSessionImage.header_size()), "inner"), inner);
  const std::string said = refusal_of(inner);
  EXPECT_NE(said.find("memory is damaged: does not begin with RAFSTATE"), std::string::npos) << said;

  const auto other = golden_model("lm-softmax");
  EXPECT_NE(refusal<InvalidArgument>([&] { (void)Session::restore(other, path); }).find("belongs to a model with fingerprint"),
            std::string::npos);
  EXPECT_NE(refusal<IoError>([&] { (void)Session::restore(model, directory.path() / "none"); }), "accepted");
}

TEST(Session, BadCallsAreRefusedAndChangeNothing) {
  const auto model = golden_model("lm-softmax-learned");
  const int64_t max = model->config().max_length;
  Session session(model), fresh(model);
  EXPECT_THROW(fresh.sample(), InvalidArgument);
  session.prefill(random_ids(model->config().vocabulary, 5, 1));
  const std::vector<std::byte> before = session.to_bytes();
  EXPECT_THROW(session.step(-1), InvalidArgument);
  EXPECT_THROW(session.step(static_cast<int32_t>(model->config().vocabulary)), InvalidArgument);
  EXPECT_THROW(session.prefill(std::vector<int32_t>(static_cast<size_t>(max), 1)), InvalidArgument);
  EXPECT_THROW(session.rollback(1), InvalidArgument);
  Session* const twice[] = {&session, &session};
  EXPECT_THROW(Session::step(twice, std::vector<int32_t>{1, 1}), InvalidArgument);
  Session other(golden_model("lm-softmax"));
  Session* const two[] = {&session, &other};
  EXPECT_THROW(Session::step(two, std::vector<int32_t>{1, 1}), InvalidArgument);
  EXPECT_THROW(session.set_sampling({.top_p = 0}), InvalidArgument);
  EXPECT_THROW(Session(golden_model("classify-rfa")), InvalidArgument);
  EXPECT_EQ(session.to_bytes(), before);
}

TEST(PrefixCache, ForgetsTheLeastRecentlyUsed) {
  const auto model = golden_model("lm-gate");
  PrefixCache roomy(model, {.every = Session::kChunk});
  Session(model).prefill(random_ids(model->config().vocabulary, Session::kChunk, 1), &roomy);
  const size_t one = roomy.counts().bytes;
  PrefixCache cache(model, {.max_bytes = 2 * one, .every = Session::kChunk});
  const auto ask = [&](uint32_t seed) {
    Session session(model);
    return session.prefill(random_ids(model->config().vocabulary, Session::kChunk, seed), &cache);
  };
  ask(1);
  ask(2);
  EXPECT_EQ(ask(1), Session::kChunk);
  ask(3);  // 2 has to go
  EXPECT_EQ(ask(1), Session::kChunk);
  EXPECT_EQ(ask(2), 0);
  EXPECT_EQ(cache.counts().snapshots, 2);
  EXPECT_LE(cache.counts().bytes, 2 * one);
  cache.clear();
  EXPECT_EQ(ask(1), 0);
}

TEST(PrefixCache, CountsAllThatItHolds) {
  const auto model = golden_model("lm-gate");
  const size_t snapshot = Session(model).state_bytes() + static_cast<size_t>(model->config().vocabulary) * sizeof(float);
  constexpr size_t kChunks = 7;
  const std::vector<int32_t> ids = random_ids(model->config().vocabulary, kChunks * Session::kChunk, 1);
  // One snapshot, at the end of tokens that take more room than it.
  PrefixCache cache(model, {.every = 100 * Session::kChunk});
  Session(model).prefill(ids, &cache);
  const PrefixCache::Counts counts = cache.counts();
  EXPECT_EQ(counts.snapshots, 1);
  EXPECT_GE(counts.bytes, snapshot + ids.size() * sizeof(int32_t));
  // The same tokens again, and then others: they share nothing but what is the same.
  Session(model).prefill(ids, &cache);
  EXPECT_EQ(cache.counts().bytes, counts.bytes);
  std::vector<int32_t> other = ids;
  other.back() = (other.back() + 1) % static_cast<int32_t>(model->config().vocabulary);
  Session(model).prefill(other, &cache);
  EXPECT_EQ(cache.counts().bytes - counts.bytes, snapshot + (counts.bytes - snapshot) / kChunks);
  cache.clear();
  EXPECT_EQ(cache.counts().bytes, 0U);
  // With a byte less there is no room for it.
  PrefixCache narrow(model, {.max_bytes = counts.bytes - 1, .every = 100 * Session::kChunk});
  Session(model).prefill(ids, &narrow);
  EXPECT_EQ(narrow.counts().snapshots, 0);
}

}  // namespace
}  // namespace raffia::internal
