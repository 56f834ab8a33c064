// How results are printed. Apart from table.h, so that sources that only have such a flag do without the whole of nlohmann.
#ifndef RAFFIA_BENCH_FORMAT_H_
#define RAFFIA_BENCH_FORMAT_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace raffia::internal::bench {

using Json = nlohmann::ordered_json;

enum class Format : uint8_t { markdown, csv, json };

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_FORMAT_H_
