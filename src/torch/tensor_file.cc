#include "torch/tensor_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>

#include "core/message.h"
#include "io/formats/safetensors.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr TypeName kTypes[] = {{at::kFloat, "F32"}, {at::kLong, "I64"}, {at::kByte, "U8"}, {at::kBool, "BOOL"}};

}  // namespace

void save_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata) {
  std::vector<at::Tensor> kept;  // what the bytes below belong to
  std::vector<TensorToWrite> written;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor& plain = kept.emplace_back(tensor.detach().contiguous());
    const auto* type =
        std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeName& one) { return one.type == plain.scalar_type(); });
    if (type == std::end(kTypes)) {
      throw InvalidArgument(fmt::format("{}: tensor \"{}\" is of type {}, expected float, int64, uint8 or bool", path.string(),
                                        name, c10::toString(plain.scalar_type())));
    }
    written.push_back({name, type->name, plain.sizes().vec(),
                       std::span(static_cast<const std::byte*>(plain.data_ptr()), static_cast<size_t>(plain.nbytes()))});
  }
  write_safetensors(path, written, metadata);
}

NamedTensors load_tensors(const std::filesystem::path& path) {
  const Safetensors file = Safetensors::open(path);
  NamedTensors tensors;
  for (const Safetensors::Tensor& found : file.tensors()) {
    const auto* type =
        std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeName& one) { return one.name == found.dtype; });
    if (type == std::end(kTypes)) {
      throw FormatError(
          fmt::format("{}: tensor \"{}\" is of type {}, expected F32, I64, U8 or BOOL", path.string(), found.name, found.dtype));
    }
    const std::vector<std::byte> bytes = file.read_bytes(found.name);
    at::Tensor tensor = at::empty(found.shape, type->type);
    if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
    tensors.emplace_back(found.name, std::move(tensor));
  }
  return tensors;
}

namespace {

void require_only(const at::Tensor& tensor, const at::Tensor& sound, std::string_view expected, std::string_view name,
                  std::string_view where) {
  if (sound.all().item<bool>()) return;
  const auto found = tensor.masked_select(sound.logical_not())[0].item<double>();
  throw FormatError(fmt::format("{}: tensor \"{}\" contains {}, expected {}: the file is damaged", where, name,
                                not_finite_text(found), expected));
}

}  // namespace

void require_finite(const at::Tensor& tensor, std::string_view name, std::string_view where) {
  require_only(tensor, tensor.isfinite(), "finite numbers", name, where);
}

void require_no_nan(const at::Tensor& tensor, std::string_view name, std::string_view where) {
  require_only(tensor, tensor.isnan().logical_not(), "numbers", name, where);
}

}  // namespace raffia::internal
