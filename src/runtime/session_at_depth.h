// For benchmarks only: sessions deep into a text, without reading all of it.
#ifndef RAFFIA_RUNTIME_SESSION_AT_DEPTH_H_
#define RAFFIA_RUNTIME_SESSION_AT_DEPTH_H_

#include <cstdint>
#include <memory>

#include "raffia/session.h"

namespace raffia::internal::runtime {

// A session with the size and the cost of one that has read `depth` tokens. It reads some tokens, fills its KV caches with copies
// of their keys and values, and sets its position to `depth`. A rollback can go back to `depth`.
Session session_at_depth(std::shared_ptr<const Model> model, int64_t depth, const SessionOptions& options);

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_SESSION_AT_DEPTH_H_
