// A key-value store over TCP that rank 0 keeps for all ranks.
//
// c10d's own TCPStore listens on every interface of the machine and trusts the sizes that it is sent. This one listens where it
// is told to, keeps at most kStoreBytes, allocates no memory before the bytes have arrived, and answers no faster than the client
// reads.
// There is no authentication: anyone who can reach the port can read and write (docs/distributed.md).
#ifndef RAFFIA_TORCH_TRAIN_DISTRIBUTED_STORE_H_
#define RAFFIA_TORCH_TRAIN_DISTRIBUTED_STORE_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace raffia::internal::train {

// Of names, values and the map that holds them; Gloo leaves 136 bytes of values per pair of ranks.
inline constexpr size_t kStoreBytes = size_t{256} << 20;

// "localhost", 127.x.x.x and ::1.
bool is_loopback(const std::string& address);

class StoreServer {
 public:
  // Listens only at the addresses of this name. On all interfaces only if `address` is not an address of this machine (a service
  // in front of it), or a name that only this machine resolves to its loopback. Connections are limited to what `ranks` need, so
  // that strangers cannot take all descriptors of this process. Throws IoError.
  StoreServer(const std::string& address, int port, int ranks);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  bool listens_everywhere() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

// Tries until there is a server, for at most `timeout`, which is also the maximum for every call. Throws IoError, as calls do.
c10::intrusive_ptr<c10d::Store> connect_store(const std::string& address, int port, std::chrono::milliseconds timeout);

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_DISTRIBUTED_STORE_H_
