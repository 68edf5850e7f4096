"""Model families as data: the fields of a row, and the table of rows."""
