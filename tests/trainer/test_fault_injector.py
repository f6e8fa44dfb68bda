"""FaultInjector in real runs: what it strikes, what it leaves alone, and what survives it."""

import functools
import json
import random
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from sp4_lightning import ClippingOptimizer, ConfigurationError, FaultEvent, FaultInjector, Settings, SP4Callback
from sp4_lightning.faults.fault import KINDS
from tests.trainer.faults import differing, snapshot
from tests.trainer.models import Automatic, Manual, data, fit

AT = 25


def wrapped():
    return Automatic(wrap=lambda optimizer: ClippingOptimizer(optimizer, settings=Settings("observe")))


FACTORIES = {"automatic": (Automatic, "body"), "manual": (Manual, "b"), "wrapped": (wrapped, "body")}


class Look(Callback):
    """Everything there is, behind the injector: between two steps, and when the gradients are complete."""

    def __init__(self, at=AT):
        self.at, self.update, self.between, self.complete, self.random = at, -1, {}, {}, None
        self.learning_rates = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.update += 1
        if self.update == self.at:
            self.between = snapshot(module, trainer.optimizers)
            self.between |= {f"batch.{i}": tensor.clone() for i, tensor in enumerate(batch)}
            self.random = torch.get_rng_state(), random.getstate()

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.learning_rates.append([group["lr"] for group in optimizer.param_groups])
        if self.update == self.at:
            held = {id(param) for group in optimizer.param_groups for param in group["params"]}
            named = [(name, param) for name, param in module.named_parameters() if id(param) in held]
            self.complete |= {f"{name}.grad": param.grad.clone() for name, param in named}


@functools.cache
def clean_run(factory):
    """A look at the run without faults, and its parameters' largest element at the end."""
    look = Look()
    module, _ = fit(FACTORIES[factory][0], look)
    return look, max(float(param.detach().abs().max()) for param in module.parameters())


def entry(kind, group="*", **more):
    what, _, how = kind.rpartition("_")
    fault = {"kind": kind, "step": AT, **more}
    fault |= {"key": 1} if what == "batch" else {"group": group}
    fault |= {"scale": {"factor": 1e3}, "spike": {"value": 1e8}}.get(how, {}) if "factor" not in fault else {}
    return fault


def expected(kind, fault, clean):
    if "factor" in fault:
        return clean * fault["factor"]
    values = {"nan": torch.nan, "inf": torch.inf, "zero": 0.0, "spike": 1e8}
    return torch.full_like(clean, values[kind.rpartition("_")[2]])


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lr_scale"])
def test_a_fault_writes_what_it_says_and_nothing_else(kind, factory):
    make, group = FACTORIES[factory]
    fault = entry(kind, group)
    (clean, _), struck, injector = clean_run(factory), Look(), FaultInjector([fault])
    fit(make, injector, struck, max_epochs=1)
    what, _, how = kind.rpartition("_")
    (event,) = injector.events
    if what == "gradient":
        assert differing(clean.between, struck.between) == []
        before, after = clean.complete, struck.complete
    else:
        before, after = clean.between, struck.between
    suffix = {"gradient": ".grad", "param": "", "batch": ""}.get(what, f".{what}")
    prefix = "batch." if what == "batch" else ""
    assert differing(before, after) == sorted(f"{prefix}{name}{suffix}" for name in event.tensors)
    written = 0
    for name in event.tensors:
        old, new = before[f"{prefix}{name}{suffix}"], after[f"{prefix}{name}{suffix}"]
        at = old.view(torch.int32) != new.view(torch.int32)
        torch.testing.assert_close(new[at], expected(kind, fault, old)[at], rtol=0, atol=0, equal_nan=True)
        written += int(at.sum())
    everything = sum(before[f"{prefix}{name}{suffix}"].numel() for name in event.tensors)
    assert event.elements == (1 if how in ("nan", "inf", "spike") else everything)
    # A zero, times anything or set to zero, keeps its bits.
    assert written == event.elements or (how in ("zero", "scale") and written > 0.9 * everything)
    assert (event.step, event.kind) == (AT, kind)
    assert all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(clean.random, struck.random, strict=True)
    )


