"""What the tests of the command line share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from smelt.cli._main import commands
from tests.support.small_models import inception_model, save_model

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output, which must be JSON and nothing else."""
        answer: dict[str, Any] = json.loads(self.out)
        return answer


class Smelt:
    """The command line, in this process."""

    def __call__(self, *arguments: object) -> Answer:
        result = CliRunner().invoke(commands, [str(a) for a in arguments], prog_name="smelt")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(scope="session")
def smelt() -> Smelt:
    return Smelt()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file: image float32[1, 3, 16, 16] -> prob float32[1, 10]."""
    return save_model(inception_model(), tmp_path_factory.mktemp("model") / "inception.onnx")


@pytest.fixture(scope="session")
def open_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for a batch of any size."""
    return save_model(inception_model("n"), tmp_path_factory.mktemp("model") / "open.onnx")


@pytest.fixture(scope="session")
def engine(model: Path, smelt: Smelt, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine of the model."""
    path = tmp_path_factory.mktemp("engine") / "inception.engine"
    answer = smelt("build", model, "-o", path, "--tune", "none")
    assert answer.code == 0, answer.err
    return path


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture of 48 x 32 pixels, each different, in a format that loses nothing."""
    rows, columns = np.mgrid[0:32, 0:48]
    pixels = np.stack([rows * 8, columns * 5, (rows + columns) * 3], 2).astype(np.uint8)
    path = tmp_path_factory.mktemp("picture") / "picture.png"
    Image.fromarray(pixels).save(path)
    return path
