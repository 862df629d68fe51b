"""What an encoder says about a column, and what it makes of it, for the tests of columns."""


def kinds(encoder):
    return {line.column: (line.kind, line.encoding) for line in encoder.summary()}


def note(encoder, column):
    return next(line.note for line in encoder.summary() if line.column == column)


def output(encoder, table, name):
    return encoder.transform(table)[:, encoder.feature_names_out.index(name)]
