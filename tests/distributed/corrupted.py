"""The command line, on a machine whose rank 1 goes wrong: after each filter step a bit of a particle is flipped."""

import os
from dataclasses import replace

import torch

from particleaugment import ParticleAugment
from particleaugment.cli.main import main
from particleaugment.filter import ParticleSet

step_with = ParticleAugment.step_with


def with_a_flipped_bit(self, *arguments, **options):
    record = step_with(self, *arguments, **options)
    particles = self.state.particles.particles
    particles.view(torch.int64)[0, 0] ^= 1
    self.state = replace(self.state, particles=ParticleSet(particles, self.state.particles.log_weights))
    return record


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        ParticleAugment.step_with = with_a_flipped_bit
    main()
