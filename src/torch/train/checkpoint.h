// Checkpoints of a run: directories step-NNNNNNNN, each complete or not there at all.
//
// A checkpoint is written under another name, every file is synced, and then it is renamed. trainer.json lists its files with
// sizes and checksums, so that a damaged one is recognised and an older one can take its place.
#ifndef RAFFIA_TORCH_TRAIN_CHECKPOINT_H_
#define RAFFIA_TORCH_TRAIN_CHECKPOINT_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace raffia::train {

// Of the bytes of a file.
uint64_t file_checksum(const std::filesystem::path& path);

class CheckpointStore {
 public:
  explicit CheckpointStore(std::filesystem::path directory);  // need not exist yet

  // `write_files` puts files into the directory that it is given. `facts` becomes trainer.json, with the list of files added.
  // Throws IoError (a full disk) and leaves what was there as it was.
  void write(int64_t step, const std::function<void(const std::filesystem::path& directory)>& write_files,
             nlohmann::ordered_json facts);

  std::vector<int64_t> steps() const;  // of all checkpoints, newest first; they may be damaged
  std::filesystem::path path(int64_t step) const;

  // trainer.json of a checkpoint all of whose files are as they were written. Throws FormatError or IoError that names the file.
  nlohmann::ordered_json verify(int64_t step) const;

  void remove_all_but(int64_t newest) const;
  void remove_unfinished() const;  // what a killed process left

 private:
  std::filesystem::path directory_;
};

}  // namespace raffia::train

#endif  // RAFFIA_TORCH_TRAIN_CHECKPOINT_H_
