#include <CLI/CLI.hpp>

#include "raffia/version.h"

int main(int argc, char** argv) {
  CLI::App app{"raffia: Random Feature Attention"};
  app.set_version_flag("--version", raffia::version());
  CLI11_PARSE(app, argc, argv);
}
