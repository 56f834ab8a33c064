// Hybrid decoding: one token for each of a batch of sessions. A step is one task: the token is added to the ring of two blocks
// and attends to the ring and the state. A block is folded into the state when the block after it is complete.
#include <cmath>

#include "core/check.h"
#include "core/trace.h"
#include "estimators/hybrid/plan.h"
#include "estimators/shared/qkv.h"
#include "estimators/shared/windows.h"
#include "kernels/softmax.h"

namespace raffia {

using namespace internal;
namespace {

constexpr const char* kStepName = "hybrid_step";

// One session's step, in the memory of one worker.
class SessionStep {
 public:
  SessionStep(const HybridInputs& inputs, const FeatureMap& map, const HybridOptions& options)
      : inputs_(inputs),
        map_(map),
        window_(static_cast<size_t>(options.window)),
        groups_(static_cast<size_t>(map.heads())),
        heads_(static_cast<size_t>(inputs.q.extent(2))),
        dim_(static_cast<size_t>(inputs.k.extent(3))),
        value_dim_(static_cast<size_t>(inputs.v.extent(3))),
        scale_(scale_or_default(options.scale, inputs.k.extent(3))) {}

  size_t scratch_floats() const {
    const LinearProblem shape = problem(0);
    const size_t work = std::max({step_scratch(heads_, dim_, value_dim_), linear_scratch_floats(shape), window_ * groups_,
                                  far_step_scratch_floats(FarStep{.map = shape.map, .value_dim = value_dim_})});
    return partial_floats() + heads_ * (value_dim_ + 2) + groups_ + window_ + round_up(shape.state_floats(), 16) + 96 + work;
  }

  void run(const StepEntry& entry, int64_t session, MutView4 out, float* memory, ClampCount& clamps) const {
    WindowState& state = *entry.state;
    const size_t p = static_cast<size_t>(state.tokens(entry.b)), block = p / window_, slots = 2 * window_;
    const auto part = [&](WindowPart which) { return state.part(which, entry.b).data(); };
    join(session, p % slots, part);

    float* free = memory;
    const auto take = [&](size_t floats) {
      float* taken = free;
      free += round_up(floats, 16);
      return taken;
    };
    float *partials = take(partial_floats()), *answer = take(heads_ * value_dim_), *logsumexp = take(heads_);
    float* log_scale = take(heads_);
    uint8_t* valid = reinterpret_cast<uint8_t*>(take(window_ / 2 + 1));  // [2 W]
    bool gaps = false;
    for (size_t j = 0; j < slots; ++j) {
      valid[j] = part(WindowPart::present)[j] != 0.0f;
      gaps = gaps || (valid[j] == 0 && j < p);  // slots of tokens to come do not count
    }
    for (size_t h = 0; h < heads_; ++h) log_scale[h] = static_cast<float>(inputs_.log_scale(static_cast<int64_t>(h)));

    // The block before, then this token's block up to it: stretches of the ring.
    const TokenRange before = {(block + 1) % 2 * window_, (block + 1) % 2 * window_ + (block > 0 ? window_ : 0)};
    const TokenRange own = {block % 2 * window_, block % 2 * window_ + p % window_ + 1};
    const size_t stretches = read_exactly({before, own}, session, part, gaps ? valid : nullptr, partials, free);
    softmax_step_combine({.partials = partials,
                          .stretches = stretches,
                          .heads = heads_,
                          .value_dim = value_dim_,
                          .out = {answer, DType::f32, static_cast<int64_t>(value_dim_), 1},
                          .logsumexp = {logsumexp, DType::f32, 1, 1}},
                         free);

    const size_t group = heads_ / groups_, features = static_cast<size_t>(map_.features());
    float* reach = take(groups_);
    std::fill_n(reach, groups_, 1.0f);
    for (const TokenRange& tokens : {before, own}) {
      multiply_gates(part(WindowPart::gates), groups_, part(WindowPart::present), tokens.begin, tokens.end, reach, free);
    }
    for (size_t g = 0; g < groups_; ++g) {
      if (part(WindowPart::mass)[g] == 0.0f) {
        clamps.rows += static_cast<int64_t>(group);
        continue;
      }
      FarStep task{.map = MapParams(map_, static_cast<int64_t>(g)), .value_dim = value_dim_, .group = group};
      const View4 q = HybridPlan::far_queries(inputs_).permuted({0, 2, 1, 3});
      task.q = rows_of<Rows>(q, session, static_cast<int64_t>(g * group), 0);
      task.log_scale = log_scale + g * group;
      task.reach = reach[g];
      task.sums = part(WindowPart::sums) + g * features * value_dim_;
      task.normaliser = part(WindowPart::normaliser) + g * features;
      task.logsumexp = logsumexp + g * group;
      task.out = {answer + g * group * value_dim_, DType::f32, static_cast<int64_t>(value_dim_), 1};
      far_step(task, free, clamps);
    }
    for (size_t h = 0; h < heads_; ++h) {
      copy_row({answer, DType::f32, static_cast<int64_t>(value_dim_), 1}, h, value_dim_,
               rows_of<MutRows>(out, session, 0, static_cast<int64_t>(h)), 0);
    }
    if ((p + 1) % window_ == 0 && block > 0) fold_block(before, part, valid, free);
    ++state.tokens(entry.b);
  }

