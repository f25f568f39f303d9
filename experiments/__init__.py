"""Experiments: reproduce the figures of the paper, and test the claims that posbias makes about itself.

Run one from a clone of the repository with `python -m experiments NAME`. `experiments.registry` lists all names.

Reference: Agarwal et al., Estimating Position Bias without Intrusive Interventions, WSDM 2019, section 5.
"""
