"""What test_sanitizer.py runs under compute-sanitizer: every sm_90a step at small sizes, through NumPy."""

from __future__ import annotations

import numpy as np

import ptxgen
from ptxgen.device.cuda import CudaDevice, fitting_ordinal

TARGET = "sm_90a"


def main() -> None:
    device = CudaDevice(fitting_ordinal(TARGET))
    rng = np.random.default_rng(1)
    for number in (4, 5, 6, 7):
        kernel = ptxgen.compile(ptxgen.step(number, target=TARGET), device)
        for m, n, k in ((128, 256, 64), (200, 136, 200), (33, 7, 15), (300, 520, 330)):
            a = rng.integers(-4, 5, (m, k)).astype(np.float16)
            b = rng.integers(-4, 5, (n, k)).astype(np.float16)
            d = kernel(a, b)
            assert np.array_equal(d, (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16))
    print("all steps are right")


if __name__ == "__main__":
    main()
