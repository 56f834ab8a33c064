// Reads a prompt in one call, then decodes token by token. The state is overwritten in place: no memory is added per token.
//
// Without CMake:  c++ -std=c++20 decode.cc $(pkg-config --cflags --libs raffia) -o decode
#include <raffia/raffia.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int64_t kPrompt = 100, kSteps = 20, kHeads = 4, kDim = 32;
constexpr int64_t kToken = kHeads * kDim;  // floats of one token

std::vector<float> normal_draws(raffia::RandomStream& random, int64_t count) {
  std::vector<float> draws(static_cast<size_t>(count));
  std::generate(draws.begin(), draws.end(), [&] { return static_cast<float>(random.next_normal()); });
  return draws;
}

}  // namespace

int main() {
  raffia::RandomStream random({.seed = 3});
  const auto q = normal_draws(random, (kPrompt + kSteps) * kToken);
  const auto k = normal_draws(random, (kPrompt + kSteps) * kToken);
  const auto v = normal_draws(random, (kPrompt + kSteps) * kToken);
  const auto gate_logits = normal_draws(random, (kPrompt + kSteps) * kHeads);
  std::vector<float> out(q.size());

  const auto map = raffia::FeatureMap::arccos({.dim = kDim, .count = kDim, .heads = kHeads, .seed = 1});
  raffia::State state(map, {.batch = 1, .value_dim = kDim});

  const raffia::Extents<4> prompt{1, kPrompt, kHeads, kDim};
  raffia::gated_attention({q.data(), prompt}, {k.data(), prompt}, {v.data(), prompt}, {gate_logits.data(), {1, kPrompt, kHeads}},
                          map, state, {out.data(), prompt});
  const size_t bytes_after_prompt = state.size_bytes();

  const raffia::Extents<3> token{1, kHeads, kDim};
  for (int64_t t = kPrompt; t < kPrompt + kSteps; ++t) {
    const int64_t at = t * kToken;
    raffia::gated_step({q.data() + at, token}, {k.data() + at, token}, {v.data() + at, token},
                       {gate_logits.data() + t * kHeads, {1, kHeads}}, map, state, {out.data() + at, token});
  }

  const bool finite = std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); });
  std::printf("raffia %s: %lld tokens read, %lld decoded, state of %zu bytes before and %zu after, outputs %s\n",
              raffia::version(), static_cast<long long>(kPrompt), static_cast<long long>(kSteps), bytes_after_prompt,
              state.size_bytes(), finite ? "finite" : "NOT finite");
  return finite ? 0 : 1;
}
