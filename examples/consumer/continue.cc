// Continues a text with a trained or imported model, piece by piece as it is written: continue <model directory> <text>
//
// Without CMake:  c++ -std=c++20 continue.cc $(pkg-config --cflags --libs raffia_runtime) -o continue
#include <raffia/session.h>

#include <cstdio>
#include <exception>
#include <string_view>

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: continue <model directory> <text>\n");
    return 2;
  }
  try {
    raffia::Session session(raffia::Model::load(arguments[1]), {.sampling = {.temperature = 0.8, .seed = 7}});
    session.prefill(arguments[2]);
    raffia::generate(session, {.tokens = 40},
                     [](std::string_view text) { return std::fwrite(text.data(), 1, text.size(), stdout) == text.size(); });
    std::printf("\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "continue: %s\n", error.what());
    return 1;
  }
}
