"""What becomes of a sweep (``kvpool -m``): a row a point at once, a report in the end.

Every job writes its point into its own folder, in whatever process it runs, failed or not; the
callback makes ``summary.csv`` of the points' files after each; when all have run, the report is
made of the same files. ``job=report`` makes it again at any time.
"""
