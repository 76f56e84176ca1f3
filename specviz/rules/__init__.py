"""The decision rules of the methods, each written once in NumPy and plain Python, without torch.

A method (`specviz.methods`) uses these functions while it decodes; a what-if (`specviz.whatifs`) uses them to
replay a record without a model. A function annotated with `Array` or `Number` also takes tensors: it uses
only operations that arrays and tensors share.

A module also holds a method's parameters if what-ifs vary them, so that each default is declared once.
"""
