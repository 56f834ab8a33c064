#include "torch/train/fingerprint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace raffia::internal::train {

struct Fingerprint::State {
  XXH3_state_t hash;
};

Fingerprint::Fingerprint() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->hash); }
Fingerprint::~Fingerprint() = default;

void Fingerprint::add(std::span<const std::byte> bytes) { XXH3_64bits_update(&state_->hash, bytes.data(), bytes.size()); }
uint64_t Fingerprint::value() const { return XXH3_64bits_digest(&state_->hash); }

}  // namespace raffia::internal::train
