// Collective instructions by their PTX fragment layouts, and cp.async.
#include <bit>
#include <cstring>

#include "tests/support/cuda_shim/include/cuda_shim_half.h"
#include "tests/support/cuda_shim/include/cuda_shim_ptx.h"

namespace cuda_shim {

void issue_copy(void* shared, const void* global, int bytes, bool valid) {
  const auto align = static_cast<uintptr_t>(bytes);
  if (reinterpret_cast<uintptr_t>(shared) % align != 0 ||
      (valid && reinterpret_cast<uintptr_t>(global) % align != 0)) {
    fail_kernel("the addresses of a cp.async are not aligned to its size");
  }
  std::memset(shared, kPoison, static_cast<size_t>(bytes));
  t_thread->copies.push_back({shared, global, bytes, valid});
}

void cp_async_commit() { t_thread->groups.push_back(t_thread->copies.size()); }

void wait_copies(int pending) {
  Thread& t = *t_thread;
  if (t.groups.size() > static_cast<size_t>(pending)) {
    const size_t finished = t.groups.size() - static_cast<size_t>(pending);
    const size_t end = t.groups[finished - 1];
    for (size_t i = 0; i < end; ++i) {
      const AsyncCopy& copy = t.copies[i];
      if (copy.valid) {
        std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
      } else {
        std::memset(copy.to, 0, static_cast<size_t>(copy.bytes));
      }
    }
    t.copies.erase(t.copies.begin(), t.copies.begin() + static_cast<ptrdiff_t>(end));
    t.groups.erase(t.groups.begin(), t.groups.begin() + static_cast<ptrdiff_t>(finished));
    for (size_t& group : t.groups) group -= end;
  }
  maybe_preempt();
}

namespace {

struct MatrixLane {
  uint32_t* r;
  const void* row;
};

template <int Matrices, bool Transposed>
void ldmatrix_work(void* const* lanes, uint32_t arrived) {
  if (arrived != ~uint32_t{0}) fail_kernel("ldmatrix needs all lanes of the warp");
  for (int m = 0; m < Matrices; ++m) {
    uint16_t rows[8][8];
    for (int i = 0; i < 8; ++i) {
      const void* row = static_cast<MatrixLane*>(lanes[8 * m + i])->row;
      if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
        fail_kernel("a row of ldmatrix is not aligned to 16 bytes");
      }
      std::memcpy(rows[i], row, sizeof rows[i]);
    }
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      const int i = lane / 4;
      const int j = 2 * (lane % 4);
      const uint32_t low = Transposed ? rows[j][i] : rows[i][j];
      const uint32_t high = Transposed ? rows[j + 1][i] : rows[i][j + 1];
      static_cast<MatrixLane*>(lanes[lane])->r[m] = high << 16 | low;
    }
  }
}

struct MmaLane {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

// d += a b of the lanes' fragments, once a [16, K] and b [K, 8] are unpacked.
template <int K>
void multiply(void* const* lanes, const float (&a)[16][K], const float (&b)[K][8]) {
  float sum[16][8] = {};
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < K; ++k) {
      for (int j = 0; j < 8; ++j) sum[i][j] += a[i][k] * b[k][j];
    }
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    float* d = static_cast<MmaLane*>(lanes[lane])->d;
    const int g = lane / 4;
    const int t = lane % 4;
    d[0] += sum[g][2 * t];
    d[1] += sum[g][2 * t + 1];
    d[2] += sum[g + 8][2 * t];
    d[3] += sum[g + 8][2 * t + 1];
  }
}

