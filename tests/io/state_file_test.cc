#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "raffia/error.h"
#include "raffia/random.h"
#include "raffia/state.h"

namespace raffia::internal {
namespace {

namespace fs = std::filesystem;
using Image = std::vector<std::byte>;

constexpr StateShape kSmall{.batch = 1, .heads = 1, .features = 2, .value_dim = 2};
constexpr size_t kHeader = 64;

State random_state(const StateShape& shape, uint64_t seed) {
  State state(shape);
  RandomStream stream({.seed = seed});
  for (float& x : state.data()) x = static_cast<float>(stream.next_normal());
  return state;
}

void put_u32(Image& image, size_t at, uint32_t word) {
  for (size_t i = 0; i < 4; ++i) image[at + i] = static_cast<std::byte>(word >> (8 * i));
}

void put_i64(Image& image, size_t at, int64_t word) {
  for (size_t i = 0; i < 8; ++i) image[at + i] = static_cast<std::byte>(static_cast<uint64_t>(word) >> (8 * i));
}

std::string refusal_of(const Image& image) {
  try {
    (void)State::from_bytes(image);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

Image read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Image image(text.size());
  std::memcpy(image.data(), text.data(), text.size());
  return image;
}

void write_all(const fs::path& path, const Image& image) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
}

// A directory of its own for each test, gone when it ends.
class StateFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "raffia-state-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }

  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }

  fs::path directory_;
};

TEST(StateImage, RoundTripsEveryBit) {
  for (const StateShape& shape : {kSmall, StateShape{3, 2, 5, 4}, StateShape{1, 1, 1, 1}, StateShape{2, 8, 128, 64}}) {
    const State state = random_state(shape, 1);
    const Image image = state.to_bytes();
    EXPECT_EQ(image.size(), kHeader + state.size_bytes());
    EXPECT_EQ(State::from_bytes(image), state);
  }
}

TEST(StateImage, KeepsNumbersThatAreNotFinite) {
  State state(kSmall);
  state.data()[0] = std::bit_cast<float>(0x7fa12345U);  // a signalling NaN with a payload
  state.data()[1] = -std::numeric_limits<float>::infinity();
  state.data()[2] = -0.0F;
  state.data()[3] = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(State::from_bytes(state.to_bytes()).to_bytes(), state.to_bytes());
}

TEST(StateImage, AnEmptyBatchIsAState) {
  const State state = random_state({3, 2, 5, 4}, 2).select({});
  EXPECT_EQ(State::from_bytes(state.to_bytes()), state);
}

