"""Digests of messages: the same however many elements are looked at in one piece."""

import ml_dtypes
import numpy as np
import pytest
import xxhash

from ftcomm.memory.message_value import ONE_PIECE_BYTES, digest_of, text_of
from ftcomm.protocol.link_messages import Content

SIZES = (0, 1, ONE_PIECE_BYTES - 8, ONE_PIECE_BYTES, ONE_PIECE_BYTES + 8, 1 << 18)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("dtype", [np.uint8, np.float64, np.complex64, ml_dtypes.bfloat16])
def test_a_digest_is_of_all_elements_and_of_what_they_are(nbytes: int, dtype: type) -> None:
    raw = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    flat = raw[: nbytes - nbytes % np.dtype(dtype).itemsize].view(dtype)
    text = f"{Content.ARRAY:d} {flat.dtype.name} {flat.shape}".encode()
    wanted = xxhash.xxh3_128_digest(flat.tobytes() + text)
    assert text_of(Content.ARRAY, flat.dtype, flat.shape) == text
    assert digest_of(flat, text) == wanted
