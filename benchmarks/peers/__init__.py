"""Published methods that the fault suite compares with, as their authors' code does them; one file a method."""

from benchmarks.peers.callback import PeerCallback
from benchmarks.peers.peer import Peer
from benchmarks.peers.registry import PEERS

__all__ = ["PEERS", "Peer", "PeerCallback"]
