"""Verdicts on a run's values, beside those of the full verifier: the two always agree.

What a context checks of a plan with open symbols is what intervals could not prove, a few numpy
calls at each stage. The full verifier evaluates every view, and knows nothing of stages: it gets
the steps that run before the next symbol is determined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smelt.engine import CachedRuntimeChecks, RuntimeChecks, verify_plan_at
from smelt.engine._runtime_checks import START
from smelt.errors import EngineFormatError, InternalError
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.engine import EngineHeader, Plan
    from smelt.runtime import ExecutionContext


class DifferingVerdictsError(AssertionError):
    """A run's conditions and the full verifier say different things of the same values."""


class ComparedVerdicts(CachedRuntimeChecks):
    """A context's verdicts on one plan; each set of values is verified once."""

    def __init__(self, header: EngineHeader, plan: Plan, conditions: RuntimeChecks) -> None:
        """Take a plan of the engine, and its conditions."""
        super().__init__(conditions)
        self._header, self._plan = header, plan
        self._ends = sorted({*plan.data_dependent_symbols.values(), len(plan.steps)})
        self.met: set[tuple[object, ...]] = set()
        """Stages and values that were compared."""

    @override
    def check(self, values: Mapping[str, int], stage: int = START) -> None:
        """Check as a context does.

        Raises:
            DifferingVerdictsError: the verifier says otherwise.
        """
        key = (stage, *sorted(values.items()))
        is_new = key not in self.met
        self.met.add(key)
        try:
            super().check(values, stage)
        except EngineFormatError as error:
            if is_new and self._refusal(values, len(self._plan.steps)) is None:
                raise _differing(stage, values, str(error), "nothing") from error
            raise
        except InternalError as error:
            raise _differing(stage, values, str(error), "nothing") from error
        end = next(end for end in self._ends if end > stage)
        if is_new and (refusal := self._refusal(values, end)) is not None:
            raise _differing(stage, values, "nothing", str(refusal)) from refusal

    def _refusal(self, values: Mapping[str, int], end: int) -> EngineFormatError | None:
        """What the full verifier has against the first steps of the plan."""
        try:
            verify_plan_at(self._header, self._plan, values, num_steps=end)
        except EngineFormatError as error:
            return error
        return None


def compare_verdicts(context: ExecutionContext) -> list[ComparedVerdicts]:
    """Let the full verifier judge from now on whatever a context judges; return who compares."""
    executor: Any = vars(context)["_executor"]
    header = context.engine.header
    executor.runtime_checks = [
        None if kept is None else ComparedVerdicts(header, plan, kept._conditions)
        for plan, kept in zip(header.plans, executor.runtime_checks, strict=True)
    ]
    return [verdicts for verdicts in executor.runtime_checks if verdicts is not None]


def _differing(
    stage: int, values: Mapping[str, int], conditions: str, verifier: str
) -> DifferingVerdictsError:
    at = "at the start" if stage == START else f"behind step {stage}"
    where = ", ".join(f"{name} = {value}" for name, value in values.items())
    return DifferingVerdictsError(
        f"{at}, for {where}: the run's conditions refuse {conditions}, the verifier {verifier}"
    )
