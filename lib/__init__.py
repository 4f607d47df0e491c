"""The implementation that every chapter and lab imports.

``reference``
    NumPy: what the equation says.
``fast``
    torch: what you would run, on CPU and GPU.
``masks``
    Who may see whom: functions of positions, for NumPy and torch alike.
``figures``
    The book's pictures: weights, masks and the flow of shapes.

Nothing is imported until it is asked for, so that ``from lib import reference`` never loads torch.
"""
