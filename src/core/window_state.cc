#include "raffia/window_state.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "core/check.h"
#include "core/window_layout.h"

namespace raffia {

using namespace internal;
namespace {

constexpr size_t kLine = 16;  // floats of a cache line
constexpr float kNoWeight = -std::numeric_limits<float>::infinity();

bool is_log_weight(WindowPart part) {
  return part == WindowPart::summary_weights || part == WindowPart::folded_weights || part == WindowPart::mixtures;
}

std::optional<int64_t> floats_of(const WindowStateShape& shape, WindowPart part) {
  const bool hybrid = shape.kind == WindowKind::hybrid, eva = shape.kind == WindowKind::eva,
             lara = shape.kind == WindowKind::lara;
  const int64_t blocks = hybrid ? 2 : 1, W = shape.window, H = shape.query_heads, G = shape.heads, D = shape.dim,
                V = shape.value_dim, F = shape.features, C = shape.summaries;
  const auto size_if = [](bool has, std::initializer_list<int64_t> extents) {
    return has ? checked_product(extents) : std::optional<int64_t>(0);
  };
  switch (part) {
    case WindowPart::queries:
      return size_if(!hybrid, {W, H, D});
    case WindowPart::keys:
      return checked_product({blocks, W, G, D});
    case WindowPart::far_keys:
      return size_if(hybrid, {blocks, W, G, shape.far_dim});
    case WindowPart::values:
      return checked_product({blocks, W, G, V});
    case WindowPart::gates:
      return size_if(hybrid, {blocks, W, G});
    case WindowPart::present:
      return checked_product({blocks, W});
    case WindowPart::sums:
      return size_if(hybrid, {G, F, V});
    case WindowPart::normaliser:
      return size_if(hybrid, {G, F});
    case WindowPart::mass:
    case WindowPart::log_decay:
      return size_if(hybrid, {G});
    case WindowPart::summary_keys:
      return size_if(!hybrid, {C, lara ? H : G, D});
    case WindowPart::summary_weights:
      return size_if(!hybrid, {C, lara ? H : 1});
    case WindowPart::summary_values:
      return size_if(!hybrid, {C, H, V});
    case WindowPart::folded_weights:
      return size_if(eva, {F, G});
    case WindowPart::folded_values:
      return size_if(eva, {F, H, V});
    case WindowPart::means:
      return size_if(lara, {shape.proposals, H, D});
    case WindowPart::mixtures:
      return size_if(lara, {C, H});
    case WindowPart::projections:
      return size_if(!hybrid, {lara ? C : F, G, D});
  }
  return std::nullopt;
}

detail::WindowLayout require_layout(const WindowStateShape& shape) {
  const std::string flaw = flaw_of(shape);
  require(flaw.empty(), "WindowState: {}", flaw);
  const std::optional<detail::WindowLayout> layout = layout_of(shape);
  require(layout.has_value(),
          "WindowState: {} with batch {}, query_heads {}, heads {}, dim {}, far_dim {}, value_dim {}, window {}, summaries {}, "
          "proposals {}, features {}, chunk {} does not fit in memory",
          name_of(shape.kind), shape.batch, shape.query_heads, shape.heads, shape.dim, shape.far_dim, shape.value_dim,
          shape.window, shape.summaries, shape.proposals, shape.features, shape.chunk);
  return *layout;
}

void require_entry(const WindowStateShape& shape, int64_t b) {
  require(b >= 0 && b < shape.batch, "WindowState: entry {} is out of range: the state has {} entries", b, shape.batch);
}

}  // namespace

std::string_view name_of(WindowKind kind) {
  switch (kind) {
    case WindowKind::hybrid:
      return "hybrid";
    case WindowKind::eva:
      return "eva";
    case WindowKind::lara:
      return "lara";
  }
  return "unknown";
}

std::string internal::flaw_of(const WindowStateShape& shape) {
  struct Extent {
    std::string_view name;
    int64_t found, min;
    bool has;  // this kind uses it; if not, it must be 0
  };
  const auto kind = static_cast<int>(shape.kind);
  if (kind >= kWindowKinds) return fmt::format("kind is {}, expected below {}", kind, kWindowKinds);
  const bool hybrid = shape.kind == WindowKind::hybrid, lara = shape.kind == WindowKind::lara;
  const Extent extents[] = {
      {"batch", shape.batch, 0, true},  // 0 is allowed: all beams may have ended
      {"query_heads", shape.query_heads, 1, true},
      {"heads", shape.heads, 1, true},
      {"dim", shape.dim, 1, true},
      {"far_dim", shape.far_dim, 0, hybrid},
      {"value_dim", shape.value_dim, 1, true},
      {"window", shape.window, 1, true},
      {"summaries", shape.summaries, 1, !hybrid},
      {"proposals", shape.proposals, 1, lara},
      {"features", shape.features, 1, !lara},
      {"chunk", shape.chunk, 1, !hybrid},
  };
  for (const Extent& extent : extents) {
    if (extent.has && extent.found < extent.min) {
      return fmt::format("{} is {}, expected at least {} ({})", extent.name, extent.found, extent.min, name_of(shape.kind));
    }
    if (!extent.has && extent.found != 0) {
      return fmt::format("{} is {}, expected 0 ({} does not use it)", extent.name, extent.found, name_of(shape.kind));
    }
  }
  if (hybrid && shape.query_heads != 1) {
    return fmt::format("query_heads is {}, expected 1 (hybrid stores no queries)", shape.query_heads);
  }
  if (!hybrid && shape.query_heads % shape.heads != 0) {
    return fmt::format("query_heads is {}, expected a multiple of heads, {}", shape.query_heads, shape.heads);
  }
  if (!hybrid && shape.window % shape.chunk != 0) {
    return fmt::format("chunk is {}, expected a divisor of window, {}", shape.chunk, shape.window);
  }
  return "";
}

std::string internal::difference_of(const WindowStateShape& found, const WindowStateShape& expected) {
  std::string text;
  const auto add = [&](std::string_view name, const auto& is, const auto& should) {
    if (is != should) text += fmt::format("{}{} {}, expected {}", text.empty() ? "" : "; ", name, is, should);
  };
  add("kind", name_of(found.kind), name_of(expected.kind));
  add("batch", found.batch, expected.batch);
  add("query_heads", found.query_heads, expected.query_heads);
  add("heads", found.heads, expected.heads);
  add("dim", found.dim, expected.dim);
  add("far_dim", found.far_dim, expected.far_dim);
  add("value_dim", found.value_dim, expected.value_dim);
  add("window", found.window, expected.window);
  add("summaries", found.summaries, expected.summaries);
  add("proposals", found.proposals, expected.proposals);
  add("features", found.features, expected.features);
  add("chunk", found.chunk, expected.chunk);
  // The recipe also depends on the shape, so it is only reported if nothing else differs.
  if (text.empty() && found.recipe != expected.recipe) {
    constexpr std::string_view kOptions[kWindowKinds] = {"the map", "seed, layer, draw, draws, scale and decay",
                                                         "seed, layer, draw, draws, scale and samples_per_proposal"};
    text = fmt::format("recipe {:016x}, expected {:016x}: it was made with other options (compare {})", found.recipe,
                       expected.recipe, kOptions[static_cast<size_t>(expected.kind)]);
  }
  return text;
}

uint64_t internal::recipe_of(std::initializer_list<uint64_t> options) {
  // Each number is spread over all bits by the finaliser of SplitMix64, a bijection.
  uint64_t recipe = 0;
  for (uint64_t option : options) {
    recipe = (recipe ^ option) + 0x9e3779b97f4a7c15U;
    recipe = (recipe ^ (recipe >> 30)) * 0xbf58476d1ce4e5b9U;
    recipe = (recipe ^ (recipe >> 27)) * 0x94d049bb133111ebU;
    recipe ^= recipe >> 31;
  }
  return recipe;
}

std::optional<detail::WindowLayout> internal::layout_of(const WindowStateShape& shape) {
  detail::WindowLayout layout;
  int64_t entry = 0;
  for (size_t part = 0; part < kWindowParts; ++part) {
    const std::optional<int64_t> floats = floats_of(shape, static_cast<WindowPart>(part));
    constexpr int64_t kPadding = kLine - 1;
    if (!floats || *floats > INT64_MAX - kPadding) return std::nullopt;
    const int64_t lines = (*floats + kPadding) / static_cast<int64_t>(kLine) * static_cast<int64_t>(kLine);
    layout.begins[part] = static_cast<size_t>(entry);
    layout.sizes[part] = static_cast<size_t>(*floats);
    if (__builtin_add_overflow(entry, lines, &entry)) return std::nullopt;
  }
  constexpr int64_t kTokenBytes = sizeof(int64_t);
  const std::optional<int64_t> bytes = checked_product({entry, static_cast<int64_t>(sizeof(float))});
  if (!bytes || *bytes > INT64_MAX - kTokenBytes || !checked_product({*bytes + kTokenBytes, shape.batch})) return std::nullopt;
  layout.entry = static_cast<size_t>(entry);
  return layout;
}

WindowState::WindowState(const WindowStateShape& shape)
    : shape_(shape),
      layout_(require_layout(shape)),
      tokens_(static_cast<size_t>(shape.batch), 0),
      data_(layout_.entry * static_cast<size_t>(shape.batch), 0.0F) {
  reset();
}

int64_t& WindowState::tokens(int64_t b) {
  require_entry(shape_, b);
  return tokens_[static_cast<size_t>(b)];
}

int64_t WindowState::tokens(int64_t b) const {
  require_entry(shape_, b);
  return tokens_[static_cast<size_t>(b)];
}

std::span<float> WindowState::part(WindowPart part, int64_t b) {
  require_entry(shape_, b);
  const auto at = static_cast<size_t>(part);
  return std::span(data_).subspan(static_cast<size_t>(b) * layout_.entry + layout_.begins.at(at), layout_.sizes.at(at));
}

std::span<const float> WindowState::part(WindowPart part, int64_t b) const {
  require_entry(shape_, b);
  const auto at = static_cast<size_t>(part);
  return std::span(data_).subspan(static_cast<size_t>(b) * layout_.entry + layout_.begins.at(at), layout_.sizes.at(at));
}

void WindowState::reset() {
  for (int64_t b = 0; b < shape_.batch; ++b) reset(b);
}

void WindowState::reset(int64_t b) {
  tokens(b) = 0;
  for (int i = 0; i < kWindowParts; ++i) {
    const auto each = static_cast<WindowPart>(i);
    std::ranges::fill(part(each, b), is_log_weight(each) ? kNoWeight : 0.0F);
  }
}

WindowState WindowState::select(std::span<const int64_t> indices) const {
  for (size_t i = 0; i < indices.size(); ++i) {
    require(indices[i] >= 0 && indices[i] < shape_.batch,
            "WindowState::select: indices[{}] is {}, expected an entry of a batch of {}", i, indices[i], shape_.batch);
  }
  WindowStateShape shape = shape_;
  shape.batch = static_cast<int64_t>(indices.size());
  WindowState result(shape);
  for (size_t i = 0; i < indices.size(); ++i) {
    const auto from = static_cast<size_t>(indices[i]);
    result.tokens_[i] = tokens_[from];
    std::ranges::copy(std::span(data_).subspan(from * layout_.entry, layout_.entry),
                      std::span(result.data_).subspan(i * layout_.entry).begin());
  }
  return result;
}

}  // namespace raffia
