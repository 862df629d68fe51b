"""Tables as people have them: read from files, turned into numbers, learned from.

The way of a table, each line above what it uses:

- ``judging``, ``hold_out``: a fit with scores on rows that it did not see, and which rows these are;
- ``model``, over ``predictions``, over ``parameters``: `TableRegressor`, what it predicts, how good that is and the
  report on it, and which rows and targets its parameters make of a table;
- ``scored_rows``: predictive distributions in the target's units, and their scores;
- ``learning``, ``training_rows``: the fit and its file, and the rows that it learns from;
- ``encoder``: `TableEncoder`, rows into numbers; ``targets`` is the same for the target and its scale, ``source`` for
  rows of files without a model;
- ``summaries``, ``profiles``: one pass over the rows, the encoding of each column that follows from it, and what was
  unusual about later rows;
- ``columns``, ``categories``: columns whose encoding is settled, and their form in files;
- ``rows``, ``reader``, ``common_schema``: a table in memory, or in files, as record batches of Arrow; ``table_files``
  is the interface of its files, with Parquet and others, ``csv_files`` those of text;
- ``arrow_values``, ``text_values``: values of Arrow as numbers, dates among them, and what texts stand for, by column;
  ``sketches``: what a pass keeps of a column.
"""
