// Every kind of estimator, once. A kind is a module in a folder of its own; everything else asks the registry.
// See docs/architecture.md.
#ifndef RAFFIA_ESTIMATORS_REGISTRY_H_
#define RAFFIA_ESTIMATORS_REGISTRY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/sibling_api.h"
#include "estimators/keys.h"
#include "raffia/estimator.h"

namespace raffia::internal {

// What one token meets, for counting FLOP: samples and summaries count as keys. See estimators/work.h.
struct TokenWork {
  double keys = 0;   // each is multiplied with the query, and its value is added
  double drawn = 0;  // keys that are only drawn: half of the above
};

// Sizes that a record of a benchmark has besides shapes; absent where a kind has no such thing.
struct EstimatorSizes {
  std::optional<int64_t> samples = {}, window = {}, features = {};
};

class EstimatorModule {
 public:
  virtual ~EstimatorModule() = default;

  const EstimatorKind kind;
  const std::string_view name;
  const std::string_view summary;               // one line for help texts
  const std::vector<const EstimatorKey*> keys;  // in the order in which they are written

  const bool forms_differ = false;  // some settings are used by one form only: see used()

  virtual EstimatorTraits traits(const Estimator& estimator) const = 0;
  // Throws InvalidArgument if settings contradict each other.
  virtual void check(const Estimator&) const {}
  // Without the settings that only the other form uses.
  virtual Estimator used(const Estimator& estimator, bool /*causal*/) const { return estimator; }
  virtual Estimator bidirectional_form(const Estimator& estimator) const { return estimator; }
  virtual EstimatorSizes sizes(const Estimator&, bool /*causal*/) const { return {}; }

  // See estimator.h. Inputs are complete: a module with a map gets one.
  virtual Report attend(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options,
                        std::span<float> record) const = 0;
  virtual int64_t record_size(const Estimator& estimator, const AttendInputs& inputs, const AttendOptions& options) const = 0;
  virtual void backward(const Estimator& estimator, const AttendInputs& inputs, View4 out, std::span<const float> record,
                        View4 dout, const AttendGradients& gradients, const AttendOptions& options) const = 0;
  virtual Memory empty_memory(const Estimator& estimator, const MemorySizes& sizes) const = 0;
  virtual std::optional<int64_t> memory_bytes(const Estimator& estimator, const MemorySizes& sizes, int64_t tokens) const = 0;
  virtual Report extend(const Estimator& estimator, const AttendInputs& inputs, Memory& memory, MutView4 out,
                        const AttendOptions& options) const = 0;
  virtual Report step(const Estimator& estimator, const AttendInputs& inputs, std::span<Memory* const> sessions, MutView4 out,
                      const AttendOptions& options) const = 0;

  // Of one token and query head: on the mean over a sequence of `length` tokens, and of a step after `depth` tokens.
  virtual TokenWork work(const Estimator& estimator, bool causal, int64_t length) const = 0;
  virtual TokenWork step_work(const Estimator& estimator, int64_t depth) const { return work(estimator, true, depth); }

 protected:
  EstimatorModule(EstimatorKind its_kind, std::string_view its_name, std::string_view its_summary,
                  std::vector<const EstimatorKey*> its_keys, bool differ = false)
      : kind(its_kind), name(its_name), summary(its_summary), keys(std::move(its_keys)), forms_differ(differ) {}
};

std::span<const EstimatorModule* const> estimator_modules();              // in the order of EstimatorKind
RAFFIA_SIBLING_API const EstimatorModule& module_of(EstimatorKind kind);  // throws InvalidArgument
// Names of the kinds that have a trait with their default settings: "softmax, rfa or lara".
RAFFIA_SIBLING_API std::string kinds_with(bool EstimatorTraits::*trait);
// Number of random vectors D of the map, of an estimator that has one.
RAFFIA_SIBLING_API int64_t map_size(const Estimator& estimator);
inline const EstimatorModule& module_of(const Estimator& estimator) { return module_of(estimator.kind); }

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_REGISTRY_H_
