#include "raffia/isa.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>

#include "core/check.h"
#include "core/dispatch.h"

namespace raffia {

using namespace internal;
namespace {

constexpr Isa kIsas[] = {Isa::scalar, Isa::neon, Isa::sse4, Isa::avx2, Isa::avx512};

// The Highway targets of each name. Targets without a name (SSSE3, SVE) are not used.
constexpr int64_t targets_of(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return HWY_SCALAR | HWY_EMU128;
    case Isa::neon:
      return HWY_NEON;
    case Isa::sse4:
      return HWY_SSE4;
    case Isa::avx2:
      return HWY_AVX2;
    case Isa::avx512:
      return HWY_AVX3 | HWY_AVX3_DL;
  }
  return 0;
}

// What every CPU can run that this program can run on. Highway asks for AES instructions too before it reports NEON; kernels use
// none, and some CPUs (of the Raspberry Pi 4) have none.
constexpr int64_t kAlwaysRunnable = targets_of(Isa::scalar) | (HWY_ARCH_ARM_A64 ? HWY_NEON : 0);

constexpr int64_t targets_up_to(Isa cap) {
  int64_t targets = 0;
  for (Isa isa : kIsas) {
    if (isa <= cap) targets |= targets_of(isa);
  }
  return targets;
}

std::optional<Isa> find_isa(std::string_view name) {
  for (Isa isa : kIsas) {
    if (name == name_of(isa)) return isa;
  }
  return std::nullopt;
}

constexpr const char* kNames = "scalar, neon, sse4, avx2, avx512";

Isa cap_of_environment() {
  const char* value = std::getenv("RAFFIA_MAX_ISA");
  if (value == nullptr || *value == '\0') return Isa::avx512;
  const std::optional<Isa> isa = find_isa(value);
  require(isa.has_value(), "RAFFIA_MAX_ISA: \"{}\" is not an instruction set, expected one of {}", value, kNames);
  return *isa;
}

bool cpu_has_vnni() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

class Choice {
 public:
  Choice()
      : runnable_(static_cast<int64_t>(HWY_TARGETS) & (hwy::SupportedTargets() | kAlwaysRunnable) &
                  targets_up_to(cap_of_environment())) {
    cap(Isa::avx512);
  }

  bool can_run(Isa isa) const { return (runnable_ & targets_of(isa)) != 0; }
  bool runs_vnni() const { return has_vnni_ && vnni_allowed_ && active() == Isa::avx512; }
  void allow_vnni(bool allowed) { vnni_allowed_ = allowed; }
  Isa active() const { return active_.load(std::memory_order_relaxed); }
  const hwy::ChosenTarget& target() const { return target_; }

  void cap(Isa isa) {
    Isa best = Isa::scalar;
    for (Isa candidate : kIsas) {
      if (candidate <= isa && can_run(candidate)) best = candidate;
    }
    active_.store(best, std::memory_order_relaxed);
    target_.Update(runnable_ & targets_of(best));
  }

 private:
  const bool has_vnni_ = cpu_has_vnni();
  std::atomic<bool> vnni_allowed_ = true;
  int64_t runnable_;  // compiled in, supported by the CPU and within RAFFIA_MAX_ISA
  std::atomic<Isa> active_;
  hwy::ChosenTarget target_;
};

Choice& choice() {
  static Choice choice;
  return choice;
}

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::neon:
      return "neon";
    case Isa::sse4:
      return "sse4";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "unknown";
}

Isa parse_isa(std::string_view name) {
  const std::optional<Isa> isa = find_isa(name);
  require(isa.has_value(), "parse_isa: \"{}\" is not an instruction set, expected one of {}", name, kNames);
  return *isa;
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  std::copy_if(std::begin(kIsas), std::end(kIsas), std::back_inserter(isas), [](Isa isa) { return choice().can_run(isa); });
  return isas;
}

Isa active_isa() { return choice().active(); }

void set_max_isa(Isa isa) { choice().cap(isa); }

const hwy::ChosenTarget& internal::chosen_target() { return choice().target(); }

bool internal::vnni_is_active() { return choice().runs_vnni(); }

void internal::allow_vnni(bool allowed) { choice().allow_vnni(allowed); }

}  // namespace raffia