def test_a_factor_strikes_an_element_that_is_not_zero():
    (clean, _), struck = clean_run("automatic"), Look()
    injector = FaultInjector([entry("exp_avg_spike", "head", tensor="*.weight", factor=1e8)])
    fit(Automatic, injector, struck, max_epochs=1)
    old, new = clean.between["head.weight.exp_avg"], struck.between["head.weight.exp_avg"]
    assert differing(clean.between, struck.between) == ["head.weight.exp_avg"]
    assert injector.events == [FaultEvent(AT, "exp_avg_spike", "head", ("head.weight",), 1)]
    assert torch.equal(new[new != old], old[new != old] * 1e8)


@pytest.mark.parametrize("elements", [5, 100_000, "all"])
def test_elements_are_drawn_over_all_tensors(elements):
    struck, injector = Look(), FaultInjector([entry("param_nan", "body", elements=elements)])
    fit(Automatic, injector, struck, max_epochs=1)
    nan = sum(int(tensor.isnan().sum()) for name, tensor in struck.between.items())
    everything = sum(p.numel() for p in Automatic().body.parameters())
    assert nan == injector.events[0].elements == (5 if elements == 5 else everything)


def test_strided_parameters_are_struck_where_they_are():
    class Transposed(Automatic):
        def __init__(self):
            super().__init__()
            self.head.weight = torch.nn.Parameter(self.head.weight.new_ones(8, 3).t()[:1])

    struck = Look()
    injector = FaultInjector([entry("param_spike", "head", tensor="*.weight")])
    fit(Transposed, injector, struck)
    assert int((struck.between["head.weight"] == 1e8).sum()) == 1


@pytest.mark.parametrize("factory", FACTORIES)
def test_learning_rates_are_put_back(factory):
    make, group = FACTORIES[factory]
    (clean, _), look = clean_run(factory), Look()
    _, run = fit(make, FaultInjector([entry("lr_scale", group, factor=100, updates=3)]), look)
    changed = [i for i, (a, b) in enumerate(zip(look.learning_rates, clean.learning_rates, strict=True)) if a != b]
    stride, offset = (2, 1) if factory == "manual" else (1, 0)
    assert changed == [stride * (AT + i) + offset for i in range(3)]
    assert look.learning_rates[changed[0]][0] == pytest.approx(0.1)
    assert all(g["lr"] == 1e-3 for optimizer in run.optimizers for g in optimizer.param_groups)


def test_one_learning_rate_is_scaled_once_though_two_groups_share_it():
    look = Look()
    groups = {"first": "body.0", "second": "body.2", "third": "head"}
    fit(Automatic, FaultInjector([entry("lr_scale", factor=10)], groups=groups), look)
    assert look.learning_rates[AT] == [pytest.approx(1e-2)] * 2


def test_bursts_and_repetition():
    faults = [
        entry("gradient_scale", "head", factor=2.0, updates=3, every=10),
        entry("batch_scale", factor=2.0, updates=None),
    ]
    injector = FaultInjector(faults)
    fit(Automatic, injector, max_epochs=1)
    steps = {kind: [e.step for e in injector.events if e.kind == kind] for kind in ("gradient_scale", "batch_scale")}
    assert steps == {"gradient_scale": [25, 26, 27, 35, 36, 37], "batch_scale": list(range(25, 40))}


def test_steps_are_the_updates_of_the_groups_own_optimizer():
    look = Look(at=15)  # the batch of the sixth update of an optimizer that steps on every third
    injector = FaultInjector([{"kind": "gradient_nan", "step": 5, "group": "b"}])
    fit(lambda: Manual(every=3), injector, look, max_epochs=1)
    assert sum(int(grad.isnan().sum()) for name, grad in look.complete.items() if name.startswith("b")) == 1


