// Peak speed of the machine with the active ISA: multiply-adds in registers, and memory reads.
#ifndef RAFFIA_BENCH_MACHINE_PROBE_H_
#define RAFFIA_BENCH_MACHINE_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "raffia/threads.h"

namespace raffia::internal::bench {

// Runs fp32 multiply-adds that touch no memory on `threads` threads; returns how many FLOP that was (two each).
double run_multiply_adds(Executor& executor, int threads);

// Reads all bytes once, each thread its own part.
void read_bytes(std::span<const std::byte> bytes, Executor& executor, int threads);

// Bytes per second that `threads` threads read from memory: the best of several passes over 256 MB, more than caches hold.
double read_bandwidth(Executor& executor, int threads);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_MACHINE_PROBE_H_
