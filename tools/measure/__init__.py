"""Measures what the chapters show of a GPU, into a file of results: `PYTHONPATH=tools python -m measure --help`.

A module for each chapter yields its measurements: what a row is about, and the call that measures it.
"""
