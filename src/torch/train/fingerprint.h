// A hash of data (XXH3): equal data have equal fingerprints.
#ifndef RAFFIA_TORCH_TRAIN_FINGERPRINT_H_
#define RAFFIA_TORCH_TRAIN_FINGERPRINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace raffia::internal::train {

class Fingerprint {
 public:
  Fingerprint();
  ~Fingerprint();

  void add(std::span<const std::byte> bytes);
  template <typename Element>
  void add(const std::vector<Element>& elements) {
    add_number(elements.size());  // so that moving elements between two arrays changes the hash
    add(std::as_bytes(std::span(elements)));
  }
  void add_number(uint64_t number) { add(std::as_bytes(std::span(&number, 1))); }
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_FINGERPRINT_H_
