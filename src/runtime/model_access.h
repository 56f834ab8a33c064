// The graph of a Model, which its public header does not show.
#ifndef RAFFIA_RUNTIME_MODEL_ACCESS_H_
#define RAFFIA_RUNTIME_MODEL_ACCESS_H_

#include "raffia/model.h"
#include "runtime/graph.h"

namespace raffia::internal {

class ModelAccess {
 public:
  static const runtime::Graph& graph(const Model& model);
};

}  // namespace raffia::internal

namespace raffia::internal::runtime {

inline const Graph& graph_of(const Model& model) { return internal::ModelAccess::graph(model); }

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_MODEL_ACCESS_H_
