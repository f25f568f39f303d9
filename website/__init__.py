"""The documentation as a searchable website: the pages of docs/, the notebooks, and a reference from docstrings.

`python -m website` writes the pages to build/pages, and Zensical builds the website from them in build/site.
"""
