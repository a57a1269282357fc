// Natural logarithm with the bits of the crate `libm`, which is that of musl and FreeBSD:
//
// Copyright (C) 1993 by Sun Microsystems, Inc. All rights reserved.
// Developed at SunSoft, a Sun Microsystems, Inc. business.
// Permission to use, copy, modify, and distribute this software is freely granted, provided that this
// notice is preserved.

#pragma once

#include "dev.h"

// Returns the logarithm of a positive, finite number that is not subnormal.
DEVICE double logarithm(double x) {
    uint64_t bits = double_bits(x);
    uint32_t high = uint32_t(bits >> 32);
    if (high == 0x3ff00000 && uint32_t(bits) == 0) {
        return 0.0;
    }
    // x = 2^k (1 + f), with 1 + f from sqrt(2)/2 to sqrt(2).
    high += 0x3ff00000 - 0x3fe6a09e;
    double k = double(int32_t(high >> 20) - 0x3ff);
    high = (high & 0x000fffff) + 0x3fe6a09e;
    double f = bits_double(uint64_t(high) << 32 | uint32_t(bits)) - 1.0;
    double half = 0.5 * f * f;
    double s = f / (2.0 + f);
    double z = s * s;
    double w = z * z;
    double even = w * (3.999999999940941908e-01 +
                       w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    double odd = z * (6.666666666666735130e-01 +
                      w * (2.857142874366239149e-01 +
                           w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    double low = k * 1.90821492927058770002e-10, top = k * 6.93147180369123816490e-01;
    return s * (half + (odd + even)) + low - half + f + top;
}
