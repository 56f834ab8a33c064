#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
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
#include "raffia/window_state.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace raffia::internal {
namespace {

namespace fs = std::filesystem;
using Image = std::vector<std::byte>;

constexpr size_t kHeader = 136, kKindAt = 16, kBatchAt = 24, kRecipeAt = 112, kPayloadSizeAt = 120, kChecksumAt = 128;

constexpr WindowStateShape kHybrid{
    .kind = WindowKind::hybrid, .batch = 2, .heads = 2, .dim = 3, .far_dim = 5, .value_dim = 2, .window = 2, .features = 3};
constexpr WindowStateShape kEva{.kind = WindowKind::eva,
                                .batch = 2,
                                .query_heads = 2,
                                .dim = 2,
                                .value_dim = 3,
                                .window = 2,
                                .summaries = 3,
                                .features = 2,
                                .chunk = 2,
                                .recipe = 0xfedcba9876543210};
constexpr WindowStateShape kLara{.kind = WindowKind::lara,
                                 .batch = 2,
                                 .query_heads = 2,
                                 .dim = 2,
                                 .value_dim = 1,
                                 .window = 2,
                                 .summaries = 2,
                                 .proposals = 1,
                                 .chunk = 1,
                                 .recipe = 7};
constexpr std::array kShapes = {kHybrid, kEva, kLara};

// One float in each of the 10 parts that eva has.
constexpr WindowStateShape kSmall{.kind = WindowKind::eva,
                                  .dim = 1,
                                  .value_dim = 1,
                                  .window = 1,
                                  .summaries = 1,
                                  .features = 1,
                                  .chunk = 1,
                                  .recipe = 0x0807060504030201};

WindowState random_state(const WindowStateShape& shape, uint64_t seed) {
  WindowState state(shape);
  RandomStream stream({.seed = seed});
  for (int64_t b = 0; b < shape.batch; ++b) {
    state.tokens(b) = static_cast<int64_t>(seed) * 1000 + b;
    for (int i = 0; i < kWindowParts; ++i) {
      for (float& x : state.part(static_cast<WindowPart>(i), b)) x = static_cast<float>(stream.next_normal());
    }
  }
  return state;
}

void put_u32(Image& image, size_t at, uint32_t word) {
  for (size_t i = 0; i < 4; ++i) image[at + i] = static_cast<std::byte>(word >> (8 * i));
}

void put_i64(Image& image, size_t at, int64_t word) {
  for (size_t i = 0; i < 8; ++i) image[at + i] = static_cast<std::byte>(static_cast<uint64_t>(word) >> (8 * i));
}

// A forger's: whatever was changed, the checksum matches.
Image with_checksum(Image image) {
  XXH3_state_t hash;
  XXH3_64bits_reset(&hash);
  XXH3_64bits_update(&hash, image.data(), kChecksumAt);
  XXH3_64bits_update(&hash, image.data() + kHeader, image.size() - kHeader);
  put_i64(image, kChecksumAt, static_cast<int64_t>(XXH3_64bits_digest(&hash)));
  return image;
}

std::string refusal_of(const Image& image) {
  try {
    (void)WindowState::from_bytes(image);
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
class WindowStateFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "raffia-window-state-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }

  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }

  fs::path directory_;
};

TEST(WindowStateImage, RoundTripsEveryBit) {
  for (const WindowStateShape& shape : kShapes) {
    const WindowState state = random_state(shape, 1);
    EXPECT_EQ(WindowState::from_bytes(state.to_bytes()), state);
    const WindowState empty(shape);
    EXPECT_EQ(WindowState::from_bytes(empty.to_bytes()), empty);
  }
}

TEST(WindowStateImage, HoldsNoPadding) {
  const WindowState state = random_state(kLara, 2);
  size_t floats = 0;
  for (int i = 0; i < kWindowParts; ++i) floats += state.part(static_cast<WindowPart>(i), 0).size();
  EXPECT_EQ(state.to_bytes().size(), kHeader + 2 * (sizeof(int64_t) + floats * sizeof(float)));
}

TEST(WindowStateImage, KeepsNumbersThatAreNotFinite) {
  WindowState state(kEva);
  const std::span<float> keys = state.part(WindowPart::keys, 1);
  keys[0] = std::bit_cast<float>(0x7fa12345U);  // a signalling NaN with a payload
  keys[1] = -std::numeric_limits<float>::infinity();
  keys[2] = -0.0F;
  keys[3] = std::numeric_limits<float>::denorm_min();
  const WindowState again = WindowState::from_bytes(state.to_bytes());
  EXPECT_EQ(std::memcmp(again.part(WindowPart::keys, 1).data(), keys.data(), keys.size_bytes()), 0);
  EXPECT_EQ(again.to_bytes(), state.to_bytes());
}

TEST(WindowStateImage, AnEmptyBatchIsAState) {
  for (const WindowStateShape& shape : kShapes) {
    const WindowState state = random_state(shape, 3).select({});
    EXPECT_EQ(state.to_bytes().size(), kHeader);
    EXPECT_EQ(WindowState::from_bytes(state.to_bytes()), state);
  }
}

TEST(WindowStateImage, StaysAsVersionOneWroteIt) {
  WindowState state(kSmall);
  state.tokens(0) = 258;
  float next = 1;
  for (int i = 0; i < kWindowParts; ++i) {
    for (float& x : state.part(static_cast<WindowPart>(i), 0)) x = next++;
  }
  const std::vector<uint8_t> expected = {
      'R',  'A',  'F',  'W',  'I',  'N',  'S',  'T',  1,  0, 0,    0,    136, 0, 0,    0,  // magic, version, header size
      1,    0,    0,    0,    0,    0,    0,    0,    1,  0, 0,    0,    0,   0, 0,    0,  // kind, batch
      1,    0,    0,    0,    0,    0,    0,    0,    1,  0, 0,    0,    0,   0, 0,    0,  // query_heads, heads
      1,    0,    0,    0,    0,    0,    0,    0,    0,  0, 0,    0,    0,   0, 0,    0,  // dim, far_dim
      1,    0,    0,    0,    0,    0,    0,    0,    1,  0, 0,    0,    0,   0, 0,    0,  // value_dim, window
      1,    0,    0,    0,    0,    0,    0,    0,    0,  0, 0,    0,    0,   0, 0,    0,  // summaries, proposals
      1,    0,    0,    0,    0,    0,    0,    0,    1,  0, 0,    0,    0,   0, 0,    0,  // features, chunk
      1,    2,    3,    4,    5,    6,    7,    8,    48, 0, 0,    0,    0,   0, 0,    0,  // recipe, payload size
      0xc6, 0xde, 0x81, 0x54, 0x1d, 0x4a, 0xb3, 0x03,                                      // checksum
      2,    1,    0,    0,    0,    0,    0,    0,                                         // tokens
      0,    0,    0x80, 0x3f, 0,    0,    0,    0x40, 0,  0, 0x40, 0x40, 0,   0, 0x80, 0x40, 0, 0, 0xa0, 0x40,
      0,    0,    0xc0, 0x40, 0,    0,    0xe0, 0x40, 0,  0, 0,    0x41, 0,   0, 0x10, 0x41, 0, 0, 0x20, 0x41};
  const Image image = state.to_bytes();
  ASSERT_EQ(image.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(std::to_integer<int>(image[i]), expected[i]) << "byte " << i;
}

TEST(WindowStateImage, EveryFieldOfTheShapeHasItsPlace) {
  const std::array<int64_t, 13> expected[] = {{0, 2, 1, 2, 3, 5, 2, 2, 0, 0, 3, 0, 0},
                                              {1, 2, 2, 1, 2, 0, 3, 2, 3, 0, 2, 2, -0x0123456789abcdf0},
                                              {2, 2, 2, 1, 2, 0, 1, 2, 2, 1, 0, 1, 7}};
  for (size_t i = 0; i < kShapes.size(); ++i) {
    Image image = random_state(kShapes[i], 4).to_bytes();
    const Image before = image;
    for (size_t field = 0; field < 13; ++field) put_i64(image, kKindAt + 8 * field, expected[i][field]);
    EXPECT_EQ(image, before) << name_of(kShapes[i].kind);
  }
}

TEST(WindowStateImage, RefusesEveryTruncation) {
  for (const WindowStateShape& shape : kShapes) {
    const Image image = random_state(shape, 5).to_bytes();
    for (size_t size = 0; size < image.size(); ++size) {
      const Image part(image.begin(), image.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_NE(refusal_of(part).find("truncated"), std::string::npos) << size;
    }
  }
}

TEST(WindowStateImage, RefusesEveryFlippedBit) {
  for (const WindowStateShape& shape : kShapes) {
    const Image image = random_state(shape, 6).to_bytes();
    for (size_t bit = 0; bit < 8 * image.size(); ++bit) {
      Image flipped = image;
      flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      EXPECT_THROW((void)WindowState::from_bytes(flipped), FormatError) << "bit " << bit;
    }
  }
}

TEST(WindowStateImage, RefusesBytesThatFollow) {
  Image image = random_state(kSmall, 7).to_bytes();
  image.push_back(std::byte{0});
  EXPECT_EQ(refusal_of(image),
            "WindowState::from_bytes: 185 bytes, expected 184 (header and payload): bytes follow the window state");
}

TEST(WindowStateImage, RefusalsSayWhatAndWhere) {
  const Image image = random_state(kSmall, 8).to_bytes();

  Image other(image.begin(), image.begin() + 135);
  EXPECT_EQ(refusal_of(other),
            "WindowState::from_bytes: 135 bytes, expected a window state header of 136: truncated, or not a window state");

  other = image;
  other[0] = std::byte{'X'};
  EXPECT_EQ(refusal_of(other), "WindowState::from_bytes: does not begin with RAFWINST: not a window state");

  other = image;
  put_u32(other, 8, 2);
  EXPECT_EQ(refusal_of(other), "WindowState::from_bytes: window state format version 2 at byte 8, expected 1");

  other = image;
  put_u32(other, 12, 128);
  EXPECT_EQ(refusal_of(other), "WindowState::from_bytes: header size 128 at byte 12, expected 136");

  other = image;
  put_i64(other, kKindAt, 3);
  EXPECT_EQ(refusal_of(other), "WindowState::from_bytes: kind 3 at byte 16, expected 0 to 2");
  put_i64(other, kKindAt, 256);  // a byte of it would be a kind
  EXPECT_EQ(refusal_of(other), "WindowState::from_bytes: kind 256 at byte 16, expected 0 to 2");

  other = image;
  put_i64(other, kKindAt, 2);
  EXPECT_EQ(refusal_of(other),
            "WindowState::from_bytes: the shape at byte 16 is not that of a window state: proposals is 0, expected at least 1 "
            "(lara)");

  other = image;
  put_i64(other, kPayloadSizeAt, 40);
  EXPECT_EQ(refusal_of(other), "WindowState::from_bytes: payload of 40 bytes at byte 120, expected 48 (from the shape)");

  other = image;
  other.back() ^= std::byte{1};
  EXPECT_NE(refusal_of(other).find("(at byte 128): the window state is corrupt"), std::string::npos) << refusal_of(other);
}

TEST(WindowStateImage, StatesOfTheOtherKindAreNamed) {
  const State state({.batch = 1, .heads = 1, .features = 2, .value_dim = 2});
  EXPECT_LT(state.to_bytes().size(), kHeader) << "recognised although it is shorter than a header";
  EXPECT_EQ(refusal_of(state.to_bytes()),
            "WindowState::from_bytes: begins with RAFSTATE, expected RAFWINST: a state, not a window state");
  try {
    (void)State::from_bytes(random_state(kSmall, 9).to_bytes());
    FAIL() << "a window state was accepted as a state";
  } catch (const FormatError& error) {
    EXPECT_STREQ(error.what(), "State::from_bytes: begins with RAFWINST, expected RAFSTATE: a window state, not a state");
  }
}

TEST(WindowStateImage, RefusesShapesThatCannotBe) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  for (const WindowStateShape& shape : kShapes) {
    const Image image = random_state(shape, 10).to_bytes();
    for (size_t at = kBatchAt; at < kRecipeAt; at += 8) {
      for (int64_t value : {int64_t{-1}, kMin, kMax, kMax - 15, int64_t{1} << 62, int64_t{1} << 61}) {
        Image other = image;
        put_i64(other, at, value);
        EXPECT_NE(refusal_of(other).find("shape at byte 16 is not that of a window state"), std::string::npos)
            << "byte " << at << ", value " << value << ": " << refusal_of(other);
      }
    }
  }
}

TEST(WindowStateImage, AllocatesNothingForAShapeThatTheBytesDoNotHold) {
  // 48 bytes for each of 2^37 entries by its shape and its payload size, 184 bytes in truth.
  Image image = random_state(kSmall, 11).to_bytes();
  put_i64(image, kBatchAt, int64_t{1} << 37);
  put_i64(image, kPayloadSizeAt, int64_t{48} << 37);
  EXPECT_EQ(refusal_of(with_checksum(image)),
            "WindowState::from_bytes: 184 bytes, expected 6597069766792 (header and payload): truncated");
}

TEST(WindowStateImage, RefusesCountsOfTokensThatCannotBe) {
  const Image image = random_state(kLara, 12).to_bytes();
  ASSERT_EQ(refusal_of(with_checksum(image)), "accepted");
  Image other = image;
  put_i64(other, kHeader + 8, -1);  // would be a place before the first
  EXPECT_EQ(refusal_of(with_checksum(other)),
            "WindowState::from_bytes: -1 tokens at byte 144, expected 0 to 4611686018427387904");
  put_i64(other, kHeader + 8, std::numeric_limits<int64_t>::max());  // the next place would not be a number
  EXPECT_EQ(refusal_of(with_checksum(other)),
            "WindowState::from_bytes: 9223372036854775807 tokens at byte 144, expected 0 to 4611686018427387904");
  put_i64(other, kHeader + 8, int64_t{1} << 62);
  EXPECT_EQ(refusal_of(with_checksum(other)), "accepted");

  WindowState state(kSmall);
  state.tokens(0) = -1;
  EXPECT_THROW((void)state.to_bytes(), InvalidArgument) << "nothing is written that cannot be read";
}

TEST_F(WindowStateFile, SaveAndLoadKeepTheState) {
  for (const WindowStateShape& shape : kShapes) {
    const WindowState state = random_state(shape, 13);
    state.save(directory_ / "chat.state");
    EXPECT_EQ(WindowState::load(directory_ / "chat.state"), state);
    EXPECT_EQ(read_all(directory_ / "chat.state"), state.to_bytes());
    EXPECT_EQ(files(), 1U) << "no other file is left";
  }
}

TEST_F(WindowStateFile, ForeignFilesAreNamed) {
  const fs::path path = directory_ / "chat.state";
  State({.batch = 1, .heads = 2, .features = 8, .value_dim = 8}).save(path);
  try {
    (void)WindowState::load(path);
    FAIL() << "a state was accepted as a window state";
  } catch (const FormatError& error) {
    EXPECT_EQ(error.what(), path.string() + ": begins with RAFSTATE, expected RAFWINST: a state, not a window state");
  }
  random_state(kEva, 14).save(path);
  try {
    (void)State::load(path);
    FAIL() << "a window state was accepted as a state";
  } catch (const FormatError& error) {
    EXPECT_EQ(error.what(), path.string() + ": begins with RAFWINST, expected RAFSTATE: a window state, not a state");
  }
  std::ofstream(path) << std::string(1000, 'x');
  EXPECT_THROW((void)WindowState::load(path), FormatError);
  write_all(path, {});
  EXPECT_THROW((void)WindowState::load(path), FormatError);
}

TEST_F(WindowStateFile, AFailedWriteLeavesTheOldFileAndNothingElse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const fs::path path = directory_ / "chat.state";
  const WindowState old = random_state(kSmall, 15);
  old.save(path);
  const auto save_with_little_room = [&] {
    // The write that passes the limit is cut short and the next one fails, as on a full disk.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    WindowStateShape large = kEva;
    large.dim = 1024;
    int outcome = 1;
    try {
      random_state(large, 16).save(path);
    } catch (const IoError& error) {
      outcome =
          std::strstr(error.what(), "cannot write: File too large") != nullptr && WindowState::load(path) == old && files() == 1
              ? 0
              : 2;
    }
    fs::remove_all(directory_);  // of this process, which ends before TearDown
    std::exit(outcome);
  };
  EXPECT_EXIT(save_with_little_room(), testing::ExitedWithCode(0), "");
}

TEST_F(WindowStateFile, AReadOnlyDirectoryIsAnErrorAndTheOldFileStays) {
  constexpr uid_t kNobody = 65534;
  random_state(kEva, 17).save(directory_ / "chat.state");
  fs::permissions(directory_, static_cast<fs::perms>(0555));
  const bool is_root = geteuid() == 0;  // who may write everywhere
  if (is_root) {
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  EXPECT_THROW(random_state(kEva, 18).save(directory_ / "chat.state"), IoError);
  if (is_root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  fs::permissions(directory_, fs::perms::owner_all);
  EXPECT_EQ(WindowState::load(directory_ / "chat.state"), random_state(kEva, 17));
  EXPECT_EQ(files(), 1U);
}

TEST_F(WindowStateFile, ErrorsOfTheSystemNamePathAndReason) {
  const fs::path path = directory_ / "missing" / "chat.state";
  try {
    (void)WindowState::load(path);
    FAIL() << "a missing file was loaded";
  } catch (const IoError& error) {
    EXPECT_EQ(error.what(), path.string() + ": cannot open: No such file or directory");
  }
  EXPECT_THROW(random_state(kSmall, 19).save(path), IoError);
  EXPECT_THROW((void)WindowState::load(directory_), IoError);
  ASSERT_EQ(mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  EXPECT_THROW((void)WindowState::load(directory_ / "pipe"), IoError);
}

TEST_F(WindowStateFile, RefusesTruncatedAndCorruptFiles) {
  const Image image = random_state(kSmall, 20).to_bytes();
  const fs::path path = directory_ / "chat.state";
  for (size_t size = 0; size < image.size(); ++size) {
    write_all(path, Image(image.begin(), image.begin() + static_cast<std::ptrdiff_t>(size)));
    EXPECT_THROW((void)WindowState::load(path), FormatError) << size;
  }
  for (size_t byte = 0; byte < image.size(); ++byte) {
    Image other = image;
    other[byte] ^= std::byte{0x10};
    write_all(path, other);
    EXPECT_THROW((void)WindowState::load(path), FormatError) << byte;
  }
  Image longer = image;
  longer.push_back(std::byte{0});
  write_all(path, longer);
  EXPECT_THROW((void)WindowState::load(path), FormatError);
}

}  // namespace
}  // namespace raffia::internal