struct Bf16 {
  static float widen(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
};
struct F16 {
  static float widen(uint16_t bits) { return float_of_half(bits); }
};

template <class Format>
void mma16_work(void* const* lanes, uint32_t arrived) {
  if (arrived != ~uint32_t{0}) fail_kernel("mma needs all lanes of the warp");
  float a[16][16];
  float b[16][8];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const auto* self = static_cast<const MmaLane*>(lanes[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      const int row = g + 8 * (r & 1);
      const int column = 2 * t + 8 * (r >> 1);
      a[row][column] = Format::widen(static_cast<uint16_t>(self->a[r]));
      a[row][column + 1] = Format::widen(static_cast<uint16_t>(self->a[r] >> 16));
    }
    for (int r = 0; r < 2; ++r) {
      b[2 * t + 8 * r][g] = Format::widen(static_cast<uint16_t>(self->b[r]));
      b[2 * t + 8 * r + 1][g] = Format::widen(static_cast<uint16_t>(self->b[r] >> 16));
    }
  }
  multiply<16>(lanes, a, b);
}

struct IntegerMmaLane {
  int32_t* d;
  const uint32_t* a;
  const uint32_t* b;
};

// Byte i of a register, with its sign.
int signed_byte(uint32_t word, int i) { return static_cast<int8_t>(word >> (8 * i)); }

void mma_s8_work(void* const* lanes, uint32_t arrived) {
  if (arrived != ~uint32_t{0}) fail_kernel("mma needs all lanes of the warp");
  int a[16][32];
  int b[32][8];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const auto* self = static_cast<const IntegerMmaLane*>(lanes[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      for (int r = 0; r < 4; ++r) {
        a[g + 8 * (r & 1)][4 * t + 16 * (r >> 1) + i] = signed_byte(self->a[r], i);
      }
      for (int r = 0; r < 2; ++r) b[4 * t + 16 * r + i][g] = signed_byte(self->b[r], i);
    }
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const auto* self = static_cast<const IntegerMmaLane*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) {
      int sum = 0;
      for (int k = 0; k < 32; ++k)
        sum += a[lane / 4 + 8 * (i >> 1)][k] * b[k][lane % 4 * 2 + i % 2];
      self->d[i] += sum;
    }
  }
}

// tf32: the hardware does not read the low 13 bits.
float widen_tf32(uint32_t bits) { return std::bit_cast<float>(bits & ~uint32_t{0x1fff}); }

void mma_tf32_work(void* const* lanes, uint32_t arrived) {
  if (arrived != ~uint32_t{0}) fail_kernel("mma needs all lanes of the warp");
  float a[16][8];
  float b[8][8];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const auto* self = static_cast<const MmaLane*>(lanes[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int r = 0; r < 4; ++r) a[g + 8 * (r & 1)][t + 4 * (r >> 1)] = widen_tf32(self->a[r]);
    for (int r = 0; r < 2; ++r) b[t + 4 * r][g] = widen_tf32(self->b[r]);
  }
  multiply<8>(lanes, a, b);
}

void multiply_together(WarpWork work, const char* name, float (&d)[4], const uint32_t (&a)[4],
                       const uint32_t (&b)[2]) {
  MmaLane lane{d, a, b};
  warp_operation(~uint32_t{0}, work, name, &lane);
}

}  // namespace

void ldmatrix(uint32_t* r, int matrices, bool transposed, const void* row) {
  MatrixLane lane{r, row};
  WarpWork work = nullptr;
  switch (matrices) {
    case 1:
      work = transposed ? ldmatrix_work<1, true> : ldmatrix_work<1, false>;
      break;
    case 2:
      work = transposed ? ldmatrix_work<2, true> : ldmatrix_work<2, false>;
      break;
    default:
      work = transposed ? ldmatrix_work<4, true> : ldmatrix_work<4, false>;
  }
  warp_operation(~uint32_t{0}, work, "ldmatrix", &lane);
}

void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  multiply_together(mma16_work<Bf16>, "mma_bf16", d, a, b);
}
void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  multiply_together(mma16_work<F16>, "mma_f16", d, a, b);
}
void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  IntegerMmaLane lane{d, a, b};
  warp_operation(~uint32_t{0}, mma_s8_work, "mma_s8", &lane);
}
void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  multiply_together(mma_tf32_work, "mma_tf32", d, a, b);
}

}  // namespace cuda_shim
