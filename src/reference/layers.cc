#include "reference/layers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace raffia::internal::twins {

void multiply(View2 a, View2 b, View1 bias, MutView2 c) {
  for (int64_t m = 0; m < a.extent(0); ++m) {
    for (int64_t n = 0; n < b.extent(1); ++n) {
      double sum = bias.absent() ? 0.0 : bias(n);
      for (int64_t k = 0; k < a.extent(1); ++k) sum += a(m, k) * b(k, n);
      c.set(sum, m, n);
    }
  }
}

void linear(View2 x, View2 weights, View1 bias, MutView2 y) {
  multiply(x,
           View2(weights.data(), weights.dtype(), {weights.extent(1), weights.extent(0)}, {weights.stride(1), weights.stride(0)}),
           bias, y);
}

void quantized(View2 x, MutView2 y) {
  constexpr int64_t kBlock = 32;
  for (int64_t n = 0; n < x.extent(0); ++n) {
    for (int64_t first = 0; first < x.extent(1); first += kBlock) {
      const int64_t end = std::min(first + kBlock, x.extent(1));
      float max = 0;
      bool is_finite = true;
      for (int64_t i = first; i < end; ++i) {
        is_finite = is_finite && std::isfinite(x(n, i));
        max = std::max(max, std::abs(static_cast<float>(x(n, i))));
      }
      const float scale = max / 127.0f, inverse = 127.0f / max;
      for (int64_t i = first; i < end; ++i) {
        const double q = max < 0x1p-100f ? 0.0 : std::nearbyint(static_cast<float>(x(n, i)) * inverse);
        y.set(is_finite ? static_cast<double>(scale) * q : std::numeric_limits<double>::quiet_NaN(), n, i);
      }
    }
  }
}

void layer_norm(View2 x, View1 weight, View1 bias, double eps, MutView2 y) {
  const int64_t columns = x.extent(1);
  for (int64_t n = 0; n < x.extent(0); ++n) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < columns; ++i) mean += x(n, i) / static_cast<double>(columns);
    for (int64_t i = 0; i < columns; ++i) variance += std::pow(x(n, i) - mean, 2) / static_cast<double>(columns);
    const double inverse = 1.0 / std::sqrt(variance + eps);
    for (int64_t i = 0; i < columns; ++i) {
      y.set((x(n, i) - mean) * inverse * weight(i) + (bias.absent() ? 0.0 : bias(i)), n, i);
    }
  }
}

void rms_norm(View2 x, View1 weight, double eps, MutView2 y) {
  const int64_t columns = x.extent(1);
  for (int64_t n = 0; n < x.extent(0); ++n) {
    double mean_square = 0;
    for (int64_t i = 0; i < columns; ++i) mean_square += x(n, i) * x(n, i) / static_cast<double>(columns);
    const double inverse = 1.0 / std::sqrt(mean_square + eps);
    for (int64_t i = 0; i < columns; ++i) y.set(x(n, i) * inverse * weight(i), n, i);
  }
}

namespace {

// n = (x - mean) inverse for row t, whose mean is a constant (0) or depends on x.
void norm_backward(View2 x, int64_t t, double mean, double inverse, bool is_centred, View1 weight, View2 dy, MutView2 dx,
                   MutView1 dweight, MutView1 dbias) {
  const int64_t columns = x.extent(1);
  const auto normal = [&](int64_t i) { return (x(t, i) - mean) * inverse; };
  double mean_g = 0, mean_gn = 0;
  for (int64_t i = 0; i < columns; ++i) {
    const double g = dy(t, i) * weight(i);
    if (is_centred) mean_g += g / static_cast<double>(columns);
    mean_gn += g * normal(i) / static_cast<double>(columns);
  }
  for (int64_t i = 0; i < columns; ++i) {
    dweight.set(View1(dweight)(i) + dy(t, i) * normal(i), i);
    if (!dbias.absent()) dbias.set(View1(dbias)(i) + dy(t, i), i);
    dx.set((dy(t, i) * weight(i) - mean_g - normal(i) * mean_gn) * inverse, t, i);
  }
}

}  // namespace

void layer_norm_backward(View2 x, View1 weight, double eps, View2 dy, MutView2 dx, MutView1 dweight, MutView1 dbias) {
  const int64_t columns = x.extent(1);
  for (int64_t t = 0; t < x.extent(0); ++t) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < columns; ++i) mean += x(t, i) / static_cast<double>(columns);
    for (int64_t i = 0; i < columns; ++i) variance += std::pow(x(t, i) - mean, 2) / static_cast<double>(columns);
    norm_backward(x, t, mean, 1.0 / std::sqrt(variance + eps), true, weight, dy, dx, dweight, dbias);
  }
}

void rms_norm_backward(View2 x, View1 weight, double eps, View2 dy, MutView2 dx, MutView1 dweight) {
  const int64_t columns = x.extent(1);
  for (int64_t t = 0; t < x.extent(0); ++t) {
    double mean_square = 0;
    for (int64_t i = 0; i < columns; ++i) mean_square += x(t, i) * x(t, i) / static_cast<double>(columns);
    norm_backward(x, t, 0, 1.0 / std::sqrt(mean_square + eps), false, weight, dy, dx, dweight, MutView1());
  }
}

