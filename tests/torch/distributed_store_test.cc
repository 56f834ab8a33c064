#include "torch/train/distributed_store.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "raffia/error.h"
#include "torch/train/descriptor.h"
#include "torch/train/distributed_launch.h"

namespace raffia::internal::train {
namespace {

using namespace std::chrono_literals;

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

// Invalid: nobody listens there.
Descriptor connect_raw(const char* address, int port) {
  Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = ::htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, address, &to.sin_addr);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) fd.close();
  return fd;
}

class Store : public testing::Test {
 protected:
  c10::intrusive_ptr<c10d::Store> client(std::chrono::milliseconds timeout = 10s) const {
    return connect_store("127.0.0.1", port_, timeout);
  }

  const int port_ = free_local_port();
  StoreServer server_{"127.0.0.1", port_, 2};
};

TEST_F(Store, KeepsValuesForAllWhoAsk) {
  const auto one = client(), two = client();
  one->set("a", bytes("first"));
  EXPECT_EQ(two->get("a"), bytes("first"));
  two->set("a", bytes(std::string(1 << 20, 'x')));
  EXPECT_EQ(one->get("a").size(), size_t{1} << 20);
  EXPECT_TRUE(one->check({"a"}));
  EXPECT_FALSE(one->check({"a", "b"}));
  EXPECT_EQ(one->add("n", 2), 2);
  EXPECT_EQ(two->add("n", -5), -3);
  EXPECT_EQ(one->compareSet("c", {}, bytes("set")), bytes("set"));
  EXPECT_EQ(two->compareSet("c", bytes("other"), bytes("no")), bytes("set"));
  EXPECT_EQ(two->compareSet("c", bytes("set"), bytes("yes")), bytes("yes"));
  EXPECT_EQ(one->getNumKeys(), 3);
  EXPECT_TRUE(one->deleteKey("c"));
  EXPECT_FALSE(one->deleteKey("c"));
  one->set("empty", {});
  EXPECT_TRUE(two->get("empty").empty());
}

TEST_F(Store, WaitsForAValueAndNoLongerThanAllowed) {
  EXPECT_THROW(client(100ms)->get("never"), IoError);
  EXPECT_THROW(client()->wait({"never"}, 50ms), IoError);
  EXPECT_THROW(connect_store("127.0.0.1", free_local_port(), 100ms), IoError);
}

TEST_F(Store, ListensAtItsAddressAlone) {
  EXPECT_FALSE(server_.listens_everywhere());
  EXPECT_GE(connect_raw("127.0.0.1", port_).get(), 0);
  EXPECT_LT(connect_raw("127.0.0.2", port_).get(), 0);  // another address of the same machine
}

TEST_F(Store, ListensEverywhereOnlyForAnAddressThatIsNotItsOwn) {
  const StoreServer elsewhere("192.0.2.1", free_local_port(), 2);  // set aside for documents: nobody has it
  EXPECT_TRUE(elsewhere.listens_everywhere());
  EXPECT_THROW(StoreServer("127.0.0.1", port_, 2), IoError);  // taken
}

TEST_F(Store, DropsWhoeverDoesNotSpeakAsARank) {
  const std::string greeting = "raffia 1";
  const std::string huge("\0\0\0\0\1\0\0\0\xff\xff\xff\x7f", 12);  // set: a name of 1 byte, a value of 2 GB
  const std::string unknown("\x63\0\0\0\1\0\0\0\0\0\0\0x", 13);
  const std::string broken("\6\0\0\0\1\0\0\0\4\0\0\0x\xff\xff\xff\xff", 17);  // compare and set: expects 4 GB
  for (const std::string& said :
       {std::string("GET / HTTP/1.1\r\n\r\n"), greeting + huge, greeting + unknown, greeting + broken}) {
    const Descriptor stray = connect_raw("127.0.0.1", port_);
    ASSERT_EQ(::send(stray.get(), said.data(), said.size(), MSG_NOSIGNAL), static_cast<ssize_t>(said.size()));
    std::array<char, 16> answer;
    EXPECT_LE(::recv(stray.get(), answer.data(), answer.size(), 0), 0) << said;  // the end, not an answer
  }
  const auto rank = client();
  rank->set("a", bytes("still here"));
  EXPECT_EQ(rank->get("a"), bytes("still here"));
}

