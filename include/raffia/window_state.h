// The memory of windowed estimators: the exact tokens of the recent past, and a summary of constant size of all older tokens.
//
// A value like State: it can be copied, selected, saved and loaded. Its parts are rows of floats per batch entry. Each estimator
// uses some of them:
//   hybrid  the last two blocks of keys and values, and a gated state
//   eva     the tokens of the unfinished window, summaries of chunks, and random features of what is older
//   lara    the tokens of the unfinished window, and samples that summarise all older tokens
#ifndef RAFFIA_WINDOW_STATE_H_
#define RAFFIA_WINDOW_STATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "raffia/api.h"
#include "raffia/state.h"

namespace raffia {

enum class WindowKind : uint8_t { hybrid, eva, lara };
RAFFIA_API std::string_view name_of(WindowKind kind);

struct WindowStateShape {
  WindowKind kind = WindowKind::hybrid;
  int64_t batch = 1;
  int64_t query_heads = 1;  // H, a multiple of G; 1 for hybrid, which stores no queries
  int64_t heads = 1;        // G
  int64_t dim = 0;          // D
  int64_t far_dim = 0;      // hybrid: size of k_far, 0 if it is k itself; else 0
  int64_t value_dim = 0;    // V
  int64_t window = 0;       // W, tokens per window or block
  int64_t summaries = 0;    // eva: chunks kept; lara: samples; hybrid: 0
  int64_t proposals = 0;    // lara: proposals behind the samples; else 0
  int64_t features = 0;     // hybrid: F; eva: R; lara: 0
  int64_t chunk = 0;        // eva, lara: tokens per chunk, a divisor of W; hybrid: 0
  // A hash of all other options that the numbers depend on (seeds, scale, ..), computed by causal_*_state_shape(). An op rejects
  // a state that was made with other options.
  uint64_t recipe = 0;
  bool operator==(const WindowStateShape&) const = default;
};

// The parts of a state, per batch entry. N = 2 W tokens for hybrid, else W. C, S and P are summaries (eva), summaries (lara) and
// proposals of the shape. Parts that a kind does not use are empty.
//
// Drawing random rows takes tens of times as long as a step that reads them. So an entry stores them (`projections`) at its first
// token, and steps draw nothing. They are the same for all entries of a recipe and take R G D floats (eva) or S G D (lara).
// The order of the parts is that of the file format.
enum class WindowPart : uint8_t {
  queries,          // [W, H, D]          eva, lara
  keys,             // [N, G, D]
  far_keys,         // [N, G, far_dim]    hybrid
  values,           // [N, G, V]
  gates,            // [N, G]             hybrid: gate logits
  present,          // [N]                1 where a token takes part, else 0
  sums,             // [G, F, V]          hybrid: the gated state
  normaliser,       // [G, F]             hybrid
  mass,             // [G]                hybrid
  log_decay,        // [G]                hybrid
  summary_keys,     // [C, G, D]          eva: kbar;          lara: samples w [S, H, D]
  summary_weights,  // [C]                eva: log|P_c|;      lara: log z_s - b_s [S, H]
  summary_values,   // [C, H, V]          eva: beta;          lara: f [S, H, V]
  folded_weights,   // [R, G]             eva: log z of the folded past
  folded_values,    // [R, H, V]          eva: f of the folded past
  means,            // [P, H, D]          lara: mu of the proposals
  mixtures,         // [S, H]             lara: b of the samples
  projections,      // [R, G, D]          eva: w of the features; lara: noise e of the samples [S, G, D]
};
inline constexpr int kWindowParts = 18;

namespace detail {

// Where the parts of an entry are, as offsets in floats from the start of the entry.
struct WindowLayout {
  std::array<size_t, kWindowParts> begins = {}, sizes = {};
  size_t entry = 0;  // floats from one entry to the next
  bool operator==(const WindowLayout&) const = default;
};

}  // namespace detail

class RAFFIA_API WindowState {
 public:
  // Empty: no tokens, log weights (summary_weights, folded_weights, mixtures) -inf, everything else 0.
  explicit WindowState(const WindowStateShape& shape);

  const WindowStateShape& shape() const { return shape_; }
  size_t size_bytes() const { return data_.size() * sizeof(float); }

  int64_t& tokens(int64_t b);  // number of tokens that entry b has seen
  int64_t tokens(int64_t b) const;

  // Row-major, aligned to a cache line.
  std::span<float> part(WindowPart part, int64_t b);
  std::span<const float> part(WindowPart part, int64_t b) const;

  void reset();           // back to empty
  void reset(int64_t b);  // one entry

  // Entry i of the result is entry indices[i] of this state: for beam search, forks (repeat an index) and shrinking batches.
  WindowState select(std::span<const int64_t> indices) const;

  // A versioned format with a checksum (see docs/state-format.md), little-endian on every machine.
  std::vector<std::byte> to_bytes() const;
  static WindowState from_bytes(std::span<const std::byte> bytes);  // throws FormatError
  void save(const std::filesystem::path& path) const;               // atomic: a temporary file is written, synced and renamed
  static WindowState load(const std::filesystem::path& path);       // throws IoError or FormatError

  bool operator==(const WindowState&) const = default;

 private:
  WindowStateShape shape_;
  detail::WindowLayout layout_;
  std::vector<int64_t> tokens_;                                 // [B]
  std::vector<float, detail::CacheLineAllocator<float>> data_;  // [B][parts in the order above, each aligned to a cache line]
};

}  // namespace raffia

#endif  // RAFFIA_WINDOW_STATE_H_
