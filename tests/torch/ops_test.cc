#include <gtest/gtest.h>
#include <torch/torch.h>

TEST(TorchOps, Loads) { EXPECT_TRUE(c10::Dispatcher::singleton().findSchema({"raffia::version", ""}).has_value()); }