 private:
  // Stretches of at most kStepKeys keys.
  size_t partial_floats() const { return 2 * ((window_ + kStepKeys - 1) / kStepKeys) * StepPartial::size(heads_, value_dim_); }

  LinearProblem problem(size_t g) const {
    LinearProblem problem{.map = MapParams(map_, static_cast<int64_t>(g))};
    problem.value_dim = value_dim_;
    return problem;
  }

  template <class Part>
  void join(int64_t session, size_t slot, const Part& part) const {
    const auto store = [&](WindowPart which, const View4& view) {
      const size_t width = static_cast<size_t>(view.extent(3));
      for (size_t g = 0; g < groups_; ++g) {
        const Rows row = rows_of<Rows>(view, session, 0, static_cast<int64_t>(g));
        copy_floats(row, 0, width, part(which) + (slot * groups_ + g) * width);
      }
    };
    store(WindowPart::keys, inputs_.k);
    store(WindowPart::values, inputs_.v);
    if (!inputs_.k_far.absent()) store(WindowPart::far_keys, inputs_.k_far);
    for (size_t g = 0; g < groups_; ++g) {
      part(WindowPart::gates)[slot * groups_ + g] =
          column_of<Rows>(inputs_.gate_logits, session, 0, static_cast<int64_t>(g)).at(0, 0);
    }
    part(WindowPart::present)[slot] = 1.0f;
  }

  // Returns the number of partials.
  template <class Part>
  size_t read_exactly(std::initializer_list<TokenRange> stretches, int64_t session, const Part& part, const uint8_t* valid,
                      float* partials, float* scratch) const {
    const int64_t dim = static_cast<int64_t>(dim_), value_dim = static_cast<int64_t>(value_dim_);
    const int64_t groups = static_cast<int64_t>(groups_);
    StepTask task{.heads = heads_, .groups = groups_, .dim = dim_, .value_dim = value_dim_, .scale = scale_};
    task.q = rows_of<Rows>(inputs_.q.permuted({0, 2, 1, 3}), session, 0, 0);
    task.k = {part(WindowPart::keys), DType::f32, groups * dim, 1};
    task.v = {part(WindowPart::values), DType::f32, groups * value_dim, 1};
    task.mask.valid = valid;
    task.mask.valid_stride = 1;
    task.k_head = dim;
    task.v_head = value_dim;
    size_t count = 0;
    for (const TokenRange& stretch : stretches) {
      for (task.begin = stretch.begin; task.begin < stretch.end; task.begin += kStepKeys, ++count) {
        task.end = std::min(task.begin + kStepKeys, stretch.end);
        task.partial = partials + count * StepPartial::size(heads_, value_dim_);
        softmax_step_stretch(task, scratch);
      }
    }
    return count;
  }

