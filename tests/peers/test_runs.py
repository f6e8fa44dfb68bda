"""Peers over time and in real Trainers: interrupted lives, one copy for each optimizer, nothing left behind."""

import copy
import io

import pytest
import torch
from lightning.pytorch import Callback

from benchmarks.peers import PEERS, PeerCallback, registry
from benchmarks.peers.clip import ClipGradNorm
from benchmarks.peers.spam import SPAM
from sp4_lightning import FaultInjector
from tests.peers.lives import attached, give, life, parameters
from tests.trainer import agent
from tests.trainer.models import Automatic, Manual, data, fit


def stored(*states):
    """Through a file that may hold tensors, numbers and containers only."""
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", PEERS)
def test_an_interrupted_life_is_the_same_life(name):
    whole, parts = parameters(), parameters()
    peer = PEERS[name]()
    straight, optimizer = attached(PEERS[name](), whole), attached(peer, parts)
    for i, gradients in enumerate(life(560 if name == "spam" else 160)):
        if i in (10, 60, 150, 540):  # in the warm-ups of ZClip and AdaGC, after them, and in SPAM's
            state, peer_state = stored(optimizer.state_dict(), peer.state_dict())
            parts, peer = [torch.nn.Parameter(p.detach().clone()) for p in parts], PEERS[name]()
            optimizer = attached(peer, parts)
            optimizer.load_state_dict(state)
            peer.load_state_dict(peer_state)
        give(straight, gradients)
        give(optimizer, gradients)
        assert all(torch.equal(p, q) for p, q in zip(whole, parts, strict=True)), i


@pytest.mark.parametrize("name", PEERS)
def test_a_state_is_a_copy(name):
    peer = PEERS[name]()
    optimizer = attached(peer, parameters())
    first, second = life(2)
    give(optimizer, first)
    state = peer.state_dict()
    kept = copy.deepcopy(state)
    PEERS[name]().load_state_dict(state)
    give(optimizer, second)
    assert state == kept


class Last(Callback):
    """The training losses, and the hooks that the optimizers have during the run."""

    def __init__(self):
        self.losses, self.hooks = [], set()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if outputs:
            self.losses.append(float(outputs["loss"]))
        self.hooks |= {
            (len(o._optimizer_step_pre_hooks), len(o._optimizer_step_post_hooks)) for o in trainer.optimizers
        }


def hooks(optimizers):
    return [hook for o in optimizers for hook in (*o._optimizer_step_pre_hooks, *o._optimizer_step_post_hooks)]


@pytest.mark.parametrize("name", PEERS)
def test_a_run_trains_under_every_peer_and_is_left_clean(name):
    look = Last()
    _, run = fit(lambda: Automatic(lr=1e-2), PeerCallback(name), look)
    assert sum(look.losses[-10:]) < 0.5 * sum(look.losses[:10])
    assert look.hooks == {(1, 1 if name in ("spam", "weight_clipping") else 0)}
    assert not hooks(run.optimizers)


@pytest.mark.parametrize("name", ["autoclip", "adagc", "zclip", "spam"])
def test_a_resumed_run_is_the_same_run(name, tmp_path):
    whole, _ = fit(Manual, PeerCallback(name), max_epochs=4, loader=data(10))
    cut, run = fit(Manual, first := PeerCallback(name), max_epochs=2, loader=data(10))
    run.save_checkpoint(tmp_path / "cut.ckpt")
    second, options = PeerCallback(name), {"max_epochs": 4, "ckpt_path": tmp_path / "cut.ckpt", "seed": 9}
    resumed, _ = fit(Manual, second, loader=data(10), **options)
    assert not torch.equal(cut.a[0].weight, whole.a[0].weight)
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), resumed.parameters(), strict=True))
    assert first.state_dict() != second.state_dict()


def test_what_is_loaded_before_the_fit_is_kept_until_it_starts():
    callback = PeerCallback("spam")
    callback.load_state_dict({"peers": [{"steps": 7}]})
    assert callback.state_dict() == {"peers": [{"steps": 7}]}
    fit(Automatic, callback, loader=data(3), max_epochs=1)
    assert callback.state_dict() == {"peers": [{"steps": 10}]}


def test_a_closure_is_clipped_as_the_trainer_does_it(monkeypatch):
    monkeypatch.setitem(registry.PEERS, "clip", lambda: ClipGradNorm(0.1))
    peer, _ = fit(Automatic, PeerCallback("clip"), loader=data(10))
    trainer, _ = fit(Automatic, loader=data(10), gradient_clip_val=0.1)
    bare, _ = fit(Automatic, loader=data(10))
    assert all(torch.equal(p, q) for p, q in zip(peer.parameters(), trainer.parameters(), strict=True))
    assert not torch.equal(peer.head.weight, bare.head.weight)


def test_an_exception_leaves_no_hook_and_no_scaled_rate(monkeypatch):
    monkeypatch.setitem(registry.PEERS, "spam", lambda: SPAM(reset_every=1))
    rates, made = [], []

    class Fails(torch.optim.Adam):
        def step(self, closure):
            closure()
            made.append(self)
            rates.append(self.param_groups[0]["lr"])
            raise RuntimeError("the step")

    with pytest.raises(RuntimeError, match="the step"):
        fit(lambda: Automatic(Fails), PeerCallback("spam"))
    assert rates[0] < 1e-3
    assert [group["lr"] for group in made[0].param_groups] == [1e-3, 1e-3]
    assert not hooks(made)


@pytest.mark.parametrize("first", [True, False])
def test_spam_and_a_struck_learning_rate_undo_each_other_in_order(monkeypatch, first):
    monkeypatch.setitem(registry.PEERS, "spam", lambda: SPAM(reset_every=5, warmup_steps=3, settle_steps=1))
    callbacks = [FaultInjector([{"kind": "lr_scale", "step": 5, "factor": 10}]), PeerCallback("spam")]
    _, run = fit(Manual, *(callbacks if first else callbacks[::-1]), loader=data(8), max_epochs=1)
    assert [group["lr"] for o in run.optimizers for group in o.param_groups] == [1e-3, 1e-3]


def test_two_optimizers_have_memories_of_their_own():
    callback = PeerCallback("autoclip")
    fit(lambda: Manual(every=4), callback, max_epochs=1)
    first, second = (peer.norms for peer in callback.peers)
    assert (len(first), len(second)) == (40, 10)
    assert not set(first) & set(second)


def test_the_agents_six_adams_have_a_peer_each():
    callback = PeerCallback("adagc")
    _, run, _ = agent.fit(5, callback)
    assert len(callback.peers) == 6
    for peer, optimizer in zip(callback.peers, run.optimizers, strict=True):
        assert sorted(peer.references) == list(range(sum(len(g["params"]) for g in optimizer.param_groups)))
        assert peer.steps == 5
    assert len({tuple(peer.references.values()) for peer in callback.peers}) == 6
