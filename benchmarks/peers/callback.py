"""PeerCallback: a compared method in a Trainer's run."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.peers.peer import Peer
from benchmarks.peers.registry import PEERS
from sp4_lightning.lightning_internals import real_optimizers


class PeerCallback(Callback):
    """Puts one method around the steps of every optimizer, an own copy for each.

    Args:
        name: A key of :data:`benchmarks.peers.PEERS`.

    Attributes:
        peers: The copies of this fit, in the order of the Trainer's optimizers.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.peers: list[Peer] = []
        self._saved: list[dict[str, Any]] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizers = real_optimizers(trainer)
        self.peers = [PEERS[self.name]() for _ in optimizers]
        # Lightning restores callbacks before it starts to train.
        if self._saved is not None:
            for peer, state in zip(self.peers, self._saved, strict=True):
                peer.load_state_dict(state)
            self._saved = None
        for peer, optimizer in zip(self.peers, optimizers, strict=True):
            peer.attach(optimizer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._release()

    def state_dict(self) -> dict[str, Any]:
        return {"peers": [peer.state_dict() for peer in self.peers] if self._saved is None else self._saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict["peers"]

    def _release(self) -> None:
        for peer in self.peers:
            peer.detach()
