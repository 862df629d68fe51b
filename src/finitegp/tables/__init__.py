"""Tables as people have them: read from files, turned into numbers, learned from.

The way of a table, each line above what it uses:

- ``judging``, ``hold_out``: a fit with scores on rows that it did not see, and which rows these are;
- ``model``, over ``predictions``, over ``parameters``: `TableRegressor`, what it predicts, how good that is and the
  report on it, and which rows and targets its parameters make of a table; ``model_files`` stores it;
- ``scored_rows``: predictive distributions in the target's units, and their scores;
- ``learning``, ``training_rows``: the fit, and the rows that it learns from;
- ``encoder``, ``summaries``: `TableEncoder`, rows into numbers, and what was unusual about them; ``targets`` is the
  same for the target and its scale, ``source`` for rows of files without a model;
- ``settling``, ``profiles``: one pass over the rows, and the encoding of each column that follows from it;
- ``columns``, ``categories``: columns whose encoding is settled, and their form in files;
- ``rows``, ``reader``, ``common_schema``: a table in memory, or in files, as record batches of Arrow; ``table_files``
  is the interface of its files, with Parquet and others, ``csv_files`` those of text;
- ``arrow_values``, ``text_values``: values of Arrow as numbers, dates among them, and what texts stand for, by column;
  ``sketches``: what a pass keeps of a column.
"""
