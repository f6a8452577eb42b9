"""Build and run mutated models: no signal, no hang, no foreign exception, no wrong byte.

usage: python -m tests.fuzz.builds --count 200000 --seed 1
       python -m tests.fuzz.builds --replay build/fuzz/builds/FINDING.onnx
"""

from __future__ import annotations

import random
import sys
from typing import Final

from tests.fuzz.build_trial import try_model
from tests.fuzz.campaign import Campaign, main
from tests.fuzz.model_mutators import mutate_model
from tests.fuzz.model_seeds import seed_models

_CHANGES: Final = (0, 1, 1, 2, 2, 3, 4, 6)


def input_of(seed: int, number: int) -> tuple[bytes, str]:
    """One input, a model and the recipe of what is done with it; first the networks as they are."""
    recipe = f"{seed} {number}"
    chance = random.Random(recipe)  # noqa: S311  (no secret)
    networks, nodes = seed_models()
    if number < len(networks):
        return networks[number], recipe
    base = chance.choice(networks if chance.random() < 0.6 else nodes)
    return mutate_model(base, chance, chance.choice(_CHANGES), nodes), recipe


BUILDS: Final = Campaign("tests.fuzz.builds", input_of, try_model)

if __name__ == "__main__":
    sys.exit(main(BUILDS, __doc__ or ""))
