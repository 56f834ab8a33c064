// Stands for tokenizer_sp.cc where that is a module: see tokenizer_sp_module.h.
#include <dlfcn.h>
#include <fmt/format.h>

#include "io/tokenizers/tokenizer_sp_module.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

// Beside the library that this code is in, or where the program finds libraries (its RUNPATH) if the code is in the program.
std::filesystem::path module_path() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&module_path), &here) == 0 || here.dli_fname == nullptr) return RAFFIA_SP_MODULE;
  const auto beside = std::filesystem::path(here.dli_fname).parent_path() / RAFFIA_SP_MODULE;
  return std::filesystem::exists(beside) ? beside : RAFFIA_SP_MODULE;
}

SpModule load_module() {
  const std::filesystem::path path = module_path();
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (handle == nullptr) throw IoError(fmt::format("{}: cannot load SentencePiece: {}", path.string(), dlerror()));
  const auto get = reinterpret_cast<decltype(&raffia_sp_module)>(dlsym(handle, "raffia_sp_module"));
  if (get == nullptr) throw IoError(fmt::format("{}: is not the module of this library: {}", path.string(), dlerror()));
  SpModule module{};
  get(&module);
  return module;
}

const SpModule& module() {
  static const SpModule loaded = load_module();
  return loaded;
}

}  // namespace

std::unique_ptr<Tokenizer> train_sp_tokenizer(Texts texts, int64_t size) { return module().train(texts, size); }

std::unique_ptr<Tokenizer> sp_tokenizer_from(JsonFields& fields, const std::filesystem::path& directory) {
  return module().load(fields, directory);
}

}  // namespace raffia::internal
