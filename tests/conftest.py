"""What every test has: the reference models, a home of its own, reproducible properties."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from smelt.backends.cuda import CompilerPool
from smelt.devices.cuda import CudaDevice, cuda_device
from smelt.errors import DeviceError, MissingExtraError
from smelt.types import Limit
from tests import requirements_plugin

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).resolve().parent.parent

hypothesis.settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=50,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "explore", database=None, deadline=None, max_examples=2000, print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--test-report", metavar="FILE", help="write outcomes by requirement to FILE")
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the files of tests/golden"
    )
    parser.addoption(
        "--every-trial",
        action="store_true",
        help="try every tactic on every case, also where a choice of them meets every pair",
    )


def pytest_configure(config: pytest.Config) -> None:
    requirements_plugin.install(config)
    # Processes that share the tests, and those that these start, keep every processor busy: threads
    # of numpy's would spin. This one may have numpy already.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A background job of a shell ignores ctrl-C, and would teach that to programs under test.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tag the tests, and run the quick ones first: they say soonest what broke."""
    requirements_plugin.tag(items)
    for item in items:
        if "gpu" in getattr(item, "fixturenames", ()):
            item.add_marker("gpu")
    items.sort(key=_cost)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what collection makes from the garbage collector: it stays, and it is much.

    Tests that look for leaks collect garbage, half a second each time with all of it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def _cost(item: pytest.Item) -> int:
    if item.get_closest_marker("slow"):
        return 2
    needs_models = item.get_closest_marker("shared") or "shared" in getattr(
        item, "fixturenames", ()
    )
    return 1 if needs_models else 0


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference models and data; the test is skipped where there is none."""
    named = os.environ.get("SMELT_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    if not (folder / "models").is_dir():
        pytest.skip(f"no reference models at {folder}; set SMELT_SHARED to their folder")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Give the session a home, so that no test sees or changes the user's keys and caches.

    Processes that share the tests share it: what one has compiled, no other compiles again.
    """
    folder = tmp_path_factory.getbasetemp()
    home = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        for variable in [name for name in os.environ if name.startswith("SMELT_")]:
            if variable != "SMELT_SHARED":
                patch.delenv(variable)
        patch.delenv("OMP_NUM_THREADS", raising=False)
        for variable in ("HOME", "USERPROFILE"):
            patch.setenv(variable, str(home))
        yield home


@pytest.fixture(scope="module", autouse=True)
def _same_limits() -> Generator[None]:
    """Fail where a module's tests leave a limit changed, by which later tests would fail."""
    before = {limit: limit.most for limit in Limit}
    yield
    assert {limit: limit.most for limit in Limit} == before


@pytest.fixture(scope="session")
def every_trial(request: pytest.FixtureRequest) -> bool:
    """Whether conformance is to be proven without choice."""
    return bool(request.config.getoption("--every-trial"))


@pytest.fixture(scope="module")
def compilers() -> Generator[CompilerPool]:
    """Compilers for GPUs that a module's tests share: each takes seconds to start."""
    pool = CompilerPool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def gpu() -> CudaDevice:
    """The first NVIDIA GPU; the test is skipped where there is none.

    Of several test processes each keeps to its share of the processors: a build starts as many
    compilers as there are.
    """
    try:
        device = cuda_device(0)
    except (MissingExtraError, DeviceError) as error:
        pytest.skip(f"no NVIDIA GPU: {error}")
    if (count := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))) > 1:
        number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        every = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, every[number::count] or every)
    return device


@pytest.fixture(scope="session")
def gpus(gpu: CudaDevice) -> tuple[CudaDevice, CudaDevice]:
    """Two NVIDIA GPUs; the test is skipped where there are fewer."""
    try:
        return gpu, cuda_device(1)
    except DeviceError as error:
        pytest.skip(f"one NVIDIA GPU alone: {error}")
