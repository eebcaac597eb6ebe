"""One test, or a small group, for each threat of the design (T1 to T24), named by its row in the docstring.

A *live run* (`kit.pulse`) beats beside most attacks: it is the witness that nobody else was harmed.
"""
