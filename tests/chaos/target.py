"""The target's role with its states laid out; it also holds back steps that the driver does not want yet."""

from __future__ import annotations

import time
from typing import Any

from dfl_mp.messages import Compute, FeaturesReady
from dfl_mp.model import target as model
from dfl_mp.roles import target as role
from dfl_mp.roles.common import leave
from tests.chaos import workers
from tests.chaos.mines import Mines

mines = Mines.of_this_process()
GATE_POLL_S = 0.01


def _next(self: role.TargetRole) -> Compute | None:
    order = _real_next(self)
    per_step = self.job.config.train.packs_per_step
    with self.control.tally.doing("idle"):
        while order is not None and order.pack // per_step >= mines.gate():
            if self.machine.stopped:
                return None
            time.sleep(GATE_POLL_S)
    if order is not None:
        mines.pass_by("leased")
    return order


def _load(*arguments: Any, **named: Any) -> Any:
    """The target's features, with a state in the middle of each pack."""
    made = _real_load(*arguments, **named)
    features = made.features

    def features_(*args: Any, out: Any, **kwargs: Any) -> Any:
        if out is not None:
            out[..., : out.shape[-1] // 2].fill_(float("nan"))
        mines.pass_by("mid_forward")
        return features(*args, out=out, **kwargs)

    made.features = features_
    return made


_real_next, _real_load = role.TargetRole._next, model.load_feature_target
role.TargetRole._next = _next  # type: ignore[method-assign]
role.load_feature_target = _load  # type: ignore[assignment]
workers.lay(mines, {FeaturesReady: "features_said"})

if __name__ == "__main__":
    leave(role.main())
