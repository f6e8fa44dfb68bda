"""The compared methods by the names that tables use."""

from collections.abc import Callable

from benchmarks.peers.autoclip import AutoClip
from benchmarks.peers.clip import ClipGradNorm, NanToNumClip
from benchmarks.peers.peer import Peer

PEERS: dict[str, Callable[[], Peer]] = {
    "clip": ClipGradNorm,
    "nan_to_num+clip": NanToNumClip,
    "autoclip": AutoClip,
}
