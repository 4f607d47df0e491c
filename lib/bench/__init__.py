"""How fast is it, beside what you would use otherwise? ``python -m lib.bench``.

Seconds say little on somebody else's machine, so everything here is a ratio: two contestants take turns on the same
machine, each in a process of its own, because the thread pools of NumPy's BLAS and of torch spin against each other in
one. One turn of each makes a pair, and the median over the pairs is the result, with the smallest and the largest
beside it. What is promised has a bar, and a verdict.

``cases``
    Who meets whom, in which groups, and the bars.
``contestants``
    What a process can be asked to run.
``worker``
    That process.
``measuring``
    Turns, pairs, memory.
``arithmetic``
    Ratios, medians, exponents, verdicts: what the tests check.
``report``
    The table, the JSON and the plot.
"""