TEST(StateImage, StaysAsVersionOneWroteIt) {
  State state({.batch = 1, .heads = 1, .features = 1, .value_dim = 2});
  for (size_t i = 0; i < state.data().size(); ++i) state.data()[i] = static_cast<float>(i + 1);
  const std::vector<uint8_t> expected = {
      'R', 'A', 'F',  'S',  'T', 'A', 'T', 'E',  1,    0,    0,    0,    64,   0,    0,    0,     // magic, version, header size
      1,   0,   0,    0,    0,   0,   0,   0,    1,    0,    0,    0,    0,    0,    0,    0,     // batch, heads
      1,   0,   0,    0,    0,   0,   0,   0,    2,    0,    0,    0,    0,    0,    0,    0,     // features, value_dim
      20,  0,   0,    0,    0,   0,   0,   0,    0x98, 0x7a, 0x37, 0x37, 0x30, 0x13, 0x4e, 0x1c,  // payload size, checksum
      0,   0,   0x80, 0x3f, 0,   0,   0,   0x40, 0,    0,    0x40, 0x40, 0,    0,    0x80, 0x40, 0, 0, 0xa0, 0x40};
  const Image image = state.to_bytes();
  ASSERT_EQ(image.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(std::to_integer<int>(image[i]), expected[i]) << "byte " << i;
}

TEST(StateImage, RefusesEveryTruncation) {
  const Image image = random_state(kSmall, 3).to_bytes();
  for (size_t size = 0; size < image.size(); ++size) {
    const Image part(image.begin(), image.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(refusal_of(part).find("truncated"), std::string::npos) << size;
  }
}

TEST(StateImage, RefusesEveryFlippedBit) {
  const Image image = random_state(kSmall, 4).to_bytes();
  for (size_t bit = 0; bit < 8 * image.size(); ++bit) {
    Image flipped = image;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_THROW((void)State::from_bytes(flipped), FormatError) << "bit " << bit;
  }
}

TEST(StateImage, RefusesBytesThatFollow) {
  Image image = random_state(kSmall, 5).to_bytes();
  image.push_back(std::byte{0});
  EXPECT_EQ(refusal_of(image), "State::from_bytes: 97 bytes, expected 96 (header and payload): bytes follow the state");
}

TEST(StateImage, RefusalsSayWhatAndWhere) {
  const Image image = random_state(kSmall, 6).to_bytes();

  Image other = image;
  other[0] = std::byte{'X'};
  EXPECT_EQ(refusal_of(other), "State::from_bytes: does not begin with RAFSTATE: not a state");

  other = image;
  put_u32(other, 8, 2);
  EXPECT_EQ(refusal_of(other), "State::from_bytes: state format version 2 at byte 8, expected 1");

  other = image;
  put_u32(other, 12, 128);
  EXPECT_EQ(refusal_of(other), "State::from_bytes: header size 128 at byte 12, expected 64");

  other = image;
  put_i64(other, 48, 36);
  EXPECT_EQ(refusal_of(other), "State::from_bytes: payload of 36 bytes at byte 48, expected 32 (from the shape)");

  other = image;
  other.back() ^= std::byte{1};
  EXPECT_NE(refusal_of(other).find("(at byte 56): the state is corrupt"), std::string::npos) << refusal_of(other);
}

TEST(StateImage, RefusesShapesThatCannotBe) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  const std::array<int64_t, 4> kShapes[] = {
      {-1, 1, 2, 2},
      {1, 0, 2, 2},
      {1, 1, 0, 2},
      {1, 1, 2, 0},
      {1, 1, -2, 2},
      {1, 1, 2, -2},
      {1, kMin, 2, 2},
      {1, 1, kMax, 2},
      {1, 1, 2, kMax},
      {kMax, 1, 2, 2},
      {1, kMax, 2, 2},
      {0, 1, kMax, kMax},
      {-1, -1, 2, 2},
      {1 << 30, 1 << 30, 1 << 30, 1 << 30},
      {int64_t{1} << 59, 1, 2, 2},  // wraps to a payload of 0
      {0, kMax, 2, 2},
  };
  for (const auto& shape : kShapes) {
    Image image = random_state(kSmall, 7).to_bytes();
    for (size_t i = 0; i < 4; ++i) put_i64(image, 16 + 8 * i, shape[i]);
    EXPECT_NE(refusal_of(image).find("at byte 16 are not the shape of a state"), std::string::npos) << refusal_of(image);
  }
}

TEST(StateImage, AllocatesNothingForAShapeThatTheBytesDoNotHold) {
  // 4 TB by its shape and its payload size, 96 bytes in truth.
  Image image = random_state(kSmall, 8).to_bytes();
  put_i64(image, 16, int64_t{1} << 37);
  put_i64(image, 48, int64_t{1} << 42);
  EXPECT_EQ(refusal_of(image), "State::from_bytes: 96 bytes, expected 4398046511168 (header and payload): truncated");
}

TEST_F(StateFile, SaveAndLoadKeepTheState) {
  const State state = random_state({2, 3, 8, 5}, 9);
  state.save(directory_ / "chat.state");
  EXPECT_EQ(State::load(directory_ / "chat.state"), state);
  EXPECT_EQ(read_all(directory_ / "chat.state"), state.to_bytes());
  EXPECT_EQ(files(), 1U) << "no other file is left";
}

TEST_F(StateFile, SaveReplacesWhatWasThere) {
  random_state({2, 3, 8, 5}, 10).save(directory_ / "chat.state");
  const State state = random_state(kSmall, 11);
  state.save(directory_ / "chat.state");
  EXPECT_EQ(State::load(directory_ / "chat.state"), state);
}

TEST_F(StateFile, TheLongestNamesWork) {
  const fs::path path = directory_ / std::string(255, 'n');
  random_state(kSmall, 12).save(path);
  EXPECT_EQ(State::load(path), random_state(kSmall, 12));
}

TEST_F(StateFile, AFileNameAloneMeansTheWorkingDirectory) {
  const fs::path before = fs::current_path();
  fs::current_path(directory_);
  random_state(kSmall, 13).save("chat.state");
  fs::current_path(before);
  EXPECT_EQ(State::load(directory_ / "chat.state"), random_state(kSmall, 13));
}

TEST_F(StateFile, AFailedWriteLeavesTheOldFileAndNothingElse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const fs::path path = directory_ / "chat.state";
  const State old = random_state(kSmall, 14);
  old.save(path);
  const auto save_with_little_room = [&] {
    // The write that passes the limit is cut short and the next one fails, as on a full disk.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    int outcome = 1;
    try {
      random_state({4, 4, 64, 32}, 15).save(path);
    } catch (const IoError& error) {
      outcome = std::strstr(error.what(), "cannot write: File too large") != nullptr && State::load(path) == old && files() == 1
                    ? 0
                    : 2;
    }
    fs::remove_all(directory_);  // of this process, which ends before TearDown
    std::exit(outcome);
  };
  EXPECT_EXIT(save_with_little_room(), testing::ExitedWithCode(0), "");
}

TEST_F(StateFile, ATargetThatCannotBeReplacedLeavesNoTemporary) {
  fs::create_directory(directory_ / "taken");
  std::ofstream(directory_ / "taken" / "file") << "x";
  EXPECT_THROW(random_state(kSmall, 16).save(directory_ / "taken"), IoError);
  EXPECT_EQ(files(), 1U);
}

TEST_F(StateFile, AReadOnlyDirectoryIsAnErrorAndTheOldFileStays) {
  constexpr uid_t kNobody = 65534;
  random_state(kSmall, 17).save(directory_ / "chat.state");
  fs::permissions(directory_, static_cast<fs::perms>(0555));
  const bool is_root = geteuid() == 0;  // who may write everywhere
  if (is_root) {
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  EXPECT_THROW(random_state(kSmall, 18).save(directory_ / "chat.state"), IoError);
  if (is_root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  fs::permissions(directory_, fs::perms::owner_all);
  EXPECT_EQ(State::load(directory_ / "chat.state"), random_state(kSmall, 17));
  EXPECT_EQ(files(), 1U);
}

TEST_F(StateFile, ErrorsOfTheSystemNamePathAndReason) {
  const fs::path path = directory_ / "missing" / "chat.state";
  try {
    (void)State::load(path);
    FAIL() << "a missing file was loaded";
  } catch (const IoError& error) {
    EXPECT_EQ(error.what(), path.string() + ": cannot open: No such file or directory");
  }
  EXPECT_THROW(random_state(kSmall, 19).save(path), IoError);
  EXPECT_THROW((void)State::load(directory_), IoError);
  ASSERT_EQ(mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  EXPECT_THROW((void)State::load(directory_ / "pipe"), IoError);
}

TEST_F(StateFile, RefusesTruncatedAndCorruptFiles) {
  const Image image = random_state(kSmall, 20).to_bytes();
  const fs::path path = directory_ / "chat.state";
  for (size_t size = 0; size < image.size(); ++size) {
    write_all(path, Image(image.begin(), image.begin() + static_cast<std::ptrdiff_t>(size)));
    EXPECT_THROW((void)State::load(path), FormatError) << size;
  }
  for (size_t byte = 0; byte < image.size(); ++byte) {
    Image other = image;
    other[byte] ^= std::byte{0x10};
    write_all(path, other);
    EXPECT_THROW((void)State::load(path), FormatError) << byte;
  }
  Image longer = image;
  longer.push_back(std::byte{0});
  write_all(path, longer);
  EXPECT_THROW((void)State::load(path), FormatError);
}

TEST_F(StateFile, AHoleOfManyGigabytesIsNotRead) {
  Image image = random_state(kSmall, 1).to_bytes();
  const int64_t features = 1 << 20, value_dim = 9999, payload = (features * (value_dim + 1) + 2) * 4;
  put_i64(image, 32, features);
  put_i64(image, 40, value_dim);
  put_i64(image, 48, payload);
  const fs::path path = directory_ / "hole";
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(image.data()), kHeader);
  fs::resize_file(path, kHeader + static_cast<uint64_t>(payload));
  std::string said = "accepted";
  try {
    (void)State::load(path);
  } catch (const FormatError& error) {
    said = error.what();
  }
  EXPECT_NE(said.find("the rest is a hole, not a state"), std::string::npos) << said;
}

}  // namespace
}  // namespace raffia::internal
