"""The particle filter over augmentation policies: pure functions on an immutable :class:`ParticleSet`.

One step of the filter, given the losses measured for each particle:

>>> from particleaugment import filter as pf
>>> s = pf.sparse_init(num_particles=4, num_ops=15, nonzero=3, value=0.25, seed=0)
>>> s = pf.transition(s, sigma=0.05, velocity=0.0, seed=0, step=1)
>>> m = pf.relative_loss_difference(ref=[9.0, 8.0, 7.0, 9.0], upd=[5.0, 7.0, 6.0, 9.0], ref_clean=5.0, upd_clean=3.0)
>>> if m.skip_reason is None:
...     s, info = pf.reweight(s, m.delta, eta=1.0)
>>> round(pf.effective_sample_size(s), 3)
2.53
>>> s, info = pf.resample(s, alpha=0.8, scheme="systematic", seed=0, step=1)
>>> info.resampled, pf.effective_sample_size(s)
(True, 4.0)
"""

from particleaugment.filter.resample import ResampleInfo, ancestors, resample
from particleaugment.filter.state import ParticleSet, effective_sample_size, sparse_init
from particleaugment.filter.transition import transition
from particleaugment.filter.weights import LossDifference, ReweightInfo, relative_loss_difference, reweight

__all__ = [
    "LossDifference",
    "ParticleSet",
    "ResampleInfo",
    "ReweightInfo",
    "ancestors",
    "effective_sample_size",
    "relative_loss_difference",
    "resample",
    "reweight",
    "sparse_init",
    "transition",
]
