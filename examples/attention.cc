#include <raffia/attention.h>

#include <cstdio>
#include <vector>

int main() {
  const raffia::Extents<4> shape{1, 1000, 8, 64};  // batch, tokens, heads, size of a head
  raffia::RandomStream random({.seed = 7});
  std::vector<float> q(1000 * 8 * 64), k(q.size()), v(q.size()), out(q.size()), gate(1000 * 8, 4.0F);
  for (size_t i = 0; i < q.size(); ++i) q[i] = k[i] = v[i] = float(random.next_normal());

  auto map = raffia::FeatureMap::trig({.dim = 64, .count = 64, .heads = 8, .seed = 1});
  raffia::State state(map, {.batch = 1, .value_dim = 64});
  auto report = raffia::gated_attention({q.data(), shape}, {k.data(), shape}, {v.data(), shape}, {gate.data(), {1, 1000, 8}}, map,
                                        state, {out.data(), shape}, {.run = {.threads = 2}});
  state.save("chat.state");  // 1,000 tokens or a million: the same size
  std::printf("out[0] = %g, %zu bytes of state, %.2f%% clamped\n", out[0], state.size_bytes(), 100 * report.clamp_rate());
}