TEST_F(Store, StrangersTakeNeitherAllDescriptorsNorThePlacesOfRanks) {
  const auto open_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto early = client();
  early->set("a", bytes("early"));
  const auto before = open_descriptors();
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 200; ++i) strangers.push_back(connect_raw("127.0.0.1", port_));
  const auto late = client();
  EXPECT_EQ(late->get("a"), bytes("early"));
  EXPECT_EQ(early->get("a"), bytes("early"));
  EXPECT_LT(open_descriptors() - before - std::ssize(strangers), 50);  // the server's side of them
}

TEST_F(Store, IsNotFilledWithoutLimit) {
  const auto rank = client();
  const std::vector<uint8_t> block(16 << 20);
  EXPECT_THROW(
      {
        for (size_t i = 0; i <= kStoreBytes / block.size(); ++i) rank->set(std::to_string(i), block);
      },
      IoError);
  client()->set("0", bytes("smaller"));
}

constexpr char kSet = 0, kGet = 1, kAdd = 3;

// A request as it is sent. Sizes of up to 4 bytes.
std::string request(char operation, const std::string& name, const std::string& value = {}) {
  std::string bytes{operation, 0, 0, 0};
  for (const size_t size : {name.size(), value.size()}) {
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(size >> (8 * i));
  }
  return bytes + name + value;
}

bool send_all(const Descriptor& to, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::send(to.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

// How many of `size` bytes came before the end.
size_t receive(const Descriptor& from, size_t size) {
  std::vector<char> block(1 << 16);
  size_t done = 0;
  while (done < size) {
    const ssize_t count = ::recv(from.get(), block.data(), std::min(block.size(), size - done), 0);
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

size_t resident_bytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

constexpr size_t kAnswerHead = 8;

TEST_F(Store, AnswersWaitUntilTheyAreRead) {
  constexpr size_t kValue = size_t{16} << 20, kRequests = 48;
  client()->set("a", std::vector<uint8_t>(kValue));
  const Descriptor greedy = connect_raw("127.0.0.1", port_);
  std::string said = "raffia 1";
  for (size_t i = 0; i < kRequests; ++i) said += request(kGet, "a");
  const size_t before = resident_bytes();
  ASSERT_TRUE(send_all(greedy, said));
  ASSERT_EQ(receive(greedy, 1), 1U);
  EXPECT_LT(resident_bytes() - before, 8 * kValue);  // this test's own answers, and those that wait
  EXPECT_EQ(receive(greedy, kRequests * (kAnswerHead + kValue) - 1), kRequests * (kAnswerHead + kValue) - 1);  // all come
}

TEST_F(Store, SumsThatOverflowAreRefused) {
  const Descriptor stray = connect_raw("127.0.0.1", port_);
  const std::string most = std::to_string(INT64_MAX);
  ASSERT_TRUE(send_all(stray, "raffia 1" + request(kAdd, "n", most)));
  EXPECT_EQ(receive(stray, kAnswerHead + most.size()), kAnswerHead + most.size());
  ASSERT_TRUE(send_all(stray, request(kAdd, "n", "1")));
  EXPECT_EQ(receive(stray, 1), 0U);  // the end
  EXPECT_EQ(client()->add("n", 0), INT64_MAX);
}

TEST_F(Store, ManySmallEntriesFillItToo) {
  const Descriptor stray = connect_raw("127.0.0.1", port_);
  ASSERT_TRUE(send_all(stray, "raffia 1"));
  constexpr size_t kBlock = 1000, kBlocks = 4000;
  size_t answered = 0;
  for (size_t block = 0; block < kBlocks; ++block) {
    std::string said;
    for (size_t i = 0; i < kBlock; ++i) said += request(kSet, std::to_string(block * kBlock + i));
    if (!send_all(stray, said)) break;
    const size_t count = receive(stray, kBlock * kAnswerHead) / kAnswerHead;
    answered += count;
    if (count < kBlock) break;
  }
  EXPECT_GT(answered, 1'000'000U);
  EXPECT_LT(answered, kStoreBytes / 64);  // less than what a node of a map takes
}

}  // namespace
}  // namespace raffia::internal::train