void gelu(View2 x, MutView2 y) {
  for (int64_t n = 0; n < x.extent(0); ++n) {
    for (int64_t i = 0; i < x.extent(1); ++i) y.set(0.5 * x(n, i) * std::erfc(-x(n, i) * std::sqrt(0.5)), n, i);
  }
}

void gelu_backward(View2 x, View2 dy, MutView2 dx) {
  for (int64_t n = 0; n < x.extent(0); ++n) {
    for (int64_t i = 0; i < x.extent(1); ++i) {
      const double at = x(n, i), density = std::exp(-0.5 * at * at) / std::sqrt(2 * std::numbers::pi);
      dx.set(dy(n, i) * (0.5 * std::erfc(-at * std::sqrt(0.5)) + at * density), n, i);
    }
  }
}

void swiglu(View2 gate, View2 up, MutView2 y) {
  for (int64_t n = 0; n < gate.extent(0); ++n) {
    for (int64_t i = 0; i < gate.extent(1); ++i) y.set(gate(n, i) / (1.0 + std::exp(-gate(n, i))) * up(n, i), n, i);
  }
}

void swiglu_backward(View2 gate, View2 up, View2 dy, MutView2 dgate, MutView2 dup) {
  for (int64_t n = 0; n < gate.extent(0); ++n) {
    for (int64_t i = 0; i < gate.extent(1); ++i) {
      const double g = gate(n, i), u = up(n, i), gradient = dy(n, i), sigmoid = 1.0 / (1.0 + std::exp(-g));
      dgate.set(gradient * u * sigmoid * (1.0 + g / (1.0 + std::exp(g))), n, i);
      dup.set(gradient * g * sigmoid, n, i);
    }
  }
}

void rotary(View3 x, int64_t position, double base, MutView3 y) {
  const int64_t half = x.extent(2) / 2;
  for (int64_t t = 0; t < x.extent(0); ++t) {
    for (int64_t h = 0; h < x.extent(1); ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(position + t) * std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(x.extent(2)));
        const double a = x(t, h, i), b = x(t, h, i + half);
        y.set(a * std::cos(angle) - b * std::sin(angle), t, h, i);
        y.set(b * std::cos(angle) + a * std::sin(angle), t, h, i + half);
      }
    }
  }
}

void short_convolution(View2 x, View2 weight, View2 history, MutView2 y) {
  const int64_t taps = weight.extent(1);
  for (int64_t t = 0; t < x.extent(0); ++t) {
    for (int64_t c = 0; c < x.extent(1); ++c) {
      double sum = 0;
      for (int64_t j = 0; j < taps; ++j) {
        const int64_t from = t - taps + 1 + j;
        sum += weight(c, j) * (from < 0 ? history(taps - 1 + from, c) : x(from, c));
      }
      y.set(sum, t, c);
    }
  }
}

void cross_entropy(View2 logits, std::span<const int64_t> targets, int64_t ignored, double smoothing, MutView1 losses,
                   MutView2 dlogits) {
  const int64_t columns = logits.extent(1);
  for (int64_t t = 0; t < logits.extent(0); ++t) {
    const int64_t target = targets[static_cast<size_t>(t)];
    const bool counts = target != ignored;
    double largest = -std::numeric_limits<double>::infinity(), mean = 0, sum = 0;
    for (int64_t v = 0; v < columns; ++v) largest = std::max(largest, logits(t, v));
    for (int64_t v = 0; v < columns; ++v) mean += logits(t, v) / static_cast<double>(columns);
    for (int64_t v = 0; v < columns; ++v) sum += std::exp(logits(t, v) - largest);
    const double lse = largest + std::log(sum);
    losses.set(counts ? lse - (1 - smoothing) * logits(t, target) - smoothing * mean : 0.0, t);
    if (dlogits.absent()) continue;
    for (int64_t v = 0; v < columns; ++v) {
      const double wanted = (v == target ? 1 - smoothing : 0.0) + smoothing / static_cast<double>(columns);
      dlogits.set(counts ? std::exp(logits(t, v) - lse) - wanted : 0.0, t, v);
    }
  }
}

void adamw(MutView1 parameters, View1 gradients, MutView1 mean, MutView1 square, const AdamwFactors& factors) {
  for (int64_t i = 0; i < parameters.extent(0); ++i) {
    const double g = factors.scale * gradients(i);
    const double m = factors.beta1 * mean(i) + (1 - factors.beta1) * g;
    const double v = factors.beta2 * square(i) + (1 - factors.beta2) * g * g;
    mean.set(m, i);
    square.set(v, i);
    parameters.set(factors.keep * parameters(i) - factors.rate * m / (std::sqrt(v) / factors.root + factors.eps), i);
  }
}

}  // namespace raffia::internal::twins
