"""The algorithm: a network trains, and after each epoch a particle filter moves the policy it trains under."""

from __future__ import annotations

from particleaugment.training.session import Session
from particleaugment.util.stop import Stopped

__all__ = ["train"]


def train(session: Session) -> bool:
    """Run a session to its end; False if it was asked to stop and has saved.

    For each epoch e = 1 .. e_max:

    1. train the network one epoch under the current policy: of particles, each sample draws one by weight, and each op
       of it is applied with its probability;
    2. if e ≥ warm-up, e mod i_f = 0 and e < e_max, take a filter step. The paper's adds noise to the particles, trains
       a clone for e_p epochs on D_tp under them, measures on D_vp how the clone's loss fell under each particle
       relative to plain images, reweights, resamples if degenerate, and throws the clone away; others are in
       ``search/``.

    With a fixed policy there is no step 2, and this is plain training.
    """
    config = session.config
    with session.display.live(config.training.epochs, session.position.epoch - 1):
        try:
            while session.position.epoch <= config.training.epochs:
                session.train_epoch()
                session.evaluate()
                session.filter_step()
                session.finish_epoch()
        except Stopped:
            session.save()
            session.write_policy()
            return False
        finally:
            session.close()
    session.finish()
    return True
