// Numbers that the vector code of every instruction set shares. Internal linkage on purpose: no
// copy compiled for one instruction set may stand in for another's.
#pragma once

namespace akv::kernels::attention {

// 2^(i/16): log8's fraction, exponent in steps of 16.
static constexpr float kLog8Fractions[16] = {1.0f,        1.04427378f, 1.09050773f, 1.13878863f,
                                             1.18920712f, 1.24185781f, 1.29683955f, 1.35425555f,
                                             1.41421356f, 1.47682615f, 1.54221083f, 1.61049033f,
                                             1.68179283f, 1.75625216f, 1.83400809f, 1.91520656f};

// Lloyd-Max codebooks of the residual codec, unit Gaussian; 2 bits repeated, so that an index of 4
// bits needs no mask.
static constexpr float kLevels2[16] = {-1.5104f, -0.4528f, 0.4528f,  1.5104f,  -1.5104f, -0.4528f,
                                       0.4528f,  1.5104f,  -1.5104f, -0.4528f, 0.4528f,  1.5104f,
                                       -1.5104f, -0.4528f, 0.4528f,  1.5104f};
static constexpr float kLevels4[16] = {-2.7326f, -2.0690f, -1.6181f, -1.2562f, -0.9424f, -0.6568f,
                                       -0.3881f, -0.1284f, 0.1284f,  0.3881f,  0.6568f,  0.9424f,
                                       1.2562f,  1.6181f,  2.0690f,  2.7326f};

// 2^r = 1 + r (c1 + r (c2 + ... c5)), |r| <= 1/2: relative error below 1e-7.
static constexpr float kExp2[6] = {1.0f,           0.6931469776f,   0.2402224208f,
                                   0.05550733745f, 0.009671512677f, 0.00132647267f};

static constexpr float kExp2Floor = -120.0f;  // below, exp2 gives 2^-120: no denormals

}  // namespace akv::kernels::attention
