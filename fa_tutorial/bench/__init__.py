"""Measured numbers: what is measured (cases), with what (peers, timing, measure), kept (results, sweep), and shown
(tables, plots).

`python -m fa_tutorial bench --help` lists the commands. Measuring needs a GPU; tables and plots read stored results
anywhere.
"""
