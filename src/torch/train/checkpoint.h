// Checkpoints of a run: directories step-NNNNNNNN, which are either complete or absent.
//
// A checkpoint is written under a temporary name, every file is synced, and then it is renamed. trainer.json lists its files with
// sizes and checksums, so that a damaged checkpoint is detected and an older one can be used.
#ifndef RAFFIA_TORCH_TRAIN_CHECKPOINT_H_
#define RAFFIA_TORCH_TRAIN_CHECKPOINT_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace raffia::internal::train {

// Of options.json and trainer.json, which have some kilobytes.
constexpr uint64_t kMaxBytesOfRunJson = uint64_t{1} << 24;

// The checksum of a file.
uint64_t file_checksum(const std::filesystem::path& path);

class CheckpointStore {
 public:
  explicit CheckpointStore(std::filesystem::path directory);  // need not exist yet

  // `write_files` writes files into the given directory. `facts` becomes trainer.json, with the list of files added.
  // Throws IoError (a full disk, for example) and leaves existing checkpoints unchanged.
  void write(int64_t step, const std::function<void(const std::filesystem::path& directory)>& write_files,
             nlohmann::ordered_json facts);

  std::vector<int64_t> steps() const;  // of all checkpoints, newest first; they may be damaged
  std::filesystem::path path(int64_t step) const;

  // trainer.json of a checkpoint, after checking all of its files. Throws FormatError or IoError, which names the file.
  nlohmann::ordered_json verify(int64_t step) const;

  void remove_all_but(int64_t newest) const;
  void remove_unfinished() const;  // temporary directories of a killed process

 private:
  std::filesystem::path directory_;
};

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_CHECKPOINT_H_
