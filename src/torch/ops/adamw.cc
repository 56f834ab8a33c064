#include "torch/ops/adamw.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "torch/ops/executor.h"

namespace raffia::internal::ops {
namespace {

constexpr size_t kPiece = size_t{1} << 16;  // elements of a task: about 20 microseconds of memory traffic

struct Piece {
  const AdamwTensor* tensor;
  size_t begin, count;
};

// All tensors in pieces, large ones in several.
std::vector<Piece> pieces_of(std::span<const AdamwTensor> tensors) {
  std::vector<Piece> pieces;
  for (const AdamwTensor& tensor : tensors) {
    const size_t size = tensor.run.parameters.size();
    for (size_t begin = 0; begin < size; begin += kPiece) pieces.push_back({&tensor, begin, std::min(kPiece, size - begin)});
  }
  return pieces;
}

template <class Task>
void for_each(const std::vector<Piece>& pieces, const Task& task) {
  size_t elements = 0;
  for (const Piece& piece : pieces) elements += piece.count;
  const int workers = elements < 2 * kPiece ? 1 : torch_executor().concurrency();
  const auto run = [&](int64_t index, int) { task(static_cast<size_t>(index)); };
  torch_executor().run(static_cast<int64_t>(pieces.size()), workers, run);
}

}  // namespace

double norm_of_gradients(std::span<const AdamwTensor> tensors) {
  const std::vector<Piece> pieces = pieces_of(tensors);
  std::vector<double> sums(pieces.size());
  for_each(pieces, [&](size_t i) {
    sums[i] = sum_of_squares(pieces[i].tensor->run.gradients.subspan(pieces[i].begin, pieces[i].count));
  });
  double sum = 0;
  for (const double each : sums) sum += each;
  return std::sqrt(sum);
}

void adamw_step(std::span<const AdamwTensor> tensors) {
  const std::vector<Piece> pieces = pieces_of(tensors);
  for_each(pieces, [&](size_t i) {
    const auto& [tensor, begin, count] = pieces[i];
    const AdamwRun& run = tensor->run;
    adamw({.parameters = run.parameters.subspan(begin, count),
           .gradients = run.gradients.subspan(begin, count),
           .mean = run.mean.subspan(begin, count),
           .square = run.square.subspan(begin, count)},
          tensor->factors);
  });
}

}  // namespace raffia::internal::ops
