"""The documentation as a searchable site: the pages of docs/, the notebooks, and a reference made of docstrings.

`python -m website` writes the pages as the site needs them to build/pages and lets Zensical make build/site of them.
"""
