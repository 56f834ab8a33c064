#include "raffia/isa.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>

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

std::string op_names() {
  std::string names;
  for (const IsaLimit& limit : kIsaLimits) names.append(names.empty() ? "" : ", ").append(limit.name);
  return names;
}

// RAFFIA_MAX_ISA: a list of ISA (a cap on everything) and OP=ISA (replaces the row of an op), such as "avx2" or
// "avx512,linear_step=avx2".
struct Limits {
  Isa cap = Isa::avx512;
  std::array<Isa, kKernelOps> widest;

  Limits() {
    for (size_t i = 0; i < kKernelOps; ++i) widest[i] = kIsaLimits[i].widest;
    const char* value = std::getenv("RAFFIA_MAX_ISA");
    if (value == nullptr || *value == '\0') return;
    for (std::string_view rest = value; !rest.empty();) {
      const size_t comma = std::min(rest.find(','), rest.size());
      read(rest.substr(0, comma));
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }

 private:
  void read(std::string_view item) {
    const size_t equals = item.find('=');
    const std::string_view name = equals == item.npos ? item : item.substr(equals + 1);
    const std::optional<Isa> isa = find_isa(name);
    require(isa.has_value(), "RAFFIA_MAX_ISA: \"{}\" is not an instruction set, expected one of {}", name, kNames);
    if (equals == item.npos) {
      cap = *isa;
      return;
    }
    const std::string_view op = item.substr(0, equals);
    const auto* row = std::find_if(std::begin(kIsaLimits), std::end(kIsaLimits), [&](const IsaLimit& l) { return l.name == op; });
    require(row != std::end(kIsaLimits), "RAFFIA_MAX_ISA: \"{}\" is not a kernel, expected one of {}", op, op_names());
    widest[static_cast<size_t>(row->op)] = *isa;
  }
};

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
      : runnable_(static_cast<int64_t>(HWY_TARGETS) & (hwy::SupportedTargets() | kAlwaysRunnable) & targets_up_to(limits_.cap)) {
    cap(Isa::avx512);
  }

  bool can_run(Isa isa) const { return (runnable_ & targets_of(isa)) != 0; }
  bool runs_vnni() const { return has_vnni_ && vnni_allowed_ && isa_of(KernelOp::integer_product) == Isa::avx512; }
  void allow_vnni(bool allowed) { vnni_allowed_ = allowed; }
  Isa active() const { return active_.load(std::memory_order_relaxed); }
  const hwy::ChosenTarget& target(KernelOp op) const { return targets_[static_cast<size_t>(op)]; }

  Isa isa_of(KernelOp op) const {
    return limits_apply_ ? best_up_to(std::min(active(), limits_.widest[static_cast<size_t>(op)])) : active();
  }

  void cap(Isa isa) {
    active_.store(best_up_to(isa), std::memory_order_relaxed);
    update_targets();
  }

  void apply_limits(bool apply) {
    limits_apply_ = apply;
    update_targets();
  }

 private:
  Isa best_up_to(Isa isa) const {
    Isa best = Isa::scalar;
    for (Isa candidate : kIsas) {
      if (candidate <= isa && can_run(candidate)) best = candidate;
    }
    return best;
  }

  void update_targets() {
    for (const IsaLimit& limit : kIsaLimits) {
      targets_[static_cast<size_t>(limit.op)].Update(runnable_ & targets_of(isa_of(limit.op)));
    }
  }

  const bool has_vnni_ = cpu_has_vnni();
  std::atomic<bool> vnni_allowed_ = true;
  std::atomic<bool> limits_apply_ = true;
  const Limits limits_;
  const int64_t runnable_;  // compiled in, supported by the CPU and within RAFFIA_MAX_ISA
  std::atomic<Isa> active_;
  std::array<hwy::ChosenTarget, kKernelOps> targets_;
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

const hwy::ChosenTarget& internal::chosen_target(KernelOp op) { return choice().target(op); }

std::vector<IsaException> internal::isa_exceptions() {
  std::vector<IsaException> exceptions;
  for (const IsaLimit& limit : kIsaLimits) {
    if (const Isa isa = choice().isa_of(limit.op); isa != active_isa()) exceptions.push_back({limit.name, isa});
  }
  return exceptions;
}

internal::WithoutIsaLimits::WithoutIsaLimits() { choice().apply_limits(false); }

internal::WithoutIsaLimits::~WithoutIsaLimits() { choice().apply_limits(true); }

bool internal::vnni_is_active() { return choice().runs_vnni(); }

void internal::allow_vnni(bool allowed) { choice().allow_vnni(allowed); }

}  // namespace raffia