def test_every_step_counts_where_an_optimizer_makes_several_in_a_batch():
    class Twice(Manual):
        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)
            super().training_step(batch, batch_idx)

    faults = [{"kind": kind, "step": 7, "group": "a"} for kind in ("gradient_nan", "exp_avg_nan", "param_nan")]
    injector = FaultInjector(faults)
    module, _ = fit(Twice, injector, SP4Callback(tables=False), max_epochs=1)
    assert sorted((event.kind, event.step) for event in injector.events) == sorted((f["kind"], 7) for f in faults)
    assert finite(module)


@pytest.mark.parametrize("kind", ["gradient_scale", "param_scale"])
def test_accumulated_batches_are_struck_once(kind):
    injector = FaultInjector([{"kind": kind, "step": 3, "factor": 2.0, "group": "head"}])
    fit(Automatic, injector, max_epochs=1, accumulate_grad_batches=4)
    assert [event.step for event in injector.events] == [3]


def test_a_closure_that_is_evaluated_again_is_struck_once():
    class Searching(Automatic):
        evaluations = 0

        def training_step(self, batch, batch_idx):
            self.evaluations += 1
            return super().training_step(batch, batch_idx)

        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), max_iter=4)

    injector = FaultInjector([{"kind": "gradient_scale", "step": 3, "factor": 2.0}])
    module, _ = fit(Searching, injector, max_epochs=1)
    assert module.evaluations > 80
    assert [event.step for event in injector.events] == [3]


def test_the_data_set_is_left_as_it_was():
    store = torch.randn(40, 16, 5)
    views = [{"x": batch[:, :4], "y": batch[:, 4:]} for batch in store]

    class Reads(Automatic):
        largest = 0.0

        def training_step(self, batch, batch_idx):
            self.largest = max(self.largest, float(batch["y"].abs().max()))
            return super().training_step((batch["x"], batch["y"]), batch_idx)

    before = store.clone()
    faults = [{"kind": "batch_spike", "step": 5, "key": "y", "value": 1e6, "samples": 2}]
    faults += [{"kind": "batch_scale", "step": 5, "key": "y", "factor": 2.0}]
    injector = FaultInjector(faults)
    module, _ = fit(Reads, injector, loader=DataLoader(views, batch_size=None), max_epochs=1)
    assert module.largest == 2e6
    assert [event.elements for event in injector.events] == [2, 16]
    assert torch.equal(store, before)


FATAL = ("gradient_nan", "gradient_inf", "param_nan", "exp_avg_nan", "exp_avg_sq_nan", "batch_nan")


def finite(module):
    return all(bool(param.isfinite().all()) for param in module.parameters())


