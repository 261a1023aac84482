"""The choice of a core, and the reason that is given for it."""

import hashlib
import importlib
import mmap
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import ranks_of_a_host as harness

from ftcomm import core
from ftcomm.core import known_answers
from ftcomm.core.segment import segment_bytes
from ftcomm.errors import ConfigError

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def asked_again(monkeypatch):
    """Forget what is known of the compiled core, before and after."""
    monkeypatch.delenv("FTCOMM_CORE", raising=False)
    core._why_not_compiled.cache_clear()
    yield
    core._why_not_compiled.cache_clear()


def without_binary(monkeypatch):
    monkeypatch.setattr(core, "_compiled", lambda: importlib.import_module("ftcomm.core._none"))


def kind_of(opened):
    return type(opened).__name__


def opened():
    return core.open_core(mmap.mmap(-1, segment_bytes(2)), 2, 0)


def test_the_compiled_core_is_used_where_it_was_built():
    harness.require_compiled()
    assert core.which() == ("compiled", "its results are numpy's")
    assert kind_of(opened()) == "CompiledCore"


@harness.needs_a_core
def test_without_a_binary_the_core_is_in_python(monkeypatch):
    without_binary(monkeypatch)
    assert core.which() == ("python", "no C compiler built the core")
    assert kind_of(opened()) == "PythonCore"


@harness.needs_a_core
def test_a_binary_that_cannot_be_loaded_is_not_used(monkeypatch):
    def fail():
        raise ImportError("undefined symbol: f")

    monkeypatch.setattr(core, "_compiled", fail)
    assert core.which() == ("python", "the compiled core cannot be loaded: undefined symbol: f")


@harness.needs_a_core
def test_python_may_be_asked_for(monkeypatch):
    monkeypatch.setenv("FTCOMM_CORE", "python")
    assert core.which() == ("python", "FTCOMM_CORE=python")
    assert kind_of(opened()) == "PythonCore"


def test_compiled_may_be_asked_for(monkeypatch):
    harness.require_compiled()
    monkeypatch.setenv("FTCOMM_CORE", "compiled")
    assert core.which()[0] == "compiled"


def test_compiled_without_a_binary_is_refused_with_a_remedy(monkeypatch):
    without_binary(monkeypatch)
    monkeypatch.setenv("FTCOMM_CORE", "compiled")
    with pytest.raises(ConfigError, match="no C compiler built the core") as caught:
        core.which()
    assert "unset FTCOMM_CORE" in caught.value.remedy


def test_another_word_is_refused(monkeypatch):
    monkeypatch.setenv("FTCOMM_CORE", "fast")
    with pytest.raises(ConfigError, match="FTCOMM_CORE is 'fast', must be auto or"):
        core.which()


def test_a_machine_that_reorders_stores_has_no_core_in_python(monkeypatch):
    without_binary(monkeypatch)
    monkeypatch.setattr(core, "why_no_shared_memory", lambda: "processors of type x may reorder")
    assert core.which() == ("none", "processors of type x may reorder")
    with pytest.raises(ConfigError, match="may reorder"):
        opened()


# --- known answers ------------------------------------------------------------------------------


@harness.needs_a_core
@pytest.mark.parametrize("kind", ["compiled", "python"])
def test_both_cores_give_the_known_answers(kind):
    assert known_answers.first_difference(harness.maker_of(kind, 0)) == ""


@harness.needs_a_core
def test_a_core_that_prefers_the_other_nan_is_not_used(monkeypatch, caplog):
    python = harness.maker_of("python", 0)
    form = importlib.import_module("ftcomm.core.python_core").PythonForm

    class Swapped(form):
        def _fold(self):
            parts = [self._core.payload(r, self._nbytes).view(self._dtype) for r in range(3)]
            return known_answers._left_fold(self._ufunc, parts[::-1]).view(np.uint8)

    class Module:
        def CompiledCore(self, *arguments):  # noqa: N802 - as the module calls it
            made = python(*arguments)
            made.form = lambda *given: Swapped(made, *given)
            return made

    monkeypatch.setattr(core, "_compiled", Module)
    why = "add of 1 float32 gave other bits than numpy"
    assert [core.which(), core.which()] == [("python", why)] * 2
    assert [record.getMessage() for record in caplog.records] == [
        f"the compiled core is not used: {why}"
    ]


def test_the_binary_was_built_from_this_source():
    source = b"".join(path.read_bytes() for path in sorted(ROOT.glob("ftcomm/core/*.[ch]")))
    assert hashlib.sha256(source).hexdigest() == harness.require_compiled().SOURCE, (
        "python hatch_build.py builds it anew"
    )


def test_the_compiler_has_nothing_to_say():
    cc = os.environ.get("CC") or "cc"
    if harness.compiled() is None or shutil.which(cc) is None:
        pytest.skip("no C compiler built the core")
    flags = ["-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-missing-field-initializers"]
    include = f"-I{sysconfig.get_path('include')}"
    sources = [str(path) for path in ROOT.glob("ftcomm/core/*.c")]
    done = subprocess.run(
        [cc, *flags, include, *sources], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
