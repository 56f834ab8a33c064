// The part of LibTorch that all sources here need, and that is precompiled: tensors, operators, autograd, modules.
//
// Not <torch/torch.h>: gcc instantiates the pending templates of all of it again in every source, which costs 8 seconds each.
// A source that needs more (losses, optimisers) also includes that header.
#ifndef RAFFIA_TORCH_LIBTORCH_H_
#define RAFFIA_TORCH_LIBTORCH_H_

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#endif  // RAFFIA_TORCH_LIBTORCH_H_