@pytest.mark.parametrize("factory", ["automatic", "manual"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_protected_run_survives_what_an_unprotected_one_does_not(kind, factory):
    make, group = FACTORIES[factory]
    # The learned bounds are in force: they have been armed after 64 updates.
    faults = [{**entry(kind, group), "step": 70}]
    protected, run = fit(make, SP4Callback(warmup_steps=66, tables=False, update_every=1), FaultInjector(faults))
    assert finite(protected)
    assert all(torch.isfinite(v).all() for v in snapshot(protected, run.optimizers).values())
    assert max(float(param.detach().abs().max()) for param in protected.parameters()) < 10 * clean_run(factory)[1]
    if kind in FATAL:
        bare, _ = fit(make, FaultInjector(faults))
        assert not finite(bare)


@pytest.mark.parametrize("factory", ["automatic", "manual"])
def test_the_place_in_the_list_changes_no_bit(factory):
    make, group = FACTORIES[factory]
    faults = [
        {**entry(kind, group), "step": 20 + 5 * i}
        for i, kind in enumerate(("gradient_nan", "exp_avg_spike", "param_inf"))
    ]
    ends = []
    for order in (1, -1):
        callbacks = [SP4Callback(warmup_steps=70, tables=False), FaultInjector(faults)][::order]
        module, run = fit(make, *callbacks)
        ends.append(snapshot(module, run.optimizers))
    assert differing(*ends) == []


def test_a_clipping_optimizer_survives_without_the_callback():
    def make():
        return Automatic(wrap=ClippingOptimizer)

    module, _ = fit(make, FaultInjector([entry("gradient_nan", "body"), entry("param_nan", "head")]))
    assert finite(module)


def test_gradients_are_struck_before_the_trainers_own_clipping():
    class After(Look):
        def on_train_batch_end(self, trainer, module, *_):
            if self.update == self.at:
                self.norm = torch.cat([p.grad.flatten() for p in module.parameters()]).norm()

    look = After()
    fit(Automatic, FaultInjector([entry("gradient_scale", factor=1e6)]), look, gradient_clip_val=1e-3)
    assert look.norm == pytest.approx(1e-3, rel=1e-3)


def test_a_seed_draws_the_same_elements_whatever_else_is_listed():
    def struck(seed, *others):
        look = Look()
        fit(Automatic, FaultInjector([*others, entry("param_nan", "body")], seed=seed), look, max_epochs=1)
        return {name: tensor.isnan() for name, tensor in look.between.items() if tensor.isnan().any()}

    first, again, other = struck(0), struck(0, entry("gradient_nan", "head", tensor="*.bias") | {"step": 39}), struck(1)
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert first.keys() != other.keys() or not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("saved_at", [24, 25, 26])
def test_a_resumed_run_does_not_strike_twice(saved_at, tmp_path):
    faults = [entry("gradient_scale", "head", factor=3.0, updates=2), entry("param_scale", "body", factor=1.5)]
    faults += [entry("batch_scale", factor=2.0)]
    whole_injector = FaultInjector(faults)
    same = [next(iter(data()))] * 40  # Lightning does not wind a loader forward
    keep = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=saved_at, save_top_k=-1, filename="{step}")
    options = {"loader": DataLoader(same, batch_size=None), "max_epochs": 1}
    whole, run = fit(Automatic, whole_injector, keep, enable_checkpointing=True, **options)
    rest_injector = FaultInjector(faults)
    checkpoint = tmp_path / f"step={saved_at}.ckpt"
    rest, rest_run = fit(Automatic, rest_injector, ckpt_path=checkpoint, **options)
    assert rest_injector.events == [event for event in whole_injector.events if event.step >= saved_at]
    assert len(whole_injector.events) == 4
    assert differing(snapshot(whole, run.optimizers), snapshot(rest, rest_run.optimizers)) == []


def test_a_checkpoint_from_a_run_without_faults_says_where_steps_count_from(tmp_path):
    _, run = fit(Automatic, max_epochs=1)
    run.save_checkpoint(tmp_path / "clean.ckpt")
    injector = FaultInjector([entry("param_scale", factor=1.5)])
    with pytest.warns(UserWarning, match="no state of FaultInjector: its steps count from here"):
        fit(Automatic, injector, ckpt_path=tmp_path / "clean.ckpt", max_epochs=2)
    assert [event.step for event in injector.events] == [AT, AT]  # body and head


def test_events_are_written_beside_the_logs(tmp_path):
    injector = FaultInjector([entry("gradient_nan", "head"), entry("batch_zero")])
    _, run = fit(Automatic, injector, logger=CSVLogger(tmp_path))
    lines = [json.loads(line) for line in Path(run.log_dir, "faults.jsonl").read_text().splitlines()]
    assert [FaultEvent(**{**line, "tensors": tuple(line["tensors"])}) for line in lines] == injector.events
    assert len(injector.events) == 2


def test_one_line_says_what_was_done(caplog):
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        fit(Automatic, FaultInjector([entry("gradient_scale", "head", factor=2.0, updates=5)]))
    (line,) = [record.message for record in caplog.records if "Fault" in record.message]
    assert line == "Fault at step 25: gradient_scale in head, head.weight, head.bias, 9 elements, 5 times in a row."


def test_a_run_that_was_too_short_and_a_group_without_gradients_are_told():
    class Half(Automatic):
        def training_step(self, batch, batch_idx):
            return self.body(batch[0]).square().mean()

    faults = [{"kind": "gradient_nan", "step": 1000, "group": "body"}, entry("gradient_nan", "head")]
    with pytest.warns(UserWarning, match="gradient_nan") as told:
        fit(Half, FaultInjector(faults))
    told = [str(warning.message) for warning in told]
    assert "faults[0] (gradient_nan) has step 1000, but the run ended after 80 updates." in told
    assert "Fault at step 25: gradient_nan found nothing to strike in head." in told


def test_an_optimizer_stepped_past_lightning_is_told():
    class Past(Manual):
        def optimizers(self, use_pl_optimizer=True):
            return super().optimizers(use_pl_optimizer=False)

    with pytest.warns(UserWarning, match="gradient_nan did not strike a, because Adam was stepped behind"):
        fit(Past, FaultInjector([entry("gradient_nan", "a")]))


def test_an_exception_leaves_the_batch_as_it_was():
    store = torch.ones(16, 4)

    class Fails(Automatic):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fit(
            Fails,
            FaultInjector([{**entry("batch_zero"), "step": 0}]),
            loader=DataLoader([[store, store]], batch_size=None),
        )
    assert torch.equal(store, torch.ones(16, 4))


BAD = [
    ({"kind": "gradent_nan", "step": 1}, "there is no kind 'gradent_nan'. Did you mean 'gradient_nan'?"),
    ({"kind": "gradient_nan", "step": -1}, "step must be a whole number of at least 0, got -1."),
    ({"kind": "gradient_nan", "step": None}, "step must be a whole number of at least 0, got None."),
    ({"kind": "gradient_nan", "step": True}, "step must be a whole number of at least 0, got True."),
    ({"kind": "gradient_nan"}, "step is missing"),
    ({"step": 3}, "kind is missing"),
    ({"kind": "gradient_nan", "step": 1, "grup": "a"}, "there is no 'grup'. Did you mean 'group'?"),
    ({"kind": "gradient_nan", "step": 1, "factor": 3}, "factor means nothing to gradient_nan. Remove it."),
    ({"kind": "gradient_nan", "step": 1, "key": 0}, "key means nothing to gradient_nan. Remove it."),
    ({"kind": "batch_nan", "step": 1, "key": 0, "group": "a"}, "group means nothing to batch_nan. Remove it."),
    ({"kind": "gradient_scale", "step": 1}, "gradient_scale needs a factor, e.g. factor: 1e6."),
    ({"kind": "gradient_scale", "step": 1, "factor": "1e6"}, "factor must be a finite number, got '1e6'."),
    ({"kind": "gradient_scale", "step": 1, "factor": float("nan")}, "factor must be a finite number, got nan."),
    ({"kind": "param_spike", "step": 1}, "param_spike needs either a value, e.g. value: 1e8, or a factor."),
    ({"kind": "param_spike", "step": 1, "value": 1, "factor": 2}, "param_spike needs either a value"),
    ({"kind": "param_nan", "step": 1, "elements": 0}, "elements must be at least 1, or 'all', got 0."),
    ({"kind": "param_nan", "step": 1, "updates": 0}, "updates must be a whole number of at least 1, got 0."),
    (
        {"kind": "param_nan", "step": 1, "updates": None, "every": 5},
        "every must be left out where updates is None, got 5.",
    ),
    ({"kind": "param_nan", "step": 1, "group": ["a"]}, "group must be a name or glob, got ['a']."),
    (3, "a fault is a mapping such as {kind: gradient_nan, step: 600}, got 3."),
]


@pytest.mark.parametrize(("fault", "message"), BAD)
def test_a_bad_entry_is_one_line(fault, message):
    with pytest.raises(ConfigurationError) as error:
        FaultInjector([{"kind": "param_nan", "step": 1, "elements": 3}, fault])
    assert str(error.value).startswith(f"faults[1]: {message}")
    assert "\n" not in str(error.value)


def test_a_bad_list_is_one_line():
    with pytest.raises(ConfigurationError, match="faults must be a list of mappings, got"):
        FaultInjector({"kind": "param_nan", "step": 1})
    with pytest.raises(ConfigurationError, match=r"faults\[1\] is faults\[0\] again"):
        FaultInjector([entry("param_nan"), entry("param_nan")])


def sgd():
    return Automatic(torch.optim.SGD, lr=1e-2)


@pytest.mark.parametrize(
    ("make", "fault", "message"),
    [
        (
            Automatic,
            entry("param_nan", "bdy"),
            "param_nan names the group 'bdy', which does not exist. Did you mean 'body'? Groups are body, head.",
        ),
        (
            Automatic,
            entry("param_nan", "head", tensor="head.wieght"),
            "tensor 'head.wieght' matches no parameter of 'head'. Did you mean 'head.weight'? "
            "It has head.weight, head.bias.",
        ),
        (sgd, entry("exp_avg_sq_zero", "head"), "SGD keeps no exp_avg_sq for the group 'head'."),
        (sgd, entry("exp_avg_nan", "head"), "SGD keeps no exp_avg for the group 'head'."),
        (
            Automatic,
            {**entry("exp_avg_nan", "head"), "step": 0},
            "Adam has no exp_avg before its first update, so step 0 finds nothing to strike. Use step: 1 or later.",
        ),
        (
            Automatic,
            {**entry("batch_nan"), "key": "rewards"},
            "batch_nan: key 'rewards' is not in the batch, a list. Keys are 0, 1.",
        ),
        (
            Automatic,
            {**entry("batch_nan"), "key": None},
            "batch_nan: key None is not in the batch, a list. Keys are 0, 1.",
        ),
        (
            Automatic,
            entry("batch_scale", samples=17, factor=2.0),
            "batch_scale: samples is 17, but key 1 has the shape [16, 1].",
        ),
    ],
)
def test_what_does_not_fit_the_run_is_one_line_before_anything_is_struck(make, fault, message):
    first = {"kind": "gradient_nan", "step": 0}
    injector = FaultInjector([first, fault])
    with pytest.raises(ConfigurationError) as error:
        fit(make, injector)
    assert str(error.value).startswith(f"faults[1]: {message}")
    assert injector.events == []


def test_whole_numbers_in_a_batch_and_misspelled_keys_are_refused():
    class Labels(LightningModule):
        def training_step(self, batch, batch_idx):
            return None

        def configure_optimizers(self):
            return None

    loader = DataLoader([{"label": i, "x": 1.0} for i in range(4)])
    for key, message in (("label", "is torch.int64, not floating-point numbers"), ("lable", "Did you mean 'label'?")):
        with pytest.raises(ConfigurationError) as error:
            fit(Labels, FaultInjector([{"kind": "batch_nan", "step": 0, "key": key}]), loader=loader)
        assert message in str(error.value)


def test_groups_may_be_named_as_for_sp4callback():
    injector = FaultInjector([entry("gradient_nan", "biases")], groups={"biases": "*.bias", "rest": "*.weight"})
    fit(Automatic, injector, loader=data())
    (event,) = injector.events
    assert event.tensors[0].endswith(".bias")
    injector = FaultInjector([entry("gradient_nan", "biases")], groups={"biases": "*.bais"})
    with pytest.raises(ConfigurationError, match=r"Group 'biases': '\*.bais' matches no module or parameter"):
        fit(Automatic, injector)
