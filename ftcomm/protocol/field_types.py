"""Types of a message's fields: each an ordinary type with its bounds on the wire.

A dataclass of messages names these types, and `schema.record_of` reads the bounds from them.
"""

from typing import Annotated

from ftcomm.protocol.schema import AtMost, Bytes, Int, Text
from ftcomm.protocol.signature import SIGNATURE_BYTES

MAX_WORLD_SIZE = 2048  # ranks; so many are measured (benchmarks/tracker_scale.py)
MAX_CONTROL_FRAME = (
    256 * 1024
)  # bytes; a plan of MAX_WORLD_SIZE ranks, of which each is fetched from
MAX_TEXT = 1024  # bytes; longer prose belongs in a log file
MAX_NAME = 64  # bytes; Linux's own limit of a host name, and ample for a worker id
MAX_ADDRESS = 255  # bytes; a DNS name is at most 253
MAX_BLOB = 4096  # bytes; nonces and digests are 32
MAX_NONCE = 32  # bytes; a roster has one for each rank
MAX_PATH = 200  # bytes; where in a state a part is, in the user's own keys
MAX_SETTINGS = 64  # pairs of name and value
MAX_LOCAL_VERSIONS = 2  # a committed and a tentative one
MAX_ROUTES = 1024  # relayed pairs; a job with more has lost its network
MAX_TAG = 72  # bytes; a text of 64, and what tells it from a number
MAX_TAGS = 1024  # of one rank's messages to another in one version
MAX_DIMS = 64  # what numpy 2 allows
# Objects that one member writes of one version: local states of all ranks and its parts of the
# common one. So many of 100 bytes fit a frame.
MAX_OBJECT_ORDERS = MAX_WORLD_SIZE
MAX_CALLS = 65  # the last 64 completed calls and the one in flight
MAX_ENTRIES = 512  # ranks of a roster in one message: 92 KiB, beside the job's settings
MAX_TRACKERS_LOST = 8  # those before the present one that a worker names
MAX_LEAVES = 512  # parts of a state that are compared one by one; so many fit a frame
MAX_ITEM_BYTES = 1 << 40  # one served result; far above any log limit, far below overflow
# Of 26 bytes at most: 104 KiB, within a frame. What small results would add to a report beyond
# that is kept by replica holders alone.
RUNS_OF_A_FRAME = 4096

U32 = Annotated[int, Int(0, 2**32 - 1)]
U64 = Annotated[int, Int(0, 2**64 - 1)]
Rank = Annotated[int, Int(0, MAX_WORLD_SIZE - 1)]
RankOrNone = Annotated[int, Int(-1, MAX_WORLD_SIZE - 1)]  # -1 is none
Ranks = Annotated[tuple[Rank, ...], AtMost(MAX_WORLD_SIZE)]
WorldSize = Annotated[int, Int(1, MAX_WORLD_SIZE)]
SeqnoOrNone = Annotated[int, Int(-1, 2**32 - 1)]  # -1 is none
Stride = Annotated[int, Int(1, 2**31 - 1)]
Ticks = Annotated[int, Int(0, 2**53)]  # of the kernel's clock since the machine began
LogBytes = Annotated[int, Int(0, 2**63 - 1)]
ItemBytes = Annotated[int, Int(0, MAX_ITEM_BYTES)]
DtypeCode = Annotated[int, Int(0, 255)]
Shape = Annotated[tuple[ItemBytes, ...], AtMost(MAX_DIMS)]
Port = Annotated[int, Int(0, 65535)]
# Those that a system chooses; services of the host are below.
UserPort = Annotated[int, Int(1024, 65535)]

Name = Annotated[str, Text(MAX_NAME)]
Address = Annotated[str, Text(MAX_ADDRESS)]
Prose = Annotated[str, Text(MAX_TEXT, cut=True)]
Site = Annotated[str, Text(MAX_ADDRESS, cut=True)]
LeafPath = Annotated[str, Text(MAX_PATH, cut=True)]
LeafKind = Annotated[str, Text(MAX_NAME, cut=True)]
Document = Annotated[str, Text(MAX_CONTROL_FRAME - 16)]
_SettingText = Annotated[str, Text(MAX_TEXT)]
SettingPairs = Annotated[tuple[tuple[_SettingText, _SettingText], ...], AtMost(MAX_SETTINGS)]

Blob = Annotated[bytes, Bytes(MAX_BLOB)]
Nonce = Annotated[bytes, Bytes(MAX_NONCE)]
LeafDigest = Annotated[bytes, Bytes(MAX_NAME)]
PackedSignature = Annotated[bytes, Bytes(SIGNATURE_BYTES)]
Tag = Annotated[bytes, Bytes(MAX_TAG)]
MessageDigest = Annotated[bytes, Bytes(16)]
InputDigests = Annotated[bytes, Bytes(16 * MAX_WORLD_SIZE)]
