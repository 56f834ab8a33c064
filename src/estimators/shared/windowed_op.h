// The operations of causal LARA and EVA over whole sequences, with null instead of a state that is not given.
#ifndef RAFFIA_ESTIMATORS_SHARED_WINDOWED_OP_H_
#define RAFFIA_ESTIMATORS_SHARED_WINDOWED_OP_H_

#include <optional>
#include <span>

#include "estimators/shared/drawn_rows.h"
#include "estimators/shared/windows.h"

namespace raffia::internal {

// Form is what an estimator brings:
//
//   Options, Sequence                     its options; one sequence, with forward_all(), backward_all() and save()
//   kAttention, kRecordSize, kBackward    names of its functions, for errors
//   carries(options), kRefusal            whether a state can be carried, and what to say if not
//   rows_of(call, options, has_state)     the random rows that a call may need
//   reads_rows(options, windows)          whether a sequence without a past needs them
//
// Beside it there are functions require_options(function, options) and shape_of(call, options).
template <class Form>
struct WindowedOp {
  using Options = typename Form::Options;
  using Sequence = typename Form::Sequence;

  static WindowedCall checked(const char* function, View4 q, View4 k, View4 v, const Options& options, const WindowState* state,
                              const char* argument) {
    require_options(function, options);
    const WindowedCall call(function, q, k, v, options);
    require(state == nullptr || Form::carries(options), "{}: {} is given {}", function, argument, Form::kRefusal);
    call.require_state(state, argument, shape_of(call, options));
    return call;
  }

  static void attend(View4 q, View4 k, View4 v, WindowState* state, MutView4 out, const Options& options,
                     std::span<float> record) {
    const WindowedCall call = checked(Form::kAttention, q, k, v, options, state, "state");
    DrawnRows rows = Form::rows_of(call, options, state != nullptr);
    run_windows(call, state, out, record, [&](const SequenceWindows& windows, int64_t entry) {
      const Sequence sequence(call, options, rows.of_entry(state, entry, Form::reads_rows(options, windows)), windows, state,
                              entry, false);
      sequence.forward_all();
      if (state == nullptr || windows.stretches().empty()) return;
      if (state->tokens(entry) == 0) rows.give_to(*state, entry);
      sequence.save(*state, entry);
    });
  }

  static int64_t record_size(View4 q, View4 k, View4 v, const WindowState* initial, const Options& options) {
    return checked(Form::kRecordSize, q, k, v, options, initial, "initial").record_size();
  }

  static void backward(View4 q, View4 k, View4 v, const WindowState* initial, View4 out, std::span<const float> record,
                       View4 dout, const QkvGradients& gradients, const Options& options) {
    const WindowedCall call = checked(Form::kBackward, q, k, v, options, initial, "initial");
    DrawnRows rows = Form::rows_of(call, options, false);
    call.check_output("out", out);
    const ForwardOutputs outputs(out, [&](MutView4 again) {
      std::optional<WindowState> state;
      if (initial != nullptr) state = *initial;
      attend(q, k, v, state ? &*state : nullptr, again, options, {});
    });
    run_windows_backward(call, initial, outputs.view(), record, dout, gradients,
                         [&](const SequenceWindows& windows, int64_t entry) {
                           const float* drawn = rows.of_entry(initial, entry, Form::reads_rows(options, windows));
                           for_heads(call, windows, [&](const WindowedCall& of_heads, const SequenceWindows& theirs) {
                             Sequence(of_heads, options, drawn, theirs, initial, entry, true).backward_all();
                           });
                         });
  }
};

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_WINDOWED_OP_H_
