// Prints what a trained model is: sizes <model directory>
//
// Without CMake:  c++ -std=c++20 sizes.cc $(pkg-config --cflags --libs raffia_runtime) -o sizes
#include <raffia/model.h>

#include <cstdio>
#include <exception>

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: sizes <model directory>\n");
    return 2;
  }
  try {
    const auto model = raffia::Model::load(arguments[1]);
    std::printf("%lld parameters in %zu bytes\n", static_cast<long long>(model->parameters()), model->weight_bytes());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sizes: %s\n", error.what());
    return 1;
  }
}
