"""The compared methods by the names that tables use."""

from collections.abc import Callable

from benchmarks.peers.adagc import AdaGC
from benchmarks.peers.agc import AGC
from benchmarks.peers.autoclip import AutoClip
from benchmarks.peers.clip import ClipGradNorm, NanToNumClip
from benchmarks.peers.peer import Peer
from benchmarks.peers.spam import SPAM
from benchmarks.peers.weight_clipping import WeightClipping
from benchmarks.peers.zclip import ZClip

PEERS: dict[str, Callable[[], Peer]] = {
    "clip": ClipGradNorm,
    "nan_to_num+clip": NanToNumClip,
    "autoclip": AutoClip,
    "zclip": ZClip,
    "adagc": AdaGC,
    "agc": AGC,
    "spam": SPAM,
    "weight_clipping": WeightClipping,
}
