"""Settings are checked where they are made; an error says what, what it got and what is allowed."""

import math

import pytest
from torch import optim

from sp4_lightning import BackendError, ConfigurationError, LearnedBound, Settings
from tests.core.making import parameters, protect

BAD_SETTINGS = [
    ({"mode": "enforced"}, "mode must be 'observe' or 'enforce', got 'enforced'."),
    ({"warmup_steps": -1}, "warmup_steps must be 0 or more, got -1."),
    ({"update_every": 0}, "update_every must be 1 or more, got 0."),
    ({"max_skip_streak": 0}, "max_skip_streak must be 1 or more, got 0."),
    ({"raise_after_skips": 0}, "raise_after_skips must be 1 or more, or None, got 0."),
    (
        {"disable": {"trunk": ["exp_avg_sqr", "exp_avg"]}},
        "disable['trunk'] names the unknown quantity 'exp_avg_sqr'. Did you mean 'exp_avg_sq'? "
        "Quantities are param, grad, exp_avg, exp_avg_sq.",
    ),
    ({"disable": {"trunk": "grad"}}, "disable['trunk'] must be a list of quantities, got 'grad'."),
    (
        {"disable": {"trunk": "grads"}},
        "disable['trunk'] names the unknown quantity 'grads'. Did you mean 'grad'? "
        "Quantities are param, grad, exp_avg, exp_avg_sq.",
    ),
    (
        {"disable": {"trunk": ["exp_avg"]}},
        "disable['trunk'] = ['exp_avg'] names one of exp_avg and exp_avg_sq. They are repaired as a pair (an "
        "exp_avg_sq clamped alone would blow the update up): name both or neither.",
    ),
    ({"disable": {"trunk": ["grad", "exp_avg_sq"]}}, "names one of exp_avg and exp_avg_sq"),
    ({"backend": "triton"}, "backend must be"),
]


@pytest.mark.parametrize(("options", "text"), BAD_SETTINGS)
def test_a_bad_setting_is_refused(options, text):
    with pytest.raises(ConfigurationError) as caught:
        Settings(**options)
    assert text in str(caught.value)
    assert text == str(caught.value) or not text.endswith(".")


def test_a_configuration_error_is_a_value_error():
    with pytest.raises(ValueError, match="mode"):
        Settings(mode="")


@pytest.mark.parametrize(
    "options", [{}, {"warmup_steps": 0}, {"update_every": 1}, {"disable": {"*": ["grad", "param"]}}]
)
def test_good_settings_are_taken(options):
    Settings(**options)


def test_settings_cannot_be_changed_afterwards():
    with pytest.raises(AttributeError):
        Settings().mode = "observe"


# Every field of the learned bound and values that it cannot take. NaN fails whatever is asked of it.
BAD_LEARNED = {
    "quantile": [0.4, 1.1, math.nan],
    "arm_after": [1, 0, -1],
    "rise": [1.0, 0.5, 11.0, math.nan],
    "fall": [1.0, 0.5, 11.0, math.nan],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in BAD_LEARNED.items() for v in values])
def test_a_bad_field_of_the_learned_bound_is_named(field, value):
    with pytest.raises(ConfigurationError, match=rf"^learned\.\w+ must be .*, got {value!r}\.$"):
        LearnedBound(**{field: value})


def test_a_backend_that_cannot_be_had_is_an_error_that_says_the_way_out():
    with pytest.raises(BackendError) as caught:
        protect(optim.Adam(parameters((3,))), backend="cuda")
    text = str(caught.value)
    assert "backend='cuda' was asked for" in text
    assert "cpu" in text
    assert "Set backend=None." in text


@pytest.mark.parametrize(("backend", "expected"), [(None, "cpp"), ("cpp", "cpp"), ("torch", "torch")])
def test_a_backend_is_the_one_asked_for_or_the_fastest(backend, expected):
    wrapper = protect(optim.Adam(parameters((3,))), backend=backend)
    assert wrapper.engine.backend.name == expected


def test_how_often_to_learn_is_the_users_or_the_backends_choice():
    assert protect(optim.Adam(parameters((3,))), update_every=3).engine.update_every == 3
    chosen = protect(optim.Adam(parameters((3,))), update_every=None).engine
    assert chosen.update_every == chosen.backend.update_every
