#include "io/formats/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "raffia/error.h"

namespace raffia::internal {
namespace {

// Data for a signal handler: no locks, no allocation. Further files are also mapped, but not named by the handler.
struct Mapping {
  std::atomic<const std::byte*> begin = nullptr, end = nullptr;  // begin is set last and cleared first
  std::atomic<const char*> message = nullptr;
  std::atomic<bool> is_taken = false;
};
constexpr size_t kMappings = 64;
std::array<Mapping, kMappings> g_mappings;
std::atomic<const char*> g_program = nullptr;
static_assert(std::atomic<const char*>::is_always_lock_free);

// Returns kMappings if all are used.
size_t enter(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  if (bytes.empty()) return kMappings;
  for (size_t i = 0; i < kMappings; ++i) {
    Mapping& mapping = g_mappings[i];
    if (mapping.is_taken.exchange(true)) continue;
    const std::string text = fmt::format(
        ": {}: was truncated while it was memory-mapped (replace weights by renaming a new file over them, or load them with "
        "--no-mmap)\n",
        path.string());
    char* message = new char[text.size() + 1];
    std::memcpy(message, text.c_str(), text.size() + 1);
    mapping.message = message;
    mapping.end = bytes.data() + bytes.size();
    mapping.begin = bytes.data();
    return i;
  }
  return kMappings;
}

void leave(size_t slot) {
  if (slot == kMappings) return;
  Mapping& mapping = g_mappings[slot];
  mapping.begin = nullptr;
  delete[] mapping.message.exchange(nullptr);
  mapping.is_taken = false;
}

void write_text(const char* text) { [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text)); }

void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  for (const Mapping& mapping : g_mappings) {
    const std::byte* begin = mapping.begin;
    if (begin == nullptr || at < begin || at >= mapping.end) continue;
    if (const char* message = mapping.message) {
      write_text(g_program);
      write_text(message);
      ::_exit(1);
    }
  }
  std::signal(signal, SIG_DFL);  // the fault comes again once this returns
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path)
    : file_(File::open_to_read(path)), version_(file_.version()), slot_(kMappings) {
  if (version_.size == 0) return;  // there is no such mapping
  void* memory = ::mmap(nullptr, version_.size, PROT_READ, MAP_SHARED, file_.descriptor(), 0);
  if (memory == MAP_FAILED) throw IoError(fmt::format("{}: cannot map: {}", path.string(), std::strerror(errno)));
  bytes_ = {static_cast<const std::byte*>(memory), version_.size};
  slot_ = enter(bytes_, path);
}

MappedFile::~MappedFile() {
  leave(slot_);
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());  // NOLINT: as munmap is declared
}

void exit_where_mapped_files_are_cut(const char* program) {
  g_program = program;
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace raffia::internal
