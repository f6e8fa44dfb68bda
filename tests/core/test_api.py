"""What the package exports, and what importing it costs."""

import ast
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import sp4_lightning


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def test_all_is_exactly_what_is_exported():
    public = {
        name
        for name, value in vars(sp4_lightning).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    } - {"TYPE_CHECKING", "Any", "annotations"}
    assert public | {"SP4Callback", "FaultInjector", "FaultEvent"} == set(sp4_lightning.__all__)


def test_all_is_sorted_and_without_doubles():
    names = sp4_lightning.__all__
    assert len(names) == len(set(names))
    constants = [name for name in names if name.isupper()]
    assert names == sorted(constants) + sorted(n for n in names if n[0].isupper() and not n.isupper()) + sorted(
        n for n in names if n[0].islower()
    )


@pytest.mark.parametrize("name", sp4_lightning.__all__)
def test_every_name_is_there_and_documented(name):
    value = getattr(sp4_lightning, name)
    if isinstance(value, type | FunctionType):
        assert value.__doc__


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'SP4Calback'"):
        sp4_lightning.SP4Calback  # noqa: B018


def test_importing_the_core_imports_neither_lightning_nor_rich():
    # Wrapping an optimizer and taking a step must not either.
    code = (
        "import sys, torch, sp4_lightning as s\n"
        "p = torch.nn.Parameter(torch.ones(3)); p.grad = torch.ones(3)\n"
        "s.ClippingOptimizer(torch.optim.SGD([p], 0.1)).step()\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & "
        "{'lightning', 'pytorch_lightning', 'lightning_fabric', 'torchmetrics', 'rich', 'gymnasium', 'cupy'}))"
    )
    assert run(code) == "[]"


def test_the_callbacks_are_there_on_first_use():
    from lightning.pytorch import Callback

    assert issubclass(sp4_lightning.SP4Callback, Callback)
    assert issubclass(sp4_lightning.FaultInjector, Callback)


def test_the_core_has_no_import_of_lightning_outside_the_modules_for_it():
    package = Path(sp4_lightning.__file__).parent
    outside = {"callback.py", "cli", "agents", "faults"}
    for path in package.rglob("*.py"):
        if outside & set(path.relative_to(package).parts) or path.name.startswith("lightning_"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(module.split(".")[0] == "lightning" for module in modules), path


def test_errors_are_one_tree():
    errors = [getattr(sp4_lightning, name) for name in sp4_lightning.__all__ if name.endswith("Error")]
    assert len(errors) == 6
    assert all(issubclass(error, sp4_lightning.SP4Error) for error in errors)
