"""The paper's experiments and our own: `python -m experiments NAME` runs one from a clone.

Reference: Agarwal et al., Estimating Position Bias without Intrusive Interventions, WSDM 2019, section 5.
"""
