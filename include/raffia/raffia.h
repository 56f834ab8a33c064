// All of Raffia but the parts for LibTorch (raffia/torch/ops.h, raffia/torch/nn.h).
//
// Models, sessions, tokenizers and what belongs to them are in the library raffia_runtime (raffia::runtime), the rest in raffia
// (raffia::core).
#ifndef RAFFIA_RAFFIA_H_
#define RAFFIA_RAFFIA_H_

#include "raffia/api.h"
#include "raffia/attention.h"
#include "raffia/cxx20.h"
#include "raffia/error.h"
#include "raffia/estimator.h"
#include "raffia/eva.h"
#include "raffia/features.h"
#include "raffia/hybrid.h"
#include "raffia/isa.h"
#include "raffia/lara.h"
#include "raffia/memory.h"
#include "raffia/model.h"
#include "raffia/model_config.h"
#include "raffia/random.h"
#include "raffia/reference.h"
#include "raffia/reference_sampled.h"
#include "raffia/session.h"
#include "raffia/state.h"
#include "raffia/text_stream.h"
#include "raffia/threads.h"
#include "raffia/tokenizer.h"
#include "raffia/version.h"
#include "raffia/views.h"
#include "raffia/window_state.h"

#endif  // RAFFIA_RAFFIA_H_
