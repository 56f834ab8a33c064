// A back door for measurements: sessions far into a text that nobody has to read.
#ifndef RAFFIA_RUNTIME_SESSION_AT_DEPTH_H_
#define RAFFIA_RUNTIME_SESSION_AT_DEPTH_H_

#include <cstdint>
#include <memory>

#include "raffia/session.h"

namespace raffia::runtime {

// Has the size and the cost of a session that has read `depth` tokens: it reads some, keeps copies of their keys and values in
// place of those that are missing, and counts on. A rollback can go back to `depth`.
Session session_at_depth(std::shared_ptr<const Model> model, int64_t depth, const SessionOptions& options);

}  // namespace raffia::runtime

#endif  // RAFFIA_RUNTIME_SESSION_AT_DEPTH_H_
