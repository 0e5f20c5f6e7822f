"""What backends share: addresses of arrays."""

from __future__ import annotations

import numpy as np

from lambent.backends.base import address


def test_an_address_is_that_of_the_array_alone() -> None:
    for n in range(300):  # of which many have an id that another had before
        array = np.zeros(n + 1)
        part = array[n // 2 :]
        for a in (array, part, array):
            assert address(a) == a.__array_interface__["data"][0]
        del array, part