  template <class Part>
  void fold_block(const TokenRange& block, const Part& part, const uint8_t* valid, float* free) const {
    const size_t features = static_cast<size_t>(map_.features());
    const size_t key_dim = static_cast<size_t>(map_.dim());
    const float* keys = part(inputs_.k_far.absent() ? WindowPart::keys : WindowPart::far_keys);
    for (size_t g = 0; g < groups_; ++g) {
      LinearProblem shape = problem(g);
      shape.length = block.end;
      shape.k = {keys + g * key_dim, DType::f32, static_cast<int64_t>(groups_ * key_dim), 1};
      shape.v = {part(WindowPart::values) + g * value_dim_, DType::f32, static_cast<int64_t>(groups_ * value_dim_), 1};
      shape.gate = {part(WindowPart::gates) + g, DType::f32, static_cast<int64_t>(groups_), 1};
      shape.valid = valid;
      shape.valid_stride = 1;
      float* sums = part(WindowPart::sums) + g * features * value_dim_;
      float* normaliser = part(WindowPart::normaliser) + g * features;
      PackedState packed(free, shape);
      pack_state(sums, normaliser, shape, packed);
      packed.mass = static_cast<double>(part(WindowPart::mass)[g]);
      packed.log_decay = static_cast<double>(part(WindowPart::log_decay)[g]);
      fold(shape, block.begin, block.end, packed, free + round_up(shape.state_floats(), 16));
      unpack_state(packed, shape, sums, normaliser);
      part(WindowPart::mass)[g] = static_cast<float>(packed.mass);
      part(WindowPart::log_decay)[g] = static_cast<float>(packed.log_decay);
    }
  }

  const HybridInputs& inputs_;
  const FeatureMap& map_;
  size_t window_, groups_, heads_, dim_, value_dim_;
  float scale_;
};

Report step_all(const HybridInputs& inputs, const FeatureMap& map, const std::vector<StepEntry>& entries, MutView4 out,
                const HybridOptions& options) {
  require(inputs.q.extent(1) == 1, "{}: q has {} tokens, expected 1", kStepName, inputs.q.extent(1));
  require(options.layout.valid.absent() && options.layout.lengths.empty() && options.layout.cu_seqlens.empty(),
          "{}: a layout is given, but a step has one token for every session", kStepName);
  check_linear(kStepName, Reach::causal, check_hybrid(kStepName, inputs, map, out, options), map,
               {.eps = 0.0f, .segment = -1, .run = options.run});
  const int64_t batch = inputs.q.extent(0);
  int64_t state_floats = 0;
  for (const StepEntry& entry : entries) {
    const WindowStateShape& shape = entry.state->shape();
    require_hybrid_state(kStepName, shape, shape.batch, inputs, map, options);
    state_floats += static_cast<int64_t>(entry.state->size_bytes() / sizeof(float)) / shape.batch;
  }
  const Trace trace(kStepName, "q", inputs.q, options.window);
  RunOptions run = options.run;
  if (state_floats < kMinParallelFloats) run.threads = 1;
  const Workers workers(run);
  const SessionStep step(inputs, map, options);
  const Scratch scratch(workers.count(), step.scratch_floats());
  std::vector<ClampCount> clamps(static_cast<size_t>(batch));
  workers.run(batch, scratch, [&](int64_t b, float* memory) {
    step.run(entries[static_cast<size_t>(b)], b, out, memory, clamps[static_cast<size_t>(b)]);
  });
  return total(clamps);
}

}  // namespace

Report hybrid_step(const HybridInputs& inputs, const FeatureMap& map, WindowState& state, MutView4 out,
                   const HybridOptions& options) {
  return step_all(inputs, map, step_entries(kStepName, state, inputs.q.extent(0)), out, options);
}

Report hybrid_step(const HybridInputs& inputs, const FeatureMap& map, std::span<WindowState* const> sessions, MutView4 out,
                   const HybridOptions& options) {
  return step_all(inputs, map, step_entries(kStepName, sessions, inputs.q.extent(0)), out, options);
}

}  // namespace raffia
